"""Randomized ensembled double Q-learning: soft actor-critic with many critics and many updates for each step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

import torch
from torch import Tensor

from tmrl_core.config.agent_settings import RedqSettings, SacSettings
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.declared import Setting, takes
from tmrl_core.training.agents.networks import REDQMLPActorCritic
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Maker, Space


@takes(RedqSettings)
class REDQSACAgent(SacAgent):
    """Soft actor-critic with a randomized ensemble of critics and several critic updates per policy update.

    The paper's algorithm makes G = 20 updates of the critics for each step of the environment, and then one of the
    policy: set `q_updates_per_policy_update` to G and `trainer.max_training_steps_per_env_step` to G too.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics.

    Raises:
        ConfigError: 1 <= m <= n does not hold, or `q_updates_per_policy_update` is below 1.

    Source: Chen et al., arXiv:2101.05982, algorithm 1.
    """

    type_id = "redq"
    type_version = 1

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str | None = None,
        model_cls: Maker = REDQMLPActorCritic,
        *given: Setting,
        **named: Setting,
    ) -> None:
        s = RedqSettings(*given, **named)
        if not 1 <= s.m <= s.n:
            raise ConfigError(f"REDQ needs 1 <= m <= n, got m={s.m} and n={s.n}")
        if s.q_updates_per_policy_update < 1:
            raise ConfigError(f"REDQ needs q_updates_per_policy_update >= 1, got {s.q_updates_per_policy_update}")
        self.m = s.m
        self.q_updates_per_policy_update = s.q_updates_per_policy_update
        self.updates = 0
        of_sac = {one.name: vars(s)[one.name] for one in fields(SacSettings)}
        of_sac["model_kwargs"] = {"n": s.n, **(s.model_kwargs or {})}
        super().__init__(observation_space, action_space, device, model_cls, **of_sac)

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the policy and the temperature too."""
        return (self.updates + 1) % self.q_updates_per_policy_update == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the critics; every `q_updates_per_policy_update` updates, also the policy and the temperature."""
        self.updates += 1
        metrics = self._update_critics(transitions)
        if self.updates % self.q_updates_per_policy_update == 0:
            action, log_prob_B = self.model.actor(transitions.obs)
            metrics |= self._update_policy(transitions.obs, action, log_prob_B)
            metrics |= self._update_temperature(log_prob_B)
        self._update_targets()
        return metrics

    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        """Return [B] the minimum of a random subset of the critics, sampled for each update."""
        chosen = torch.randperm(q_KB.shape[0], device=q_KB.device)[: self.m]
        return q_KB[chosen].amin(dim=0)

    def _value(self, q_KB: Tensor) -> Tensor:
        """Return [B] the mean of all critics."""
        return q_KB.mean(dim=0)
