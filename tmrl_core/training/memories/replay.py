"""The columnar replay memory: preallocated, a batch is one gather per dtype."""

# Theory of operation
#
# `ReplayMemory` connects five parts and has few rules of its own. It knows nothing of the network: samples come as
# chunks, and acknowledgements are the loop's.
#
# - The store (`RamRows` in rows.py, `DiskRows` in disk_rows.py) holds rows under absolute indices and gathers those
#   of a batch.
# - The builder (transition_builder.py, frame_stack_builder.py, sequences.py) makes rows of a chunk and keeps the tail
#   of its stream.
# - The schema of the builder (row_schema.py, layout.py) compares chunks with what is stored.
# - The sampler (sampler.py, prioritized.py, staleness.py) chooses rows.
# - The reader (batch_reader.py) makes tensors of them.
#
# A transition is a pair of neighbouring rows of one episode of one stream, with consecutive step indices; the first row
# did not end the episode. It is built and stored when its second row arrives. Every stored row is therefore a valid
# transition, and uniform sampling of rows is uniform sampling of valid transitions: no batch has to reject or mask
# anything. Rows are never joined across a reset, a missing message, a change of structure, or two streams.
#
# Example: a worker sends rows 0 to 3 of episode 7, then rows 4 to 6, and between the two another worker's message
# arrives. The first chunk makes the transitions 0-1, 1-2, 2-3 and leaves row 3 as the tail of its stream. The other
# worker's chunk has a tail of its own. The second chunk begins with step 4 of episode 7, which follows the tail, so it
# makes 3-4, 4-5, 5-6. Had the message been lost, a chunk that begins with step 5 would not follow the tail, and 3-5
# would never exist.
#
# Rows hold each observation twice, as the new one and as the previous one of the next row. A store of steps was
# measured instead (benchmarks/results/steps_once_*.md): with images it samples at 0.99 of this rate in half the RAM,
# but small observations lose a tenth of the rate, and messages of one row need up to 1.5 times the RAM. It is not
# better for everybody, and `FrameStackMemory` stores each frame once already, which is a quarter of a stack of four.
#
# An absolute index counts rows from the first ever written. The same seed samples the same transitions from rows in RAM
# and on disk, because positions are computed from the indices in the same way. Checkpoints of a memory in RAM contain
# ranges of absolute indices (replay_rows.py); those of one on disk refer to its folder.
#
# The order of an insertion matters:
#
# - Prefetching stops first (`_reader.stop`): a thread that gathers rows while they are overwritten would mix two
#   rows. What it had prepared is undone together with the generator's state, so that a run with prefetching and one
#   without sample the same.
# - The builder yields a part, and the part is stored before the next one is requested: with frame stacks, the next
#   part may overwrite frames that the tail of this one refers to.
# - The sampler hears of rows when they can be read: in RAM at once, on disk after the commit that has written them.
# - Incomplete rows (their frames have been overwritten) leave last, when all new rows are counted.
#
# On disk, `append_chunk` stages rows, and `commit` writes them in one record with the offsets of their streams. If the
# disk does not accept an append, the staged rows are discarded and the stream's tail is put back, as if the chunk had
# never come; the caller acknowledges nothing. If it does not accept a commit of a deferred memory, the rows stay staged
# and the same call is repeated later.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tmrl_core.config.descriptions import described_by
from tmrl_core.config.sections import MemorySection
from tmrl_core.errors import ConfigError, SampleRefusedError, StorageError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.contracts import AgentLike, Refusals, TrainingMemory
from tmrl_core.training.memories.batch_reader import BatchReader
from tmrl_core.training.memories.disk_rows import DiskRows
from tmrl_core.training.memories.layout import Array, RowLayout
from tmrl_core.training.memories.memory import compare_with_original, whole_number
from tmrl_core.training.memories.prioritized import Prioritization, PrioritizedSampler
from tmrl_core.training.memories.return_scale import ReturnScale
from tmrl_core.training.memories.row_memory import RowLease
from tmrl_core.training.memories.rows import RamRows, Rows
from tmrl_core.training.memories.sample_check import check_samples
from tmrl_core.training.memories.sampler import Sampler, UniformSampler
from tmrl_core.training.memories.staleness import RecentSampler
from tmrl_core.training.memories.transition_builder import TransitionBuilder
from tmrl_core.training.memories.transitions import TransitionColumns
from tmrl_core.training.value_types import Batch, State, Tree

