"""Advantage actor-critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.torch.mlp import forbid
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent_algorithm import choices_of
from tmrl_core.multiagent.algorithms.batches import transitions_of
from tmrl_core.multiagent.algorithms.torch_algorithm import (
    Algorithm,
    allowed_actions,
    check_max_norm,
    model_input,
)
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.training.agents.losses import of_allowed, td_target, weighted_mean
from tmrl_core.training.batches import Transitions
from tmrl_core.training.updates.skipped_updates import SKIPPED


@dataclass(frozen=True, kw_only=True)
class A2CParameters:
    """Hyper parameters of `A2C`. The discount is that of the experiences.

    Args:
        value_coef: weight of the critic's loss.
        entropy_coef: weight of the policy's entropy.
        normalize_advantages: scale the advantages of a batch to mean 0 and standard deviation 1.
        max_grad_norm: gradient-norm clipping threshold; None: no clipping.

    Raises:
        ConfigError: a value is out of range.
    """

    value_coef: float = 0.5
    entropy_coef: float = 0.01
    normalize_advantages: bool = False
    max_grad_norm: float | None = 0.5

    def __post_init__(self) -> None:
        """Check the values."""
        for name, value in (("value_coef", self.value_coef), ("entropy_coef", self.entropy_coef)):
            if not value >= 0.0:
                raise ConfigError(f"hyper_params.{name}: found {value}, allowed: 0 or more")
        check_max_norm(self.max_grad_norm)


class A2C(Algorithm):
    """Advantage actor-critic: a stochastic policy over discrete actions, and a value function as its baseline.

    It learns on-policy, from the experiences of the latest models. The advantage of an action is the k-step return of
    its experience, with the value of the next state, minus the value of its state. Actions are numbers from 0. With an
    action mask in dict states, only the allowed actions have probabilities, and a next state without an allowed action
    has no value.

    Args:
        model_dict: `actor`, `states -> [B, N] logits`, and `critic`, `states -> [B] or [B, 1] values`. Models of masked
            states get the rest of a state: the only other entry, or the dict of the others.
        optimizer_opt: see `Algorithm`. Models that share layers need one pair for both.
        loss_func_dict: loss function types. `actor`, of logits and action numbers, is weighted with the advantages:
            `torch.nn.CrossEntropyLoss` without it, which gives the policy gradient. `critic`: `torch.nn.MSELoss`
            without it.
        hyper_params: `A2CParameters`, or a dict of its arguments.

    Raises:
        ConfigError: the models have other names, or an argument does not fit.

    Source: Mnih et al., arXiv:1602.01783, algorithm S3, with one synchronous update.
    """

    type_id = "multiagent_a2c"
    type_version = 1

    hyper_params: A2CParameters
    parameters: ClassVar[type | None] = A2CParameters
    model_names: ClassVar[tuple[str, ...]] = ("actor", "critic")
    acts_with: ClassVar[tuple[str, ...]] = ("actor",)
    default_losses: ClassVar[Mapping[str, type[nn.Module]]] = {"actor": nn.CrossEntropyLoss, "critic": nn.MSELoss}

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return an action drawn from the policy, or with probability `epsilon` from all allowed ones; as np.int64.

        With `deterministic`, it is the most likely one.

        Raises:
            ObservationError: the state allows no action.
        """
        logits_N = self.output("actor", state)
        choices = choices_of(state, len(logits_N))
        logits = logits_N[choices].astype(np.float64)
        if self.deterministic:
            return choices[logits.argmax()]
        if epsilon > 0.0 and self.rng.random() < epsilon:
            return choices[self.rng.integers(len(choices))]
        # The largest of logits with Gumbel noise is a sample of their softmax.
        return choices[(logits + self.rng.gumbel(size=len(choices))).argmax()]

    def check_experiences(self, experiences: Columns) -> None:
        """Refuse experiences with which `train_on_batch` would fail; see `Algorithm.check_choices`."""
        self.check_choices("actor", experiences)

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Make one update of actor and critic."""
        p = self.hyper_params
        t = transitions_of(batch, self.device)
        value_B = self.models["critic"](model_input(t.obs)).reshape(-1)
        target_B = self._target(t)
        loss_critic = weighted_mean(self.loss_funcs["critic"](value_B, target_B), t.weight_B)
        advantage_B = target_B - value_B.detach()
        if p.normalize_advantages and len(advantage_B) > 1:
            advantage_B = (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
        logits_BN = forbid(self.models["actor"](model_input(t.obs)), allowed_actions(t.obs))
        index_B = t.action.reshape(-1).to(torch.int64)
        loss_actor = weighted_mean(self.loss_funcs["actor"](logits_BN, index_B) * advantage_B, t.weight_B)
        log_prob_BN = torch.log_softmax(logits_BN, dim=-1)
        entropy = -(log_prob_BN.exp() * log_prob_BN).sum(dim=-1).mean()
        step = self.minimise(loss_actor + p.value_coef * loss_critic - p.entropy_coef * entropy, p.max_grad_norm)
        if SKIPPED in step:
            return step
        found = {
            "loss_actor": loss_actor,
            "loss_critic": loss_critic,
            "entropy": entropy,
            "advantage_mean": advantage_B.mean(),
            "value_mean": value_B.mean(),
        }
        return {**{name: value.item() for name, value in found.items()}, **step}

    @torch.no_grad()
    def _target(self, t: Transitions) -> Tensor:
        """Return [B] k-step returns with the value of the next state."""
        next_value_B = self.models["critic"](model_input(t.next_obs)).reshape(-1)
        allowed_BN = allowed_actions(t.next_obs)
        return td_target(t.reward_B, t.terminated_B, of_allowed(next_value_B, allowed_BN), t.discount)
