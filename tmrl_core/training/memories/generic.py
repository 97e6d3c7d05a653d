"""A replay memory for samples of any type: in columns where they are arrays, else in lists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.memories.memory import MAX_STREAMS, LastRow, TorchMemory, Transition, Values, rows_that_follow
from tmrl_core.training.memories.sample_columns import SampleColumns
from tmrl_core.training.value_types import Batch


class GenericTorchMemory(TorchMemory):
    """A `TorchMemory` for any environment, which stores samples of any type unchanged.

    `data` holds six lists of one value per sample: actions, observations, rewards, terminated, truncated, infos.
    Samples of arrays and numbers are stored in columns, and `data` shows their values. They become lists with the first
    sample of another structure, and they are lists in derived classes with an `append_buffer` of their own. Batches are
    the same in both cases. From columns, they are gathered at once, unless a derived class or a preprocessor looks at
    single transitions.
    """

    type_id = "generic_torch_memory"
    type_version = 1

    def __init__(
        self,
        device: torch.device | str | None = None,
        nb_steps: float = 1,
        sample_preprocessor: Callable[..., Values] | None = None,
        memory_size: float = 1_000_000,
        batch_size: float = 256,
        dataset_path: str = "",
        crc_debug: bool = False,
    ) -> None:
        super().__init__(device, nb_steps, sample_preprocessor, memory_size, batch_size, dataset_path, crc_debug)
        own_samples = type(self).append_buffer is not GenericTorchMemory.append_buffer
        self.data: Any = [[] for _ in range(6)] if own_samples else SampleColumns(self.memory_size)
        # Samples are numbered from the first ever appended; data[i][k] belongs to number first_number + k. The
        # following are those of lists; columns have their own.
        self.first_number = 0
        self.transitions: list[int] = []
        """Numbers of the samples that end a transition, ascending."""
        self.previous: list[int] = []
        """For each of `transitions`, the number of the sample before it; nearly ascending."""
        self.last_rows: dict[bytes, tuple[int, int, int]] = {}
        """Number, episode and step of each stream's last sample, unless it ended its episode."""

    @property
    def _columns(self) -> SampleColumns | None:
        return self.data if isinstance(self.data, SampleColumns) else None

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        columns = self._columns
        return len(self.transitions if columns is None else columns.transitions)

    def append_buffer(self, buffer: Buffer) -> None:
        """Append a buffer's samples."""
        for chunk in buffer.chunks:
            if chunk.rows:
                self._append_chunk(chunk)
        self._trim()

    def _append_chunk(self, chunk: Chunk) -> None:
        last = self.last_rows.pop(chunk.stream, None)
        follows = rows_that_follow(chunk, None if last is None else LastRow(last[1], last[2]))
        columns = self._columns
        number = self.first_number + len(self.data[0]) if columns is None else columns.written
        before = np.arange(number - 1, number + chunk.rows - 1)
        before[0] = -1 if last is None else last[0]
        if columns is not None and not columns.append(chunk, before, follows):
            self._use_lists(columns)
            columns = None
        if columns is None:
            for row in range(chunk.rows):
                for values, value in zip(self.data, chunk.sample(row), strict=True):
                    values.append(value)
            ends = np.flatnonzero(follows)
            self.transitions += (number + ends).tolist()
            self.previous += before[ends].tolist()
        if not (chunk.terminated[-1] or chunk.truncated[-1]):
            self.last_rows[chunk.stream] = (number + chunk.rows - 1, int(chunk.episode[-1]), int(chunk.step[-1]))
            if len(self.last_rows) > MAX_STREAMS:
                self.last_rows.pop(next(iter(self.last_rows)))

    def _use_lists(self, columns: SampleColumns) -> None:
        self.data, self.first_number = columns.to_lists(), columns.first
        self.transitions, self.previous = columns.transitions.tolist(), columns.previous.tolist()

    def _trim(self) -> None:
        columns = self._columns
        excess = len(self.data[0]) - self.memory_size
        # Deleting the front of a list moves all the rest, so a sixteenth is deleted at a time.
        if excess <= 0 or (excess < self.memory_size // 16 and len(self) <= self.memory_size):
            return
        if columns is not None:
            columns.drop(columns.first + excess)
            first = columns.first
        else:
            first = self.first_number = self.first_number + excess
            for values in self.data:
                del values[:excess]
            cut = bisect_left(self.transitions, first)
            kept = [
                (number, before)
                for number, before in zip(self.transitions[cut:], self.previous[cut:], strict=True)
                if before >= first
            ]
            self.transitions = [number for number, _ in kept]
            self.previous = [before for _, before in kept]
        self.last_rows = {key: row for key, row in self.last_rows.items() if row[0] >= first}

    def get_transition(self, item: int) -> Transition:
        """Return transition `item`; 0 is the oldest."""
        columns = self._columns
        if columns is None:
            now = self.transitions[item] - self.first_number
            before = self.previous[item] - self.first_number
        else:
            now, before = (int(numbers[item]) - columns.first for numbers in (columns.transitions, columns.previous))
        actions, observations, rewards, terminated, truncated, infos = self.data
        return (
            observations[before],
            actions[now],
            np.float32(rewards[now]),
            observations[now],
            terminated[now],
            truncated[now],
            infos[now],
        )

    @cached_property
    def _looks_at_transitions(self) -> bool:
        """True: a derived class changes how one transition, or a batch of them, is made."""
        kind, own = type(self), GenericTorchMemory
        return (kind.__getitem__, kind.get_transition, kind.collate) != (
            own.__getitem__,
            own.get_transition,
            own.collate,
        )

    def sample(self) -> Batch:
        """Return one batch.

        Raises:
            ValueError: the memory is empty.
        """
        columns = self._columns
        if columns is None or self.crc_debug or self.sample_preprocessor is not None or self._looks_at_transitions:
            return super().sample()
        if not len(self):
            raise ValueError("the replay memory holds no transition yet")
        return columns.batch(np.asarray(self.sample_indices()), self.device)