logger = logging.getLogger(__name__)

_OWN_VALUES = {"statistics", "steps", "returns"}


@described_by(MemorySection)
class ReplayMemory(TrainingMemory):
    """Replay of the newest `memory_size` valid transitions, sampled uniformly or by priorities.

    Iterating yields `nb_steps` batches `(prev_obs, new_act, rew, new_obs, terminated, truncated)` of tensors
    [batch_size, *shape] on `device`; `rew` and the flags are float32 [batch_size]. With n steps (`discount`: gamma to
    the number of steps), priorities or extras of samples, a dict of extras follows.

    Args:
        device: device of the batches; None: the CPU.
        nb_steps: batches per iteration.
        sample_preprocessor: called for each sampled transition with its six values (flags as bool); returns the six
            changed values, in that order. Much slower than whole batches.
        memory_size: capacity in transitions; may be a float such as 1e6.
        batch_size: transitions in a batch.
        dataset_path: accepted for compatibility; not used.
        crc_debug: compare each rebuilt transition with the original, which the worker then sends too.
        seed: of the sampling generator; None: taken from torch's global generator (`torch.manual_seed`).
        downcast_float64: store float64 columns as float32 (the default). All other dtypes are kept exactly.
        folder: folder of the transitions, for "disk" only. One process at a time may use it.
        gamma: discount factor of a step, for n_step above 1.
        priority: settings of prioritized sampling. Batches then have the extras `indices` (int64, on the CPU) and
            `weights` (float32), and the training loop calls `update_priorities`. None: uniform sampling.
        sampler: a custom sampling rule in place of priority and max_drawn_lag; None: the rule that these two define.
        keep_extras: store the extras of samples (log-probabilities, recurrent states, ...) with each transition and add
            them to the extras of batches; for agents that take extras. A transition has the extras of its action; a
            sample without extras gets zeros. Extras are not stored if they are not numeric arrays, if they are named
            discount, indices or weights, or if the memory already holds transitions without extras. A memory on disk
            that already holds extras stores them regardless of this setting. The default is False.

    Raises:
        ConfigError: a size is not positive or not whole, a number is out of its range, or "disk" has no folder.
        FolderLockedError: another process uses the folder.
        StorageError: the folder cannot be read or written.

    Attributes:
        deferred: True: on disk, appended samples are written with the next `commit`, in one record with the offsets of
            their streams; until then they are neither sampled nor counted. False: each append is written immediately.
        returns: scale of the rewards of batches; None: the agent takes rewards as they are.
    """

    type_id = "replay"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset({"deferred"})

    def __init__(
        self,
        device: torch.device | str | None = None,
        nb_steps: float = 1,
        sample_preprocessor: Callable[..., Batch] | None = None,
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
        sampler: Sampler | None = None,
        keep_extras: bool = False,
    ) -> None:
        super().__init__()
        self.memory_size = whole_number(memory_size, "memory_size")
        self.n_step = whole_number(n_step, "n_step")
        if not 0 <= gamma <= 1:
            raise ConfigError(f"gamma must be 0 to 1, got {gamma!r}")
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        self.gamma = gamma
        self.downcast_float64 = downcast_float64
        self.keep_extras = keep_extras
        self.crc_debug = crc_debug
        self.device = device
        self.nb_steps = whole_number(nb_steps, "nb_steps")
        self.batch_size = whole_number(batch_size, "batch_size")
        self.sample_preprocessor = sample_preprocessor
        self.dataset_path = dataset_path
        self.deferred = False
        self.returns: ReturnScale | None = None
        self._owns_returns = self._counts_returns = True
        self.sampler = _sampler_of(self.memory_size, priority, max_drawn_lag, sampler)
        self._disk: DiskRows | None = None
        self._ram: RamRows | None = None
        self._rows: Rows
        if storage == "disk":
            if folder is None:
                raise ConfigError("a memory with storage: disk needs a folder; set memory.folder")
            self._rows = self._disk = DiskRows(self.memory_size, Path(folder), sync, tail_rows=self.n_step)
        else:
            self._rows = self._ram = RamRows(self.memory_size)
        try:
            self._builder = self._make_builder(self._rows)
            self._reader = BatchReader(
                self._rows,
                self.sampler,
                self._builder.expanded,
                device,
                self.batch_size,
                sample_preprocessor,
                seed,
                prefetch,
            )
            if self._disk is not None:
                self._take_over(self._disk)
        except BaseException:
            if self._disk is not None:
                self._disk.close()
            raise

    def _make_builder(self, rows: Rows) -> TransitionBuilder:
        """Make the part that turns samples into rows."""
        return TransitionBuilder(rows, self.n_step, self.gamma, self.downcast_float64, self.keep_extras)

    def expect_agent(self, agent: AgentLike) -> None:
        """Scale the rewards of batches from now on, if the agent asks for that.

        Raises:
            StorageError: the folder on disk holds an invalid scale.
        """
        wanted = agent.return_scale if isinstance(agent, TrainingAgent) else None
        if wanted is None:
            return
        returns = ReturnScale(*wanted)
        found = None if self._disk is None else self._disk.states.values.get("returns")
        if found is not None:
            try:
                returns.load(found)
            except (ValueError, TypeError) as exc:
                raise StorageError(f"the replay memory on disk holds an invalid scale of rewards: {exc}") from exc
        self.returns = self._reader.returns = returns

    def share_returns(self, other: ReplayMemory, counts: bool = True) -> None:
        """Scale the rewards as another memory does, which keeps the statistics of both.

        Args:
            other: the other memory.
            counts: False: the samples of this memory are copies of some of the other's, which counts them.
        """
        self.returns = self._reader.returns = other.returns
        self._owns_returns, self._counts_returns = False, counts

    # --- samples ------------------------------------------------------------------------------------------------------

    def append(self, buffer: Buffer) -> Refusals:
        """Record the statistics and append all samples that fit. Return the refused chunks with the reasons."""
        self.note_statistics(buffer)
        return self.append_buffer(buffer)

    def append_buffer(self, buffer: Buffer) -> Refusals:
        """Append all chunks that fit; return the refused ones with the reasons."""
        refused = []
        for chunk in buffer.chunks:
            try:
                self.append_chunk(chunk)
            except SampleRefusedError as exc:
                refused.append((chunk, exc))
        return refused

    def append_chunk(self, chunk: Chunk) -> int:
        """Build and store the transitions that end in `chunk`; return their number.

        Raises:
            SampleRefusedError: structure, dtypes or shapes differ from those that the memory holds, or from the
                declared ones; or a number is not finite, if samples are declared or stored on disk. Nothing was stored,
                and the stream's open episode is not joined across the refused rows.
            ValueError: with `crc_debug`, a transition differs from the worker's original.
            StorageError: it cannot be written to the disk. Nothing was stored.
        """
        # Samples on disk outlive this process.
        if chunk.rows and (self.declared is not None or self._disk is not None):
            try:
                check_samples(chunk, self.declared, as_float32=self.downcast_float64)
            except SampleRefusedError:
                self._builder.forget(chunk.stream)
                raise
        # A prefetching thread would read rows while they are overwritten.
        self._reader.stop()
        tail = self._builder.tails.get(chunk.stream)
        counted = None if self.returns is None or self._disk is None else self.returns.state()
        try:
            count = self._insert(chunk)
            if self._disk is not None and not self.deferred:
                self.commit()
        except StorageError:
            assert self._disk is not None
            self._disk.discard()
            self._builder.restore_tail(chunk.stream, tail)
            if self.returns is not None:
                self.returns.load(counted)
            raise
        return count

    def _insert(self, chunk: Chunk) -> int:
        rows, count = self._rows, 0
        for transitions in self._builder.build(chunk):
            start = rows.written + transitions.skipped
            rows.store(transitions)
            if not rows.durable:
                self._published(start)
            if self.crc_debug and self.n_step == 1:
                self._compare(chunk, transitions)
            count += transitions.count
        # Last: a chunk that is refused has no transitions.
        if self.returns is not None and self._counts_returns:
            self.returns.add(chunk)
        if not rows.durable:
            self._remove_incomplete()
        return count

    def _published(self, start: int) -> None:
        """Add the transitions from `start` on, which can now be sampled."""
        self.sampler.add(self._rows, start)
        self._reader.discard_block()

    def _remove_incomplete(self) -> None:
        """Exclude the oldest transitions that can no longer be restored."""
        rows, stop = self._rows, self._rows.readable
        first = stop - len(rows)
        complete = self._builder.first_complete(first, stop)
        if complete > first:
            rows.oldest = complete
            self._reader.discard_block()
            self.sampler.remove(first, complete)

    def _compare(self, chunk: Chunk, transitions: TransitionColumns) -> None:
        first = self._rows.written - transitions.count
        for offset, row in enumerate(transitions.rows.tolist()):
            original = chunk.info.get(row, {}).get("crc_sample")
            if original is not None:
                rebuilt = self._reader.transition_at(first + offset)[:6]
                compare_with_original(original, rebuilt, self.downcast_float64)

    def commit(self, offsets: Mapping[bytes, Sequence[int]] | None = None, **values: Tree) -> None:
        """Write the samples appended since the last call to the disk, as one record. In RAM, do nothing.

        Args:
            offsets: committed offsets of streams after these samples: next message and position.
            values: counters and the like; see `recorded`.

        Raises:
            StorageFullError: the disk is full. Nothing was written; the call can be repeated.
            StorageError: the record cannot be written for another reason; likewise.
        """
        if self._disk is None:
            return
        tails = self._builder.changed_tails()
        if not (tails or offsets or values or self._disk.staged):
            return
        self._reader.stop()
        before = self._disk.readable
        statistics = self.statistics_state()
        if statistics != self._disk.states.values.get("statistics"):  # lists compare the same NaN object as equal
            values["statistics"] = statistics
        if self._owned_returns is not None and (returns := self._owned_returns.state()) != self._disk.states.values.get(
            "returns"
        ):
            values["returns"] = returns
        if "steps" not in self._disk.states.values:
            values["steps"] = [self.n_step, self.gamma]
        self._disk.commit({"marks": dict(offsets or {}), "tails": tails, "values": values})
        self._builder.changed.clear()
        if self._disk.readable > before:
            self._published(before)
        self._remove_incomplete()

    # --- batches ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """Yield `nb_steps` batches, each sampled from the transitions at that moment.

        Raises:
            ValueError: the memory is empty.
        """
        return self._reader.batches(self.nb_steps)

    def sample(self) -> Batch:
        """Return one batch.

        Raises:
            ValueError: the memory is empty.
        """
        return self._reader.sample()

    @property
    def sampleable(self) -> int:
        """Number of transitions that may be sampled."""
        return self.sampler.count(self._rows)

    @property
    def prefetched(self) -> int:
        """Number of batches that are already sampled; they come next unless samples are appended."""
        return self._reader.sampled_ahead

    @property
    def prefetch(self) -> int:
        """Number of blocks of batches that are prepared in advance."""
        return self._reader.prefetch

    def note_version(self, counter: int) -> None:
        """Set the number of the latest policy, from which the ages of transitions are computed."""
        if counter == self._reader.lag.counter:
            return
        if self.sampler.follows_versions:
            self._reader.stop()
            if self.sampler.note_version(self._rows, counter):
                self._reader.discard_block()
        self._reader.set_version(counter)

    def pop_sampled_lag(self) -> tuple[float, int] | None:
        """Return the mean and maximum policy lag of sampled transitions, in versions.

        They cover a few transitions of each block since the last call. None: there were none.
        """
        return self._reader.lag.take()

    def update_priorities(self, indices: torch.Tensor | Array, td_errors: torch.Tensor | Array) -> None:
        """Report the TD errors of the transitions of a batch. Without priorities this has no effect.

        Args:
            indices: [n], the batch's extra `indices`.
            td_errors: [n], on any device.
        """
        self.sampler.update_priorities(_numpy(indices), _numpy(td_errors))

    # --- content ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of transitions."""
        return len(self._rows)

    @property
    def written(self) -> int:
        """Transitions ever stored; the newest has the absolute index `written - 1`."""
        return self._rows.written

    @property
    def layout(self) -> RowLayout | None:
        """Return the layout of the columns; None before the first transition."""
        return self._rows.layout

    @property
    def row_arrays(self) -> list[Array]:
        """The rings in RAM: one array [memory_size, width] per dtype, then the policy versions [memory_size, 2].

        Empty on disk, where checkpoints need no copy.
        """
        return self._ram.arrays if self._ram is not None else []

    @property
    def disk(self) -> DiskRows | None:
        """The rows on disk; None: they are in RAM."""
        return self._disk

    def get_transition(self, item: int) -> tuple[Tree, Tree, np.float32, Tree, bool, bool, State]:
        """Return transition `item`: (prev_obs, act, rew, obs, terminated, truncated, extras); 0 is the oldest.

        Raises:
            IndexError: there is no such transition.
        """
        if not 0 <= item < len(self):
            raise IndexError(f"transition {item} of {len(self)}")
        self._reader.stop()
        index = self._rows.readable - len(self) + item
        prev_obs, act, rew, obs, terminated, truncated, extras = self._reader.transition_at(index)
        return prev_obs, act, rew, obs, terminated, truncated, extras

    @property
    def recorded(self) -> tuple[dict[bytes, tuple[int, int]], State] | None:
        """Return the offsets and values on the disk, as passed to `commit`; None: there are none."""
        if self._disk is None or not self._disk.states.values:
            return None
        states = self._disk.states
        offsets = {stream: (int(offset[0]), int(offset[1])) for stream, offset in states.offsets.items()}
        return offsets, {name: value for name, value in states.values.items() if name not in _OWN_VALUES}

    def _take_over(self, disk: DiskRows) -> None:
        """Load the files that an earlier process has left on the disk."""
        self._builder.check_folder(disk)
        if disk.readable:
            self._check_steps(disk.states.values.get("steps"), f"{disk.folder} holds", ConfigError, StorageError)
            self.sampler.add(disk, disk.readable - len(disk))
        try:
            self._builder.open(disk)
            if "statistics" in disk.states.values:
                self.restore_statistics(disk.states.values["statistics"])
        except (ValueError, TypeError, LookupError, SampleRefusedError) as exc:
            raise StorageError(f"{disk.folder} says something impossible of its streams: {exc}") from exc
        self._remove_incomplete()

    def _check_steps(self, steps: Tree, what: str, error: type[Exception], damaged: type[Exception]) -> None:
        """Refuse a folder of transitions with another number of steps or another discount factor."""
        found = [*steps] if isinstance(steps, Sequence) else []
        if [type(value) for value in found] not in ([int, float], [int, int]):
            raise damaged(f"{what} transitions of impossible steps and discount: {steps!r:.100}")
        if found[0] != self.n_step or (self.n_step > 1 and found[1] != self.gamma):
            raise error(
                f"{what} transitions of {found[0]} steps (gamma {found[1]}), and memory.n_step is {self.n_step} (gamma "
                f"{self.gamma}); keep these, or start again with another run.name."
            )

    def flush(self) -> None:
        """Flush the disk, so that its data survives the end of the machine, for any `sync`.

        Raises:
            StorageError: flushing failed.
        """
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        """End prefetching and release the folder on disk for another process or memory."""
        self._reader.close()
        if self._disk is not None:
            self._disk.close()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def lease_rows(self, start: int) -> RowLease:
        """In RAM, retain the rows from absolute index `start` (or the oldest) until the lease is released."""
        assert self._ram is not None
        return self._ram.lease(start)

    def state_dict(self) -> State:
        """Return the state without the rows: layout, counters, generator, tails of streams, and the current block."""
        return {
            **self._reader.state_dict(),
            "memory_size": self.memory_size,
            "storage": "ram" if self._disk is None else "disk",
            "layout": None if self._rows.layout is None else self._rows.layout.describe(),
            "written": self._rows.readable,
            "oldest": self._rows.oldest,
            "statistics": self.statistics_state(),
            **self._builder.state_dict(),
            "steps": [self.n_step, self.gamma],
            "priorities": self.sampler.state_dict(),
            **({} if self._owned_returns is None else {"returns": self._owned_returns.state()}),
        }

    @property
    def _owned_returns(self) -> ReturnScale | None:
        return self.returns if self._owns_returns else None

    def load_state_dict(self, state: State, rows: Sequence[Array] = ()) -> None:
        """Load `state_dict()` and its rows.

        Args:
            state: the result of `state_dict`.
            rows: for each array of `row_arrays`, the newest `min(written, memory_size)` rows, oldest first; fewer if
                older ones were lost.

        Raises:
            ValueError: the rows do not fit the state, or the state has another memory size.
        """
        self._builder.check_state(state)
        if state["memory_size"] != self.memory_size:
            raise ValueError(
                f"memory.capacity was {state['memory_size']} when this was saved and is {self.memory_size} now"
            )
        self._check_steps(state["steps"], "it holds", ValueError, ValueError)
        if state["storage"] != ("ram" if self._disk is None else "disk"):
            raise ValueError(f"it was saved with memory.storage: {state['storage']:.10}; keep that setting")
        self._reader.stop()
        same = self._load_ram(state, rows) if self._disk is None else self._load_disk(self._disk, state)
        self.sampler.load_state_dict(state["priorities"], self._rows, same)
        self._reader.lag.counter = int(state["version"])
        self.sampler.note_version(self._rows, self._reader.lag.counter)
        self._reader.load_state_dict(state, same)

    def _load_ram(self, state: State, rows: Sequence[Array]) -> bool:
        assert self._ram is not None
        written = int(state["written"])
        same = True
        if state["layout"] is not None:
            self._ram.allocate(_layout_with_rows(state, rows))
            self._ram.load(written, list(rows))
            same = len(rows[0]) == _rows_saved(state)
        self._ram.readable = written
        self._ram.oldest = int(state["oldest"]) if same else written - len(rows[0])
        self._builder.load_state_dict(state)
        first = written - len(self._ram)
        complete = self._builder.first_complete(first, written)
        if complete > first:  # frames were lost
            self._ram.oldest, same = complete, False
        self.restore_statistics(state["statistics"])
        # A checkpoint of a run with another agent has none.
        if self._owned_returns is not None and "returns" in state:
            self._owned_returns.load(state["returns"])
        return same

    @staticmethod
    def _load_disk(disk: DiskRows, state: State) -> bool:
        """Return True if the rows on the disk are the same as when a state was saved. They take precedence."""
        written = int(state["written"])
        if disk.readable < written:
            logger.warning(
                "%s holds %d transitions of all that were ever written, the checkpoint knew of %d: files are "
                "missing, or the machine went down before they were on the disk (memory.sync: fsync prevents that)",
                disk.folder,
                disk.readable,
                written,
            )
        return disk.readable == written and len(disk) == _rows_saved(state)


