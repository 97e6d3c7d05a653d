"""The project's own replay memory: columnar, preallocated, a batch is one gather per dtype.

Theory of operation
-------------------
Chunks come in as columns. A *transition* is a pair of neighbouring rows of one stream, of one episode, with consecutive
step indices, the first of which ended nothing. It is made when its second row arrives and stored complete, so that
sampling needs no rule at all: every stored row is a valid transition, and a uniform draw of rows is a uniform draw of
valid transitions. Of each stream the last row is kept, so that an episode that came in several messages, between those
of other streams, is joined; a reset, a missing message, another structure or another stream never is.

Rows are written to a ring. A transition has an absolute index, counted from the first ever written; it lies at this
index modulo the capacity. Checkpoints rely on that: they write ranges of absolute indices.

Batches are drawn in blocks of several: one draw of indices, one gather per dtype and one split serve up to
`MAX_BLOCK_BATCHES` batches. A block is thrown away when something is appended, so that new transitions are drawn at
once; block sizes grow from one after each append, so that not much is ever thrown away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples import Buffer, Chunk
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
    rows_that_follow,
    whole_number,
)

logger = logging.getLogger(__name__)

MAX_BLOCK_BATCHES = 32
MAX_BLOCK_BYTES = 1 << 20
Batch = tuple[Any, Any, torch.Tensor, Any, torch.Tensor, torch.Tensor]


class RowLease:
    """Rows `[start, stop)` that somebody still reads. An append that would overwrite them waits for the reader.

    The reader calls `advance` as it goes and `release` at the end, from any thread.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self._changed = threading.Condition()

    def advance(self, index: int) -> None:
        """Rows before absolute `index` are no longer needed."""
        with self._changed:
            self.start = max(self.start, index)
            self._changed.notify_all()

    def release(self) -> None:
        """No row is needed any more."""
        self.advance(self.stop)

    def wait_until_free(self, index: int) -> None:
        """Return when rows before absolute `index` may be overwritten; woken by `advance` and `release`."""
        with self._changed:
            self._changed.wait_for(lambda: self.start >= min(index, self.stop))


