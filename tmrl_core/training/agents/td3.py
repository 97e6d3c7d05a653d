"""Twin delayed deep deterministic policy gradient."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import (
    deterministic_policy_loss,
    smoothed_action,
    td_target,
)
from tmrl_core.training.agents.networks import DeterministicActorCritic, critics_of
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.optimizers import actor_critic_optimizers, frozen, minimise
from tmrl_core.training.agents.target_networks import make_target
from tmrl_core.training.agents.td3_settings import Td3Settings
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Policy, Tree


@takes(Td3Settings, DeterministicActorCritic)
class TD3Agent(OffPolicyAgent):
    """Twin delayed DDPG: a deterministic policy, clipped double Q-learning and delayed policy updates.

    Until the first update, the published policy samples uniformly from the action space (`exploration`).

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics, see `DeterministicActorCritic`.

    Raises:
        ConfigError: an optimizer's name is unknown, the delay is below 1, or a space is unsupported.

    Source: Fujimoto et al., arXiv:1802.09477, algorithm 1.
    """

    type_id = "td3"
    type_version = 1

    settings: Td3Settings

    def prepare(self) -> None:
        """Make the target networks and the optimizers."""
        self.updates = 0
        self.critics = critics_of(self.model)
        self.target_actor = make_target(self.model.actor)
        self.target_critics = make_target(self.critics)
        optimizers = actor_critic_optimizers(self.settings, self.model.actor, self.critics)
        self.optimizer_actor, self.optimizer_critic = optimizers

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target policy and the target critics with their sources."""
        return [(self.target_actor, self.model.actor), (self.target_critics, self.critics)]

    def get_actor(self) -> Policy:
        """Return the policy that is trained; it explores with random actions until the first update."""
        actor = self.model.actor
        actor.set_exploration({"noise": self.settings.exploration_noise, "random": 0.0 if self.updates else 1.0})
        return actor

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the policy too."""
        return (self.updates + 1) % self.settings.policy_delay == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the critics; every `policy_delay` updates, also the policy and the target networks."""
        self.updates += 1
        metrics = self._update_critics(transitions)
        if self.updates % self.settings.policy_delay == 0:
            metrics |= self._update_policy(transitions.obs)
            self._update_targets()
        return metrics

    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        with torch.no_grad():
            action = self.target_actor(t.next_obs)
            next_action = smoothed_action(
                action,
                torch.randn_like(action),
                self.settings.target_noise,
                self.settings.target_noise_clip,
                self.target_actor.low,
                self.target_actor.high,
            )
            next_q_B = self.target_critics(t.next_obs, next_action).amin(dim=0)
            target_B = td_target(t.reward_B, t.terminated_B, next_q_B, t.discount)
        q_KB = self.critics(t.obs, t.action)
        return self._step_critics(self.optimizer_critic, q_KB, target_B, t.weight_B)

    def _update_policy(self, obs: Tree) -> dict[str, Tensor]:
        # Gradients go through the critic to the action, not into it.
        with frozen(self.critics.parameters()):
            loss = deterministic_policy_loss(self.critics(obs, self.model.actor(obs))[0])
            minimise(self.optimizer_actor, loss)
        return {"loss_actor": loss.detach()}