def _sampler_of(
    capacity: int,
    priority: Prioritization | Mapping[str, Any] | None,
    max_drawn_lag: int | None,
    sampler: Sampler | None,
) -> Sampler:
    if isinstance(priority, Mapping):
        try:
            priority = Prioritization(**priority)
        except TypeError as exc:
            raise ConfigError(f"priority: {exc}") from exc
    if sampler is not None:
        if priority is not None or max_drawn_lag is not None:
            raise ConfigError("a memory takes either a sampler, or priority and max_drawn_lag; leave one of them out.")
        return sampler
    if priority is not None:
        return PrioritizedSampler(capacity, priority, max_drawn_lag)
    return UniformSampler() if max_drawn_lag is None else RecentSampler(max_drawn_lag)


def _layout_with_rows(state: State, rows: Sequence[Array]) -> RowLayout:
    """Return the layout of a saved memory.

    Raises:
        ValueError: the rows do not belong to the layout.
    """
    layout = RowLayout.from_description(state["layout"])
    widths = [*layout.widths, 2]
    count = len(rows[0]) if rows else 0
    found = [array.shape for array in rows]
    if found != [(count, width) for width in widths] or not min(1, _rows_saved(state)) <= count <= _rows_saved(state):
        raise ValueError(f"{_rows_saved(state)} rows of widths {widths} are missing; found {found}")
    return layout


def _rows_saved(state: State) -> int:
    return min(int(state["written"]) - int(state["oldest"]), int(state["memory_size"]))


def _numpy(values: torch.Tensor | Array) -> Array:
    return values.numpy(force=True) if isinstance(values, torch.Tensor) else values
