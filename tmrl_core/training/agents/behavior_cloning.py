"""Behaviour cloning: a policy learns to choose the actions of the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.spaces import choice_counts
from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor
from tmrl_core.training.agents.behavior_cloning_settings import BehaviorCloningSettings
from tmrl_core.training.agents.declared import Setting, takes
from tmrl_core.training.agents.losses import weighted_mean
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.optimizers import make_optimizer, minimise
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Space


class PolicyModel(nn.Module):
    """A policy without critics: `SquashedGaussianMLPActor` for a Box, else `CategoricalMLPActor`.

    A custom model needs `actor`, an ActorModule that computes as one of these two does.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds, Discrete, MultiDiscrete or MultiBinary.
        kwargs: of the policy.
    """

    def __init__(self, observation_space: Space, action_space: Space, **kwargs: Setting) -> None:
        super().__init__()
        policy: Callable[..., nn.Module] = SquashedGaussianMLPActor
        if choice_counts(action_space):
            policy = CategoricalMLPActor
        self.actor = policy(observation_space, action_space, **kwargs)


@takes(BehaviorCloningSettings, PolicyModel)
class BehaviorCloningAgent(OffPolicyAgent):
    """Behaviour cloning: supervised learning of the actions in the samples; rewards are not used.

    For a Box: mean squared error of the most likely action, with each element scaled to [-1, 1]. The likelihood of a
    squashed Gaussian would be infinite for actions at the bounds, which experts often choose. The spread of the policy
    is not trained: play it with `--test`, and set `spread` if workers collect with it. For discrete actions:
    cross-entropy, of several choices the sum.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds, Discrete, MultiDiscrete or MultiBinary.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy, see `PolicyModel`.

    Raises:
        ConfigError: the optimizer's name is unknown, or a space is unsupported.
    """

    type_id = "behavior_cloning"
    type_version = 1

    settings: BehaviorCloningSettings

    def prepare(self) -> None:
        """Make the optimizer."""
        s = self.settings
        self.discrete = bool(choice_counts(self.action_space))
        if s.spread is not None and not self.discrete:
            self._set_spread(self.model.actor.log_std, s.spread)
        self.optimizer = make_optimizer(s.optimizer, self.model.actor.parameters(), s.lr, l2=s.l2)

    @staticmethod
    @torch.no_grad()
    def _set_spread(head: nn.Linear, spread: float) -> None:
        """Let a policy have the same spread everywhere. No loss changes it."""
        head.weight.zero_()
        head.bias.fill_(math.log(spread))

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return nothing: there are no target networks."""
        return []

    def update_kind(self) -> Hashable:
        """Return the same kind for every update."""
        return ""

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the policy."""
        t = transitions
        loss_B = self._cross_entropy(t) if self.discrete else self._squared_error(t)
        loss = weighted_mean(loss_B, t.weight_B)
        metrics = minimise(self.optimizer, loss, self.settings.max_grad_norm)
        if t.weight_B is not None:
            self.td_error_B = loss_B.detach()
        return {"loss_actor": loss.detach(), **metrics}

    def _squared_error(self, t: Transitions) -> Tensor:
        """Return [B] the mean over the elements of an action."""
        actor = self.model.actor
        found, _ = actor(t.obs, test=True, compute_logprob=False)
        error_BA: Tensor = (found - t.action).reshape(len(found), -1) * (2.0 / (actor.high - actor.low))
        return torch.mean(error_BA.square(), dim=1)

    def _cross_entropy(self, t: Transitions) -> Tensor:
        """Return [B] the negative log-probability of the actions, in nats.

        Choices that a mask does not allow count 0.
        """
        actor = self.model.actor
        flat_BD = flatten_batch(actor.layout, t.obs)
        index_BM1 = actor.trained_action(t.action, {})[..., None]
        log_prob_BM: Tensor = actor.log_probs_of(actor.outputs_at(flat_BD)).gather(-1, index_BM1).squeeze(-1)
        allowed_BN = actor.allowed(flat_BD)
        if allowed_BN is not None:
            allowed_BM = actor.of_choices(allowed_BN, padding=False).gather(-1, index_BM1).squeeze(-1)
            log_prob_BM = log_prob_BM.masked_fill(~allowed_BM, 0.0)
        return -log_prob_BM.sum(dim=-1)
