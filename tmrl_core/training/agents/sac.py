"""Soft actor-critic."""

# Theory of operation
#
# This file knows one update of SAC and the parts that agents derived from it replace. It knows neither how an update
# runs (compiled, rolled back, several at once: off_policy.py) nor what its losses compute (losses.py). REDQ, TQC,
# CrossQ and the recurrent agent replace `_pessimistic`, `_value`, `_update_critics` or `_make_targets`.
#
# State: the model (a policy and its critics), the target critics, log_alpha, and three optimizers. `update` alone
# changes them. Everything else about an update is in its batch.
#
# One update, in order:
#
# 1. Actions and log-densities of the policy for s, once; the losses of the policy and of the temperature share them.
# 2. The critics move towards r + discount (min Q'(s', a') - alpha log pi(a'|s')), with a' freshly sampled.
# 3. The policy moves, through the critics of 2.
# 4. The temperature moves, last, so that all losses of an update use one temperature.
# 5. The target critics follow by a Polyak step.
#
# In numbers: a reward of 1, discount 0.99, target critics of 10 and 12, alpha 0.2 and a log-density of -1 make the
# target 1 + 0.99 (10 + 0.2) = 11.1. With `terminated` it is 1, with truncation alone it stays 11.1.
#
# Random numbers are drawn in the order 1, 2, which is part of what a fixed seed promises: steps must not be swapped
# without a new recording. A compiler may draw the two in the other order.
#
# log_alpha instead of alpha is learned: alpha stays positive without a bound, and a step multiplies it.

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import critic_target, imitation_loss, policy_loss, temperature_loss
from tmrl_core.training.agents.networks import MLPActorCritic, critics_of
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.optimizers import actor_critic_optimizers, frozen, make_optimizer, minimise
from tmrl_core.training.agents.sac_settings import SacSettings
from tmrl_core.training.agents.settings import EntropySettings
from tmrl_core.training.agents.target_networks import make_target
from tmrl_core.training.batches import Transitions


class EntropyAgent(OffPolicyAgent):
    """Agent with a policy, critics with their targets, and a learned temperature. A subclass implements `update`."""

    settings: EntropySettings
    target_entropy: float

    def prepare(self) -> None:
        """Make the target critics, the temperature and the optimizers."""
        s = self.settings
        self.critics = critics_of(self.model)
        self._make_targets()
        # A fixed temperature of 0 becomes the smallest number: minus infinity would count as a failed update.
        alpha = max(float(s.alpha), torch.finfo(torch.float32).tiny)
        self.log_alpha = torch.tensor(alpha, device=self.device).log().requires_grad_(s.learn_entropy_coef)
        self.optimizer_actor, self.optimizer_critic = actor_critic_optimizers(s, self.model.actor, self.critics)
        self.optimizer_alpha = make_optimizer("adam", [self.log_alpha], s.lr_entropy) if s.learn_entropy_coef else None

    def _make_targets(self) -> None:
        self.target_critics = make_target(self.critics)

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target critics with the critics."""
        return [(self.target_critics, self.critics)]


@takes(SacSettings, MLPActorCritic)
class SacAgent(EntropyAgent):
    """Soft actor-critic with learned temperature.

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
        given = self.settings.target_entropy
        self.target_entropy = float(-math.prod(self.action_space.shape or ()) if given is None else given)
        super().prepare()

    def update_kind(self) -> Hashable:
        """Return the same kind for every update."""
        return ""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update critics, policy and temperature."""
        action, log_prob_B = self.model.actor(transitions.obs)
        metrics = self._update_critics(transitions)
        metrics |= self._update_policy(transitions, action, log_prob_B)
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

    def _update_policy(self, t: Transitions, action: Tensor, log_prob_B: Tensor) -> dict[str, Tensor]:
        # Gradients go through the critics to the action, not into them.
        with frozen(self.critics.parameters()):
            loss = policy_loss(self._value(self.critics(t.obs, action)), log_prob_B, self.log_alpha.detach().exp())
            imitation = self._imitation(t)
            minimise(self.optimizer_actor, loss if imitation is None else loss + imitation)
        return {"loss_actor": loss.detach(), **({} if imitation is None else {"loss_imitation": imitation.detach()})}

    def _imitation(self, t: Transitions) -> Tensor | None:
        """Return the term that keeps the policy near demonstrations and interventions; None: there is none."""
        coef = self.settings.imitation_coef
        if coef == 0.0 or t.shown_B is None:
            return None
        actor = self.model.actor
        found, _ = actor(t.obs, test=True, compute_logprob=False)
        return coef * imitation_loss(found, t.action, actor.high - actor.low, t.shown_B)

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
