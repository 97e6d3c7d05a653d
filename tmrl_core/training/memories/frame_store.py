"""Large observations, alone or stacked, with each frame stored once."""

# Theory of operation
#
# An observation of k stacked frames [k, *shape], the newest last, shares k - 1 of them with the previous observation
# and with the next one. In place of an observation, rows contain the numbers of its frames, [k] int64, counted from the
# first frame ever stored. A `FrameStore` compares new stacks with stored ones, frame by frame, so that every stack
# (padding after a reset, skipped frames) is restored exactly: nothing is assumed of the wrapper that made the stacks.
# `Frames` holds the frames: in a ring in RAM, or in the files of a memory on disk (disk_frames.py).
#
# Example with k = 4. A reset's stack is a a a a: neighbouring equal frames are stored once, so frame 0 is a and the row
# holds 0 0 0 0. The next observation a a a b is the one before, shifted, so only b is stored, and the row holds 0 0 0
# 1. Then a a b c is 0 0 1 2. A thousand steps take about a thousand frames instead of eight thousand (each stack is in
# two rows, as the new and as the previous observation).
#
# The number of frames is limited, and transitions leave with the frames that they need. That would be a search if rows
# needed frames of any age. So it is made an order: a new row refers only to the newest `reach` frames. The frames of a
# stream that was silent for longer are stored again before its next row (frame_stack_builder.py). The number below
# which a row needs no frame (`_needs`) therefore never decreases from row to row, transitions with missing frames are
# always the oldest ones, and a binary search finds the first complete row (`first_row`).
#
# A frame alone is a stack of one (k = 1): the picture of one camera, or any other large entry. A transition has two
# observations, and the second is the first of the next transition, so numbers in their place halve the memory: 200
# steps take 201 frames in place of 400. Nothing is compared, since an observation never contains the one before it. The
# margins below are half as large, because the frames are all that such a memory holds.
#
# `reach` is a sixty-fourth of the capacity and at least the frames of a tail; at most `at_once` observations are stored
# in one call, so that they cannot push out the frames that their own first rows refer to. `frames_held` adds these
# margins to one frame for each transition: with short episodes, whose resets store frames of their own, a memory holds
# fewer transitions than its capacity rather than wrong ones.
#
# For checkpoints, frames in RAM are rows as transitions are (row_memory.py): numbered, written once to the files that
# all checkpoints of a run share, and kept from being overwritten until then. If damage has taken the oldest ones, the
# transitions that need them leave.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tmrl_core.config.algorithms import ALONE_BYTES
from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.layout import Array, Leaf, TreeSpec, describe_spec, spec_of
from tmrl_core.training.memories.row_memory import RowLease, SavedRows
from tmrl_core.training.value_types import State

MAX_FRAME_BYTES = 1 << 31


@dataclass(frozen=True)
class StackFormat:
    """The leaves of an observation that are stacks of frames, or frames alone.

    Args:
        stack: number of frames in a stack; 1: there are only frames alone.
        observation: spec of an observation.
        alone_bytes: size from which another leaf is a frame alone.
    """

    stack: int
    observation: TreeSpec
    alone_bytes: int = ALONE_BYTES

    @property
    def stacks(self) -> dict[int, Leaf]:
        """The leaves, by their number, each [frames, *shape]: `stack` frames, or 1."""
        found = {}
        for i, leaf in enumerate(self.observation.leaves):
            if self.is_stack(leaf):
                found[i] = leaf
            elif leaf.width * leaf.dtype.itemsize >= self.alone_bytes:
                found[i] = replace(leaf, shape=(1, *leaf.shape))
        return found

    def is_stack(self, leaf: Leaf) -> bool:
        """Return True for a stack of frames."""
        return self.stack > 1 and len(leaf.shape) > 1 and leaf.shape[0] == self.stack

    def describe(self) -> State:
        """Return JSON-able values."""
        return {
            "stack": self.stack,
            "observation": describe_spec(self.observation),
            "alone_bytes": self.alone_bytes,
        }

    @classmethod
    def from_description(cls, description: State) -> StackFormat:
        """Undo `describe`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the value is not a description.
        """
        alone_bytes = int(description["alone_bytes"])
        made = cls(int(description["stack"]), spec_of(description["observation"]), alone_bytes)
        sizes = [leaf.width * leaf.dtype.itemsize for leaf in made.stacks.values()]
        if made.stack < 1 or not sizes or not all(0 < size < MAX_FRAME_BYTES for size in sizes):
            raise ValueError(f"stacks of {made.stack} frames with {sizes} bytes")
        return made


