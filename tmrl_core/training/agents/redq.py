"""Randomized ensembled double Q-learning: soft actor-critic with many critics and many updates for each step."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.networks import REDQMLPActorCritic
from tmrl_core.training.agents.redq_settings import RedqSettings
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.batches import Transitions


@takes(RedqSettings, REDQMLPActorCritic)
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

    settings: RedqSettings

    def prepare(self) -> None:
        """Make the parts of soft actor-critic."""
        self.updates = 0
        super().prepare()

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the policy and the temperature too."""
        return (self.updates + 1) % self.settings.q_updates_per_policy_update == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the critics; every `q_updates_per_policy_update` updates, also the policy and the temperature."""
        self.updates += 1
        metrics = self._update_critics(transitions)
        if self.updates % self.settings.q_updates_per_policy_update == 0:
            action, log_prob_B = self.model.actor(transitions.obs)
            metrics |= self._update_policy(transitions, action, log_prob_B)
            metrics |= self._update_temperature(log_prob_B)
        self._update_targets()
        return metrics

    def _pessimistic(self, q_KB: Tensor) -> Tensor:
        """Return [B] the minimum of a random subset of the critics, sampled for each update."""
        chosen = torch.randperm(q_KB.shape[0], device=q_KB.device)[: self.settings.m]
        return q_KB[chosen].amin(dim=0)

    def _value(self, q_KB: Tensor) -> Tensor:
        """Return [B] the mean of all critics."""
        return q_KB.mean(dim=0)
