"""The builder of a memory of frames: it stores each frame once, and rows refer to frames by number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.training.memories.disk_rows import DiskRows
from tmrl_core.training.memories.frame_store import FrameStore, RamFrames, StackFormat
from tmrl_core.training.memories.layout import Array, TreeSpec, describe_spec, spec_of
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.transition_builder import TransitionBuilder, other_folder
from tmrl_core.training.memories.transitions import Tail, TransitionColumns
from tmrl_core.training.memories.trees import leaves_of, rebuild, template
from tmrl_core.training.value_types import State


def _is_frame(column: Array) -> bool:
    """Return True for a column of newest frames [rows, 1, 1, *shape], see `samples.frame_history`."""
    return column.ndim > 3 and column.shape[1:3] == (1, 1)


class FrameStackBuilder(TransitionBuilder):
    """Build transitions whose observations, or parts of them, are stacks of frames, or large frames alone.

    Args:
        rows, n_step, gamma, downcast_float64, keep_extras: see `TransitionBuilder`.
        frame_stack: number of frames in a stack; 1: there are only frames alone.
    """

    def __init__(
        self, rows: Rows, n_step: int, gamma: float, downcast_float64: bool, keep_extras: bool, frame_stack: int
    ) -> None:
        super().__init__(rows, n_step, gamma, downcast_float64, keep_extras)
        self.frame_stack = frame_stack
        self._observation: TreeSpec | None = None
        """Spec of received observations; rows hold numbers of frames instead."""
        self._stores: dict[int, FrameStore] = {}
        """Frames of each stack, by the number of its leaf."""
        self._alone: set[int] = set()
        """Leaves that are frames alone."""
        self._floors: dict[int, int] = {}

    @property
    def frame_bytes(self) -> int:
        """Size in bytes of the frames in RAM."""
        frames = [store.held for store in self._stores.values()]
        return sum(held.ring.nbytes for held in frames if isinstance(held, RamFrames))

    def build(self, chunk: Chunk) -> Iterator[TransitionColumns]:
        """Store frames and yield transitions that refer to them."""
        if chunk.rows == 0:
            yield from super().build(chunk)
            return
        try:
            self._check_whole(chunk)
        except SampleRefusedError:
            self.forget(chunk.stream)
            raise
        at_once = min(store.at_once for store in self._stores.values())
        for start in range(0, chunk.rows, at_once):
            columns = self.columns_of(self._numbered(chunk.slice(start, min(start + at_once, chunk.rows))))
            if columns is not None:
                self._note(columns)
                # Rows of the part become rows of the chunk.
                yield replace(columns, rows=np.where(columns.rows < 0, -1, columns.rows + start))

    def restored(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the parts of a chunk whose stacks are known, with these in place of their newest frames.

        Append each part before the next one is taken.

        Raises:
            SampleRefusedError: the frames are not those of this memory's stacks.
        """
        leaves = enumerate(leaves_of(chunk.observation))
        frames = {i: leaf for i, leaf in leaves if isinstance(leaf, np.ndarray) and _is_frame(leaf)}
        if not frames:
            yield chunk
            return
        for i, leaf in frames.items() if self._stores else ():
            if i not in self._stores or leaf.shape[3:] != self._stores[i].held.shape:
                raise SampleRefusedError(
                    f"array {i} of the observation is a frame of the shape {[*leaf.shape[3:]]}, and this memory has no "
                    "stack of such frames"
                )
        # An episode begins with whole stacks, so a run of rows of one episode is all that can be restored.
        neighbours = (chunk.episode[1:] == chunk.episode[:-1]) & (chunk.step[1:] == chunk.step[:-1] + 1)
        ends = [*(np.flatnonzero(~neighbours) + 1).tolist(), chunk.rows]
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            yield from self._restored_run(chunk.slice(start, stop))

    def _restored_run(self, run: Chunk) -> Iterator[Chunk]:
        tail = self._usable_tail(run.stream)
        first = int(run.episode[0]), int(run.step[0])
        continues = tail is not None and (tail.episode, tail.step + 1) == first
        skipped = 0 if continues else self.frame_stack - 1
        if skipped >= run.rows:
            return
        leaves = leaves_of(run.observation)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, np.ndarray) or not _is_frame(leaf):
                continue
            frames = leaf[:, 0, 0]
            if tail is not None and continues:
                frames = np.concatenate([self._stores[i].frames(tail.observation[i][-1])[1:], frames])
            windows = np.lib.stride_tricks.sliding_window_view(frames, self.frame_stack, axis=0)
            unknown = np.zeros((skipped, *windows.shape[1:]), windows.dtype)
            leaves[i] = np.moveaxis(np.concatenate([unknown, windows]), -1, 1)
        restored = replace(run, observation=rebuild(template(run.observation), leaves))
        yield restored.slice(skipped, run.rows)

    def _note(self, columns: TransitionColumns) -> None:
        self._expand()
        start = self.rows.written + columns.skipped
        for i, store in self._stores.items():
            store.note(start, start + columns.count, self._floors[i])
        self.rows.stage_needs([[columns.count, *self._floors.values()]])

    def _check_whole(self, chunk: Chunk) -> None:
        """Check a whole chunk, before the frames of its first part overwrite others.

        Raises:
            SampleRefusedError: the chunk cannot be stored.
        """
        spec, action = self.schema.specs(chunk)
        if self._observation is None:
            self._begin(spec)
        if spec != self._observation:
            raise SampleRefusedError(
                f"the observation of {chunk.rows} samples is {spec}, but this memory holds {self._observation}. "
                "Workers and trainer need the same environment, preprocessor and compressor."
            )
        # The received observations were compared above, because rows hold only numbers of frames.
        layout = self.rows.layout
        self.schema.check(chunk, spec if layout is None else layout.observation, action)
        self.schema.extras(chunk)

    def _begin(self, spec: TreeSpec) -> None:
        stacks = StackFormat(self.frame_stack, spec)
        if self.frame_stack == 1 and not stacks.stacks:
            raise SampleRefusedError(
                f"no part of the observation {spec} has {stacks.alone_bytes} bytes, so storing it once saves nothing. "
                "Use tmrl_core.training:ReplayMemory, or set memory.frame_stack to the number of stacked frames."
            )
        if self.frame_stack > 1 and not any(map(stacks.is_stack, spec.leaves)):
            raise SampleRefusedError(
                f"no part of the observation {spec} is a stack of memory.frame_stack = {self.frame_stack} frames "
                "(first axis). Set it to the number of frames, to 1 for single frames, or leave it out."
            )
        found = stacks.stacks
        for (i, leaf), held in zip(found.items(), self.rows.allocate_frames(stacks, self.n_step), strict=True):
            self._stores[i] = FrameStore(self.rows.capacity, leaf.shape[0], held, self.n_step)
        self._alone = {i for i in found if not stacks.is_stack(spec.leaves[i])}
        self._observation = spec

    def _numbered(self, chunk: Chunk) -> Chunk:
        """Return the chunk with numbers of frames in place of its stacks, and adapt the stream's tail."""
        tail = self._usable_tail(chunk.stream)
        continues = tail is not None and (tail.episode, tail.step + 1) == (
            int(chunk.segments[0].episode),
            int(chunk.segments[0].first_step),
        )
        leaves = leaves_of(chunk.observation)
        for i, store in self._stores.items():
            self._floors[i] = store.floor()
            before = tail.observation[i][-1] if tail is not None and continues else None
            observations = leaves[i].astype(store.held.dtype, copy=False)
            leaves[i] = store.store(observations[:, None] if i in self._alone else observations, before)
        return replace(chunk, observation=rebuild(template(chunk.observation), leaves))

    def _usable_tail(self, stream: bytes) -> Tail | None:
        """Return the stream's tail.

        Old frames of the tail are stored again. A tail whose frames are no longer stored is dropped.
        """
        tail = self.tails.get(stream)
        if tail is None or all(store.usable(tail.observation[i]) for i, store in self._stores.items()):
            return tail
        if any(tail.observation[i].min() < store.oldest for i, store in self._stores.items()):
            del self.tails[stream]
            return None
        observation = list(tail.observation)
        for i, store in self._stores.items():
            observation[i] = store.store(store.frames(observation[i]), None)
        self.tails[stream] = replace(tail, observation=observation)
        return self.tails[stream]

    def _expand(self) -> None:
        layout = self.rows.layout
        if layout is not None:
            for i, store in self._stores.items():
                restore = store.frames_alone if i in self._alone else store.frames
                self.expanded[layout.prev_obs[i]] = self.expanded[layout.new_obs[i]] = restore

    def first_complete(self, first: int, stop: int) -> int:
        """Return the first of the rows [first, stop) from which on all frames are stored."""
        return max((store.first_row(first, stop) for store in self._stores.values()), default=first)

    # --- state --------------------------------------------------------------------------------------------------------

    def check_folder(self, disk: DiskRows) -> None:
        """Refuse a folder whose observations are not stacks, or stacks of another size."""
        if disk.stacks is None and not disk.readable:
            return
        found = 0 if disk.stacks is None else disk.stacks.stack
        if found != self.frame_stack:
            alone = "single frames, each stored once" if found == 1 else "observations as they came, without stacks"
            what = f"stacks of {found} frames" if found > 1 else alone
            raise other_folder(disk, f"{what}, and memory.frame_stack is {self.frame_stack}", "keep the earlier value")

    def open(self, disk: DiskRows) -> None:
        """Load the tails and their frames."""
        super().open(disk)
        if disk.stacks is None:
            return
        self._begin(disk.stacks.observation)
        for start, rows, floors in disk.found_needs:
            for store, floor in zip(self._stores.values(), floors, strict=True):
                store.note(start, start + rows, floor)
        disk.found_needs.clear()
        self._expand()

    def state_dict(self) -> State:
        """Add the frames of a memory in RAM to the entries."""
        return {
            **super().state_dict(),
            "frame_stack": self.frame_stack,
            **({"shape": None, "leaves": []} if self._observation is None else describe_spec(self._observation)),
            "frames": [] if self.rows.durable else [[i, store.state_dict()] for i, store in self._stores.items()],
        }

    def check_state(self, state: State) -> None:
        """Refuse the state of other stacks."""
        if state.get("frame_stack") != self.frame_stack:
            raise ValueError(f"it was saved with memory.frame_stack: {state.get('frame_stack')}; keep that setting")

    def load_state_dict(self, state: State) -> None:
        """Load the frames and the other entries."""
        if not self.rows.durable and state["leaves"]:
            self._begin(spec_of(state))
            for i, frames in state["frames"]:
                self._stores[i].load_state_dict(frames)
        super().load_state_dict(state)
        self._expand()
