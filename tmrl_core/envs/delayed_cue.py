"""DelayedCue: a cue in the first observation of an episode is the right answer at its end; a test of memory."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces

from tmrl_core.errors import ConfigError


class DelayedCue(gymnasium.Env[Any, Any]):
    """Show one of `cues` cues at tick 0, and reward the action at tick `length - 1` with 1 if it is the cue, else -1.

    All other rewards are 0. The observation is `c + 1` for cue c at tick 0, `cues + 1` at the tick of the answer, and 0
    at all others. Without memory no policy has a mean return above 2 / cues - 1.

    Args:
        length: actions in an episode.
        cues: number of cues, and of actions.

    Raises:
        ConfigError: an argument is below 2.
    """

    def __init__(self, length: int = 10, cues: int = 2) -> None:
        for name, value in (("length", length), ("cues", cues)):
            if value < 2:
                raise ConfigError(f"environment.kwargs.{name}: found {value}, allowed: at least 2")
        self.length = length
        self.cues = cues
        self.observation_space = spaces.Discrete(cues + 2)
        self.action_space = spaces.Discrete(cues)
        self._cue = 0
        self._tick = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode with a random cue; `seed` reproduces it and all that follow."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.cues))
        self._tick = 0
        return self._cue + 1, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Make one tick.

        Raises:
            gymnasium.error.ResetNeeded: the episode is over, or none has begun.
        """
        if self._tick >= self.length:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before the next step()")
        self._tick += 1
        if self._tick == self.length:
            return 0, 1.0 if int(action) == self._cue else -1.0, True, False, {}
        return self.cues + 1 if self._tick == self.length - 1 else 0, 0.0, False, False, {}
