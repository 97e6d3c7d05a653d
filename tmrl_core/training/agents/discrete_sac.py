"""Soft actor-critic for a few discrete actions."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from tmrl_core.actor.policies.spaces import discrete_actions
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.discrete_sac_settings import DiscreteSacSettings
from tmrl_core.training.agents.losses import (
    discrete_policy_loss,
    soft_value,
    td_target,
    temperature_loss,
)
from tmrl_core.training.agents.networks import CategoricalActorCritic
from tmrl_core.training.agents.optimizers import minimise
from tmrl_core.training.agents.sac import EntropyAgent
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Tree


@takes(DiscreteSacSettings, CategoricalActorCritic)
class DiscreteSacAgent(EntropyAgent):
    """Soft actor-critic for discrete actions, with expectations over actions as exact sums.

    Args:
        observation_space: of the environment.
        action_space: Discrete.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics, see `CategoricalActorCritic`.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: Christodoulou, arXiv:1910.07207 (whose target entropy is 0.98 log N).
    """

    type_id = "discrete_sac"
    type_version = 1

    transient: ClassVar[frozenset[str]] = frozenset({"target_entropy"})
    settings: DiscreteSacSettings

    def prepare(self) -> None:
        """Make the target critics, the temperature and the optimizers."""
        actions = discrete_actions("DiscreteSacAgent", self.action_space)
        self.target_entropy = self.settings.target_entropy_share * math.log(actions.count)
        self.first_action = actions.start
        super().prepare()

    def _log_probs(self, obs: Tree) -> Tensor:
        log_prob_BN: Tensor = self.model.actor.log_probs(flatten_batch(self.model.actor.layout, obs))
        return log_prob_BN

    def update_kind(self) -> Hashable:
        """Return the same kind for every update."""
        return ""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update critics, policy and temperature."""
        metrics = self._update_critics(transitions)
        log_prob_BN = self._log_probs(transitions.obs)
        metrics |= self._update_policy(transitions.obs, log_prob_BN)
        metrics |= self._update_temperature(log_prob_BN.detach(), self._target_entropy(transitions.obs))
        self._update_targets()
        return metrics

    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_q_BN = self.target_critics(t.next_obs).amin(dim=0)
            next_value_B = soft_value(next_q_BN, self._log_probs(t.next_obs), alpha, self.allowed(t.next_obs))
            target_B = td_target(t.reward_B, t.terminated_B, next_value_B, t.discount)
        index_B = t.action.reshape(-1).to(torch.int64) - self.first_action
        q_KBN = self.critics(t.obs)
        index_KB1 = index_B.expand(q_KBN.shape[0], -1).unsqueeze(-1)
        q_KB = q_KBN.gather(-1, index_KB1).squeeze(-1)
        return self._step_critics(self.optimizer_critic, q_KB, target_B, t.weight_B)

    def _update_policy(self, obs: Tree, log_prob_BN: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            q_BN = self.critics(obs).amin(dim=0)
        loss = discrete_policy_loss(q_BN, log_prob_BN, self.log_alpha.detach().exp())
        minimise(self.optimizer_actor, loss)
        return {"loss_actor": loss.detach()}

    def _target_entropy(self, obs: Tree) -> float | Tensor:
        """Return the target, of [B] each state's allowed actions if there is an action mask."""
        allowed_BN = self.allowed(obs)
        if allowed_BN is None:
            return self.target_entropy
        return self.settings.target_entropy_share * allowed_BN.sum(dim=-1).clamp(min=1).log()

    def _update_temperature(self, log_prob_BN: Tensor, target_entropy: float | Tensor) -> dict[str, Tensor]:
        entropy_B = -(log_prob_BN.exp() * log_prob_BN).sum(dim=-1)
        metrics = {"entropy": entropy_B.mean()}
        if self.optimizer_alpha is not None:
            loss = temperature_loss(self.log_alpha, -entropy_B, target_entropy)
            minimise(self.optimizer_alpha, loss)
            metrics["loss_entropy"] = loss.detach()
        return metrics | {"entropy_coef": self.log_alpha.detach().exp()}
