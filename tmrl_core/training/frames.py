"""Stacked observations with each frame stored once.

An observation of k stacked frames [k, *shape], the newest last, shares k - 1 of them with the one before, and with the
next. A `FrameStore` keeps a ring of frames; where an observation lay, the memory keeps the numbers of its frames
instead, [k] int64, counted from the first frame ever stored. All that comes is compared with what is there, frame by
frame, so that whatever a stack holds (padding after a reset, skipped frames) comes back exactly.

A frame goes when the ring comes round to it, and with it the transitions that need it. Of a stream that was silent for
long the frames are stored again instead of referred to, so that a transition never needs frames older than `reach`: the
transitions that have gone are then the oldest ones, and `first_row` says from where on all frames are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.training.layout import Array


class FrameStore:
    """The frames of one leaf of the observations.

    Args:
        capacity: transitions that the memory holds.
        stack: frames in an observation (k).
        shape: of a frame.
        dtype: of a frame.

    Raises:
        ConfigError: there is no room for so many.

    Attributes:
        written: frames ever stored.
        at_once: observations that may be stored in one call.
        reach: a new transition refers to no frame older than so many before the newest.
    """

    def __init__(self, capacity: int, stack: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.stack = stack
        self.at_once = max(1, capacity // (64 * stack))
        self.reach = max(2 * stack, capacity // 64)
        size = capacity + capacity // 64 + self.reach + (self.at_once + 1) * stack
        try:
            self.ring: Array = np.empty((size, *shape), dtype)
        except MemoryError as exc:
            needed = size * int(np.prod(shape)) * dtype.itemsize / 1e9
            raise ConfigError(
                f"memory.capacity: {capacity} transitions need {needed:.1f} GB of frames, which this machine does not "
                "give. Choose a smaller capacity."
            ) from exc
        self.written = 0
        self._needs = np.zeros(capacity, np.int64)
        """Per transition (index modulo capacity) a number below which it needs no frame; it never falls."""

    @property
    def oldest(self) -> int:
        """Number of the oldest frame that is there."""
        return max(0, self.written - len(self.ring))

    def frames(self, numbers: Array) -> Array:
        """The frames of these numbers: [*numbers.shape, *shape]."""
        return self.ring.take(numbers.reshape(-1) % len(self.ring), axis=0).reshape(
            *numbers.shape, *self.ring.shape[1:]
        )

    def usable(self, numbers: Array) -> bool:
        """Whether these may be referred to once more."""
        return bool(numbers.min() >= self.written - self.reach)

    def store(self, observations: Array, before: Array | None) -> Array:
        """Store what is new in observations that follow each other.

        Args:
            observations: [rows, k, *shape], at most `at_once` rows.
            before: [k] numbers of the observation before the first; None: there is none.

        Returns:
            [rows, k] the numbers of their frames.
        """
        rows = len(observations)
        # Which of them are the one before, moved on by a frame.
        moved = np.empty(rows, bool)
        moved[0] = before is not None and bool((observations[0, :-1] == self.frames(before)[1:]).all())
        moved[1:] = (observations[1:, :-1] == observations[:-1, 1:]).all(axis=tuple(range(1, observations.ndim)))
        numbers = np.empty((rows, self.stack), np.int64)
        row = 0
        while row < rows:
            stop = row + 1
            while stop < rows and moved[stop]:
                stop += 1
            # A run: each moves the one before on, the first perhaps the one before this call.
            if moved[row]:
                assert before is not None or row > 0
                known = before if row == 0 else numbers[row - 1]
                assert known is not None
                sequence = np.concatenate([known[1:], self._put(observations[row:stop, -1])])
            else:
                first = self._first(observations[row])
                sequence = np.concatenate([first, self._put(observations[row + 1 : stop, -1])])
            windows = np.lib.stride_tricks.sliding_window_view(sequence, self.stack)
            numbers[row:stop] = windows
            row = stop
        return numbers

    def _first(self, observation: Array) -> Array:
        """Store an observation that continues none; a frame that repeats the one before it is stored once."""
        same = (observation[1:] == observation[:-1]).all(axis=tuple(range(1, observation.ndim)))
        new = np.concatenate([[True], ~same])
        stored = self._put(observation[new])
        numbers: Array = stored[np.cumsum(new) - 1]
        return numbers

    def _put(self, frames: Array) -> Array:
        numbers = np.arange(self.written, self.written + len(frames))
        self.ring[numbers % len(self.ring)] = frames
        self.written += len(frames)
        return numbers

    def note(self, start: int, stop: int, floor: int) -> None:
        """Transitions [start, stop) were stored; they need no frame below `floor`."""
        capacity = len(self._needs)
        self._needs[np.arange(max(start, stop - capacity), stop) % capacity] = floor

    def first_row(self, first: int, stop: int) -> int:
        """The first of the transitions [first, stop) from which on all frames are there."""
        capacity, oldest = len(self._needs), self.oldest
        # They never fall, so the first that is high enough is found by halves.
        while first < stop:
            middle = (first + stop) // 2
            if self._needs[middle % capacity] < oldest:
                first = middle + 1
            else:
                stop = middle
        return first

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: a copy of all frames that are there."""
        numbers = np.arange(self.oldest, self.written)
        return {"written": self.written, "frames": self.frames(numbers), "needs": self._needs.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`.

        Raises:
            ValueError: it is of another store.
        """
        frames, needs = np.asarray(state["frames"]), np.asarray(state["needs"])
        written = int(state["written"])
        right = (frames.dtype, frames.shape[1:], needs.shape) == (
            self.ring.dtype, self.ring.shape[1:], self._needs.shape,
        ) and len(frames) == min(written, len(self.ring))  # fmt: skip
        if not right:
            raise ValueError(f"{len(frames)} frames of {frames.dtype}{list(frames.shape[1:])} do not fit this memory")
        self.ring[np.arange(written - len(frames), written) % len(self.ring)] = frames
        self.written = written
        self._needs[:] = needs
