"""Soft actor-critic with a recurrent policy and recurrent critics."""

from __future__ import annotations

import torch
from torch import Tensor

from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import critic_target, policy_loss, td_error
from tmrl_core.training.agents.optimizers import frozen, minimise
from tmrl_core.training.agents.recurrent import (
    sequence_priority,
    sequences_of,
    state_of,
    unrolled,
)
from tmrl_core.training.agents.recurrent_networks import RecurrentActorCritic
from tmrl_core.training.agents.recurrent_sac_settings import RecurrentSacSettings
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.batches import Transitions


@takes(RecurrentSacSettings, RecurrentActorCritic)
class RecurrentSacAgent(SacAgent):
    """Soft actor-critic on sequences. The policy has a recurrent layer, the critics have another one.

    The policy starts from the stored state. The critics start from zeros, which is exact at the beginning of an
    episode; elsewhere `burn_in` ticks prepare their state.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics.

    Raises:
        ConfigError: an optimizer's name is unknown, a space is unsupported, or the updates shall be compiled.

    Source: Ni et al., arXiv:2110.05038.
    """

    type_id = "recurrent_sac"
    type_version = 1

    model: RecurrentActorCritic
    settings: RecurrentSacSettings

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update critics, policy and temperature, with losses of the parameters before the update."""
        s = sequences_of(transitions, self.settings.burn_in)
        actor, critics, targets = self.model.actor, self.model.critics, self.target_critics
        zeros = critics.initial_state(len(s.begins_B))
        action, log_prob_BT = actor.squashed(unrolled(actor.unroll, s, state_of(actor, s)))
        assert log_prob_BT is not None
        log_prob_N = log_prob_BT[:, :-1].flatten()
        features_NH = unrolled(critics.unroll, s, zeros)[:, :-1].flatten(0, 1)
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_features_NH = unrolled(targets.unroll, s, zeros)[:, 1:].flatten(0, 1)
            next_q_N = self._pessimistic(targets(next_features_NH, action[:, 1:].flatten(0, 1)))
            target_N = critic_target(
                self._scaled(s.reward_BT.flatten()),
                s.terminated_BT.flatten(),
                next_q_N,
                log_prob_BT[:, 1:].flatten(),
                alpha,
                s.discount,
            )
        with frozen(critics.parameters()):
            value_N = self._value(critics(features_NH.detach(), action[:, :-1].flatten(0, 1)))
            loss_actor = policy_loss(value_N, log_prob_N, alpha, s.weight_N)
            minimise(self.optimizer_actor, loss_actor)
        q_KN = critics(features_NH, s.action.flatten(0, 1))
        metrics = self._step_critics(self.optimizer_critic, q_KN, target_N, s.weight_N)
        self.td_error_B = None
        if transitions.weight_B is not None:
            self.td_error_B = sequence_priority(td_error(q_KN, target_N).view_as(s.learns_BT), s.learns_BT)
        metrics |= {"loss_actor": loss_actor.detach()} | self._update_temperature(log_prob_N, s.weight_N)
        self._update_targets()
        return metrics
