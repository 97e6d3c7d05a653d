"""Truncated quantile critics: soft actor-critic whose critics estimate the distribution of the return."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import lowest_quantiles, quantile_loss, weighted_mean
from tmrl_core.training.agents.networks import MLPActorCritic
from tmrl_core.training.agents.optimizers import minimise
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.agents.tqc_settings import TqcSettings
from tmrl_core.training.batches import Transitions

# Shape suffixes: K critics, B batch, M quantiles of a critic, N quantiles of a target.


@takes(TqcSettings, MLPActorCritic)
class TQCAgent(SacAgent):
    """Soft actor-critic with critics of quantiles. Targets leave out the highest ones, against overestimation.

    A model of your own needs `critics(obs, act) -> [K, B, M]`, and otherwise what `MLPActorCritic` describes.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics.

    Raises:
        ConfigError: `dropped_quantiles` is not less than `quantiles`.

    Source: Kuznetsov et al., arXiv:2005.04269, algorithm 1.
    """

    type_id = "tqc"
    type_version = 1

    settings: TqcSettings

    def update_kind(self) -> Hashable:
        """Return the same kind for every update."""
        return super().update_kind()

    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob_B = self.model.actor(t.next_obs)
            next_BN = lowest_quantiles(self.target_critics(t.next_obs, next_action), self.settings.dropped_quantiles)
            kept_B1 = ((1.0 - t.terminated_B) * t.discount).unsqueeze(-1)
            soft_BN = next_BN - (self.log_alpha.exp() * next_log_prob_B).unsqueeze(-1)
            target_BN = self._scaled(t.reward_B).unsqueeze(-1) + kept_B1 * soft_BN
        quantiles_KBM = self.critics(t.obs, t.action)
        loss_B = quantile_loss(quantiles_KBM, target_BN)
        loss = weighted_mean(loss_B, t.weight_B)
        minimise(self.optimizer_critic, loss)
        q_KB = quantiles_KBM.detach().mean(dim=-1)
        if t.weight_B is not None:
            self.td_error_B = (q_KB - target_BN.mean(dim=-1)).abs().mean(dim=0)
        return {"loss_critic": loss.detach(), "q_mean": q_KB.mean()}

    def _value(self, q_KB: Tensor) -> Tensor:
        """Return [B] the mean of all quantiles of all critics; `q_KB` has a third axis of quantiles here."""
        return q_KB.mean(dim=(0, 2))
