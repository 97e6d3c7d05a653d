"""Skipped updates: each is counted and described in a file, and too many in a row end training."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tmrl_core.errors import BadUpdatesError
from tmrl_core.storage import write_whole
from tmrl_core.training.memories.trees import is_tensor
from tmrl_core.training.value_types import Batch, Indices, Metrics, Tree

logger = logging.getLogger(__name__)

SKIPPED = "update_skipped"
"""Metric of a skipped update: True, or a true tensor, if the update's batch or results hold NaN or Inf. Absent or
false: the update was applied."""

READ_EVERY = 64
"""Number of updates between two reads of results from the device. Each read makes the processor wait for the device."""
MAX_HELD_BYTES = 1 << 28
"""Size of the batches stored between two reads that triggers an early read."""
MAX_FILES = 20
"""Limit on descriptions in one run."""

_FIELDS = ("prev_obs", "new_act", "rew", "new_obs", "terminated", "truncated", "extras")


class Indexed(Protocol):
    """A memory that can report the indices of sampled transitions."""

    def indices_of(self, batch: Batch, /) -> Indices | None:
        """Return the indices of a batch's transitions; None: unknown."""


class BadUpdates:
    """Counter of skipped updates.

    Args:
        limit: number of skipped updates in a row that ends training.
        folder: for descriptions of the batches of skipped updates; None: no descriptions.
    """

    def __init__(self, limit: int, folder: str | Path | None) -> None:
        self.limit = limit
        self.folder = Path(folder) if folder is not None else None
        self.in_row = 0
        self._unread: list[tuple[int, Tree, Batch, Indices]] = []
        self._held_bytes = 0
        self._written = 0

    def note(self, update: int, metrics: Metrics, batch: Batch, memory: Indexed, indices: Indices | None = None) -> int:
        """Read the outcome of an update, or defer it until `read_deferred` where reading would wait for the device.

        Args:
            update: number of the update.
            metrics: result of `TrainingAgent.train`; `SKIPPED` is removed from it.
            batch: the update's batch.
            memory: source of the batch.
            indices: indices of the batch's transitions, if known already.

        Returns:
            Number of updates found to be skipped.

        Raises:
            BadUpdatesError: too many were skipped in a row.
        """
        skipped = metrics.pop(SKIPPED, None)
        if skipped is None:
            self.in_row = 0
            return 0
        if indices is None:
            indices = memory.indices_of(batch)
        self._unread.append((update, skipped, batch, indices))
        self._held_bytes += _bytes_of(batch)
        at_once = isinstance(skipped, (bool, np.bool_)) or skipped.device.type == "cpu"
        full = len(self._unread) >= READ_EVERY or self._held_bytes > MAX_HELD_BYTES
        return self.read_deferred() if at_once or full else 0

    def read_deferred(self) -> int:
        """Read the deferred outcomes; returns and raises as `note`."""
        found = 0
        unread, self._unread = self._unread, []
        self._held_bytes = 0
        flags = _values([skipped for _, skipped, _, _ in unread])
        for skipped, (update, _, batch, indices) in zip(flags, unread, strict=True):
            if not skipped:
                self.in_row = 0
                continue
            found += 1
            self.in_row += 1
            self._say(update, batch, indices)
        if self.in_row >= self.limit:
            look = self.folder if self.folder is not None else "the samples"
            raise BadUpdatesError(
                f"{self.in_row} updates in a row were not finite (trainer.max_bad_updates: {self.limit}). They were "
                f"rolled back, and the last checkpoint is unchanged. See {look}. If a batch holds NaN or Inf, fix the "
                "environment or filter its samples. If only losses or gradients do, lower the learning rates or scale "
                "the rewards."
            )
        return found

    def _say(self, update: int, batch: Batch, indices: Indices | None) -> None:
        where = bad_columns(batch)
        reason = f"in its batch: {', '.join(where)}" if where else "in losses or gradients; its batch is finite"
        logger.warning("update %d was skipped: NaN or Inf %s", update, reason)
        if self.folder is None or self._written >= MAX_FILES:
            return
        self._written += 1
        transitions = None if indices is None else [int(index) for index in indices]
        description = {"update": update, "transitions": transitions, "not_finite": where}
        try:
            write_whole(self.folder / f"update_{update}.json", (json.dumps(description, indent=1) + "\n").encode())
        except OSError as exc:
            logger.warning("a skipped update cannot be described in %s: %s", self.folder, exc)


def _values(flags: list[Any]) -> list[bool]:
    """Return flags as Python booleans; flags on a device are read with one transfer."""
    if len(flags) < 2 or not all(map(is_tensor, flags)):
        return [bool(flag) for flag in flags]
    import torch

    values: list[bool] = torch.stack(flags).tolist()
    return values


def _bytes_of(value: Tree) -> int:
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes_of, value))
    return int(value.nbytes) if is_tensor(value) or isinstance(value, np.ndarray) else 0


def bad_columns(batch: Batch) -> dict[str, list[int]]:
    """Return the rows with NaN or Inf of each column of a batch that has any."""
    found: dict[str, list[int]] = {}
    for name, value in zip(_FIELDS, batch if isinstance(batch, tuple) else (), strict=False):
        _add_bad_rows(name, value, found)
    return found


def _add_bad_rows(name: str, value: Tree, found: dict[str, list[int]]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _add_bad_rows(f"{name}.{key}", item, found)
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            _add_bad_rows(f"{name}.{number}", item, found)
    elif is_tensor(value) and value.is_floating_point() and value.ndim:
        # A sum is finite only if its terms are.
        totals = value.flatten(1).sum(1) if value.ndim > 1 else value
        rows = [row for row, total in enumerate(totals.tolist()) if not math.isfinite(total)]
        if rows:
            found[name] = rows
