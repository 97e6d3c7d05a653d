"""Batch renormalization, and its fold into the layers that workers compute."""

# Theory of operation
#
# A layer of this kind normalizes each feature over the rows of a batch, and keeps running moments of them. It is in one
# of two modes. In evaluation mode, which is the usual one here, it applies the running moments and changes nothing. In
# training mode, inside `batch_statistics`, it normalizes by the batch's own moments and moves the running ones. An
# agent chooses the mode of each pass itself: the same policy is evaluated for targets and trained for its loss within
# one update, and a mode that stayed on by accident would let acting change the weights. `nn.Module` begins in training
# mode, so an agent with such layers calls `eval` once.
#
# The first `WARM_UP` passes are those of ordinary batch normalization. From then on (renormalization proper) the
# batch's moments are corrected towards the running ones by r and d, which are bounded and have no gradient. In numbers:
# a running mean of 0 and deviation of 1, and a batch of mean 0.5 and deviation 2, give r = 2 and d = 0.5; the result is
# (x - 0.5) / 2 * 2 + 0.5 = x, which is what evaluation mode computes. A batch of deviation 9 has r = 3, the bound: its
# result has the deviation 3, where evaluation mode would give 9 and ordinary normalization 1. So a value means the same
# in training as in acting, one odd batch cannot turn the critics over, and gradients still flow through the batch's
# moments.
#
# The bounds depend on a counter that is a tensor, so a compiled update crosses the warm-up without another graph, which
# would cost a minute. With the bounds 1 and 0 the correction is exactly none.
#
# Workers get linear layers. In evaluation mode, x -> (x - mean) * gain + bias before a linear layer is one linear
# layer. `folded` multiplies in float64, because gain reaches 30 for a feature that hardly varies, and float32 would
# lose two digits of seven. The normalization of the raw observation is the exception: with a mean of 1,000 and a
# deviation of 0.1, the folded layer would subtract two numbers of 10,000 in float32 (an error of 6e-3 was measured).
# There only scale and bias fold, and the policy subtracts the mean from the observation itself, which is exact.
#
# Convolutions are normalized behind themselves, each channel over all pixels of all rows, and the normalization folds
# backwards into their kernels (`folded_convolution`). In front of a convolution it would not fold: zeros that are added
# at a border would be other numbers there. Pixels themselves are between 0 and 1 already.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.torch.encoder import ConvolutionLayer
from tmrl_core.actor.policies.torch.mlp import TorchPolicy
from tmrl_core.errors import WeightsError
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.rank_moments import joint_moments
from tmrl_core.training.rank_group import RANK_GROUP
from tmrl_core.training.value_types import Policy

if TYPE_CHECKING:
    from typing_extensions import Self

# Shape suffixes: K critics, B batch, F features, O outputs.

MOMENTUM = 0.01
"""Share of the batch's moments in each step of the running ones."""
EPS = 1e-3
"""Added to variances: a feature that never varies is multiplied by 32 at most."""
WARM_UP = 100_000
"""Passes in training mode before renormalization proper, as in sb3-contrib 2.9.2 and sbx."""
MAX_RATIO, MAX_SHIFT = 3.0, 5.0
"""Bounds of the correction, r and d of the paper, as its section 4.1 has them at the end of training."""


