"""Prioritized replay: transitions that surprised more are drawn more often.

Source: Schaul et al., arXiv:1511.05952, algorithm 1 (proportional variant) and section 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.sum_tree import SumTree, sum_tree


@dataclass(frozen=True, kw_only=True)
class Prioritization:
    """How much priorities count.

    Args:
        alpha: a transition is drawn in proportion to its priority to this power; 0: uniformly.
        beta: how far importance weights make up for that, at first: (1 / (N * P))^beta.
        beta_final: the same in the end.
        beta_batches: batches until then; in between it grows linearly.
        epsilon: added to each absolute TD error, so that no transition is never drawn again.
        batches_at_once: most batches that are drawn by the same priorities. 1: each batch follows what the one before
            has changed. More cost less each; what is appended counts at once in any case.

    Raises:
        ConfigError: a value is out of its range.
    """

    alpha: float = 0.6
    beta: float = 0.4
    beta_final: float = 1.0
    beta_batches: int = 500_000
    epsilon: float = 1e-6
    batches_at_once: int = 1

    def __post_init__(self) -> None:
        for name, share in (("alpha", self.alpha), ("beta", self.beta), ("beta_final", self.beta_final)):
            if not 0 <= share <= 1:
                raise ConfigError(f"memory.priority.{name} must be 0 to 1, got {share!r}")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ConfigError(f"memory.priority.epsilon must be above 0, got {self.epsilon!r}")
        for name, count in (("beta_batches", self.beta_batches), ("batches_at_once", self.batches_at_once)):
            if count < 1:
                raise ConfigError(f"memory.priority.{name} must be at least 1, got {count!r}")


class Priorities:
    """Priorities of the newest `capacity` transitions, which are known by their absolute index.

    Args:
        capacity: transitions that the memory holds.
        settings: how much priorities count.
        tree: of that capacity, which holds them; None: the fastest that there is here.

    Raises:
        ConfigError: there is no room for so many.

    Attributes:
        batches: drawn so far, from which beta follows.
        highest: the highest priority so far, which new transitions get.
    """

    def __init__(self, capacity: int, settings: Prioritization, tree: SumTree | None = None) -> None:
        self.capacity = capacity
        self.settings = settings
        self.batches = 0
        self.highest = 1.0
        try:
            self._tree = sum_tree(capacity) if tree is None else tree
        except (MemoryError, ValueError) as exc:  # ValueError: beyond what there are addresses for
            raise ConfigError(
                f"memory.capacity: the priorities of {capacity} transitions need {capacity * 8 / 1e9:.1f} GB, which "
                "this machine does not give. Choose a smaller capacity, or memory.sampling: uniform."
            ) from exc
        self._stop = 0
        self._removed = False
        """Whether there may be transitions that are in the memory still, and not drawn any more."""

    @property
    def beta(self) -> float:
        """Exponent of the importance weights of the next batch."""
        share = min(1.0, self.batches / self.settings.beta_batches)
        return self.settings.beta + share * (self.settings.beta_final - self.settings.beta)

    def add(self, start: int, stop: int) -> None:
        """Transitions [start, stop) are new."""
        places = np.arange(max(start, stop - self.capacity), stop) % self.capacity
        self._tree.set(places, self.highest**self.settings.alpha)
        self._stop = stop

    def remove(self, start: int, stop: int) -> None:
        """Transitions [start, stop) are no longer drawn, whatever `update` hears of them."""
        self._removed = True
        self._tree.set(np.arange(max(start, self._stop - self.capacity), stop) % self.capacity, 0.0)

    def draw(self, generator: np.random.Generator, size: int, count: int = 1) -> tuple[Array, Array]:
        """For each batch one transition out of each of `size` equal shares of the sum of all priorities.

        Args:
            generator: of random numbers.
            size: transitions in a batch.
            count: batches.

        Returns:
            Absolute indices [count * size], and importance weights [count * size] float32, of which the largest in each
            batch is 1.
        """
        places, weights = self._tree.draw(generator.random((count, size)), self.beta)
        self.batches += count
        newest = self._stop - 1
        indices: Array = newest - (newest - places) % self.capacity
        return indices, weights

    def update(self, indices: Array, td_errors: Array) -> None:
        """What the transitions of a batch have surprised by; those that have left meanwhile are passed over.

        Args:
            indices: [n] absolute.
            td_errors: [n]; their sign does not count. One that is not finite leaves its transition's priority.
        """
        oldest = self._stop - self.capacity
        highest = self._tree.update(indices, td_errors, oldest, self.settings, skip_zero=self._removed)
        self.highest = max(self.highest, highest)

    def of(self, indices: Array) -> Array:
        """What transitions are drawn in proportion to: priority to the power of alpha."""
        shares: Array = self._tree.leaves[indices % self.capacity]
        return shares

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        held = min(self._stop, self.capacity)
        indices = np.arange(self._stop - held, self._stop)
        return {"stop": self._stop, "values": self.of(indices), "batches": self.batches, "highest": self.highest}

    def load_state_dict(self, state: dict[str, Any], stop: int | None = None) -> None:
        """Undo `state_dict`; transitions that are newer keep what they have.

        Args:
            state: what `state_dict` returned.
            stop: transitions from this one on are not in the memory, whatever the state says of them; None: all are.

        Raises:
            ValueError: it holds what cannot be.
        """
        saved, values = int(state["stop"]), np.asarray(state["values"], np.float64)
        if (
            values.ndim != 1
            or len(values) > min(saved, self.capacity)
            or not (np.isfinite(values) & (values >= 0)).all()
        ):
            raise ValueError("the priorities of a checkpoint are not what they can be")
        self._stop = max(self._stop, saved if stop is None else min(saved, stop))
        self._removed = self._removed or not values.all()
        indices = np.arange(saved - len(values), saved)
        kept = (indices >= self._stop - self.capacity) & (indices < self._stop)
        if kept.any():
            self._tree.set(indices[kept] % self.capacity, values[kept])
        self.batches, self.highest = int(state["batches"]), float(state["highest"])
