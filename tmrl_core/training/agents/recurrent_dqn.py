"""Deep Q-networks with a recurrent layer, as R2D2 trains them."""

from __future__ import annotations

import torch
from torch import Tensor

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.agents.losses import (
    chosen_value,
    double_value,
    huber_loss,
    largest_value,
    td_error,
)
from tmrl_core.training.agents.optimizers import minimise
from tmrl_core.training.agents.recurrent import (
    n_tick_target,
    rescaled,
    sequence_priority,
    sequences_of,
    state_of,
    unrescaled,
    unrolled,
)
from tmrl_core.training.agents.recurrent_dqn_settings import RecurrentDqnSettings
from tmrl_core.training.agents.recurrent_networks import RecurrentQNetwork
from tmrl_core.training.batches import Transitions


@takes(RecurrentDqnSettings, RecurrentQNetwork)
class RecurrentDQNAgent(DQNAgent):
    """Deep Q-network with a recurrent layer, on sequences from their stored states.

    Args:
        observation_space: of the environment.
        action_space: Discrete.
        device: device of the networks; None: cuda if available.
        model_cls: makes the network, see `RecurrentQNetwork`.

    Raises:
        ConfigError: the optimizer's name is unknown, a share or interval is out of range, a space is unsupported, or
            the updates shall be compiled.

    Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.
    """

    type_id = "recurrent_dqn"
    type_version = 1

    model: RecurrentQNetwork
    settings: RecurrentDqnSettings

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the network, and the target network every `target_interval` updates."""
        s = sequences_of(transitions, self.settings.burn_in)
        self.updates += 1
        online = self.model.actor
        state = state_of(online, s)
        q_BTN = unrolled(online.unroll, s, state)["q"]
        with torch.no_grad():
            next_q = unrolled(self.target_network.unroll, s, state)["q"][:, 1:].flatten(0, 1)
            allowed_BTN = self.allowed(s.obs)
            allowed = None if allowed_BTN is None else allowed_BTN[:, 1:].flatten(0, 1)
            if self.settings.double:
                next_value = double_value(q_BTN[:, 1:].flatten(0, 1), next_q, allowed)
            else:
                next_value = largest_value(next_q, allowed)
            if self.settings.rescale_values:
                next_value = unrescaled(next_value)
            target = n_tick_target(s, next_value.view_as(s.reward_BT), self.settings.n_step).flatten()
            if self.settings.rescale_values:
                target = rescaled(target)
        q = chosen_value(q_BTN[:, :-1].flatten(0, 1), online.index(s.action))
        loss = huber_loss(q, target, s.weight_N)
        metrics = minimise(self.optimizer, loss, self.settings.max_grad_norm)
        if transitions.weight_B is not None:
            self.td_error_B = sequence_priority(td_error(q, target).view_as(s.learns_BT), s.learns_BT)
        if self.updates % self.settings.target_interval == 0:
            self._update_targets()
        return {"loss_critic": loss.detach(), "q_mean": q.detach().mean(), **metrics}
