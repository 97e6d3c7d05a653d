"""Frames in the files of a memory on disk, in the records of the rows that need them."""

# Theory of operation
#
#     record:  rows, one after another | frames of the first leaf that is a stack | frames of the second | ...
#
# A frame is padded to a multiple of 8 bytes, since addresses in files count units of 8 bytes (mapped_files.py). A
# record's metadata describes its frames under "frames": `put` has the number of the first frame and the count for each
# leaf. `needs` has a number of rows, then for each leaf the number below which these rows need no frame.
#
# Rows and the frames that they need are written by one call, so neither exists without the other after a crash. A file
# is kept as long as a memory in RAM would hold one of its frames or rows: the same seed then samples the same
# transitions from both. Frames that an earlier file has lost to damage count as overwritten, so that the transitions
# with them leave.

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tmrl_core.decodable import decodable
from tmrl_core.errors import StorageError
from tmrl_core.training.memories.frame_store import Frames, frames_held
from tmrl_core.training.memories.layout import Array, Leaf
from tmrl_core.training.memories.mapped_files import UNIT, MappedFiles, address
from tmrl_core.training.memories.row_files import MAX_FIRST_ROW
from tmrl_core.training.memories.row_table import RowTable
from tmrl_core.training.value_types import State, Tree


class DiskFrames(Frames):
    """The frames of one leaf.

    Args:
        capacity: transitions that the memory holds.
        stack: number of frames in an observation.
        leaf: the leaf of an observation, a stack of frames.
        files: files that hold the frames.
        tail_rows: see `frames_held`.

    Attributes:
        stop: number after the last frame in the files.
        frame_bytes: size of a frame in a file.
    """

    def __init__(self, capacity: int, stack: int, leaf: Leaf, files: MappedFiles, tail_rows: int = 1) -> None:
        super().__init__(frames_held(capacity, stack, tail_rows), leaf.shape[1:], leaf.dtype)
        self._files = files
        self._table = RowTable()
        self._used_bytes = leaf.width // stack * leaf.dtype.itemsize
        self.frame_bytes = self._used_bytes + -self._used_bytes % UNIT
        self._first = 0
        self.stop = 0
        self._staged: list[Array] = []
        """Uncommitted frames, in arrays [n, frame_bytes] uint8."""

    @property
    def written(self) -> int:
        """Number of frames ever stored, uncommitted ones included."""
        return self.stop + self.staged

    @property
    def staged(self) -> int:
        """Return the number of frames that wait for the next commit."""
        return sum(map(len, self._staged))

    @property
    def oldest(self) -> int:
        """Number of the oldest stored frame: as in RAM, or later where files were damaged."""
        return max(self._first, self.needed)

    @property
    def needed(self) -> int:
        """Number of the oldest frame that must stay stored."""
        return max(0, self.written - self.size)

    def put(self, frames: Array) -> None:
        """Stage the next frames."""
        if not len(frames):
            return
        staged = np.zeros((len(frames), self.frame_bytes), np.uint8)
        plain = np.ascontiguousarray(frames).reshape(len(frames), -1)
        staged[:, : self._used_bytes] = plain.view(np.uint8)
        self._staged.append(staged)

    def take(self, numbers: Array) -> Array:
        """Read frames from the files and from the staged frames.

        Unchecked rows of a damaged file may refer to frames that do not exist: the nearest frame is read.
        """
        numbers = numbers.clip(self._first, max(self._first, self.written - 1))
        if self._staged and len(numbers) and numbers.max() >= self.stop:
            raw = np.empty((len(numbers), self.frame_bytes), np.uint8)
            in_files = numbers < self.stop
            if in_files.any():
                raw[in_files] = self._files.elements(self._table, self.frame_bytes, numbers[in_files])
            raw[~in_files] = np.concatenate(self._staged)[numbers[~in_files] - self.stop]
        elif len(numbers):
            raw = self._files.elements(self._table, self.frame_bytes, numbers)
        else:
            raw = np.empty((0, self.frame_bytes), np.uint8)
        if self._used_bytes < self.frame_bytes:
            raw = np.ascontiguousarray(raw[:, : self._used_bytes])
        return raw.view(self.dtype).reshape(len(numbers), *self.shape)

    # --- used by the files' writer and reader
    # -----------------------------------------------------------------------------

    def payload(self) -> list[memoryview]:
        """Return the uncommitted frames."""
        return [staged.data for staged in self._staged]

    def register(self, number: int, offset: int, count: int) -> int:
        """Register the next `count` frames at an offset of file `number`. Return the offset after them."""
        if count:
            units = self.stop * (self.frame_bytes // UNIT)
            self._table.add(self.stop, address(number, offset) - units)
            self.stop += count
        return offset + count * self.frame_bytes

    def discard(self) -> None:
        """Discard the staged frames."""
        self._staged = []

    def forget_before(self, number: int) -> None:
        """Forget the frames before a number, which can no longer be read."""
        if number > self._first:
            self._table.drop_before(number)
            self._first = number

    def lost_before(self, number: int) -> None:
        """Forget all frames; the next frame has this number."""
        self._table.clear()
        self._first = self.stop = number


_Number = Annotated[int, msgspec.Meta(ge=0, lt=MAX_FIRST_ROW)]


@decodable
class FramesNote(msgspec.Struct):
    """Frame part of a record's metadata.

    Attributes:
        put: for each leaf, the number of the first frame in the record, and the count.
        needs: for each run of its rows, their number, and for each leaf a number below which they need no frame.
    """

    put: list[tuple[_Number, _Number]] = []
    needs: list[list[_Number]] = []

    def plain(self) -> State:
        """Return the JSON-able form for a record's metadata."""
        return {"put": [list(one) for one in self.put], "needs": self.needs}

    def runs(self, first_row: int) -> list[tuple[int, int, Sequence[int]]]:
        """Return first row, number of rows and numbers of each run, given the record's first row."""
        found: list[tuple[int, int, Sequence[int]]] = []
        for rows, *numbers in self.needs:
            found.append((first_row, rows, numbers))
            first_row += rows
        return found

    @classmethod
    def parse(cls, value: Tree, leaves: int, rows: int) -> FramesNote:
        """Undo `plain`.

        Args:
            value: value in the metadata.
            leaves: number of leaves.
            rows: number of rows in the record.

        Raises:
            StorageError: the value is invalid.
        """
        try:
            note = msgspec.convert(value, cls)
        except msgspec.ValidationError as exc:
            raise StorageError(f"a note of the replay memory has invalid numbers of frames: {exc}") from exc
        fit = len(note.put) == leaves and all(len(run) == leaves + 1 for run in note.needs)
        if not fit or sum(run[0] for run in note.needs) != rows:
            raise StorageError("a note of the replay memory has invalid numbers of frames")
        return note
