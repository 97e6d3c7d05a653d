"""A replay memory of stacked frames that stores each frame once: about one frame a transition instead of two stacks."""

from __future__ import annotations

from typing import Any

from tmrl_core.config.algorithms import FRAME_STACK
from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.frame_stack_builder import FrameStackBuilder
from tmrl_core.training.memories.memory import whole_number
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.rows import Rows


class FrameStackMemory(ReplayMemory):
    """`ReplayMemory` whose observations, or parts of them, are stacks of frames [frame_stack, *shape], the newest last.

    Its batches are those of `ReplayMemory`. If episodes are shorter than about 64 steps, it holds fewer than
    `memory_size` transitions, since each reset stores frames of its own.

    On disk, frames are in the records of the transitions. It keeps as many as in RAM: the same seed samples the same
    transitions from both.

    Args:
        *args: positional arguments of `ReplayMemory`.
        frame_stack: frames in an observation. Each leaf of an observation whose first axis is that long, and that has
            another axis, is a stack.
        **kwargs: keyword arguments of `ReplayMemory`.

    Raises:
        ConfigError, FolderLockedError, StorageError: as `ReplayMemory`; or the folder holds observations without
            stacks, or of other ones.
    """

    type_id = "frame_stack_replay"
    type_version = 1
    _builder: FrameStackBuilder

    def __init__(self, *args: Any, frame_stack: float = FRAME_STACK, **kwargs: Any) -> None:
        self.frame_stack = whole_number(frame_stack, "frame_stack")
        if self.frame_stack < 2:
            raise ConfigError(f"memory.frame_stack must be at least 2, got {frame_stack!r}")
        super().__init__(*args, **kwargs)

    def _make_builder(self, rows: Rows) -> FrameStackBuilder:
        return FrameStackBuilder(
            rows, self.n_step, self.gamma, self.downcast_float64, self.keep_extras, self.frame_stack
        )

    @property
    def frame_bytes(self) -> int:
        """Bytes that are allocated for frames in RAM."""
        return self._builder.frame_bytes
