"""FlashSAC: soft actor-critic with critics of distributions, batch normalization and weights of unit norm."""

# Theory of operation
#
# One update, in order, with two critics and a target of each:
#
# 1. Each second time (`policy_delay`), beginning with the first: the policy in training mode on s and s' together, its
#    loss on s alone, through the critics in evaluation mode. Then the temperature.
# 2. Next actions by the policy in evaluation mode. The target critics in training mode on (s, a) and (s', a') as one
#    batch; for each row, the target is the whole distribution of the one with the lower mean, shifted by the entropy,
#    multiplied by the discount, moved by the reward, and projected to the bins.
# 3. The critics in training mode on the same joint batch; their loss is the cross-entropy on the first half.
# 4. Polyak averages of the parameters. Running moments of the target critics are their own.
#
# After each step of an optimizer, the norms of its network are restored (`unit_layers.project`).
#
# The projection in numbers, for bins -1, 0 and 1: a target of 0.25 with probability 1 becomes 0.75 at 0 and 0.25 at 1.
# It keeps the mean, except for values beyond the last bins, which become these.
#
# Rewards come scaled: an agent with values between fixed bounds needs returns of a known size, and the memory knows the
# streams that returns belong to (`return_scale`, memories/return_scale.py). A batch of another source is taken as it
# is; targets beyond the last bins count as these.
#
# Learning rates follow a cosine of `lr_horizon` updates, from a counter of updates alone, so a resumed run has the same
# ones. Counter and rates are tensors that an update itself changes: a compiled graph reads and writes them like
# weights, where numbers would be constants of it, and each update another graph. A skipped update does not count, since
# the counter is rolled back with the weights. On a CPU the rates are float64, which torch's fused Adam computes with.
#
# Workers get linear layers (`ResidualActor.publish`): each batch normalization follows a linear layer and folds into
# it, in float64, as the scale of the last normalization folds into the heads. The normalization of the raw observation
# stays, as in CrossQ: a folded mean of 1,000 would cost three digits.
#
# Exploration: uniform actions until the first update (`trainer.start_training`: 10,000 samples in the paper's runs),
# then noise that is held for several steps (actor/policies/numpy/residual.py).

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import layout_of
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.mlp import flatten_batch, orthogonal
from tmrl_core.actor.policies.torch.residual import SquashedGaussianResidualActor
from tmrl_core.training.agents.batch_renorm import PublishedAgent, PublishedOnly, batch_statistics
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.flashsac_settings import FlashsacSettings
from tmrl_core.training.agents.losses import weighted_mean
from tmrl_core.training.agents.networks import ActionCritic
from tmrl_core.training.agents.optimizers import minimise
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.agents.unit_layers import (
    EPS,
    UnitLinear,
    fold_input,
    project,
    residual_trunk,
)
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Space, Tree

# Shape suffixes: K critics, B batch, H features, A action elements, M bins.


class PublishedPolicy(PublishedOnly, SquashedGaussianResidualActor):
    """The policy as it acts. The arguments are those of `SquashedGaussianResidualActor`."""

    owner = "SquashedGaussianResidualActor"


class ResidualActor(SquashedGaussianResidualActor):
    """The policy as it is trained, with normalizations. The arguments are those of `SquashedGaussianResidualActor`."""

    # The first layer of the network is the normalization.
    behind_batch_norm = False

    def _make_hidden_layers(
        self, sizes: Sequence[int], activation: str | Callable[[], nn.Module], linear: Callable[[int, int], nn.Module]
    ) -> tuple[nn.Sequential, int]:
        width, blocks = self._sizes
        return residual_trunk(self.encoder.features, width, blocks), width

    @torch.no_grad()
    def publish(self, acting: PublishedPolicy) -> None:
        """Give a policy without normalizations the weights with which it acts as this one in evaluation mode."""
        layers: list[Any] = list(self.net)
        targets: list[Any] = list(acting.net)
        norm, first, *blocks, rms = layers
        values = acting.encoder.values
        acting.encoder.load_state_dict(self.encoder.state_dict())
        acting.obs_mean.copy_(norm.mean[0, :values])
        acting.obs_std.copy_((norm.variance[0, :values].double() + EPS).sqrt())
        fold_input(norm, first, targets[0], values)
        for block, target in zip(blocks, targets[1:-1], strict=True):
            block.publish(target)
        for head, target in ((self.mu, acting.mu), (self.log_std, acting.log_std)):
            target.weight.copy_(head.weight.double() * rms.scale[0].double())
            target.bias.copy_(head.bias)


