"""A replay memory of stacked frames that stores each frame once: about one frame a transition instead of two stacks."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tmrl_core.config.algorithms import FRAME_STACK
from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.training.memories.disk_frames import StackFormat
from tmrl_core.training.memories.disk_rows import DiskRows
from tmrl_core.training.memories.frames import Frames, FrameStore, RamFrames
from tmrl_core.training.memories.key_order import arranged, numbered
from tmrl_core.training.memories.layout import Array, Leaf, RowLayout, TreeSpec, tree_spec
from tmrl_core.training.memories.memory import whole_number
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.transition_builder import Joined, Tail
from tmrl_core.training.memories.trees import flatten


class FrameStackMemory(ReplayMemory):
    """`ReplayMemory` whose observations, or parts of them, are stacks of frames [frame_stack, *shape], the newest last.

    Batches are those that a `ReplayMemory` gives. Where episodes are shorter than about 64 steps, it holds fewer than
    `memory_size` transitions, since each reset stores frames of its own.

    On disk, frames lie in the records of the transitions, and as many are kept as in RAM: the same seed draws the same
    transitions from both.

    The other arguments are those of `ReplayMemory`.

    Args:
        frame_stack: frames in an observation. Each leaf of an observation whose first axis is that long, and that has
            another axis, is a stack.

    Raises:
        ConfigError, FolderLockedError, StorageError: as `ReplayMemory`; or the folder holds observations without
            stacks, or of other ones.
    """

    type_id = "frame_stack_replay"
    type_version = 1

    def __init__(self, *args: Any, frame_stack: float = FRAME_STACK, **kwargs: Any) -> None:
        self.frame_stack = whole_number(frame_stack, "frame_stack")
        if self.frame_stack < 2:
            raise ConfigError(f"memory.frame_stack must be at least 2, got {frame_stack!r}")
        self._observation: TreeSpec | None = None
        """What observations are that come in; rows hold frames' numbers instead."""
        self._stores: dict[int, FrameStore] = {}
        """By the number of the leaf."""
        self._floors: dict[int, int] = {}
        super().__init__(*args, **kwargs)

    @property
    def frame_bytes(self) -> int:
        """Bytes of all frames that there is room for, in RAM."""
        frames = [store.held for store in self._stores.values()]
        return sum(held.ring.nbytes for held in frames if isinstance(held, RamFrames))

    def _append_chunk(self, chunk: Chunk) -> int:
        if chunk.rows == 0:
            return super()._append_chunk(chunk)
        try:
            self._check_whole(chunk)
        except SampleRefusedError:
            self._touched.add(chunk.stream)
            self._tails.pop(chunk.stream, None)
            raise
        at_once = min(store.at_once for store in self._stores.values())
        count = 0
        for start in range(0, chunk.rows, at_once):
            part = self._numbered(chunk.slice(start, min(start + at_once, chunk.rows)))
            count += super()._append_chunk(part)
            if self._disk is None:
                self._drop_without_frames()  # also where it made no transition: its frames have overwritten others
        return count

    def _check_whole(self, chunk: Chunk) -> None:
        """See that all of a chunk can be stored, before frames of its first part take the place of others.

        Raises:
            SampleRefusedError: it cannot.
        """
        spec = tree_spec(chunk.observation, "the observation", self.downcast_float64)
        action = self._action_spec(chunk)
        if self._observation is None:
            self._begin(spec)
        if spec != self._observation:
            raise SampleRefusedError(
                f"the observation of {chunk.rows} samples is {spec}, but this memory holds {self._observation}. "
                "Workers and trainer need the same environment, preprocessor and compressor."
            )
        # What rows hold of an observation is not what came.
        self._check(spec if self._rows.layout is None else self._rows.layout.observation, action, chunk)

    def _begin(self, spec: TreeSpec) -> None:
        stacks = StackFormat(self.frame_stack, spec)
        if not stacks.stacks:
            raise SampleRefusedError(
                f"no part of the observation {spec} is a stack of memory.frame_stack = {self.frame_stack} frames "
                "(first axis). Set it to the number of frames, or leave it out."
            )
        if self._disk is not None and self._disk.stacks is None:
            self._disk.allocate_frames(stacks)
        for number, (i, leaf) in enumerate(stacks.stacks.items()):
            held: Frames
            if self._disk is not None:
                held = self._disk.frames[number]
            else:
                held = RamFrames(self.memory_size, self.frame_stack, leaf.shape[1:], leaf.dtype, self.n_step)
            self._stores[i] = FrameStore(self.memory_size, self.frame_stack, held, self.n_step)
        self._observation = spec

    def _numbered(self, chunk: Chunk) -> Chunk:
        """The chunk with frames' numbers for its stacks; the stream's tail is made to fit."""
        tail = self._usable_tail(chunk.stream)
        continues = tail is not None and (tail.episode, tail.step + 1) == (
            int(chunk.segments[0].episode),
            int(chunk.segments[0].first_step),
        )
        leaves = [leaf for _, leaf in flatten(chunk.observation)]
        for i, store in self._stores.items():
            self._floors[i] = store.floor()
            before = tail.observation[i][-1] if tail is not None and continues else None
            leaves[i] = store.store(leaves[i].astype(store.held.dtype, copy=False), before)
        return replace(chunk, observation=arranged(numbered(chunk.observation), leaves))

    def _usable_tail(self, stream: bytes) -> Tail | None:
        """The stream's tail; frames of long ago are stored once more, and where they have gone, it is dropped."""
        tail = self._tails.get(stream)
        if tail is None or all(store.usable(tail.observation[i]) for i, store in self._stores.items()):
            return tail
        if any(tail.observation[i].min() < store.oldest for i, store in self._stores.items()):
            del self._tails[stream]
            return None
        observation = list(tail.observation)
        for i, store in self._stores.items():
            observation[i] = store.store(store.frames(observation[i]), None)
        self._tails[stream] = replace(tail, observation=observation)
        return self._tails[stream]

    def _store(self, joined: Joined) -> None:
        assert self._rows.layout is not None
        self._expand(self._rows.layout)
        start = self._written + joined.skipped
        for i, store in self._stores.items():
            store.note(start, start + joined.count, self._floors[i])
        super()._store(joined)
        if self._disk is not None:
            self._disk.staged_needs.append([joined.count, *self._floors.values()])

    def _expand(self, layout: RowLayout) -> None:
        for i, store in self._stores.items():
            self._expanded[layout.prev_obs[i]] = self._expanded[layout.new_obs[i]] = store.frames

    def _drop_without_frames(self) -> None:
        """Let go of the oldest transitions, as far as frames of theirs have gone."""
        rows, stop = self._rows, self._rows.readable
        before = stop - len(rows)
        oldest = max((store.first_row(before, stop) for store in self._stores.values()), default=before)
        if oldest > before:
            rows.oldest = oldest
            self._reader.discard_block()
            self.sampler.remove(before, oldest)

    def commit(self, marks: Mapping[bytes, Sequence[int]] | None = None, **values: Any) -> None:
        """As `ReplayMemory`."""
        super().commit(marks, **values)
        if self._disk is not None:
            self._drop_without_frames()

    def _check_stacks(self, disk: DiskRows) -> None:
        if disk.stacks is None and not disk.readable:
            return
        found = 0 if disk.stacks is None else disk.stacks.stack
        if found != self.frame_stack:
            what = f"stacks of {found} frames" if found else "observations as they came, without stacks of frames"
            raise ConfigError(
                f"{disk.folder} holds {what}, and memory.frame_stack is {self.frame_stack}; keep what it was, or begin "
                "anew with another run.name."
            )

    def _take_over(self, disk: DiskRows) -> None:
        super()._take_over(disk)
        if disk.stacks is None:
            return
        self._begin(disk.stacks.observation)
        for start, rows, floors in disk.found_needs:
            for store, floor in zip(self._stores.values(), floors, strict=True):
                store.note(start, start + rows, floor)
        disk.found_needs.clear()
        if disk.layout is not None:
            self._expand(disk.layout)
        self._drop_without_frames()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As `ReplayMemory`, and in RAM a copy of all frames."""
        leaves = [] if self._observation is None else self._observation.leaves
        return {
            **super().state_dict(),
            "frame_stack": self.frame_stack,
            "shape": None if self._observation is None else self._observation.shape,
            "leaves": [[leaf.path, leaf.dtype.str, list(leaf.shape)] for leaf in leaves],
            "frames": [[i, store.state_dict()] for i, store in self._stores.items()] if self._disk is None else [],
        }

    def load_state_dict(self, state: dict[str, Any], rows: Sequence[Array] = ()) -> None:
        """Undo `state_dict`.

        Raises:
            ValueError: it does not fit.
        """
        if state.get("frame_stack") != self.frame_stack:
            raise ValueError(f"it was saved with memory.frame_stack: {state.get('frame_stack')}; keep that setting")
        super().load_state_dict(state, rows)

    def _load_ram(self, state: dict[str, Any], rows: Sequence[Array]) -> bool:
        self._load_frames(state)
        same = super()._load_ram(state, rows)
        if self._rows.layout is not None:
            self._expand(self._rows.layout)
        return same

    def _load_disk(self, state: dict[str, Any], rows: Sequence[Array]) -> bool:
        disk = self._disk
        assert disk is not None
        if state.get("storage", "ram") == "ram" and not disk.readable and state["layout"]:
            # A run that was begun in RAM goes on on disk, unless streams have begun there anew.
            if self._stores:
                return False
            self._load_frames(state)
            disk.staged_needs = self._needs(int(state["written"]) - len(rows[0]), int(state["written"]))
        same = super()._load_disk(state, rows)
        if disk.layout is not None:
            self._expand(disk.layout)
        return same

    def _load_frames(self, state: dict[str, Any]) -> None:
        if not state["leaves"]:
            return
        leaves = tuple(
            Leaf(path, DTYPES[dtype], tuple(operator.index(size) for size in shape))
            for path, dtype, shape in state["leaves"]
        )
        self._begin(TreeSpec(state["shape"], leaves))
        for i, frames in state["frames"]:
            self._stores[i].load_state_dict(frames)

    def _needs(self, start: int, stop: int) -> list[list[int]]:
        """What the transitions [start, stop) need, in runs of those that need the same."""
        needs = np.stack([store.needs(start, stop) for store in self._stores.values()], axis=1)
        changes = np.flatnonzero((needs[1:] != needs[:-1]).any(axis=1)) + 1
        runs = np.split(needs, changes)
        return [[len(run), *run[0].tolist()] for run in runs if len(run)]
