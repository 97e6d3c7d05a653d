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

Which transitions a chunk makes is said by joining.py and n_steps.py, how batches are drawn by drawing.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tmrl_core.errors import ConfigError, SampleRefusedError, StorageError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.disk_rows import DiskRows
from tmrl_core.training.drawing import Drawing
from tmrl_core.training.joining import Joined, Tail, join_pairs, tail_of_pairs
from tmrl_core.training.layout import Array, Column, RowLayout, TreeSpec, tree_spec
from tmrl_core.training.memory import (
    MAX_STREAMS,
    Refusals,
    compare_with_original,
    rows_that_follow,
    whole_number,
)
from tmrl_core.training.n_steps import join_n_steps
from tmrl_core.training.prioritized import Priorities, Prioritization
from tmrl_core.training.rows import RamRows, RowLease, Rows
from tmrl_core.training.staleness import FreshRows

logger = logging.getLogger(__name__)

_OWN_VALUES = {"statistics", "steps"}


class ReplayMemory(Drawing):
    """Replay of the newest `memory_size` valid transitions, drawn uniformly or by priorities.

    Iterating yields `nb_steps` batches `(prev_obs, new_act, rew, new_obs, terminated, truncated)` of tensors
    [batch_size, *shape] on `device`; `rew` and the flags are float32 [batch_size]. With n steps or priorities a dict of
    extras follows.

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
        n_step: steps in a transition; above 1, batches carry the extra `discount` (gamma to the number of steps).
        gamma: discount of a step, for n_step above 1.
        priority: draw by priorities, and how; batches then carry the extras `indices` (int64, on the CPU) and `weights`
            (float32), and whoever trains calls `update_priorities`. None: draw uniformly.
        max_drawn_lag: draw only transitions of a policy at most so many versions behind the latest, which whoever
            trains says with `note_version`; the others stay stored. None: draw any.
        prefetch: blocks of batches that a thread prepares ahead, without changing what is drawn; None: 2 where batches
            go to a CUDA device, otherwise 0. By priorities, and with a sample_preprocessor, there is none.

    Raises:
        ConfigError: a size is not positive or not whole, a number is out of its range, or "disk" has no folder.
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
        n_step: float = 1,
        gamma: float = 0.99,
        priority: Prioritization | Mapping[str, Any] | None = None,
        max_drawn_lag: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        self.memory_size = whole_number(memory_size, "memory_size")
        self.n_step = whole_number(n_step, "n_step")
        if not 0 <= gamma <= 1:
            raise ConfigError(f"gamma must be 0 to 1, got {gamma!r}")
        self.gamma = gamma
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        if isinstance(priority, Mapping):
            priority = Prioritization(**priority)
        priorities = None if priority is None else Priorities(self.memory_size, priority)
        super().__init__(
            device,
            whole_number(nb_steps, "nb_steps"),
            whole_number(batch_size, "batch_size"),
            sample_preprocessor,
            seed,
            priorities,
            max_drawn_lag,
            prefetch,
        )
        self.dataset_path = dataset_path
        self.crc_debug = crc_debug
        self.downcast_float64 = downcast_float64
        self._written = 0
        self._tails: dict[bytes, Tail] = {}
        self._touched: set[bytes] = set()
        """Streams whose tails have changed since the last commit."""
        self.deferred = False
        self._disk: DiskRows | None = None
        self._ram: RamRows | None = None
        self._rows: Rows
        if storage == "disk":
            if folder is None:
                raise ConfigError("a memory with storage: disk needs a folder; set memory.folder")
            self._rows = self._disk = DiskRows(self.memory_size, Path(folder), sync)
            try:
                self._take_over(self._disk)
            except BaseException:
                self._disk.close()
                raise
        else:
            self._rows = self._ram = RamRows(self.memory_size)

    # --- what is in it ------------------------------------------------------------------------------------------------

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
        """Transition `item`, 0 being the oldest: (prev_obs, act, rew, obs, terminated, truncated, extras).

        Raises:
            IndexError: there is no such transition.
        """
        if not 0 <= item < len(self):
            raise IndexError(f"transition {item} of {len(self)}")
        self._stop_ahead()
        index = self._rows.readable - len(self) + item
        prev_obs, act, rew, obs, terminated, truncated, extras = self._transition_at(index)
        return prev_obs, act, rew, obs, terminated, truncated, extras

    def policy_versions(self) -> Array:
        """[len, 2] int64: incarnation and counter of the policy that made each transition, in no promised order."""
        self._stop_ahead()
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
        self._stop_ahead()
        before = self._written, self._tails.get(chunk.stream)
        try:
            count = self._append_chunk(chunk)
            if self._disk is not None and not self.deferred:
                self.commit()
        except StorageError:
            assert self._disk is not None
            self._disk.discard()
            self._written, tail = before
            if self._fresh is not None:
                self._fresh.cut(self._written)
            self._tails.pop(chunk.stream, None)
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

        if tail is not None and not tail.fits(observation, action):
            tail = None
        follows = rows_that_follow(chunk, tail)
        joined, after = self._join(chunk, follows, tail, observation, action)
        if joined is not None:
            if self._rows.layout is None:
                actions = action or (tail.action_spec if tail is not None else None)
                assert actions is not None
                self._rows.allocate(RowLayout(observation, actions, list(joined.extras)))
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
        self._stop_ahead()
        before, oldest = self._disk.readable, self._disk.oldest
        statistics = self.statistics_state()
        if statistics != self._disk.states.values.get("statistics"):  # the same NaN counts as equal in a list
            values["statistics"] = statistics
        if before == 0:
            values["steps"] = [self.n_step, self.gamma]
        self._disk.commit({"marks": dict(marks or {}), "tails": tails, "values": values})
        self._touched.clear()
        if self._priorities is not None and self._disk.oldest > max(oldest, self._disk.readable - self.memory_size):
            self._priorities.remove(oldest, self._disk.oldest)  # damage was found
        if self._disk.readable > before:
            self._published(before)

    @property
    def recorded(self) -> tuple[dict[bytes, tuple[int, int]], dict[str, Any]] | None:
        """Marks and values of what is on the disk, as `commit` was given them; None: nothing, or this is in RAM."""
        if self._disk is None or not self._disk.states.values:
            return None
        states = self._disk.states
        marks = {stream: (int(mark[0]), int(mark[1])) for stream, mark in states.marks.items()}
        return marks, {name: value for name, value in states.values.items() if name not in _OWN_VALUES}

    def _take_over(self, disk: DiskRows) -> None:
        """What a process before this one has left on the disk."""
        self._check_stacks(disk)
        self._written = disk.readable
        if disk.readable:
            self._check_steps(disk.states.values.get("steps", [1, self.gamma]), f"{disk.folder} holds", ConfigError)
            if self._priorities is not None:
                self._priorities.add(disk.readable - len(disk), disk.readable)
            self._note_versions(disk.readable - len(disk))
        try:
            self._restore_tails(
                [[stream, episode, step, tree] for stream, (episode, step, tree) in disk.states.tails.items()]
            )
            if "statistics" in disk.states.values:
                self.restore_statistics(disk.states.values["statistics"])
        except (ValueError, TypeError, LookupError, SampleRefusedError) as exc:
            raise StorageError(f"{disk.folder} says something impossible of its streams: {exc}") from exc

    def _check_stacks(self, disk: DiskRows) -> None:
        if disk.stacks is not None:
            raise ConfigError(
                f"{disk.folder} holds stacks of {disk.stacks.stack} frames, each frame once; keep memory.cls: "
                "tmrl_core.training:FrameStackMemory, or begin anew with another run.name."
            )

    def _restore_tails(self, tails: Sequence[Sequence[Any]]) -> None:
        self._tails = {
            stream: Tail.from_plain(episode, step, tree, self.n_step, self.downcast_float64)
            for stream, episode, step, tree in tails
        }

    def _check_steps(self, steps: Any, what: str, error: type[Exception]) -> None:
        """Transitions of other lengths, or of another discount, cannot be added to."""
        found = [*steps]
        if found[0] != self.n_step or (self.n_step > 1 and found[1] != self.gamma):
            raise error(
                f"{what} transitions of {found[0]} steps (gamma {found[1]}), and memory.n_step is {self.n_step} (gamma "
                f"{self.gamma}); keep these, or begin anew with another run.name."
            )

    def flush(self) -> None:
        """Have what is on disk survive the machine, whatever `sync` is.

        Raises:
            StorageError: it may not.
        """
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """Let go of the folder on disk, so that another process, or another memory, may use it; end prefetching."""
        self._stop_ahead()
        self._ahead.close()
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
        if self._fresh is not None:
            self._fresh.add(start, joined.version[:, 1])
        self._written = start + joined.count
        self._rows.publish(self._written)
        if self._ram is not None:
            self._published(start)

    def _published(self, start: int) -> None:
        """Transitions from `start` on can be drawn."""
        if self._priorities is not None:
            self._priorities.add(start, self._rows.readable)
        self._expire()
        self._forget_block()

    def _note_versions(self, start: int) -> None:
        """Read which versions the rows from `start` on are of, where only some of them are drawn."""
        if self._fresh is not None:
            self._fresh.add(start, self._rows.versions_of(start, self._rows.readable)[:, 1])

    def _compare(self, chunk: Chunk, joined: Joined) -> None:
        for offset, row in enumerate(joined.rows.tolist()):
            original = chunk.info.get(row, {}).get("crc_sample")
            if original is not None:
                rebuilt = self._transition_at(self._written - joined.count + offset)[:6]
                compare_with_original(original, rebuilt, self.downcast_float64)

    def _put(self, column: Column, start: int, values: Array) -> None:
        if len(values):
            self._rows.put(column, start, values.reshape(len(values), column.stop - column.start))

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def lease_rows(self, start: int) -> RowLease:
        """In RAM, keep the rows from absolute index `start` (or the oldest) until the lease is released."""
        assert self._ram is not None
        return self._ram.lease(start)

    def state_dict(self) -> dict[str, Any]:
        """All but the rows: layout, counters, generator, each stream's last row, and where a drawn block stands."""
        self._stop_ahead()
        # What was drawn by priorities cannot be drawn again: what it was drawn from has changed since.
        block = self._block if self._priorities is None else None
        return {
            "memory_size": self.memory_size,
            "storage": "ram" if self._disk is None else "disk",
            "layout": None if self._rows.layout is None else self._rows.layout.describe(),
            "written": self._rows.readable,
            "oldest": self._rows.oldest,
            "generator": block.generator_state if block else self._generator.bit_generator.state,
            "block": [len(block.batches), block.position] if block else None,
            "next_block": self._block_batches,
            "statistics": self.statistics_state(),
            "tails": [[stream, tail.episode, tail.step, tail.plain()] for stream, tail in self._tails.items()],
            "steps": [self.n_step, self.gamma],
            "priorities": None if self._priorities is None else self._priorities.state_dict(),
            "version": self._lag.counter,
            "drawn": self._left_over(),
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
        self._check_steps(state.get("steps", [1, self.gamma]), "it holds", ValueError)
        self._stop_ahead()
        same = self._load_disk(state, rows) if self._disk is not None else self._load_ram(state, rows)
        if self._priorities is not None:
            self._priorities.add(self._rows.readable - len(self), self._rows.readable)
            if state.get("priorities") is not None:
                self._priorities.load_state_dict(state["priorities"])
        if self._fresh is not None:
            self._fresh = FreshRows(self._fresh.max_lag)
            self._note_versions(self._rows.readable - len(self))
        self.note_version(int(state.get("version", 0)))
        self._generator.bit_generator.state = state["generator"]
        self._forget_block()
        most = self._largest_block() if self._rows.layout is not None else 1
        if state["block"] is not None and same and state["block"][0] <= most:
            # The block was drawn from what is here now, or it would have been thrown away: the same draw again.
            count, position = state["block"]
            self._block = self._draw(count, dict(self._generator.bit_generator.state))
            self._block.position = position
        left = state.get("drawn")
        if left is not None and same and self._priorities is not None:
            self._block = self._left_over_block(left)
        if same:
            self._block_batches = max(1, min(int(state["next_block"]), most))

    def _load_ram(self, state: dict[str, Any], rows: Sequence[Array]) -> bool:
        assert self._ram is not None
        if state.get("storage", "ram") != "ram":
            raise ValueError("it was saved with memory.storage: disk and its transitions lie there; keep that setting")
        written = int(state["written"])
        if state["layout"] is not None:
            self._ram.allocate(_layout_with_rows(state, rows))
            self._ram.load(written, list(rows))
        self._written = self._ram.readable = written
        self._ram.oldest = int(state.get("oldest", 0))
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


def _layout_with_rows(state: dict[str, Any], rows: Sequence[Array]) -> RowLayout:
    """The layout of a saved memory.

    Raises:
        ValueError: the rows are not those that belong to it.
    """
    layout = RowLayout.from_description(state["layout"])
    count = min(int(state["written"]) - int(state.get("oldest", 0)), int(state["memory_size"]))
    widths = [*layout.widths, 2]
    if [array.shape for array in rows] != [(count, width) for width in widths]:
        found = [array.shape for array in rows]
        raise ValueError(f"{count} rows of widths {widths} are missing; found {found}")
    return layout
