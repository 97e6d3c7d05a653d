"""Deep Q-networks: double, dueling, with any number of steps."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.dqn_settings import DqnSettings
from tmrl_core.training.agents.losses import (
    chosen_value,
    double_value,
    huber_loss,
    largest_value,
    td_error,
    td_target,
)
from tmrl_core.training.agents.networks import QNetwork
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.optimizers import make_optimizer, minimise
from tmrl_core.training.agents.target_networks import make_target
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Policy


@takes(DqnSettings, QNetwork)
class DQNAgent(OffPolicyAgent):
    """Deep Q-network: learn the value of each action and act greedily, with epsilon-greedy exploration.

    The memory sets the number of steps of a target: each batch holds its discount, gamma^n.

    Args:
        observation_space: of the environment.
        action_space: Discrete.
        device: device of the networks; None: cuda if available.
        model_cls: makes the network, see `QNetwork`.

    Raises:
        ConfigError: the optimizer's name is unknown, a share or interval is out of range, or a space is unsupported.

    Source: Mnih et al., Nature 518 (2015); van Hasselt et al., arXiv:1509.06461; Wang et al., arXiv:1511.06581.
    """

    type_id = "dqn"
    type_version = 1

    settings: DqnSettings

    def prepare(self) -> None:
        """Make the target network and the optimizer."""
        s = self.settings
        self.updates = 0
        self.target_network = make_target(self.model.actor)
        self.optimizer = make_optimizer(s.optimizer, self.model.actor.parameters(), s.lr, s.betas, s.l2)

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target network with the online network."""
        return [(self.target_network, self.model.actor)]

    @property
    def epsilon(self) -> float:
        """Share of random actions after the updates done so far."""
        s = self.settings
        progress = min(1.0, self.updates / s.epsilon_updates)
        return s.epsilon_initial + progress * (s.epsilon_final - s.epsilon_initial)

    def get_actor(self) -> Policy:
        """Return the network that is trained, with the current epsilon for exploration."""
        # Of the trainer and not of each worker: epsilon falls with updates, however many workers explore.
        self.model.actor.set_exploration({"epsilon": self.epsilon})
        return self.model.actor

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the target network too."""
        return (self.updates + 1) % self.settings.target_interval == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the network, and the target network every `target_interval` updates."""
        t = transitions
        self.updates += 1
        online = self.model.actor
        with torch.no_grad():
            next_q_BN, allowed_BN = self.target_network(t.next_obs), self.allowed(t.next_obs)
            if self.settings.double:
                next_value_B = double_value(online(t.next_obs), next_q_BN, allowed_BN)
            else:
                next_value_B = largest_value(next_q_BN, allowed_BN)
            target_B = td_target(t.reward_B, t.terminated_B, next_value_B, t.discount)
        q_B = chosen_value(online(t.obs), online.index(t.action))
        loss = huber_loss(q_B, target_B, t.weight_B)
        metrics = minimise(self.optimizer, loss, self.settings.max_grad_norm)
        if t.weight_B is not None:
            self.td_error_B = td_error(q_B, target_B)
        if self.updates % self.settings.target_interval == 0:
            self._update_targets()
        return {"loss_critic": loss.detach(), "q_mean": q_B.detach().mean(), **metrics}
