"""Ranks of one learner: several processes that train the same networks in step, each on a part of the batch."""

# Theory of operation
#
# For: the few places of training that must know of other ranks. This file knows neither processes nor how they talk;
# a room brings an implementation. Without one, `RANK_GROUP` is None, and the places below cost one read of a variable.
#
# What the core does for a group, all of it:
#
# - Between the backward pass and the step of an optimizer, gradients become their mean over the ranks
#   (`agents/optimizers.py`, `agents/ppo.py`). Clipping comes after it, so each rank clips the same gradients.
# - An update that is not finite on one rank is rolled back on all (`updates/rollback.py`).
# - Statistics over a batch or a round are of all ranks' rows (`agents/ppo.py`, `agents/running_moments.py`,
#   `agents/rank_moments.py`).
# - The loop decides from the counts of all ranks (`TrainingInterface.meet`), so all make the same number of updates
#   between two meetings, and publish the same versions.
#
# Hence weights, target networks, moments of optimizers and statistics are equal on all ranks, bit for bit, and are
# never sent after the start. Each rank's memory, offsets and random numbers are its own.
#
# A context variable and not an argument: the gradient is in reach of three lines below every agent, those of users
# included, and a process is a rank of one group only, as with torch.distributed. It is no plain global, so that tests
# can run ranks as threads.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class RankGroup(ABC):
    """The ranks of one learner. All ranks call the same methods in the same order; a call waits for the others.

    Attributes:
        rank: number of this rank, from 0.
        size: number of ranks.
    """

    rank: int
    size: int

    @abstractmethod
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the ranks, in place, with one message.

        Args:
            tensors: floating-point, of one device and the same shapes on all ranks.

        Raises:
            RankLostError: another rank has ended.
        """

    @abstractmethod
    def exchange(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in their order.

        Raises:
            RankLostError: another rank has ended.
        """

    @abstractmethod
    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of rank 0, in place.

        Raises:
            RankLostError: another rank has ended.
        """

    def all_true(self, flag: Tensor) -> Tensor:
        """Return a flag on the same device: True if it is true on all ranks."""
        share = flag.float().reshape(1)
        self.average([share])
        return share[0] == 1.0

    def least(self, number: int) -> int:
        """Return the smallest of the ranks' numbers."""
        parts = self.exchange(number.to_bytes(8, "little", signed=True))
        return min(int.from_bytes(part, "little", signed=True) for part in parts)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum over the ranks of each value, in float64, in the order of the ranks."""
        import numpy as np

        columns = [np.frombuffer(part) for part in self.exchange(np.asarray(values, np.float64).tobytes())]
        # One after the other, so that rounding is the same on all ranks.
        total = columns[0].copy()
        for column in columns[1:]:
            total += column
        found: list[float] = total.tolist()
        return found


RANK_GROUP: ContextVar[RankGroup | None] = ContextVar("rank_group", default=None)
"""Group of the thread that trains; None: one process trains alone."""
