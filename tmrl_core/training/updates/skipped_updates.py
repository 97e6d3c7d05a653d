"""Skipped updates: each is counted and logged, and too many in a row end training."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from tmrl_core.errors import BadUpdatesError
from tmrl_core.training.memories.trees import is_tensor
from tmrl_core.training.value_types import Batch, Metrics, Tree

logger = logging.getLogger(__name__)

SKIPPED = "update_skipped"
"""Metric of a skipped update: True, or a true tensor, if the update's batch or results hold NaN or Inf. Absent or
false: the update was applied."""

READ_EVERY = 64
"""Number of updates between two reads of results from the device. Each read makes the processor wait for the device."""

_FIELDS = ("prev_obs", "new_act", "rew", "new_obs", "terminated", "truncated", "extras")


class BadUpdates:
    """Counter of skipped updates.

    Args:
        limit: number of skipped updates in a row that ends training.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_row = 0
        self._unread: list[tuple[int, Tree]] = []

    def note(self, update: int, metrics: Metrics, batch: Batch) -> int:
        """Read the outcome of an update, or defer it until `read_deferred` where reading would wait for the device.

        Args:
            update: number of the update.
            metrics: result of `TrainingAgent.train`; `SKIPPED` is removed from it.
            batch: the update's batch, whose bad columns are logged where nothing has to be waited for.

        Returns:
            Number of updates found to be skipped.

        Raises:
            BadUpdatesError: too many were skipped in a row.
        """
        skipped = metrics.pop(SKIPPED, None)
        if skipped is None:
            self.in_row = 0
            return 0
        self._unread.append((update, skipped))
        if isinstance(skipped, (bool, np.bool_)) or skipped.device.type == "cpu":
            where = bad_columns(batch)
            return self._read(f"in its batch: {where}" if where else "in losses or gradients; its batch is finite")
        return self.read_deferred() if len(self._unread) >= READ_EVERY else 0

    def read_deferred(self) -> int:
        """Read the deferred outcomes; returns and raises as `note`."""
        return self._read("in its batch, losses or gradients")

    def _read(self, where: str) -> int:
        found = 0
        unread, self._unread = self._unread, []
        flags = _values([skipped for _, skipped in unread])
        for skipped, (update, _) in zip(flags, unread, strict=True):
            if not skipped:
                self.in_row = 0
                continue
            found += 1
            self.in_row += 1
            logger.warning("update %d was skipped: NaN or Inf %s", update, where)
        if self.in_row >= self.limit:
            raise BadUpdatesError(
                f"{self.in_row} updates in a row were not finite (trainer.max_bad_updates: {self.limit}). They were "
                "rolled back, and the last checkpoint is unchanged. The log says where the numbers were. If a batch "
                "holds NaN or Inf, fix the environment or filter its samples. If only losses or gradients do, lower "
                "the learning rates or scale the rewards."
            )
        return found


def _values(flags: list[Any]) -> list[bool]:
    """Return flags as Python booleans; flags on a device are read with one transfer."""
    if len(flags) < 2 or not all(map(is_tensor, flags)):
        return [bool(flag) for flag in flags]
    import torch

    values: list[bool] = torch.stack(flags).tolist()
    return values


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
