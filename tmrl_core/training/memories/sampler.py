"""Samplers: the rules by which a replay memory chooses the rows of a batch.

`UniformSampler` is here, `PrioritizedSampler` in prioritized.py, `RecentSampler` in staleness.py. Another rule is a
class that derives from `Sampler` and is given to the memory: `ReplayMemory(sampler=...)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.rows import Rows

MAX_BLOCK_BATCHES = 32


class Sampler(ABC):
    """A rule by which a replay memory chooses rows.

    Rows have absolute indices, counted from the first row ever written. The rows [rows.readable - len(rows),
    rows.readable) can be read. A sampler belongs to one memory, which calls it from one thread at a time.

    Attributes:
        repeatable: True: the choice depends on the rows and the generator alone. Batches may then be prefetched, and a
            checkpoint samples them again. False: it depends on updates too.
        follows_versions: True: `note_version` changes the choice.
        max_block_batches: number of batches that may be sampled in one call.
    """

    repeatable: ClassVar[bool] = True
    follows_versions: bool = False
    max_block_batches: int = MAX_BLOCK_BATCHES

    @abstractmethod
    def sample(
        self, rows: Rows, generator: np.random.Generator, batch_size: int, batches: int
    ) -> tuple[Array, dict[str, Array]]:
        """Choose the rows of some batches. There must be at least one row.

        Returns:
            Positions [batches * batch_size] int64 of the rows (`rows.positions_of(indices)`), and extras of the
            batches by name, [batches * batch_size] each.

        Raises:
            ValueError: no row may be sampled.
        """

    def count(self, rows: Rows) -> int:
        """Return the number of rows that may be sampled."""
        return len(rows)

    def add(self, rows: Rows, start: int) -> None:  # noqa: B027 - optional
        """React to new rows: those from absolute index `start` on can now be read."""

    def remove(self, start: int, stop: int) -> None:  # noqa: B027 - optional
        """Exclude the rows [start, stop) from sampling.

        Rows that leave because the memory is full are not reported.
        """

    def note_version(self, rows: Rows, counter: int) -> bool:
        """React to the latest policy version. Return True if this excludes rows from sampling."""
        return False

    def update_priorities(self, indices: Array, td_errors: Array) -> None:  # noqa: B027 - optional
        """React to the TD errors of the rows of a batch: [n] absolute indices, [n] errors."""

    def state_dict(self) -> object:
        """Return the state for a checkpoint; None: there is none."""
        return None

    def load_state_dict(self, state: object, rows: Rows, complete: bool) -> None:
        """Load a state, or None, after the rows have been loaded.

        Args:
            state: result of `state_dict`.
            rows: the loaded rows, which replace all rows added before.
            complete: True: the rows are those that the checkpoint was written with.

        Raises:
            ValueError: the state is invalid.
        """
        self.add(rows, rows.readable - len(rows))


class UniformSampler(Sampler):
    """Sampling of all rows with equal probability."""

    def sample(
        self, rows: Rows, generator: np.random.Generator, batch_size: int, batches: int
    ) -> tuple[Array, dict[str, Array]]:
        """Choose positions directly, without computing them from indices."""
        return generator.integers(0, len(rows), size=batch_size * batches), {}
