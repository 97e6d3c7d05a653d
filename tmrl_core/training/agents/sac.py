"""Soft actor-critic."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import critic_target, policy_loss, temperature_loss
from tmrl_core.training.agents.networks import MLPActorCritic, critics_of
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.optimizers import frozen, make_optimizer, minimise
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.target_networks import make_target
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Policy, Tree


@takes(SacSettings, MLPActorCritic)
class SacAgent(OffPolicyAgent):
    """Soft actor-critic with learned temperature.

    Until the first update, the published policy samples actions uniformly if it can (its `exploration` has a `random`),
    since its initial weights hold no information.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics, see `MLPActorCritic`.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: Haarnoja et al., arXiv:1812.05905.
    """

    type_id = "sac"
    type_version = 1

    settings: SacSettings

    def prepare(self) -> None:
        """Make the target critics, the temperature and the optimizers."""
        s = self.settings
        elements = math.prod(self.action_space.shape or ())
        self.target_entropy = float(-elements if s.target_entropy is None else s.target_entropy)
        self.critics = critics_of(self.model)
        self._make_targets()
        self.log_alpha = torch.tensor(float(s.alpha), device=self.device).log().requires_grad_(s.learn_entropy_coef)
        self.optimizer_actor = make_optimizer(
            s.optimizer_actor, self.model.actor.parameters(), s.lr_actor, s.betas_actor, s.l2_actor
        )
        self.optimizer_critic = make_optimizer(
            s.optimizer_critic, self.critics.parameters(), s.lr_critic, s.betas_critic, s.l2_critic
        )
        self.optimizer_alpha = make_optimizer("adam", [self.log_alpha], s.lr_entropy) if s.learn_entropy_coef else None

    def _make_targets(self) -> None:
        self.target_critics = make_target(self.critics)

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target critics with the critics."""
        return [(self.target_critics, self.critics)]

    def get_actor(self) -> Policy:
        """Return the policy that is trained; it explores with random actions until the first update."""
        actor = self.acting_policy()
        if "random" in actor.exploration():
            actor.set_exploration({"random": 0.0 if self.updates_asked else 1.0})
        return actor

    def acting_policy(self) -> Policy:
        """Return the policy in the form in which it is published."""
        return self.model.actor

    def update_kind(self) -> Hashable:
        """Return the same kind for every update."""
        return ""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update critics, policy and temperature."""
        action, log_prob_B = self.model.actor(transitions.obs)
        metrics = self._update_critics(transitions)
        metrics |= self._update_policy(transitions.obs, action, log_prob_B)
        # Last, as in the paper's algorithm 1: all losses of an update use one temperature.
        metrics |= self._update_temperature(log_prob_B)
        self._update_targets()
        return metrics

    def _update_temperature(self, log_prob_B: Tensor, weight_B: Tensor | None = None) -> dict[str, Tensor]:
        if self.optimizer_alpha is None:
            return {"entropy_coef": self.log_alpha.exp()}
        loss = temperature_loss(self.log_alpha, log_prob_B, self.target_entropy, weight_B)
        minimise(self.optimizer_alpha, loss)
        return {"loss_entropy": loss.detach(), "entropy_coef": self.log_alpha.detach().exp()}

    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob_B = self.model.actor(t.next_obs)
            next_q_B = self._pessimistic(self.target_critics(t.next_obs, next_action))
            target_B = critic_target(
                self._scaled(t.reward_B), t.terminated_B, next_q_B, next_log_prob_B, self.log_alpha.exp(), t.discount
            )
        q_KB = self.critics(t.obs, t.action)
        return self._step_critics(self.optimizer_critic, q_KB, target_B, t.weight_B)

    def _update_policy(self, obs: Tree, action: Tensor, log_prob_B: Tensor) -> dict[str, Tensor]:
        # Gradients go through the critics to the action, not into them.
        with frozen(self.critics.parameters()):
            loss = policy_loss(self._value(self.critics(obs, action)), log_prob_B, self.log_alpha.detach().exp())
            minimise(self.optimizer_actor, loss)
        return {"loss_actor": loss.detach()}

    def _scaled(self, reward: Tensor) -> Tensor:
        return reward if self.settings.reward_scale == 1.0 else reward * self.settings.reward_scale

    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        """Return [B] the value for targets: the minimum of the critics, against overestimation."""
        return q_KB.amin(dim=0)

    def _value(self, q_KB: Tensor) -> Tensor:
        """Return [B] the value that the policy maximizes."""
        return q_KB.amin(dim=0)


SpinupSacAgent = SacAgent
"""Alias of `SacAgent` for existing scripts."""
