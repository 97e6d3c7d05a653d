"""Ranks as threads of one process, for tests and for debugging a training loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tmrl_core.errors import RankLostError
from tmrl_core.training.rank_group import RankGroup

if TYPE_CHECKING:
    from torch import Tensor


class _Table:
    """Place where the threads of a group leave what the others read."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self.parts: list[object] = [None] * size


class ThreadGroup(RankGroup):
    """One rank of a group of threads. A thread that ends early has to call `leave`.

    Args:
        rank: number of this rank.
        size: number of ranks.
        table: shared by the ranks.
    """

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank = rank
        self.size = size
        self._table = table

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their mean over the ranks."""
        import torch

        with torch.no_grad():
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
            parts = [part for part in self._exchange(flat) if isinstance(part, torch.Tensor)]
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            fill(tensors, total / self.size)

    def exchange(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks."""
        return [part for part in self._exchange(data) if isinstance(part, bytes)]

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        import torch

        with torch.no_grad():
            copies = [tensor.detach().clone() for tensor in tensors] if self.rank == 0 else []
            first = self._exchange(copies)[0]
            assert isinstance(first, list)
            for tensor, value in zip(tensors, first, strict=True):
                tensor.copy_(value)

    def leave(self) -> None:
        """End the group: each call of another rank fails from now on."""
        self._table.barrier.abort()

    def _exchange(self, part: object) -> list[object]:
        table = self._table
        table.parts[self.rank] = part
        try:
            table.barrier.wait()
            parts = list(table.parts)
            # A second time, or a fast rank would replace its part before a slow one has read it.
            table.barrier.wait()
        except threading.BrokenBarrierError as exc:
            raise RankLostError("another rank has ended, or does not come to a meeting") from exc
        return parts


def thread_groups(size: int, timeout_s: float = 60.0) -> list[ThreadGroup]:
    """Return the ranks of a new group, one for each thread.

    Args:
        size: number of ranks.
        timeout_s: maximum wait for the other threads.
    """
    table = _Table(size, timeout_s)
    return [ThreadGroup(rank, size, table) for rank in range(size)]


def fill(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Copy consecutive values of a flat tensor into these tensors."""
    import torch

    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    torch._foreach_copy_([*tensors], [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)])