class DistributionalCritic(ActionCritic):
    """Several critics that estimate the distribution of an action's value.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats.
        width: of the residual blocks.
        blocks: number of blocks.
        bins: M, number of values.
        highest_value: last value; the first one is its negative.
        count: K, number of critics.
        convolutions: layers for images; None: the default ones.
    """

    values: Tensor

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        width: int,
        blocks: int,
        bins: int,
        highest_value: float,
        count: int = 2,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(action_space)
        self._layout = layout_of(observation_space, action_space, convolutions)
        self.encoder = ObservationEncoder(self._layout, convolutions)
        self.count = count
        self.net = residual_trunk(self.encoder.features + self.action_size, width, blocks, count)
        self.head = UnitLinear(width, bins, count)
        self.bias = nn.Parameter(torch.zeros(count, 1, bins))
        self.register_buffer("values", torch.linspace(-highest_value, highest_value, bins), persistent=False)

    def forward(self, obs: Tree, act: Tensor) -> Tensor:
        """[K, B, M] log-probabilities of the values."""
        x_BI = torch.cat([self.encoder(flatten_batch(self._layout, obs)), self.scaled(act)], dim=-1)
        features_KBH = self.net(x_BI.expand(self.count, -1, -1))
        # As all last layers: not in bfloat16, in which the products before it may be.
        with torch.autocast(features_KBH.device.type, enabled=False):
            logits_KBM = self.head(features_KBH) + self.bias
        return functional.log_softmax(logits_KBM, dim=-1)

    def mean(self, log_prob_KBM: Tensor) -> Tensor:
        """[K, B] means of distributions."""
        return (log_prob_KBM.exp() * self.values).sum(dim=-1)


