"""A replay memory that stores each frame once: about one frame per transition, not two observations or two stacks."""

from __future__ import annotations

from typing import Any

from tmrl_core.config.algorithms import FRAME_STACK
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk
from tmrl_core.training.memories.frame_stack_builder import FrameStackBuilder
from tmrl_core.training.memories.memory import takes_keywords_of_base, whole_number
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.rows import Rows


@takes_keywords_of_base
class FrameStackMemory(ReplayMemory):
    """`ReplayMemory` whose observations, or parts of them, are pictures or stacks of frames [frame_stack, *shape].

    The newest frame of a stack is its last. Other parts of at least 2,048 bytes, such as the picture of a camera, are
    frames alone. Its batches are those of `ReplayMemory`. If episodes are shorter than about 64 steps, it holds fewer
    than `memory_size` transitions, since each reset stores frames of its own.

    On disk, frames are in the records of the transitions. The memory keeps as many as in RAM, so that the same seed
    samples the same transitions from both.

    Args:
        *args: positional arguments of `ReplayMemory`.
        frame_stack: number of frames in a stack. A leaf of an observation is a stack if its first axis has this length
            and a second axis exists. 1: there are no stacks, only frames alone.
        newest_only: samples hold only the newest frame [1, 1, *shape] of a stack where the memory has the others, as
            `tmrl_core.samples.frame_history:NewestFrame` sends them. Samples without the frames before them, because
            others were lost, are left out.
        **kwargs: keyword arguments of `ReplayMemory`.

    Raises:
        ConfigError, FolderLockedError, StorageError: see `ReplayMemory`. ConfigError also if the folder holds
            observations without stacks, or with other stacks.
    """

    type_id = "frame_stack_replay"
    type_version = 2
    _builder: FrameStackBuilder

    def __init__(self, *args: Any, frame_stack: float = FRAME_STACK, newest_only: bool = False, **kwargs: Any) -> None:
        self.newest_only = newest_only
        self.frame_stack = whole_number(frame_stack, "frame_stack")
        if newest_only and self.frame_stack == 1:
            raise ConfigError("memory.newest_only is for stacks of frames; memory.frame_stack is 1")
        super().__init__(*args, **kwargs)

    def _make_builder(self, rows: Rows) -> FrameStackBuilder:
        return FrameStackBuilder(
            rows, self.n_step, self.gamma, self.downcast_float64, self.keep_extras, self.frame_stack
        )

    def append_chunk(self, chunk: Chunk) -> int:
        """As `ReplayMemory.append_chunk`; restore stacks of which only the newest frame was sent."""
        if not self.newest_only:
            return super().append_chunk(chunk)
        return sum(map(super().append_chunk, self._builder.restored(chunk)))

    @property
    def frame_bytes(self) -> int:
        """Size in bytes of the frames in RAM."""
        return self._builder.frame_bytes
