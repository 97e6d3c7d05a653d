"""Prioritized replay: transitions with larger TD errors are sampled more often.

Source: Schaul et al., arXiv:1511.05952, algorithm 1 (proportional variant) and section 3.4.
"""

# Theory of operation
#
# Priorities change with each update, so each batch uses those that the batch before it has changed: batches are sampled
# one at a time.
#
# A transition is new with the highest recent priority, so that it is sampled at least once soon. Its index is absolute,
# and the tree's place is the index modulo the capacity. An error that arrives for a transition that has left the memory
# is ignored: its place belongs to another one by now. Example with capacity 100: indices 0 to 99 fill the places, and
# index 100 takes place 0. A late error of index 0 is below the oldest index, 1, and changes nothing.
#
# Transitions that must not be sampled any more (damaged, incomplete, too old) get the priority 0, and `update` skips
# places of 0, so that no late error raises them again.
#
# Priorities are in RAM and in checkpoints, also for a memory on disk. Rows that it holds beyond its checkpoint start
# with the highest priority, as new ones do.

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np

from tmrl_core.config import from_values
from tmrl_core.config.sections import PrioritySection
from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.sampler import Sampler
from tmrl_core.training.memories.staleness import FreshRows
from tmrl_core.training.memories.sum_tree import SumTree, sum_tree
from tmrl_core.training.value_types import State

INDICES = "indices"
WEIGHTS = "weights"
PERIOD_UPDATES = 10_000
"""Updates after which an earlier highest priority is forgotten, at the latest after twice as many."""


class Prioritization(PrioritySection, frozen=True, kw_only=True):
    """Settings of prioritized sampling: the section `memory.priority`, checked when it is made.

    Raises:
        ConfigError: a value is out of its range.
    """

    def __post_init__(self) -> None:
        from_values({"memory": {"priority": msgspec.structs.asdict(self)}})


class Priorities:
    """Priorities of the newest `capacity` transitions, which are identified by their absolute index.

    Args:
        capacity: transitions that the memory holds.
        settings: settings of prioritized sampling.
        tree: tree of that capacity that holds the priorities; None: the fastest available one.

    Raises:
        ConfigError: there is not enough RAM.

    Attributes:
        batches: number of batches sampled so far, which determines beta.
        highest: highest priority of the last one or two periods of `PERIOD_UPDATES`, at least 1; new transitions get
            it. A highest priority of all times would never forget one absurd TD error: each new transition would
            displace all others.
    """

    def __init__(self, capacity: int, settings: Prioritization, tree: SumTree | None = None) -> None:
        self.capacity = capacity
        self.settings = settings
        self.batches = 0
        self.highest = 1.0
        self._period = (1.0, 0)
        """Highest priority and number of updates of the current period."""
        try:
            self._tree = sum_tree(capacity) if tree is None else tree
        except (MemoryError, ValueError) as exc:  # ValueError: the size exceeds the address space
            raise ConfigError(
                f"memory.capacity: the priorities of {capacity} transitions need {capacity * 8 / 1e9:.1f} GB, which "
                "this machine does not give. Choose a smaller capacity, or memory.sampling: uniform."
            ) from exc
        self._stop = 0
        self._removed = False
        """True: transitions that are still in the memory may have been excluded from sampling."""

    @property
    def beta(self) -> float:
        """Exponent of the importance weights of the next batch."""
        share = min(1.0, self.batches / self.settings.beta_batches)
        return self.settings.beta + share * (self.settings.beta_final - self.settings.beta)

    def add(self, start: int, stop: int) -> None:
        """Add the new transitions [start, stop)."""
        places = np.arange(max(start, stop - self.capacity), stop) % self.capacity
        self._tree.set(places, self.highest**self.settings.alpha)
        self._stop = stop

    def remove(self, start: int, stop: int) -> None:
        """Exclude transitions [start, stop) from sampling permanently."""
        self._removed = True
        self._tree.set(np.arange(max(start, self._stop - self.capacity), stop) % self.capacity, 0.0)

    def sample(self, generator: np.random.Generator, size: int) -> tuple[Array, Array]:
        """Choose one transition out of each of `size` equal shares of the sum of all priorities.

        Args:
            generator: generator of random numbers.
            size: number of transitions in a batch.

        Returns:
            Absolute indices [size], and importance weights [size] float32, of which the largest is 1.
        """
        places, weights = self._tree.sample(generator.random(size), self.beta)
        self.batches += 1
        newest = self._stop - 1
        indices: Array = newest - (newest - places) % self.capacity
        return indices, weights

    def update(self, indices: Array, td_errors: Array) -> None:
        """Set the priorities of the transitions of a batch; those that have left the memory are skipped.

        Args:
            indices: [n] absolute indices.
            td_errors: [n]; their sign is ignored. An error that is not finite leaves the transition's priority
                unchanged.
        """
        oldest = self._stop - self.capacity
        highest = self._tree.update(indices, td_errors, oldest, self.settings, skip_zero=self._removed)
        self.highest = max(self.highest, highest)
        recent, updates = max(self._period[0], highest), self._period[1] + 1
        if updates >= PERIOD_UPDATES:
            self.highest, recent, updates = recent, 1.0, 0
        self._period = recent, updates

    def of(self, indices: Array) -> Array:
        """Return the sampling weights of transitions: priority to the power of alpha."""
        shares: Array = self._tree.leaves[indices % self.capacity]
        return shares

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        held = min(self._stop, self.capacity)
        indices = np.arange(self._stop - held, self._stop)
        return {
            "stop": self._stop,
            "values": self.of(indices),
            "batches": self.batches,
            "highest": self.highest,
            "period": list(self._period),
        }

    def load_state_dict(self, state: State, stop: int | None = None) -> None:
        """Undo `state_dict`; newer transitions keep their priorities.

        Args:
            state: the result of `state_dict`.
            stop: first transition of the state that is not in the memory; None: all are.

        Raises:
            ValueError: the state is invalid.
        """
        saved, values = int(state["stop"]), np.asarray(state["values"], np.float64)
        if (
            values.ndim != 1
            or len(values) > min(saved, self.capacity)
            or not (np.isfinite(values) & (values >= 0)).all()
        ):
            raise ValueError("the priorities of the checkpoint are invalid")
        self._stop = max(self._stop, saved if stop is None else min(saved, stop))
        self._removed = self._removed or not values.all()
        indices = np.arange(saved - len(values), saved)
        kept = (indices >= self._stop - self.capacity) & (indices < self._stop)
        if kept.any():
            self._tree.set(indices[kept] % self.capacity, values[kept])
        self.batches, self.highest = int(state["batches"]), float(state["highest"])
        recent, updates = state["period"]
        self._period = float(recent), int(updates)


