"""CrossQ: soft actor-critic with batch normalization in place of target networks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.mlp import hidden_layers
from tmrl_core.actor.policies.torch.squashed_gaussian import (
    NormalizedSquashedGaussianMLPActor,
    SquashedGaussianMLPActor,
)
from tmrl_core.training.agents.batch_renorm import (
    BatchRenorm,
    PublishedAgent,
    PublishedOnly,
    batch_statistics,
    deviation,
    folded,
    folded_convolution,
)
from tmrl_core.training.agents.crossq_settings import CrossqSettings
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.losses import critic_target
from tmrl_core.training.agents.networks import EnsembleCritic
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.batches import Transitions
from tmrl_core.training.value_types import Space

# Theory of operation
#
# The agent knows the order of one update and the form in which its policy is published; `batch_renorm.py` knows what a
# normalization computes. It holds no target networks. In SAC, these keep the targets still. Here the critics normalize
# (s, a) and (s', a') together, as one batch of 2 B rows, so values of both come from one distribution of features, and
# targets are those of the critics themselves. Two passes would normalize each half by itself: the next actions are the
# current policy's and the stored ones are older, so the halves would be shifted against each other.
#
# One update, in order, since each step reads what the one before has changed:
#
# 1. Next actions, by the policy in evaluation mode: its running moments belong to states it is trained on.
# 2. The critics' joint pass in training mode: both their moments and their gradient. The values of the second half
#    become targets, without gradient.
# 3. Each third time (`policy_delay`), the policy on s in training mode, and its loss through the critics in evaluation
#    mode: in training mode its actions alone would be their batch, and would move their moments.
# 4. The temperature, with the log-densities of 3.
#
# Images go through the same joint pass: the critics' common convolutions are normalized over the pixels of s and s',
# and their features once more with everything else that enters the first layer. The papers have no images; this is the
# place of the norms in residual networks. `batch_renorm.py` says why they are behind the convolutions.
#
# An update with NaN is rolled back with the moments, which are buffers of the model.
#
# Published is another module, with linear layers only (see `batch_renorm.py`), made anew from the trained one
# at each publication. Rejected: a policy with normalizations on workers, since the NumPy backend would compute six more
# operations for each action, and checks of shapes would accept weights whose moments are older than their layers.


class PublishedPolicy(PublishedOnly, NormalizedSquashedGaussianMLPActor):
    """The policy as it acts. The arguments are those of `SquashedGaussianMLPActor`."""

    owner = "NormalizedSquashedGaussianMLPActor"


class BatchNormActor(SquashedGaussianMLPActor):
    """The policy as it is trained, with a normalization before each layer and after the last activation.

    Convolutions have theirs between them and their activation.

    The arguments are those of `SquashedGaussianMLPActor`.
    """

    def _make_hidden_layers(
        self, sizes: Sequence[int], activation: str | Callable[[], nn.Module], linear: Callable[[int, int], nn.Module]
    ) -> tuple[nn.Sequential, int]:
        return hidden_layers(self.encoder.features, sizes, activation, linear, BatchRenorm)

    def _make_encoder(self, convolutions: Convolutions | None) -> ObservationEncoder:
        return ObservationEncoder(self.layout, convolutions, BatchRenorm)

    @torch.no_grad()
    def publish(self, acting: PublishedPolicy) -> None:
        """Give a policy without normalizations the weights with which it acts as this one in evaluation mode."""
        norms = [layer for layer in self.net if isinstance(layer, BatchRenorm)]
        values = acting.encoder.values
        for convolution, plain in zip(self.encoder.convolutions(), acting.encoder.convolutions(), strict=True):
            kernels, bias_O = folded_convolution(convolution)
            plain.weight.copy_(kernels)
            assert plain.bias is not None
            plain.bias.copy_(bias_O)
        acting.obs_mean.copy_(norms[0].mean[0, :values])
        acting.obs_std.copy_(deviation(norms[0])[:values])
        ours = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        theirs = [layer for layer in acting.net if isinstance(layer, nn.Linear)]
        # Both heads come after the last normalization.
        pairs = [*zip(norms, ours, theirs, strict=False), (norms[-1], self.mu, acting.mu)]
        for norm, layer, target in (*pairs, (norms[-1], self.log_std, acting.log_std)):
            weight_OF, bias_O = folded(norm, layer, values if norm is norms[0] else 0)
            target.weight.copy_(weight_OF)
            target.bias.copy_(bias_O)


class CrossQActorCritic(nn.Module):
    """A policy and two critics with batch normalization.

    A custom model needs `critics(obs, act) -> q_KB`, `make_published() -> acting`, which makes a policy for workers,
    and an `actor` with `publish(acting)`, as `BatchNormActor` has it.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer of the policy.
        activation: class of the hidden layers' activation, or its name.
        convolutions: layers for images, of the policy and of the critics; None: the default ones.
        critic_sizes: width of each hidden layer of the critics.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        convolutions: Convolutions | None = None,
        critic_sizes: Sequence[int] = (1024, 1024),
    ) -> None:
        super().__init__()
        spaces = observation_space, action_space
        self.actor = BatchNormActor(*spaces, hidden_sizes, activation, convolutions=convolutions)
        self.make_published = partial(PublishedPolicy, *spaces, hidden_sizes, activation, convolutions=convolutions)
        self.critics = EnsembleCritic(
            *spaces, critic_sizes, activation, 2, convolutions, norm=partial(BatchRenorm, count=2),
            image_norm=BatchRenorm,
        )  # fmt: skip


@takes(CrossqSettings, CrossQActorCritic)
class CrossQAgent(PublishedAgent, SacAgent):
    """Soft actor-critic with batch normalization in policy and critics, and without target networks.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        device: device of the networks; None: cuda if available.
        model_cls: makes the policy and its critics, see `CrossQActorCritic`.

    Raises:
        ConfigError: an optimizer's name is unknown, or a space is unsupported.

    Source: Bhatt et al., arXiv:1902.05605, algorithm 1.
    """

    type_id = "crossq"
    type_version = 1

    settings: CrossqSettings

    def _make_targets(self) -> None:
        """Make none."""

    def target_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return none: the critics' own values are the targets."""
        return []

    def update_kind(self) -> Hashable:
        """Tell whether the next update moves the policy and the temperature too."""
        return (self.updates + 1) % self.settings.policy_delay == 0

    def update(self, transitions: Transitions) -> dict[str, Tensor]:
        """Update the critics; every `policy_delay` updates, also the policy and the temperature."""
        self.updates += 1
        metrics = self._update_critics(transitions)
        if self.updates % self.settings.policy_delay == 0:
            with batch_statistics(self.model.actor):
                action, log_prob_B = self.model.actor(transitions.obs)
            metrics |= self._update_policy(transitions, action, log_prob_B)
            metrics |= self._update_temperature(log_prob_B)
        return metrics

    def _update_critics(self, t: Transitions) -> dict[str, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob_B = self.model.actor(t.next_obs)
        with batch_statistics(self.critics):
            both = tree_map(lambda now, later: torch.cat([now, later]), t.obs, t.next_obs)
            q_KB, next_q_KB = self.critics(both, torch.cat([t.action, next_action])).chunk(2, dim=1)
        with torch.no_grad():
            target_B = critic_target(
                self._scaled(t.reward_B), t.terminated_B, self._pessimistic(next_q_KB), next_log_prob_B,
                self.log_alpha.exp(), t.discount,
            )  # fmt: skip
        return self._step_critics(self.optimizer_critic, q_KB, target_B, t.weight_B)