class RunningNorm(nn.Module):
    """Parameters and running moments of a normalization. The arguments are those of `BatchRenorm`."""

    mean: Tensor
    variance: Tensor

    def __init__(self, features: int, count: int = 0) -> None:
        super().__init__()
        shape = (count, 1, features) if count else (1, features)
        self.scale = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    def wide(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return [F] scale, bias, a copy of the mean, and variance as float64, for one network."""
        scale_F, bias_F, mean_F, variance_F = (
            one.detach()[0].double() for one in (self.scale, self.bias, self.mean, self.variance)
        )
        return scale_F, bias_F, mean_F.clone(), variance_F


class BatchRenorm(RunningNorm):
    """Batch renormalization of [..., B, F] over B, with a learned scale and bias.

    Args:
        features: F.
        count: K, number of critics, each with moments, scale and bias of its own, for [K, B, F]; 0: for [B, F].

    Source: Ioffe, arXiv:1702.03275, algorithm 1; the constants: Bhatt et al., arXiv:1902.05605.
    """

    passes: Tensor

    def __init__(self, features: int, count: int = 0) -> None:
        super().__init__(features, count)
        self.register_buffer("passes", torch.zeros(1, dtype=torch.int64))

    def forward(self, x_BF: Tensor) -> Tensor:
        """Return the normalized features."""
        x_BF = x_BF.float()  # moments of bfloat16 would have two digits
        if not self.training:
            return torch.addcmul(self.bias, x_BF - self.mean, self.scale * torch.rsqrt(self.variance + EPS))
        # The variance is unbiased, as in sb3-contrib; torch's own batch normalization divides by B in its forward pass.
        if (ranks := RANK_GROUP.get()) is None:
            # `torch.var_mean` over the last axis but one takes ten times as long on a CPU, a fifth of an update.
            mean = x_BF.mean(dim=-2, keepdim=True)
            centred_BF = x_BF - mean
            variance = centred_BF.square().sum(dim=-2, keepdim=True) / (x_BF.shape[-2] - 1)
        else:
            mean, variance, rows = joint_moments(x_BF, ranks)
            centred_BF, variance = x_BF - mean, variance * (rows / (rows - 1))
        with torch.no_grad():
            proper = (self.passes > WARM_UP).float()
            max_ratio = 1.0 + (MAX_RATIO - 1.0) * proper
            running_std = (self.variance + EPS).sqrt()
            ratio = torch.clamp((variance + EPS).sqrt() / running_std, 1.0 / max_ratio, max_ratio)
            max_shift = MAX_SHIFT * proper
            shift = torch.clamp((mean - self.mean) / running_std, -max_shift, max_shift)
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance, MOMENTUM)
            self.passes += 1
        # A feature that is constant in this batch, as a unit that is off, has a deviation without gradient, not one of
        # infinity times 0.
        deviation = variance.clamp(min=1e-20).sqrt()
        gain = self.scale * torch.rsqrt(variance / ratio.square() + EPS)
        # The mean to subtract is mean - shift deviation / ratio; what was subtracted too much returns with the bias.
        return torch.addcmul(self.bias + gain * (shift * deviation / ratio), centred_BF, gain)


class PublishedOnly(TorchPolicy):
    """A policy as it acts, made of a trained one with normalizations at each publication."""

    def from_bytes(self, data: bytes, device: object = "cpu") -> Self:
        """Refuse weights, which would last until the next publication and train nothing.

        Raises:
            WeightsError: always.
        """
        raise WeightsError(
            "an agent with batch normalization cannot take over a policy: what is published does not hold the "
            "normalizations that it trains. Resume it from a checkpoint, or act with a policy of the class "
            f"{self.owner}"
        )


class PublishedAgent(OffPolicyAgent):
    """Agent whose model has normalizations, is in evaluation mode, and publishes another module without them."""

    def prepare(self) -> None:
        """Make what the agent needs, and evaluate from now on."""
        self.updates = 0
        super().prepare()
        self.model.eval()

    # A cached property is not part of checkpoints: its weights are made of the model's.
    @cached_property
    def _acting(self) -> Any:
        return self.model.make_published().to(self.device)

    def acting_policy(self) -> Policy:
        """Return the policy with its normalizations folded into its layers."""
        self.model.actor.publish(self._acting)
        return self._acting


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Normalize by the batch in a `with` block, and move the running moments; outside it, evaluate."""
    module.train()
    try:
        yield
    finally:
        module.eval()


def folded(norm: BatchRenorm, layer: nn.Linear, kept: int = 0) -> tuple[Tensor, Tensor]:
    """Return the weight [O, F] and the bias [O] of a layer that computes both, as float64.

    Args:
        norm: of the layer's inputs, in evaluation mode.
        layer: the linear layer after it.
        kept: number of first inputs whose mean and deviation stay outside; only scale and bias fold.
    """
    scale_F, bias_F, centre_F, variance_F = norm.wide()
    gain_F = scale_F / (variance_F + EPS).sqrt()
    gain_F[:kept], centre_F[:kept] = scale_F[:kept], 0.0
    weight_OF = layer.weight.double()
    return weight_OF * gain_F, layer.bias.double() + weight_OF @ (bias_F - centre_F * gain_F)


def deviation(norm: BatchRenorm) -> Tensor:
    """Return [F] the numbers by which evaluation mode divides, as float64."""
    return (norm.variance[0].double() + EPS).sqrt()


def folded_convolution(layer: ConvolutionLayer) -> tuple[Tensor, Tensor]:
    """Return the kernels [O, I, H, W] and the bias [O] of a convolution that computes both, as float64.

    Args:
        layer: with a `BatchRenorm` as its `norm`, in evaluation mode.
    """
    norm = layer.norm
    assert isinstance(norm, BatchRenorm)
    gain_O = norm.scale[0].double() / deviation(norm)
    kernels = layer.weight.double() * gain_O.reshape(-1, 1, 1, 1)
    return kernels, norm.bias[0].double() - norm.mean[0].double() * gain_O
