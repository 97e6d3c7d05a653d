"""Running mean and variance of rows."""

# Theory of operation
#
# The moments are buffers of a policy, hence part of its weights: workers, evaluations and saved policies need nothing
# else. A round affects them after it has been trained on, and the next version contains them, so log-densities are
# compared under the moments that the acting policy used.
#
# Several ranks (rank_group.py) add the rows of all at once. Each looks for numbers that are far away in its own rows,
# since a median over ranks would need all rows.

from __future__ import annotations

import torch
from torch import Tensor

from tmrl_core.training.rank_group import RANK_GROUP, RankGroup

FARTHEST = 1e4
"""Distance from a column's median that a number may have: in units, or in those of its usual deviation where that is
larger."""
RARE = 20
"""One row in so many may lie farther out than the usual deviation, which is the median absolute deviation or larger: of
many columns, half or more of the numbers are equal (no reward, or nothing in sight)."""
LARGEST_UNIT = 100.0
"""Limit of a usual deviation that is not the median one: up to half of the rows may be absurd."""


class RunningMoments(torch.nn.Module):
    """Mean and variance of each column, over all rows of all batches.

    It is a module, so that checkpoints include it. It computes in float64 on the CPU, since the sums are long.

    Args:
        columns: number of columns.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(columns, dtype=torch.float64))

    def see(self, row_BD: Tensor) -> None:
        """Add rows [B, D]; skip rows that are not finite, and clamp those beyond `FARTHEST`.

        A few numbers of 1e30 would otherwise make all others equal for good.
        """
        rows = row_BD.detach().to("cpu", torch.float64)
        rows = rows[torch.isfinite(rows).all(dim=1)]
        ranks = RANK_GROUP.get()
        if not len(rows) and ranks is None:
            return
        if len(rows):
            _clamp(rows)
        if ranks is None:
            mean, variance, count = rows.mean(dim=0), rows.var(dim=0, unbiased=False), float(len(rows))
        else:
            mean, variance, count = _of_all_ranks(rows, ranks)
            if not count:
                return
        total = self.count + count
        apart = mean - self.mean
        squares = self.variance * self.count + variance * count + apart.square() * self.count * count / total
        self.mean.add_(apart * count / total)
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """[D] standard deviation, always positive; 1 before the first row."""
        return (self.variance + 1e-8).sqrt()


def _clamp(rows: Tensor) -> None:
    """Clamp numbers beyond `FARTHEST` in rows [B, D], in place."""
    wide = rows.amax(dim=0) - rows.amin(dim=0) > FARTHEST  # no number of another column is beyond it
    if wide.any():
        columns = rows[:, wide]
        middle = columns.median(dim=0).values
        deviations = (columns - middle).abs()
        most = deviations.kthvalue(len(rows) - len(rows) // RARE, dim=0).values.clamp(1.0, LARGEST_UNIT)
        farthest = FARTHEST * torch.maximum(deviations.median(dim=0).values, most)
        rows[:, wide] = columns.clamp(middle - farthest, middle + farthest)


def _of_all_ranks(rows: Tensor, ranks: RankGroup) -> tuple[Tensor, Tensor, float]:
    """Return mean [D], variance [D] and number of the rows of all ranks."""
    count, *sums = ranks.sums([len(rows), *rows.sum(dim=0).tolist()])
    mean = torch.tensor(sums, dtype=torch.float64) / max(1.0, count)
    squares = ranks.sums((rows - mean).square().sum(dim=0).tolist())
    return mean, torch.tensor(squares, dtype=torch.float64) / max(1.0, count), count
