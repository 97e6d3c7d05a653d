"""The project's own replay memory: columnar, preallocated, a batch is one gather per dtype.

Theory of operation
-------------------
Chunks come in as columns. A *transition* is a pair of neighbouring rows of one stream, of one episode, with consecutive
step indices, the first of which ended nothing. It is made when its second row arrives and stored complete, so that
sampling needs no rule at all: every stored row is a valid transition, and a uniform draw of rows is a uniform draw of
valid transitions. Of each stream the last row is kept, so that an episode that came in several messages, between those
of other streams, is joined; a reset, a missing message, another structure or another stream never is.

A transition has an absolute index, counted from the first ever written. Where the rows lie is the business of `Rows`:
rings in RAM (rows.py), or append-only files (disk_rows.py); the same seed draws the same transitions from both.
Checkpoints of a memory in RAM write ranges of absolute indices; those of one on disk refer to its folder.

Batches are drawn in blocks of several: one draw of indices, one gather per dtype and one split serve up to
`MAX_BLOCK_BATCHES` batches. A block is thrown away when something is appended, so that new transitions are drawn at
once; block sizes grow from one after each append, so that not much is ever thrown away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tmrl_core.errors import ConfigError, SampleRefusedError, StorageError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.disk_rows import DiskRows
from tmrl_core.training.layout import (
    Array,
    Column,
    RowLayout,
    TreeSpec,
    flatten,
    index_batches,
    rebuild,
    tree_spec,
)
from tmrl_core.training.memory import (
    MAX_STREAMS,
    EpisodeStatistics,
    LastRow,
    Refusals,
    collate_to_torch,
    compare_with_original,
    last_row_of,
    rows_that_follow,
    whole_number,
)
from tmrl_core.training.rows import RamRows, RowLease, Rows

logger = logging.getLogger(__name__)

MAX_BLOCK_BATCHES = 32
MAX_BLOCK_BYTES = 1 << 20
Batch = tuple[Any, Any, torch.Tensor, Any, torch.Tensor, torch.Tensor]


class _Block:
    """Batches drawn together, and what is needed to draw them again."""

    def __init__(self, batches: list[Batch], draws: Array, generator_state: dict[str, Any]) -> None:
        self.batches = batches
        self.draws = draws
        self.position = 0
        self.generator_state = generator_state


@dataclass(frozen=True)
class _Tail(LastRow):
    """The last row of a stream, which ended nothing: what a next chunk may join."""

    spec: TreeSpec
    observation: list[Array]


class ReplayMemory(EpisodeStatistics):
    """Uniform replay over the newest `memory_size` valid transitions.

    Iterating yields `nb_steps` batches `(prev_obs, new_act, rew, new_obs, terminated, truncated)` of tensors
    [batch_size, *shape] on `device`; `rew` and the flags are float32 [batch_size].

    Args:
        device: where batches go; None: the CPU.
        nb_steps: batches per iteration.
        sample_preprocessor: called for each sampled transition with its six values (flags as bool); it returns them
            changed, in that order. Much slower than whole batches.
        memory_size: transitions held; may be a float such as 1e6.
        batch_size: transitions in a batch.
        dataset_path: accepted for scripts that name one; not used.
        crc_debug: compare each rebuilt transition with the original that the worker sent along.
        seed: of the draws; None: taken from torch's global generator, as `torch.manual_seed` sets it.
        downcast_float64: store float64 columns as float32 (the default). All other dtypes are kept exactly.
        storage: "ram", or "disk": transitions lie in `folder` and are there again after this process has died.
        folder: where they lie, for "disk" only. One process at a time may use it.
        sync: what an append survives, for "disk" only: "os" the sudden end of this process, "fsync" that of the machine
            too.

    Raises:
        ConfigError: a size is not positive or not whole, or "disk" has no folder.
        FolderLockedError: another process uses the folder.
        StorageError: the folder cannot be read or written.

    Attributes:
        deferred: True: on disk, what is appended is written and counts only with the next `commit`, which says in the
            same record how far the streams of samples are; until then it is neither sampled nor counted. False: each
            append is written at once.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"deferred"})

    def __init__(
        self,
        device: torch.device | str | None = None,
        nb_steps: float = 1,
        sample_preprocessor: Callable[..., tuple[Any, ...]] | None = None,
        memory_size: float = 1_000_000,
        batch_size: float = 256,
        dataset_path: str = "",
        crc_debug: bool = False,
        *,
        seed: int | None = None,
        downcast_float64: bool = True,
        storage: Literal["ram", "disk"] = "ram",
        folder: str | Path | None = None,
        sync: Literal["os", "fsync"] = "os",
    ) -> None:
        super().__init__()
        self.device = device
        self.nb_steps = whole_number(nb_steps, "nb_steps")
        self.sample_preprocessor = sample_preprocessor
        self.memory_size = whole_number(memory_size, "memory_size")
        self.batch_size = whole_number(batch_size, "batch_size")
        self.dataset_path = dataset_path
        self.crc_debug = crc_debug
        self.downcast_float64 = downcast_float64
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        self._generator = np.random.default_rng(seed)
        self._written = 0
        self._tails: dict[bytes, _Tail] = {}
        self._touched: set[bytes] = set()
        """Streams whose tails have changed since the last commit."""
        self._block: _Block | None = None
        self._block_batches = 1
        self.deferred = False
        self._disk: DiskRows | None = None
        self._ram: RamRows | None = None
        self._rows: Rows
        if storage == "disk":
            if folder is None:
                raise ConfigError("a memory with storage: disk needs a folder; set memory.folder")
            self._rows = self._disk = DiskRows(self.memory_size, Path(folder), sync)
            self._take_over(self._disk)
        else:
            self._rows = self._ram = RamRows(self.memory_size)

    # --- what is in it ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Valid transitions that can be sampled."""
        return len(self._rows)

    @property
    def written(self) -> int:
        """Transitions ever stored; the newest has the absolute index `written - 1`."""
        return self._written

    @property
    def layout(self) -> RowLayout | None:
        """Where columns stand; None before the first transition."""
        return self._rows.layout

    @property
    def row_arrays(self) -> list[Array]:
        """In RAM, the rings: one array [memory_size, width] per dtype, then the policy versions [memory_size, 2].

        On disk there are none: what a checkpoint needs is there already.
        """
        return self._ram.arrays if self._ram is not None else []

    @property
    def disk(self) -> DiskRows | None:
        """The rows on disk; None: they are in RAM."""
        return self._disk

    def get_transition(self, item: int) -> tuple[Any, Any, np.float32, Any, bool, bool, dict[str, Any]]:
        """Transition `item`, 0 being the oldest: (prev_obs, act, rew, obs, terminated, truncated, info).

        Raises:
            IndexError: there is no such transition.
        """
        if not 0 <= item < len(self):
            raise IndexError(f"transition {item} of {len(self)}")
        index = self._rows.readable - len(self) + item
        prev_obs, act, rew, obs, terminated, truncated = self._transition_at(index)
        return prev_obs, act, rew, obs, terminated, truncated, {}

    def _transition_at(self, index: int) -> tuple[Any, Any, Any, Any, bool, bool]:
        groups = self._rows.row(index)

        def column(c: Column) -> Any:
            values = groups[c.group][c.start : c.stop]
            return values.reshape(c.shape) if c.shape else values[0]

        assert self._rows.layout is not None
        prev_obs, act, rew, obs, terminated, truncated = self._rows.layout.batch(column)
        return prev_obs, act, rew, obs, bool(terminated), bool(truncated)

    def policy_versions(self) -> Array:
        """[len, 2] int64: incarnation and counter of the policy that made each transition, in no promised order."""
        return self._rows.versions()

    # --- appending ----------------------------------------------------------------------------------------------------

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
            SampleRefusedError: structure, dtypes or shapes differ from what the memory holds. Nothing was stored, and
                the stream's open episode is not joined across the refused rows.
            ValueError: with `crc_debug`, a transition differs from the worker's original.
            StorageError: it cannot be written to the disk. Nothing was stored.
        """
        before = self._written, self._tails.get(chunk.stream)
        try:
            count = self._append_chunk(chunk)
            if self._disk is not None and not self.deferred:
                self.commit()
        except StorageError:
            assert self._disk is not None
            self._disk.discard()
            self._written, tail = before
            if tail is not None:
                self._tails[chunk.stream] = tail
            raise
        return count

    def _append_chunk(self, chunk: Chunk) -> int:
        self._touched.add(chunk.stream)
        tail = self._tails.pop(chunk.stream, None)
        if chunk.rows == 0:
            return 0
        observation = tree_spec(chunk.observation, "the observation", self.downcast_float64)
        action = self._action_spec(chunk)
        self._check(observation, action, chunk)

        joined = rows_that_follow(chunk, tail if tail is not None and tail.spec == observation else None)
        if action is not None and joined.any():
            if self._rows.layout is None:
                self._rows.allocate(RowLayout(observation, action))
            count = self._store(chunk, joined, tail)
        else:
            count = 0
        if not (chunk.terminated[-1] or chunk.truncated[-1]):
            last = [np.array(leaf[-1:]) for _, leaf in flatten(chunk.observation)]
            row = last_row_of(chunk)
            self._tails[chunk.stream] = _Tail(row.episode, row.step, observation, last)
            if len(self._tails) > MAX_STREAMS:
                self._tails.pop(next(iter(self._tails)))
        return count

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
            tails[stream] = (
                None if tail is None else [tail.episode, tail.step, rebuild_plain(tail.spec, tail.observation)]
            )
        if not (tails or marks or values or self._disk.staged):
            return
        new = self._disk.staged > 0
        statistics = self.statistics_state()
        if statistics != self._disk.states.values.get("statistics"):  # the same NaN counts as equal in a list
            values["statistics"] = statistics
        self._disk.commit({"marks": dict(marks or {}), "tails": tails, "values": values})
        self._touched.clear()
        if new:
            self._forget_block()

    def _forget_block(self) -> None:
        self._block = None
        self._block_batches = 1

    @property
    def recorded(self) -> tuple[dict[bytes, tuple[int, int]], dict[str, Any]] | None:
        """Marks and values of what is on the disk, as `commit` was given them; None: nothing, or this is in RAM."""
        if self._disk is None or not self._disk.states.values:
            return None
        states = self._disk.states
        marks = {stream: (int(mark[0]), int(mark[1])) for stream, mark in states.marks.items()}
        return marks, {name: value for name, value in states.values.items() if name != "statistics"}

    def _take_over(self, disk: DiskRows) -> None:
        """What a process before this one has left on the disk."""
        self._written = disk.readable
        try:
            self._restore_tails(
                [[stream, episode, step, tree] for stream, (episode, step, tree) in disk.states.tails.items()]
            )
            if "statistics" in disk.states.values:
                self.restore_statistics(disk.states.values["statistics"])
        except (ValueError, TypeError, IndexError) as exc:
            raise StorageError(f"{disk.folder} says something impossible of its streams: {exc}") from exc

    def _restore_tails(self, tails: Sequence[Sequence[Any]]) -> None:
        self._tails = {
            stream: _Tail(
                episode,
                step,
                tree_spec(observation, "the observation", self.downcast_float64),
                [leaf for _, leaf in flatten(observation)],
            )
            for stream, episode, step, observation in tails
        }

    def flush(self) -> None:
        """Have what is on disk survive the machine, whatever `sync` is.

        Raises:
            StorageError: it may not.
        """
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Let go of the folder on disk, so that another process, or another memory, may use it."""
        if self._disk is not None:
            self._disk.close()

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

    def _store(self, chunk: Chunk, joined: Array, tail: _Tail | None) -> int:
        layout = self._rows.layout
        assert layout is not None
        new_rows = np.flatnonzero(joined)
        if self._ram is not None and len(new_rows) > self.memory_size:
            self._written += len(new_rows) - self.memory_size
            new_rows = new_rows[-self.memory_size :]
        count = len(new_rows)
        self._rows.prepare(self._written, count)
        # Neighbouring rows are the rule: slices then spare a gather.
        first, last = int(new_rows[0]), int(new_rows[-1])
        rows: Any = slice(first, last + 1) if last - first + 1 == count else new_rows
        from_tail = first == 0
        previous: Any
        if isinstance(rows, slice):
            previous = slice(max(first - 1, 0), last)
        else:
            previous = (new_rows[1:] if from_tail else new_rows) - 1

        start = self._written
        for column, (_, leaf) in zip(layout.new_obs, flatten(chunk.observation), strict=True):
            self._put(column, start, _taken(leaf, rows))
        for i, (column, (_, leaf)) in enumerate(zip(layout.prev_obs, flatten(chunk.observation), strict=True)):
            if from_tail:
                assert tail is not None
                self._put(column, start, tail.observation[i])
            self._put(column, start + from_tail, _taken(leaf, previous))
        for column, (_, leaf) in zip(layout.act, flatten(chunk.action), strict=True):
            self._put(column, start, _taken(leaf, rows))
        self._put(layout.rew, start, _taken(chunk.reward, rows))
        self._put(layout.terminated, start, _taken(chunk.terminated, rows))
        self._put(layout.truncated, start, _taken(chunk.truncated, rows))
        versions = {segment.version for segment in chunk.segments}
        if len(versions) == 1:
            pairs = np.empty((count, 2), np.int64)
            pairs[:] = versions.pop()
        else:
            pairs = _taken(chunk.version, rows)
        self._rows.put_versions(start, pairs)
        self._written += count
        self._rows.publish(self._written)
        if self._ram is not None:
            self._forget_block()
        if self.crc_debug:
            for offset, row in enumerate(new_rows.tolist()):
                original = chunk.info.get(row, {}).get("crc_sample")
                if original is not None:
                    rebuilt = self._transition_at(start + offset)
                    compare_with_original(original, rebuilt, self.downcast_float64)
        return count

    def _put(self, column: Column, start: int, values: Array) -> None:
        if len(values):
            self._rows.put(column, start, values.reshape(len(values), column.stop - column.start))

    # --- sampling -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """Yield `nb_steps` batches, each drawn uniformly from what is here at that moment.

        Raises:
            ValueError: the memory is empty.
        """
        remaining = self.nb_steps
        while remaining > 0:
            block = self._current_block()
            batches = block.batches
            while block.position < len(batches) and remaining > 0:
                batch = batches[block.position]
                block.position += 1
                remaining -= 1
                yield batch
                if self._block is not block:
                    break

    def sample(self) -> Batch:
        """One batch.

        Raises:
            ValueError: the memory is empty.
        """
        block = self._current_block()
        block.position += 1
        return block.batches[block.position - 1]

    def indices_of(self, batch: Any) -> list[int] | None:
        """Absolute indices of the transitions of a batch that was just drawn; None: it is not known any more."""
        block = self._block
        for position, known in enumerate(block.batches if block is not None else ()):
            if known is batch:
                assert block is not None
                draws = block.draws[position * self.batch_size : (position + 1) * self.batch_size]
                return [int(self._rows.index_of(int(draw))) for draw in draws]
        return None

    def _current_block(self) -> _Block:
        block = self._block
        if block is None or block.position == len(block.batches):
            block = self._block = self._draw(self._block_batches)
            self._block_batches = min(2 * self._block_batches, self._largest_block())
        return block

    def _largest_block(self) -> int:
        assert self._rows.layout is not None
        if self.sample_preprocessor is not None:
            return 1
        row_bytes = max(1, self._rows.layout.row_bytes)
        return max(1, min(MAX_BLOCK_BATCHES, MAX_BLOCK_BYTES // (row_bytes * self.batch_size)))

    def _draw(self, count: int) -> _Block:
        layout = self._rows.layout
        if layout is None or len(self) == 0:
            raise ValueError("the replay memory holds no transition yet")
        state = self._generator.bit_generator.state
        rows = self._generator.integers(0, len(self), size=count * self.batch_size)
        if self.sample_preprocessor is not None:
            return _Block([self._preprocessed(rows)], rows, dict(state))
        gathered = [
            group.to(self.device or "cpu").view(count, self.batch_size, -1) for group in self._rows.gather(rows)
        ]

        def column(c: Column) -> list[torch.Tensor]:
            block = gathered[c.group]
            if not c.shape:
                return list(block.select(-1, c.start).unbind(0))
            values = block[..., c.start : c.stop]
            return list(values.view(count, self.batch_size, *c.shape).unbind(0))

        batches = [index_batches(field, count) for field in layout.batch(column)]
        return _Block(list(zip(*batches, strict=True)), rows, dict(state))

    def _preprocessed(self, rows: Array) -> Batch:
        assert self.sample_preprocessor is not None
        samples = []
        for draw in rows.tolist():
            transition = self._transition_at(self._rows.index_of(draw))
            prev_obs, act, rew, obs, terminated, truncated = self.sample_preprocessor(*transition)
            samples.append((prev_obs, act, rew, obs, np.float32(terminated), np.float32(truncated)))
        batch: Batch = collate_to_torch(samples, self.device)
        return batch

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def lease_rows(self, start: int) -> RowLease:
        """In RAM, keep the rows from absolute index `start` (or the oldest) until the lease is released."""
        assert self._ram is not None
        return self._ram.lease(start)

    def state_dict(self) -> dict[str, Any]:
        """All but the rows: layout, counters, generator, each stream's last row, and where a drawn block stands."""
        block = self._block
        return {
            "memory_size": self.memory_size,
            "storage": "ram" if self._disk is None else "disk",
            "layout": None if self._rows.layout is None else self._rows.layout.describe(),
            "written": self._rows.readable,
            "generator": block.generator_state if block else self._generator.bit_generator.state,
            "block": [len(block.batches), block.position] if block else None,
            "next_block": self._block_batches,
            "statistics": self.statistics_state(),
            "tails": [
                [stream, tail.episode, tail.step, rebuild_plain(tail.spec, tail.observation)]
                for stream, tail in self._tails.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any], rows: Sequence[Array] = ()) -> None:
        """Take over `state_dict()` and the rows that belong to it.

        Args:
            state: what `state_dict` returned.
            rows: per array of `row_arrays`, the newest `min(written, memory_size)` rows, oldest first.

        Raises:
            ValueError: the rows do not fit the state, or the state another memory size.
        """
        if state["memory_size"] != self.memory_size:
            raise ValueError(
                f"memory.capacity was {state['memory_size']} when this was saved and is {self.memory_size} now"
            )
        same = self._load_disk(state, rows) if self._disk is not None else self._load_ram(state, rows)
        self._generator.bit_generator.state = state["generator"]
        self._block = None
        if state["block"] is not None and same:
            # The block was drawn from what is here now, or it would have been thrown away: the same draw again.
            count, position = state["block"]
            self._block = self._draw(count)
            self._block.position = position
        self._block_batches = int(state["next_block"]) if same else 1

    def _load_ram(self, state: dict[str, Any], rows: Sequence[Array]) -> bool:
        assert self._ram is not None
        if state.get("storage", "ram") != "ram":
            raise ValueError("it was saved with memory.storage: disk and its transitions lie there; keep that setting")
        written = int(state["written"])
        if state["layout"] is not None:
            self._ram.allocate(_layout_with_rows(state, rows))
            self._ram.load(written, list(rows))
        self._written = self._ram.readable = written
        self._restore_tails(state["tails"])
        self.restore_statistics(state["statistics"])
        return True

    def _load_disk(self, state: dict[str, Any], rows: Sequence[Array]) -> bool:
        """Whether what is here is what was here when the state was saved. What the disk says counts, if anything."""
        disk = self._disk
        assert disk is not None
        written = int(state["written"])
        if state.get("storage", "ram") == "disk":
            if disk.readable < written:
                logger.warning(
                    "%s holds %d transitions of all that were ever written, the checkpoint knew of %d: files are "
                    "missing, or the machine went down before they were on the disk (memory.sync: fsync prevents that)",
                    disk.folder,
                    disk.readable,
                    written,
                )
            return disk.readable == written
        if disk.readable or not state["layout"]:
            return False
        # A run that was begun in RAM goes on on disk.
        disk.adopt(_layout_with_rows(state, rows), written, rows)
        self._written = written
        self._restore_tails(state["tails"])
        self.restore_statistics(state["statistics"])
        self._touched |= self._tails.keys()
        self.commit()
        return True


def _taken(values: Array, rows: Any) -> Array:
    """`values[rows]`; NumPy's `take` is several times faster than an index where rows are short."""
    return values[rows] if isinstance(rows, slice) else values.take(rows, axis=0)


def _layout_with_rows(state: dict[str, Any], rows: Sequence[Array]) -> RowLayout:
    """The layout of a saved memory.

    Raises:
        ValueError: the rows are not those that belong to it.
    """
    layout = RowLayout.from_description(state["layout"])
    count = min(int(state["written"]), int(state["memory_size"]))
    widths = [*layout.widths, 2]
    if [array.shape for array in rows] != [(count, width) for width in widths]:
        found = [array.shape for array in rows]
        raise ValueError(f"{count} rows of widths {widths} are missing; found {found}")
    return layout


def rebuild_plain(spec: TreeSpec, leaves: list[Array]) -> Any:
    """The observation tree of `spec` with `leaves`."""
    return rebuild(spec.shape, list(leaves))