class _Block:
    """Batches drawn together, and what is needed to draw them again."""

    def __init__(self, batches: list[Batch], generator_state: dict[str, Any]) -> None:
        self.batches = batches
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
        dataset_path: accepted for scripts that name one; this memory lives in RAM.
        crc_debug: compare each rebuilt transition with the original that the worker sent along.
        seed: of the draws; None: taken from torch's global generator, as `torch.manual_seed` sets it.
        downcast_float64: store float64 columns as float32 (the default). All other dtypes are kept exactly.

    Raises:
        ConfigError: a size is not positive or not whole.
    """

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
        self._layout: RowLayout | None = None
        self._groups: list[Array] = []
        self._tensors: list[torch.Tensor] = []
        self._versions = np.zeros((0, 2), np.int64)
        self._written = 0
        self._tails: dict[bytes, _Tail] = {}
        self._lease: RowLease | None = None
        self._block: _Block | None = None
        self._block_batches = 1
        self.last_versions: Array = np.zeros((0, 2), np.int64)

    # --- what is in it ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Valid transitions that can be sampled."""
        return min(self._written, self.memory_size)

    @property
    def written(self) -> int:
        """Transitions ever stored; the newest has the absolute index `written - 1`."""
        return self._written

    @property
    def layout(self) -> RowLayout | None:
        """Where columns stand; None before the first transition."""
        return self._layout

    @property
    def row_arrays(self) -> list[Array]:
        """The rings: one array [memory_size, width] per dtype, then the policy versions [memory_size, 2]."""
        return [*self._groups, self._versions] if self._layout is not None else []

    def get_transition(self, item: int) -> tuple[Any, Any, np.float32, Any, bool, bool, dict[str, Any]]:
        """Transition `item`, 0 being the oldest: (prev_obs, act, rew, obs, terminated, truncated, info).

        Raises:
            IndexError: there is no such transition.
        """
        if not 0 <= item < len(self) or self._layout is None:
            raise IndexError(f"transition {item} of {len(self)}")
        row = (self._written - len(self) + item) % self.memory_size
        prev_obs, act, rew, obs, terminated, truncated = self._transition_at(row)
        return prev_obs, act, rew, obs, terminated, truncated, {}

    def _transition_at(self, row: int) -> tuple[Any, Any, Any, Any, bool, bool]:
        def column(c: Column) -> Any:
            values = self._groups[c.group][row, c.start : c.stop]
            return values.reshape(c.shape) if c.shape else values[0]

        assert self._layout is not None
        prev_obs, act, rew, obs, terminated, truncated = self._layout.batch(column)
        return prev_obs, act, rew, obs, bool(terminated), bool(truncated)

    def policy_versions(self) -> Array:
        """[len, 2] int64: incarnation and counter of the policy that made each transition, in no promised order."""
        return self._versions[: len(self)]

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
        """
        tail = self._tails.pop(chunk.stream, None)
        if chunk.rows == 0:
            return 0
        observation = tree_spec(chunk.observation, "the observation", self.downcast_float64)
        action = self._action_spec(chunk)
        self._check(observation, action, chunk)

        joined = rows_that_follow(chunk, tail if tail is not None and tail.spec == observation else None)
        if action is not None and joined.any():
            if self._layout is None:
                self._allocate(RowLayout(observation, action))
            count = self._store(chunk, joined, tail)
        else:
            count = 0
        if not (chunk.terminated[-1] or chunk.truncated[-1]):
            last = [np.array(leaf[-1:]) for _, leaf in flatten(chunk.observation)]
            self._tails[chunk.stream] = _Tail(int(chunk.episode[-1]), int(chunk.step[-1]), observation, last)
            if len(self._tails) > MAX_STREAMS:
                self._tails.pop(next(iter(self._tails)))
        return count

    def forget_stream(self, stream: bytes) -> None:
        """Let go of a stream's last row: its open episode will not be continued."""
        self._tails.pop(stream, None)

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
        if self._layout is None:
            return
        for what, found, held in (
            ("observation", observation, self._layout.observation),
            ("action", action, self._layout.action),
        ):
            if found is not None and found != held:
                raise SampleRefusedError(
                    f"the {what} of {chunk.rows} samples is {found}, but this memory holds {held}. "
                    "Workers and trainer need the same environment, preprocessor and compressor; a memory that changes "
                    "its shapes needs a new run.name."
                )

    def _allocate(self, layout: RowLayout) -> None:
        try:
            groups = [
                np.empty((self.memory_size, width), dtype)
                for dtype, width in zip(layout.dtypes, layout.widths, strict=True)
            ]
            versions = np.empty((self.memory_size, 2), np.int64)
        except MemoryError as exc:
            needed = self.memory_size * (layout.row_bytes + 16) / 1e9
            raise ConfigError(
                f"memory.capacity: {self.memory_size} transitions of {layout.row_bytes} bytes need {needed:.1f} GB, "
                "which this machine does not give. Choose a smaller capacity."
            ) from exc
        self._groups, self._versions, self._layout = groups, versions, layout
        self._tensors = [torch.from_numpy(group) for group in groups]

    def _store(self, chunk: Chunk, joined: Array, tail: _Tail | None) -> int:
        assert self._layout is not None
        new_rows = np.flatnonzero(joined)
        if len(new_rows) > self.memory_size:
            self._written += len(new_rows) - self.memory_size
            new_rows = new_rows[-self.memory_size :]
        count = len(new_rows)
        if self._lease is not None:
            self._lease.wait_until_free(self._written + count - self.memory_size)
        # Neighbouring rows are the rule: slices then spare a gather.
        first, last = int(new_rows[0]), int(new_rows[-1])
        rows: Any = slice(first, last + 1) if last - first + 1 == count else new_rows
        from_tail = first == 0
        previous: Any
        if isinstance(rows, slice):
            previous = slice(max(first - 1, 0), last)
        else:
            previous = (new_rows[1:] if from_tail else new_rows) - 1

        layout, start = self._layout, self._written
        for column, (_, leaf) in zip(layout.new_obs, flatten(chunk.observation), strict=True):
            self._put(column, start, leaf[rows])
        for i, (column, (_, leaf)) in enumerate(zip(layout.prev_obs, flatten(chunk.observation), strict=True)):
            if from_tail:
                assert tail is not None
                self._put(column, start, tail.observation[i])
            self._put(column, start + from_tail, leaf[previous])
        for column, (_, leaf) in zip(layout.act, flatten(chunk.action), strict=True):
            self._put(column, start, leaf[rows])
        self._put(layout.rew, start, chunk.reward[rows])
        self._put(layout.terminated, start, chunk.terminated[rows])
        self._put(layout.truncated, start, chunk.truncated[rows])
        self.last_versions = chunk.version[rows]
        self._put_rows(self._versions, slice(None), start, self.last_versions)
        self._written += count
        self._block = None
        self._block_batches = 1
        if self.crc_debug:
            for offset, row in enumerate(new_rows.tolist()):
                original = chunk.info.get(row, {}).get("crc_sample")
                if original is not None:
                    rebuilt = self._transition_at((start + offset) % self.memory_size)
                    compare_with_original(original, rebuilt, self.downcast_float64)
        return count

    def _put(self, column: Column, start: int, values: Array) -> None:
        if len(values):
            flat = values.reshape(len(values), column.stop - column.start)
            self._put_rows(self._groups[column.group], slice(column.start, column.stop), start, flat)

    def _put_rows(self, ring: Array, columns: slice, start: int, values: Array) -> None:
        at = start % self.memory_size
        first = min(len(values), self.memory_size - at)
        ring[at : at + first, columns] = values[:first]
        if first < len(values):
            ring[: len(values) - first, columns] = values[first:]

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

    def _current_block(self) -> _Block:
        block = self._block
        if block is None or block.position == len(block.batches):
            block = self._block = self._draw(self._block_batches)
            self._block_batches = min(2 * self._block_batches, self._largest_block())
        return block

    def _largest_block(self) -> int:
        assert self._layout is not None
        if self.sample_preprocessor is not None:
            return 1
        return max(1, min(MAX_BLOCK_BATCHES, MAX_BLOCK_BYTES // max(1, self._layout.row_bytes * self.batch_size)))

    def _draw(self, count: int) -> _Block:
        if self._layout is None or self._written == 0:
            raise ValueError("the replay memory holds no transition yet")
        state = self._generator.bit_generator.state
        rows = self._generator.integers(0, len(self), size=count * self.batch_size)
        if self.sample_preprocessor is not None:
            return _Block([self._preprocessed(rows)], dict(state))
        index = torch.from_numpy(rows)
        gathered = [
            group.index_select(0, index).to(self.device or "cpu").view(count, self.batch_size, -1)
            for group in self._tensors
        ]

        def column(c: Column) -> list[torch.Tensor]:
            block = gathered[c.group]
            if not c.shape:
                return list(block.select(-1, c.start).unbind(0))
            values = block[..., c.start : c.stop]
            return list(values.view(count, self.batch_size, *c.shape).unbind(0))

        batches = [index_batches(field, count) for field in self._layout.batch(column)]
        return _Block(list(zip(*batches, strict=True)), dict(state))

    def _preprocessed(self, rows: Array) -> Batch:
        assert self.sample_preprocessor is not None
        samples = []
        for row in rows.tolist():
            prev_obs, act, rew, obs, terminated, truncated = self.sample_preprocessor(*self._transition_at(row))
            samples.append((prev_obs, act, rew, obs, np.float32(terminated), np.float32(truncated)))
        batch: Batch = collate_to_torch(samples, self.device)
        return batch

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def lease_rows(self, start: int) -> RowLease:
        """Keep the rows from absolute index `start` (or the oldest there is) until the lease is released."""
        self._lease = RowLease(max(start, self._written - len(self)), self._written)
        return self._lease

    def state_dict(self) -> dict[str, Any]:
        """All but the rows: layout, counters, generator, each stream's last row, and where a drawn block stands."""
        block = self._block
        return {
            "memory_size": self.memory_size,
            "layout": None if self._layout is None else self._layout.describe(),
            "written": self._written,
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
        written = int(state["written"])
        count = min(written, self.memory_size)
        if state["layout"] is not None:
            layout = RowLayout.from_description(state["layout"])
            widths = [*layout.widths, 2]
            if [array.shape for array in rows] != [(count, width) for width in widths]:
                found = [array.shape for array in rows]
                raise ValueError(f"{count} rows of widths {widths} are missing; found {found}")
            self._allocate(layout)
            for ring, values in zip(self.row_arrays, rows, strict=True):
                self._put_rows(ring, slice(None), written - count, values)
        self._written = written
        self._tails = {
            stream: _Tail(
                episode,
                step,
                tree_spec(observation, "the observation", self.downcast_float64),
                [leaf for _, leaf in flatten(observation)],
            )
            for stream, episode, step, observation in state["tails"]
        }
        self.restore_statistics(state["statistics"])
        self._generator.bit_generator.state = state["generator"]
        self._block = None
        if state["block"] is not None:
            # The block was drawn from what is here now, or it would have been thrown away: the same draw again.
            count, position = state["block"]
            self._block = self._draw(count)
            self._block.position = position
        self._block_batches = int(state["next_block"])


def rebuild_plain(spec: TreeSpec, leaves: list[Array]) -> Any:
    """The observation tree of `spec` with `leaves`."""
    return rebuild(spec.shape, list(leaves))