class PrioritizedSampler(Sampler):
    """Prioritized sampling.

    Batches get the extras `indices` (absolute) and `weights` (importance weights).

    Args:
        capacity: transitions that the memory holds.
        settings: settings of prioritized sampling.
        max_lag: largest number of policy versions by which a transition may be behind; None: any.

    Raises:
        ConfigError: there is not enough RAM, or `max_lag` is negative.

    Attributes:
        priorities: priorities of all rows that can be read.
    """

    repeatable: ClassVar[bool] = False
    max_block_batches = 1

    def __init__(self, capacity: int, settings: Prioritization, max_lag: int | None = None) -> None:
        self.fresh = None if max_lag is None else FreshRows(max_lag)
        self.priorities = Priorities(capacity, settings)
        self.follows_versions = self.fresh is not None

    def sample(
        self, rows: Rows, generator: np.random.Generator, batch_size: int, batches: int
    ) -> tuple[Array, dict[str, Array]]:
        """Choose rows by their current priorities."""
        if self.fresh is not None:
            self.fresh.check(rows)
        indices, weights = self.priorities.sample(generator, batch_size)
        return rows.positions_of(indices), {INDICES: indices, WEIGHTS: weights}

    def count(self, rows: Rows) -> int:
        """Return the number of rows that are recent enough."""
        return len(rows) if self.fresh is None else self.fresh.count_of(rows)

    def add(self, rows: Rows, start: int) -> None:
        """Give new rows the highest recent priority."""
        self.priorities.add(start, rows.readable)
        if self.fresh is not None:
            self.fresh.add_rows(rows, start)
            self._expire(rows, self.fresh)

    def remove(self, start: int, stop: int) -> None:
        """Set the priorities of excluded rows to 0."""
        self.priorities.remove(start, stop)

    def note_version(self, rows: Rows, counter: int) -> bool:
        """Exclude rows that are too old."""
        if self.fresh is None:
            return False
        self.fresh.follow(counter)
        return self._expire(rows, self.fresh)

    def _expire(self, rows: Rows, fresh: FreshRows) -> bool:
        expired = fresh.expire(rows.readable - len(rows), rows.readable)
        for start, stop in expired:
            self.priorities.remove(start, stop)
        return bool(expired)

    def update_priorities(self, indices: Array, td_errors: Array) -> None:
        """Set the priorities of the rows of a batch."""
        self.priorities.update(indices, td_errors)

    def state_dict(self) -> State:
        """Return the priorities."""
        return self.priorities.state_dict()

    def load_state_dict(self, state: Any, rows: Rows, complete: bool) -> None:
        """Restore priorities. Rows that the checkpoint does not know get the highest priority."""
        if self.fresh is not None:
            self.fresh = FreshRows(self.fresh.max_lag)
        first, stop = rows.readable - len(rows), rows.readable
        if state is not None:
            self.priorities.highest = float(state["highest"])
        self.add(rows, first)
        if state is not None:
            self.priorities.load_state_dict(state, stop)
            lost = max(0, stop - rows.capacity)
            if lost < first and not complete:
                self.priorities.remove(lost, first)
