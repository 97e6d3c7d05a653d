"""Moments of a batch over the rows of all ranks."""

# Theory of operation
#
# Several ranks (rank_group.py) each have a part of the batch. An agent that normalizes by the batch would otherwise
# normalize each part by itself, which is another agent: with 4 x 64 rows, moments of 64. One message per layer carries
# the means of x and of its squares, and one in the backward pass their gradients.
#
# The gradient, in numbers: 2 ranks, and the loss of the whole is (L0 + L1) / 2. Both losses depend on rank 0's rows
# through the mean m = (m0 + m1) / 2, so d(L0 + L1)/2 / d m0 = (dL0/dm + dL1/dm) / 4. Rank 0 computes
# (dL0/dm + dL1/dm) / 2 here, which is the mean over the ranks of what arrived, and the mean of the parameters'
# gradients (optimizers.py) divides by 2 again.
#
# Float64, since the mean square less the squared mean loses digits: a feature of mean 1,000 and deviation 0.1 would
# have none left in float32. Rejected: the mean first and then the squares around it, which is exact and twice as many
# messages.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tmrl_core.training.rank_group import RankGroup

# Shape suffixes: B rows of this rank, F features.


class _Mean(torch.autograd.Function):
    """Mean over the ranks, with the gradient of the mean of their losses."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: RankGroup) -> Tensor:
        ctx.ranks = ranks
        whole = own.clone()
        ranks.average([whole])
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = gradients[0].clone()
        ctx.ranks.average([whole])
        return whole, None


def joint_moments(x_BF: Tensor, ranks: RankGroup) -> tuple[Tensor, Tensor, int]:
    """Return mean and variance (of all rows, divided by their number) [..., 1, F] over the ranks, and their rows.

    Args:
        x_BF: features [..., B, F]; B is the same on all ranks.
        ranks: the group.
    """
    wide_BF = x_BF.double()
    own = torch.stack([wide_BF.mean(dim=-2, keepdim=True), wide_BF.square().mean(dim=-2, keepdim=True)])
    mean, square = _Mean.apply(own, ranks)  # type: ignore[no-untyped-call]
    variance = (square - mean.square()).clamp(min=0.0)
    return mean.to(x_BF.dtype), variance.to(x_BF.dtype), x_BF.shape[-2] * ranks.size
