"""Layers whose weights are kept at unit norm, with batch normalization: the networks of FlashSAC."""

# Theory of operation
#
# The norm of each weight vector is fixed, so the size of a step relative to the weights is the learning rate, whatever
# the losses' scale has been. `project` restores the norms: after the initialization, and after each optimizer's step.
#
# - Each output of a linear layer has a weight vector of norm 1. No layer has a bias but the heads: a normalization
#   follows, which has one.
# - Scale and bias of a batch normalization have the norm sqrt(F) together, those of F ones and F zeros.
# - The scale of an RMS normalization has the norm sqrt(F).
#
# A target network is not projected: it is a mean of projected networks, and its norms are a little below theirs.
#
# All layers take [..., B, F], for one network or for K at once, and are in training mode inside `batch_statistics`
# alone, see batch_renorm.py.

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.policies.numpy.residual import EXPANSION, RMS_EPS
from tmrl_core.actor.policies.torch.residual import ResidualBlock
from tmrl_core.training.agents.batch_renorm import RunningNorm
from tmrl_core.training.agents.rank_moments import joint_moments
from tmrl_core.training.rank_group import RANK_GROUP

# Shape suffixes: K critics, B batch, F features, I inputs, O outputs.

MOMENTUM, EPS, NORM_EPS = 0.01, 1e-5, 1e-8


class UnitLinear(nn.Module):
    """A linear layer without bias, with weights [..., I, O] of norm 1 for each output, orthogonal at first."""

    def __init__(self, inputs: int, outputs: int, count: int = 0) -> None:
        super().__init__()
        matrices = [nn.init.orthogonal_(torch.empty(outputs, inputs)).T for _ in range(max(count, 1))]
        self.weight = nn.Parameter(torch.stack(matrices) if count else matrices[0].contiguous())
        self.project()

    def forward(self, x_BI: Tensor) -> Tensor:
        """[..., B, O] of [..., B, I]."""
        return x_BI @ self.weight

    @torch.no_grad()
    def project(self) -> None:
        """Restore the norms."""
        self.weight.copy_(functional.normalize(self.weight, dim=-2, eps=NORM_EPS))


class UnitBatchNorm(RunningNorm):
    """Batch normalization of [..., B, F] over B."""

    def forward(self, x_BF: Tensor) -> Tensor:
        """Return the normalized features."""
        x_BF = x_BF.to(self.mean.dtype)  # moments of bfloat16 would have two digits
        mean, variance = self.mean, self.variance
        if self.training:
            if (ranks := RANK_GROUP.get()) is None:
                mean = x_BF.mean(dim=-2, keepdim=True)
                variance = (x_BF - mean).square().mean(dim=-2, keepdim=True)
                rows = x_BF.shape[-2]
            else:
                mean, variance, rows = joint_moments(x_BF, ranks)
            with torch.no_grad():
                self.mean.lerp_(mean, MOMENTUM)
                # Unbiased in the running moment alone, as torch's own batch normalization has it.
                self.variance.lerp_(variance * (rows / (rows - 1)), MOMENTUM)
        return torch.addcmul(self.bias, x_BF - mean, self.scale * torch.rsqrt(variance + EPS))

    @torch.no_grad()
    def project(self) -> None:
        """Restore the norm of scale and bias together."""
        total = self.scale.square().sum(dim=-1, keepdim=True) + self.bias.square().sum(dim=-1, keepdim=True)
        factor = math.sqrt(self.scale.shape[-1]) * torch.rsqrt(total + NORM_EPS)
        self.scale.mul_(factor)
        self.bias.mul_(factor)


class UnitRMSNorm(nn.Module):
    """Division of each row [..., B, F] by the root of its mean square."""

    def __init__(self, features: int, count: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((count, 1, features) if count else (1, features)))

    def forward(self, x_BF: Tensor) -> Tensor:
        """Return the normalized features."""
        x_BF = x_BF.to(self.scale.dtype)
        return x_BF * torch.rsqrt(x_BF.square().mean(dim=-1, keepdim=True) + RMS_EPS) * self.scale

    @torch.no_grad()
    def project(self) -> None:
        """Restore the norm."""
        total = self.scale.square().sum(dim=-1, keepdim=True)
        self.scale.mul_(math.sqrt(self.scale.shape[-1]) * torch.rsqrt(total + NORM_EPS))


class InvertedResidual(nn.Module):
    """A block that widens its input, narrows it, and adds it: (linear, normalization, ReLU) twice."""

    def __init__(self, width: int, count: int = 0) -> None:
        super().__init__()
        inner = width * EXPANSION
        self.wide, self.wide_norm = UnitLinear(width, inner, count), UnitBatchNorm(inner, count)
        self.narrow, self.norm = UnitLinear(inner, width, count), UnitBatchNorm(width, count)

    def forward(self, x_BF: Tensor) -> Tensor:
        """Return the block's output."""
        wide_BF = functional.relu(self.wide_norm(self.wide(x_BF)))
        return x_BF + functional.relu(self.norm(self.narrow(wide_BF)))

    def publish(self, acting: ResidualBlock) -> None:
        """Give a block without normalizations the weights with which it computes as this one in evaluation mode."""
        fold(self.wide, self.wide_norm, acting.wide)
        fold(self.narrow, self.norm, acting.narrow)


@torch.no_grad()
def fold(layer: UnitLinear, norm: UnitBatchNorm, target: nn.Linear) -> None:
    """Make a linear layer compute a layer and the normalization after it, in evaluation mode."""
    scale_O, bias_O, mean_O, variance_O = norm.wide()
    gain_O = (variance_O + EPS).rsqrt()
    target.weight.copy_((layer.weight.double() * scale_O * gain_O).T)
    target.bias.copy_(bias_O - mean_O * scale_O * gain_O)


@torch.no_grad()
def fold_input(norm: UnitBatchNorm, layer: UnitLinear, target: nn.Linear, kept: int) -> None:
    """Make a linear layer compute a normalization and the layer after it, in evaluation mode.

    Args:
        norm, layer, target: see above.
        kept: number of first inputs whose mean and deviation stay outside; only scale and bias fold.
    """
    scale_I, bias_I, mean_I, variance_I = norm.wide()
    gain_I = (variance_I + EPS).rsqrt()
    mean_I[:kept], gain_I[:kept] = 0.0, 1.0
    weight_IO = layer.weight.double()
    target.weight.copy_((weight_IO * (scale_I * gain_I)[:, None]).T)
    target.bias.copy_((bias_I - mean_I * scale_I * gain_I) @ weight_IO)


def residual_trunk(inputs: int, width: int, blocks: int, count: int = 0) -> nn.Sequential:
    """Return the layers from normalized inputs to the features of the heads."""
    return nn.Sequential(
        UnitBatchNorm(inputs, count),
        UnitLinear(inputs, width, count),
        *(InvertedResidual(width, count=count) for _ in range(blocks)),
        UnitRMSNorm(width, count),
    )


@torch.no_grad()
def project(module: nn.Module) -> None:
    """Restore the norms of all layers of a module; a plain linear layer is a head, whose bias stays."""
    for layer in module.modules():
        if isinstance(layer, (UnitLinear, UnitBatchNorm, UnitRMSNorm)):
            layer.project()
        elif isinstance(layer, nn.Linear):
            layer.weight.copy_(functional.normalize(layer.weight, dim=-1, eps=NORM_EPS))
