"""Samples into a memory's rows. Which transitions a chunk makes is said by joining.py and n_steps.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tmrl_core.errors import SampleRefusedError, StorageError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.contracts import Refusals, TrainingMemory
from tmrl_core.training.memories.batch_reader import BatchReader
from tmrl_core.training.memories.disk_rows import DiskRows
from tmrl_core.training.memories.finite_samples import check_finite_samples
from tmrl_core.training.memories.key_order import KeyOrders
from tmrl_core.training.memories.layout import Array, Column, RowLayout, TreeSpec, tree_spec
from tmrl_core.training.memories.memory import MAX_STREAMS, compare_with_original, rows_that_follow
from tmrl_core.training.memories.n_steps import join_n_steps
from tmrl_core.training.memories.rows import RamRows, Rows
from tmrl_core.training.memories.sample_schema import DeclaredSamples
from tmrl_core.training.memories.sampler import Sampler
from tmrl_core.training.memories.transition_builder import Joined, Tail, join_pairs, tail_of_pairs


class Inserter(TrainingMemory):
    """The side of a replay memory that samples go to. The rows are made by who derives from it.

    Args:
        memory_size, n_step, gamma, downcast_float64, crc_debug: see `ReplayMemory`.

    Attributes:
        deferred: see `ReplayMemory`.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"deferred", "declared"})
    declared: DeclaredSamples | None = None
    """How samples have to look before any has come; None: nobody knows."""

    def __init__(self, memory_size: int, n_step: int, gamma: float, downcast_float64: bool, crc_debug: bool) -> None:
        super().__init__()
        self.memory_size = memory_size
        self.n_step = n_step
        self.gamma = gamma
        self.downcast_float64 = downcast_float64
        self.crc_debug = crc_debug
        self.deferred = False
        self._written = 0
        self._tails: dict[bytes, Tail] = {}
        self._touched: set[bytes] = set()
        """Streams whose tails have changed since the last commit."""
        self._orders = KeyOrders()
        self._expanded: dict[Column, Callable[[Array], Array]] = {}
        self._disk: DiskRows | None = None
        self._ram: RamRows | None = None
        self._rows: Rows
        self._reader: BatchReader
        self.sampler: Sampler

    def expect(self, schema: DeclaredSamples) -> None:
        """Refuse samples that differ from what environment and policy declare."""
        self.declared = schema

    def append(self, buffer: Buffer) -> Refusals:
        """Note the statistics and append all that fits; return what was refused, with the reasons."""
        self.note_statistics(buffer)
        return self.append_buffer(buffer)

    def append_buffer(self, buffer: Buffer) -> Refusals:
        """Append all chunks that fit; return those that were refused, with the reasons."""
        refused = []
        for chunk in buffer.chunks:
            try:
                self.append_chunk(chunk)
            except SampleRefusedError as exc:
                refused.append((chunk, exc))
        return refused

    def append_chunk(self, chunk: Chunk) -> int:
        """Make and store the transitions that end in `chunk`; return how many there are.

        Raises:
            SampleRefusedError: structure, dtypes or shapes differ from what the memory holds, or from what is declared;
                or a number is not finite, where samples are declared or kept on disk. Nothing was stored, and the
                stream's open episode is not joined across the refused rows.
            ValueError: with `crc_debug`, a transition differs from the worker's original.
            StorageError: it cannot be written to the disk. Nothing was stored.
        """
        if chunk.rows:
            try:
                if self.declared is not None:
                    self.declared.check(chunk)
                if self.declared is not None or self._disk is not None:  # what is on disk outlives this process
                    check_finite_samples(chunk, as_float32=self.downcast_float64)
            except SampleRefusedError:
                self.forget_stream(chunk.stream)
                raise
        self._reader.stop()
        before = self._written, self._tails.get(chunk.stream)
        try:
            count = self._append_chunk(chunk)
            if self._disk is not None and not self.deferred:
                self.commit()
        except StorageError:
            assert self._disk is not None
            self._disk.discard()
            self._written, tail = before
            self._tails.pop(chunk.stream, None)
            if tail is not None:
                self._tails[chunk.stream] = tail
            raise
        return count

    def _note_orders(self, chunk: Chunk) -> None:
        layout = self._rows.layout
        if layout is not None:
            self._orders = layout.orders
        new = self._orders.note("observation", chunk.observation)
        if chunk.action_present.any():
            new = self._orders.note("action", chunk.action) or new
        if new and layout is not None and self._disk is not None:
            self._disk.allocate(layout)

    def _append_chunk(self, chunk: Chunk) -> int:
        self._touched.add(chunk.stream)
        tail = self._tails.pop(chunk.stream, None)
        if chunk.rows == 0:
            return 0
        observation = tree_spec(chunk.observation, "the observation", self.downcast_float64)
        action = self._action_spec(chunk)
        self._check(observation, action, chunk)
        self._note_orders(chunk)

        if tail is not None and not tail.fits(observation, action):
            tail = None
        follows = rows_that_follow(chunk, tail)
        joined, after = self._join(chunk, follows, tail, observation, action)
        if joined is not None:
            if self._rows.layout is None:
                actions = action or (tail.action_spec if tail is not None else None)
                assert actions is not None
                self._rows.allocate(RowLayout(observation, actions, list(joined.extras), self._orders))
            self._store(joined)
            if self.crc_debug and self.n_step == 1:
                self._compare(chunk, joined)
        if after is not None:
            self._tails[chunk.stream] = after
            if len(self._tails) > MAX_STREAMS:
                self._tails.pop(next(iter(self._tails)))
        return 0 if joined is None else joined.count

    def _join(
        self, chunk: Chunk, follows: Array, tail: Tail | None, observation: TreeSpec, action: TreeSpec | None
    ) -> tuple[Joined | None, Tail | None]:
        # On disk what does not fit the capacity leaves with its file.
        most = self.memory_size if self._ram is not None else None
        if self.n_step > 1:
            return join_n_steps(chunk, follows, tail, (observation, action), self.n_step, self.gamma, most)
        made = action is not None and follows.any()
        return join_pairs(chunk, follows, tail, most) if made else None, tail_of_pairs(chunk, observation)

    def forget_stream(self, stream: bytes) -> None:
        """Let go of a stream's last row: its open episode will not be continued."""
        self._touched.add(stream)
        self._tails.pop(stream, None)

    def commit(self, marks: Mapping[bytes, Sequence[int]] | None = None, **values: Any) -> None:
        """Put what has been appended since the last call on the disk, as one record. In RAM there is nothing to do.

        Args:
            marks: how far streams of samples are once this is there: next message and position.
            values: counters and the like; see `recorded`.

        Raises:
            StorageFullError: there is no room. Nothing was written; to be called again.
            StorageError: it cannot be written for another reason; likewise.
        """
        if self._disk is None:
            return
        tails: dict[bytes, Any] = {}
        for stream in self._touched:
            tail = self._tails.get(stream)
            tails[stream] = None if tail is None else [tail.episode, tail.step, tail.plain()]
        if not (tails or marks or values or self._disk.staged):
            return
        self._reader.stop()
        before, oldest = self._disk.readable, self._disk.oldest
        statistics = self.statistics_state()
        if statistics != self._disk.states.values.get("statistics"):  # the same NaN counts as equal in a list
            values["statistics"] = statistics
        if before == 0:
            values["steps"] = [self.n_step, self.gamma]
        self._disk.commit({"marks": dict(marks or {}), "tails": tails, "values": values})
        self._touched.clear()
        if self._disk.oldest > max(oldest, self._disk.readable - self.memory_size):
            self.sampler.remove(oldest, self._disk.oldest)  # damage was found
        if self._disk.readable > before:
            self._published(before)

    def _action_spec(self, chunk: Chunk) -> TreeSpec | None:
        if not chunk.action_present.any():
            return None
        return tree_spec(chunk.action, "the action", self.downcast_float64)

    def _check(self, observation: TreeSpec, action: TreeSpec | None, chunk: Chunk) -> None:
        if chunk.reward.shape != (chunk.rows,) or chunk.reward.dtype.kind not in "biuf":
            raise SampleRefusedError(
                f"the reward is {chunk.reward.dtype}{list(chunk.reward.shape[1:])} per sample; "
                "this memory takes one number per sample."
            )
        layout = self._rows.layout
        if layout is None:
            return
        for what, found, held in (
            ("observation", observation, layout.observation),
            ("action", action, layout.action),
        ):
            if found is not None and found != held:
                raise SampleRefusedError(
                    f"the {what} of {chunk.rows} samples is {found}, but this memory holds {held}. "
                    "Workers and trainer need the same environment, preprocessor and compressor; a memory that changes "
                    "its shapes needs a new run.name."
                )

    def _store(self, joined: Joined) -> None:
        layout = self._rows.layout
        assert layout is not None
        start = self._written + joined.skipped
        self._rows.prepare(start, joined.count)
        for column, values in zip(layout.new_obs, joined.new_obs, strict=True):
            self._put(column, start, values)
        for column, parts in zip(layout.prev_obs, joined.prev_obs, strict=True):
            at = start
            for part in parts:
                self._put(column, at, part)
                at += len(part)
        for column, values in zip(layout.act, joined.act, strict=True):
            self._put(column, start, values)
        self._put(layout.rew, start, joined.rew)
        self._put(layout.terminated, start, joined.terminated)
        self._put(layout.truncated, start, joined.truncated)
        for name, column in layout.extras.items():
            self._put(column, start, joined.extras[name])
        self._rows.put_versions(start, joined.version)
        self._written = start + joined.count
        self._rows.publish(self._written)
        if self._ram is not None:
            self._published(start)

    def _published(self, start: int) -> None:
        """Transitions from `start` on can be sampled."""
        self.sampler.add(self._rows, start)
        self._reader.discard_block()

    def _compare(self, chunk: Chunk, joined: Joined) -> None:
        for offset, row in enumerate(joined.rows.tolist()):
            original = chunk.info.get(row, {}).get("crc_sample")
            if original is not None:
                rebuilt = self._reader.transition_at(self._written - joined.count + offset)[:6]
                compare_with_original(original, rebuilt, self.downcast_float64)

    def _put(self, column: Column, start: int, values: Array) -> None:
        if len(values):
            self._rows.put(column, start, values.reshape(len(values), column.stop - column.start))
