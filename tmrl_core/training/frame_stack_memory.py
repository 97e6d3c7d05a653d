"""A replay memory of stacked frames that stores each frame once: about one frame a transition instead of two stacks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.samples.carriable import DTYPES
from tmrl_core.training.frames import FrameStore
from tmrl_core.training.joining import Joined, Tail
from tmrl_core.training.layout import Array, Leaf, RowLayout, TreeSpec, flatten, rebuild, tree_spec
from tmrl_core.training.memory import whole_number
from tmrl_core.training.replay import ReplayMemory


class FrameStackMemory(ReplayMemory):
    """`ReplayMemory` whose observations, or parts of them, are stacks of frames [frame_stack, *shape], the newest last.

    Batches are those that a `ReplayMemory` gives. Where episodes are shorter than about 64 steps, it holds fewer than
    `memory_size` transitions, since each reset stores frames of its own.

    Args:
        args, kwargs: of `ReplayMemory`; `storage` is "ram".
        frame_stack: frames in an observation. Each leaf of an observation whose first axis is that long, and that has
            another axis, is a stack.

    Raises:
        ConfigError: as `ReplayMemory`, or `storage` is "disk".
    """

    def __init__(self, *args: Any, frame_stack: float = 4, **kwargs: Any) -> None:
        if kwargs.get("storage", "ram") != "ram":
            raise ConfigError(
                "memory.frame_stack: frames are shared in RAM only. Take memory.storage: ram, or leave frame_stack out."
            )
        super().__init__(*args, **kwargs)
        self.frame_stack = whole_number(frame_stack, "frame_stack")
        if self.frame_stack < 2:
            raise ConfigError(f"memory.frame_stack must be at least 2, got {frame_stack!r}")
        self._observation: TreeSpec | None = None
        """What observations are that come in; rows hold frames' numbers instead."""
        self._stores: dict[int, FrameStore] = {}
        """By the number of the leaf."""
        self._floors: dict[int, int] = {}

    @property
    def frame_bytes(self) -> int:
        """Bytes of all frames that there is room for."""
        return sum(store.ring.nbytes for store in self._stores.values())

    def _append_chunk(self, chunk: Chunk) -> int:
        if chunk.rows == 0:
            return super()._append_chunk(chunk)
        spec = tree_spec(chunk.observation, "the observation", self.downcast_float64)
        if self._observation is None:
            self._begin(spec)
        if spec != self._observation:
            self._tails.pop(chunk.stream, None)
            raise SampleRefusedError(
                f"the observation of {chunk.rows} samples is {spec}, but this memory holds {self._observation}. "
                "Workers and trainer need the same environment, preprocessor and compressor."
            )
        at_once = min(store.at_once for store in self._stores.values())
        return sum(
            super(FrameStackMemory, self)._append_chunk(
                self._numbered(chunk.slice(start, min(start + at_once, chunk.rows)))
            )
            for start in range(0, chunk.rows, at_once)
        )

    def _begin(self, spec: TreeSpec) -> None:
        k = self.frame_stack
        stacks = {i: leaf for i, leaf in enumerate(spec.leaves) if len(leaf.shape) > 1 and leaf.shape[0] == k}
        if not stacks:
            raise SampleRefusedError(
                f"no part of the observation {spec} is a stack of memory.frame_stack = {self.frame_stack} frames "
                "(first axis). Set it to the number of frames, or leave it out."
            )
        self._stores = {
            i: FrameStore(self.memory_size, self.frame_stack, leaf.shape[1:], leaf.dtype) for i, leaf in stacks.items()
        }
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
            self._floors[i] = max(0, store.written - store.reach)
            before = tail.observation[i][-1] if tail is not None and continues else None
            leaves[i] = store.store(leaves[i].astype(store.ring.dtype, copy=False), before)
        assert self._observation is not None
        return replace(chunk, observation=rebuild(self._observation.shape, leaves))

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
        super()._store(joined)

    def _expand(self, layout: RowLayout) -> None:
        for i, store in self._stores.items():
            self._expanded[layout.prev_obs[i]] = self._expanded[layout.new_obs[i]] = store.frames

    def _published(self, start: int) -> None:
        super()._published(start)
        rows, stop = self._rows, self._rows.readable
        before = max(rows.oldest, stop - self.memory_size)
        for i, store in self._stores.items():
            store.note(start, stop, self._floors[i])
        oldest = max(store.first_row(before, stop) for store in self._stores.values())
        if oldest > before:
            rows.oldest = oldest
            if self._priorities is not None:
                self._priorities.remove(before, oldest)

    def _largest_block(self) -> int:
        return 1

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As `ReplayMemory`, and a copy of all frames."""
        leaves = [] if self._observation is None else self._observation.leaves
        return {
            **super().state_dict(),
            "frame_stack": self.frame_stack,
            "shape": None if self._observation is None else self._observation.shape,
            "leaves": [[leaf.path, leaf.dtype.str, list(leaf.shape)] for leaf in leaves],
            "frames": [[i, store.state_dict()] for i, store in self._stores.items()],
        }

    def load_state_dict(self, state: dict[str, Any], rows: Sequence[Array] = ()) -> None:
        """Undo `state_dict`.

        Raises:
            ValueError: it does not fit.
        """
        if state.get("frame_stack") != self.frame_stack:
            raise ValueError(f"it was saved with memory.frame_stack: {state.get('frame_stack')}; keep that setting")
        self._stop_ahead()
        if state["leaves"]:
            leaves = tuple(
                Leaf(path, DTYPES[dtype], tuple(operator.index(size) for size in shape))
                for path, dtype, shape in state["leaves"]
            )
            self._begin(TreeSpec(state["shape"], leaves))
            for i, frames in state["frames"]:
                self._stores[i].load_state_dict(frames)
        super().load_state_dict(state, rows)

    def _load_ram(self, state: dict[str, Any], rows: Sequence[Array]) -> bool:
        same = super()._load_ram(state, rows)
        if self._rows.layout is not None:
            self._expand(self._rows.layout)
        return same
