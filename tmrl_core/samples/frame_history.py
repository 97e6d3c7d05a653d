"""A sample compressor for stacks of frames: only the newest frame is sent where the others were sent before."""

# Theory of operation
#
# `NewestFrame` sends the newest frame of a stack that is the one before, shifted by one. `FrameStackMemory` restores
# the stack from the frames of the stream's last row, which it holds anyway. Samples whose earlier frames were lost are
# left out, because their history is unknown: a stack with a wrong frame would be trained on without anybody noticing.

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tmrl_core.config.algorithms import FRAME_STACK
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import leaves, map_leaves


class NewestFrame:
    """Send [1, 1, *shape], the newest frame, in place of a stack of frames [frames, *shape], the newest last.

    `FrameStackMemory(newest_only=True)` restores the stacks. The two axes mark a frame; with another number of axes,
    columns stay arrays (a change of the shape alone would make lists of them). A stack is sent whole at the beginning
    of an episode, and wherever it is not the one before, shifted by a frame. Each worker needs a compressor of its own:
    give the class to the worker, which makes one. For another number of frames, derive a class with another `frames`.

    Raises:
        ConfigError: an observation has no stack of this number of frames, or another array [1, 1, *shape].
    """

    frames: ClassVar[int] = FRAME_STACK

    def __init__(self) -> None:
        self._last: list[np.ndarray] = []

    def __call__(self, action: Any, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        """Return the sample with the newest frames, or with whole stacks."""
        arrays = [np.asarray(leaf) for leaf in leaves(obs)]
        stacks = [array for array in arrays if self._is_stack(array)]
        alone = [array.shape for array in arrays if array.ndim > 2 and array.shape[:2] == (1, 1)]
        if not stacks or alone:
            raise ConfigError(
                f"worker.sample_compressor: {type(self).__name__} sends the newest of {self.frames} frames, and the "
                f"observation has the arrays {[array.shape for array in arrays]}. Allowed: at least one stack "
                f"[{self.frames}, ...], and no array [1, 1, ...]. Derive a class with another `frames`, reshape the "
                "observation, or leave the compressor out."
            )
        follows = len(self._last) == len(stacks) and all(
            now.shape == before.shape and now.dtype == before.dtype and np.array_equal(now[:-1], before[1:])
            for now, before in zip(stacks, self._last, strict=True)
        )
        # A copy, because an environment may write its next observation over this one.
        self._last = [] if terminated or truncated else [stack.copy() for stack in stacks]
        if follows:
            obs = map_leaves(
                lambda leaf: np.asarray(leaf)[None, -1:] if self._is_stack(np.asarray(leaf)) else leaf, obs
            )
        return action, obs, reward, terminated, truncated, info

    def _is_stack(self, array: np.ndarray) -> bool:
        return array.ndim > 1 and len(array) == self.frames