class FlashSACModel(nn.Module):
    """A policy and two critics of residual blocks.

    A custom model needs `critics`, a module as `DistributionalCritic` is, `make_published() -> acting`, which makes a
    policy for workers, and an `actor` with `publish(acting)`, as `ResidualActor` has it.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        width, critic_width, blocks, bins, highest_value, convolutions: as for `FlashsacSettings`.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        width: int = 128,
        critic_width: int = 256,
        blocks: int = 2,
        bins: int = 101,
        highest_value: float = 5.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        spaces = observation_space, action_space
        self.actor = ResidualActor(*spaces, width, blocks, convolutions=convolutions)
        for head in (self.actor.mu, self.actor.log_std):
            orthogonal(head, 1.0)
        self.make_published = partial(PublishedPolicy, *spaces, width, blocks, convolutions=convolutions)
        self.critics = DistributionalCritic(
            *spaces, critic_width, blocks, bins, highest_value, convolutions=convolutions
        )


def projected(prob_BM: Tensor, moved_BM: Tensor, values_M: Tensor) -> Tensor:
    """Return [B, M] probabilities of values, given those of moved values; the mean stays, within the bounds.

    Args:
        prob_BM: probabilities.
        moved_BM: the value that each of them belongs to.
        values_M: values in equal distances.

    Source: Bellemare et al., arXiv:1707.06887, eq. 7.
    """
    low, high, steps = values_M[0], values_M[-1], len(values_M) - 1
    place_BM = (torch.clamp(moved_BM, low, high) - low) / (high - low) * steps
    lower_BM = place_BM.floor()
    upper_share_BM = place_BM - lower_BM
    lower_BM = lower_BM.long().clamp(0, steps)
    result = torch.zeros_like(prob_BM)
    result.scatter_add_(1, lower_BM, prob_BM * (1.0 - upper_share_BM))
    return result.scatter_add_(1, (lower_BM + 1).clamp(max=steps), prob_BM * upper_share_BM)


@takes(FlashsacSettings, FlashSACModel)
class FlashSACAgent(PublishedAgent, SacAgent):
    """Soft actor-critic with critics of distributions, and networks whose norms are fixed.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics, see `FlashSACModel`.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: arXiv:2604.04539.
    """

    type_id = "flashsac"
    type_version = 1

    settings: FlashsacSettings
    critics: DistributionalCritic
    target_critics: DistributionalCritic

    def prepare(self) -> None:
        """Make the parts of soft actor-critic, and project the networks."""
        # One-dimensional: tracing takes a tensor without dimensions for a constant.
        self.scheduled = torch.zeros(1, dtype=torch.int64, device=self.device)
        super().prepare()
        if self.settings.target_entropy is None:
            elements = math.prod(self.action_space.shape or ())
            self.target_entropy = elements * (0.5 * math.log(2 * math.pi * math.e) + math.log(self.settings.target_std))
        self.target_critics.eval()
        project(self.model)
        self.target_critics.load_state_dict(self.critics.state_dict())

    @property
    def return_scale(self) -> tuple[float, float]:
        """Discount, and the highest value of the critics."""
        return self.settings.gamma, self.settings.highest_value

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the policy and the temperature too."""
        return self.updates % self.settings.policy_delay == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the critics; every `policy_delay` updates, first the policy and the temperature."""
        self._set_rates()
        metrics: dict[str, Tensor] = {}
        both = tree_map(lambda now, later: torch.cat([now, later]), transitions.obs, transitions.next_obs)
        if self.updates % self.settings.policy_delay == 0:
            metrics |= self._update_joint_policy(transitions, both)
        self.updates += 1
        metrics |= self._update_distributions(transitions, both)
        self._update_targets()
        return metrics

    # A cached property is not part of checkpoints: each update sets the rates anew.
    @cached_property
    def _rates(self) -> list[tuple[torch.optim.Optimizer, float, Tensor]]:
        """Each optimizer with its rate at the start of the schedule, and its present rate [1]."""
        s = self.settings
        pairs = [(self.optimizer_actor, s.lr_actor), (self.optimizer_critic, s.lr_critic)]
        if self.optimizer_alpha is not None:
            pairs.append((self.optimizer_alpha, s.lr_entropy))
        dtype = torch.float64 if self.device.type == "cpu" else torch.float32
        return [(optimizer, rate, torch.zeros(1, dtype=dtype, device=self.device)) for optimizer, rate in pairs]

    def _set_rates(self) -> None:
        """Set the learning rates of the cosine schedule."""
        s = self.settings
        with torch.no_grad():
            for optimizer, rate, present in self._rates:
                share = torch.clamp(self.scheduled.to(present.dtype) / s.lr_horizon, max=1.0)
                cosine = 0.5 * (1.0 + torch.cos(math.pi * share))
                present.copy_(rate * (s.lr_final + (1.0 - s.lr_final) * cosine))
                for group in optimizer.param_groups:
                    group["lr"] = present
            self.scheduled += 1

    def _update_joint_policy(self, t: Transitions, both: Tree) -> dict[str, Tensor]:
        rows = len(t.reward_B)
        with batch_statistics(self.model.actor):
            action, log_prob = self.model.actor(both)
        log_prob_B = log_prob[:rows]
        metrics = self._update_policy(t, action[:rows], log_prob_B)
        project(self.model.actor)
        metrics["entropy_coef"] = self.log_alpha.detach().exp()
        if self.optimizer_alpha is not None:
            loss_alpha = self.log_alpha.exp() * (-log_prob_B.detach().mean() - self.target_entropy)
            minimise(self.optimizer_alpha, loss_alpha)
            metrics["loss_entropy"] = loss_alpha.detach()
        return metrics

    def _value(self, q_KBM: Tensor) -> Tensor:
        """Return [B] the lower mean; distributions in place of values here."""
        return self.critics.mean(q_KBM).amin(dim=0)

    def _update_distributions(self, t: Transitions, both: Tree) -> dict[str, Tensor]:
        critics, targets = self.critics, self.target_critics
        with torch.no_grad():
            next_action, next_log_prob_B = self.model.actor(t.next_obs)
            actions = torch.cat([t.action, next_action])
            with batch_statistics(targets):
                next_KBM = targets(both, actions).chunk(2, dim=1)[1]
            lower_B = targets.mean(next_KBM).argmin(dim=0)
            prob_BM = next_KBM[lower_B, torch.arange(len(lower_B), device=lower_B.device)].exp()
            entropy_B1 = (self.log_alpha.exp() * next_log_prob_B).unsqueeze(-1)
            kept_B1 = ((1.0 - t.terminated_B) * t.discount).unsqueeze(-1)
            moved_BM = self._scaled(t.reward_B).unsqueeze(-1) + kept_B1 * (targets.values - entropy_B1)
            target_BM = projected(prob_BM, moved_BM, targets.values)
        with batch_statistics(critics):
            log_prob_KBM = critics(both, actions).chunk(2, dim=1)[0]
        loss_B = -(target_BM * log_prob_KBM).sum(dim=-1).mean(dim=0)
        loss = weighted_mean(loss_B, t.weight_B)
        minimise(self.optimizer_critic, loss)
        project(critics)
        q_KB = critics.mean(log_prob_KBM.detach())
        if t.weight_B is not None:
            self.td_error_B = (q_KB - (target_BM * critics.values).sum(dim=-1)).abs().mean(dim=0)
        return {"loss_critic": loss.detach(), "q_mean": q_KB.mean()}