def _at_once(capacity: int, stack: int) -> int:
    return max(1, capacity // (64 * max(2, stack)))


def _reach(capacity: int, stack: int, tail_rows: int) -> int:
    # New rows may refer to frames that were just stored again for a stream that was silent for a long time.
    return max((tail_rows + 1) * stack, capacity // (64 if stack > 1 else 128))


def frames_held(capacity: int, stack: int, tail_rows: int = 1) -> int:
    """Return the number of frames that a memory of `capacity` transitions holds.

    Args:
        capacity: transitions.
        stack: number of frames in an observation.
        tail_rows: maximum number of observations of a stream that wait for later rows.
    """
    beyond = _reach(capacity, stack, tail_rows) + (_at_once(capacity, stack) + tail_rows) * stack
    return capacity + capacity // 64 + beyond


class Frames(ABC):
    """Storage of the newest frames of one leaf.

    Args:
        size: number of frames.
        shape: shape of a frame.
        dtype: dtype of a frame.
    """

    def __init__(self, size: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.size = size
        self.shape = shape
        self.dtype = dtype

    @property
    @abstractmethod
    def written(self) -> int:
        """Number of frames ever stored."""

    @property
    @abstractmethod
    def oldest(self) -> int:
        """Number of the oldest stored frame."""

    @abstractmethod
    def put(self, frames: Array) -> None:
        """Store the next frames."""

    @abstractmethod
    def take(self, numbers: Array) -> Array:
        """Return the stored frames of these numbers [n]: [n, *shape]."""


class RamFrames(Frames):
    """Ring buffer of frames, which checkpoints write as they write a memory's rows (`RowMemory`).

    Args:
        capacity: transitions of the memory.
        stack: number of frames in an observation.
        shape: shape of a frame.
        dtype: dtype of a frame.
        tail_rows: see `frames_held`.

    Raises:
        ConfigError: there is not enough memory.
    """

    type_id: ClassVar[str] = "ram_frames"
    type_version: ClassVar[int] = 1

    def __init__(self, capacity: int, stack: int, shape: tuple[int, ...], dtype: np.dtype, tail_rows: int = 1) -> None:
        super().__init__(frames_held(capacity, stack, tail_rows), shape, dtype)
        try:
            self.ring: Array = np.empty((self.size, *shape), dtype)
        except (MemoryError, ValueError) as exc:  # ValueError: the size exceeds the address space
            needed = self.size * int(np.prod(shape)) * dtype.itemsize / 1e9
            raise ConfigError(
                f"memory.capacity: {capacity} transitions need {needed:.1f} GB of frames, which this machine does not "
                "give. Choose a smaller capacity, or memory.storage: disk."
            ) from exc
        self._written = 0
        self._first = 0
        """Number of the first frame that this process has; those before it were lost."""
        self._lease: RowLease | None = None

    @property
    def written(self) -> int:
        """Number of frames ever stored."""
        return self._written

    @property
    def oldest(self) -> int:
        """Number of the oldest stored frame, which is overwritten next."""
        return max(self._first, self._written - self.size)

    def put(self, frames: Array) -> None:
        """Store frames in place of the oldest ones; wait for a checkpoint that has yet to write these."""
        if self._lease is not None:
            self._lease.wait_until_free(self._written + len(frames) - self.size)
        self.ring[np.arange(self._written, self._written + len(frames)) % self.size] = frames
        self._written += len(frames)

    def take(self, numbers: Array) -> Array:
        """Return frames with one gather."""
        return self.ring.take(numbers % self.size, axis=0)

    def load(self, written: int, frames: Array) -> None:
        """Fill the ring with these frames."""
        self._written = self._first = written - len(frames)
        self.put(frames)

    # --- checkpoints: see `RowMemory` ---

    @property
    def memory_size(self) -> int:
        """Number of frames in the ring."""
        return self.size

    @property
    def row_arrays(self) -> list[Array]:
        """The ring as [frames, elements]."""
        return [self.ring.reshape(self.size, -1)]

    def __len__(self) -> int:
        """Return the number of stored frames."""
        return self.written - self.oldest

    def lease_rows(self, start: int) -> RowLease:
        """Retain the frames from number `start` (or the oldest) on until the lease is released."""
        self._lease = RowLease(max(start, self.oldest), self.written)
        return self._lease

    def state_dict(self) -> State:
        """Return the state without the frames."""
        return {"written": self.written, "shape": list(self.shape)}

    def load_state_dict(self, state: State, rows: Sequence[Array] = ()) -> None:
        """Load a state and its frames.

        Raises:
            ValueError: the frames are of another store.
        """
        self.load(*frames_of(SavedRows(state, rows), self))


def frames_of(saved: SavedRows, store: Frames) -> tuple[int, Array]:
    """Return the number after the last saved frame, and the frames [n, *shape], oldest first.

    Raises:
        ValueError: the frames do not fit a store.
    """
    written, shape, rows = int(saved.state["written"]), tuple(saved.state["shape"]), list(saved.rows)
    fit = len(rows) == 1 and (rows[0].dtype, shape) == (store.dtype, store.shape)
    if not fit or rows[0].shape[1:] != (int(np.prod(shape)),) or not len(rows[0]) <= min(written, store.size):
        raise ValueError(
            f"frames {[(array.dtype, array.shape) for array in rows]} of shape {list(shape)} do not fit this memory"
        )
    return written, rows[0].reshape(-1, *shape)


class FrameStore:
    """Store of the frames of one leaf of observations.

    Args:
        capacity: transitions of the memory.
        stack: number of frames in an observation (k); 1: a frame alone.
        frames: storage of the frames.
        tail_rows: see `frames_held`.

    Raises:
        ConfigError: there is not enough memory.

    Attributes:
        held: number of frames that `frames` holds.
        at_once: maximum number of observations in one call of `store`.
        reach: a new transition refers to at most this many frames before the newest.
    """

    def __init__(self, capacity: int, stack: int, frames: Frames, tail_rows: int = 1) -> None:
        self.stack = stack
        self.held = frames
        self.at_once = _at_once(capacity, stack)
        self.reach = _reach(capacity, stack, tail_rows)
        try:
            self._needs = np.zeros(capacity, np.int64)
        except (MemoryError, ValueError) as exc:
            raise ConfigError(
                f"memory.capacity: {capacity} transitions of frames need {capacity * 8 / 1e9:.1f} GB besides the "
                "frames, which cannot be allocated. Choose a smaller capacity."
            ) from exc
        """For each transition (index modulo capacity), the number below which it needs no frame. The numbers never
        decrease."""

    @property
    def written(self) -> int:
        """Number of frames ever stored."""
        return self.held.written

    @property
    def oldest(self) -> int:
        """Number of the oldest stored frame."""
        return self.held.oldest

    def frames(self, numbers: Array) -> Array:
        """Return the frames of these numbers: [*numbers.shape, *shape]."""
        return self.held.take(numbers.reshape(-1)).reshape(*numbers.shape, *self.held.shape)

    def frames_alone(self, numbers: Array) -> Array:
        """Return the frames of these numbers [n, 1], without an axis for the stack: [n, *shape]."""
        return self.held.take(numbers[:, 0])

    def usable(self, numbers: Array) -> bool:
        """Return True if new rows may refer to these frames."""
        return bool(numbers.min() >= self.written - self.reach)

    def store(self, observations: Array, before: Array | None) -> Array:
        """Store the new frames of consecutive observations.

        Args:
            observations: [rows, k, *shape], at most `at_once` rows.
            before: [k] frame numbers of the previous observation; None: there is none.

        Returns:
            [rows, k] the numbers of their frames.
        """
        rows = len(observations)
        # True: the observation is the previous one, shifted by a frame.
        moved = np.empty(rows, bool)
        moved[0] = before is not None and bool((observations[0, :-1] == self.frames(before)[1:]).all())
        moved[1:] = (observations[1:, :-1] == observations[:-1, 1:]).all(axis=tuple(range(1, observations.ndim)))
        numbers = np.empty((rows, self.stack), np.int64)
        row = 0
        while row < rows:
            stop = row + 1
            while stop < rows and moved[stop]:
                stop += 1
            # In a run, each observation is the previous one, shifted. The first may continue the observation before
            # this call.
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
        """Store an observation that continues no other. Repeated neighbouring frames are stored once."""
        same = (observation[1:] == observation[:-1]).all(axis=tuple(range(1, observation.ndim)))
        new = np.concatenate([[True], ~same])
        stored = self._put(observation[new])
        numbers: Array = stored[np.cumsum(new) - 1]
        return numbers

    def _put(self, frames: Array) -> Array:
        numbers = np.arange(self.written, self.written + len(frames))
        self.held.put(frames)
        return numbers

    def floor(self) -> int:
        """Number below which no new transition needs a frame."""
        return max(0, self.written - self.reach)

    def note(self, start: int, stop: int, floor: int) -> None:
        """Record that the stored transitions [start, stop) need no frame below `floor`."""
        capacity = len(self._needs)
        self._needs[np.arange(max(start, stop - capacity), stop) % capacity] = floor

    def first_row(self, first: int, stop: int) -> int:
        """Return the first of the transitions [first, stop) whose frames, and those of all later ones, are stored."""
        capacity, oldest = len(self._needs), self.oldest
        # The numbers never decrease, so binary search finds the first one that is high enough.
        while first < stop:
            middle = (first + stop) // 2
            if self._needs[middle % capacity] < oldest:
                first = middle + 1
            else:
                stop = middle
        return first

    def state_dict(self) -> State:
        """Return the needs of transitions, and the storage of frames itself: a checkpoint writes its rows by itself."""
        return {"held": self.held, "needs": self._needs.copy()}

    def load_state_dict(self, state: State) -> None:
        """Undo `state_dict`, also where a restored checkpoint has `SavedRows` in place of the storage.

        Raises:
            ValueError: the state belongs to another store.
        """
        held, needs = state["held"], np.asarray(state["needs"])
        if needs.shape != self._needs.shape:
            raise ValueError(f"needs of {len(needs)} transitions do not fit a memory of {len(self._needs)}")
        assert isinstance(self.held, RamFrames)
        self.held.load(*frames_of(held if isinstance(held, SavedRows) else SavedRows.of(held), self.held))
        self._needs[:] = needs
