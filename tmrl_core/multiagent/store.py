"""The experience pool of an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.samples.columns import leaves, map_leaves


class SimpleStore:
    """A key-value store of experiences.

    Args:
        capacity: experiences that it holds at most.
        overwrite: replaced experiences once it is full: the oldest, or random ones.
    """

    def __init__(self, capacity: int = 100_000, overwrite: Literal["rolling", "random"] = "rolling") -> None:
        self.capacity = capacity
        self.overwrite = overwrite
        self._columns: Columns = {}

    def __len__(self) -> int:
        """Return the number of experiences."""
        return len(next(leaves(self._columns))) if self._columns else 0

    def put(self, contents: Columns) -> NDArray[np.int64]:
        """Append experiences and return their indexes."""
        before = len(self)
        self._columns = _joined(self._columns, contents) if before else dict(contents)
        return np.arange(before, len(self))

    def get(self, indexes: Sequence[int] | NDArray[np.int64] | None = None) -> Columns:
        """Return experiences by index; None: all, the oldest first."""
        columns: Columns = map_leaves(
            lambda leaf: leaf if indexes is None else leaf[np.asarray(indexes)], self._columns
        )
        return columns

    def update(self, indexes: Sequence[int] | NDArray[np.int64], contents: Columns) -> None:
        """Replace values of experiences by index. A new key starts with zeros elsewhere."""
        raise NotImplementedError

    def filter(self, *filters: Callable[[Columns], NDArray[np.bool_]]) -> NDArray[np.int64]:
        """Return the indexes of the experiences that pass all filters."""
        raise NotImplementedError

    def sample(
        self, size: int, rng: np.random.Generator, *, weights: str | None = None
    ) -> tuple[NDArray[np.int64], Columns]:
        """Return the indexes and columns of `size` experiences, drawn with replacement.

        Args:
            size: number of experiences.
            rng: the generator to draw from.
            weights: key of the weights; None draws uniformly.
        """
        indexes = rng.integers(len(self), size=size)
        return indexes, self.get(indexes)

    def clear(self) -> None:
        """Remove all experiences."""
        self._columns = {}


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {key: _joined(first[key], second[key]) for key in first}
    return np.concatenate([first, second])
