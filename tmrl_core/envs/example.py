"""ExampleEnv: walk along a line of integers to the goal; the environment of docs/tutorials/custom_environment.md."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces


class ExampleEnv(gymnasium.Env[Any, Any]):
    """A line of the integers `LF_MIN` to `RT_MAX`, with the goal in its middle.

    An episode begins on any place between them but the goal and `RT_MAX`. A move toward the goal is rewarded with
    `REWARD_STEP`, one away from it or into a wall with `REWARD_AWAY`, and the one onto it with `REWARD_GOAL`, which
    terminates the episode. The move number `MAX_STEPS` truncates it where it has not reached the goal. The observation
    is the position; `info["dist"]` is the goal minus the position. The best mean return over all starts is 8.5.

    Args:
        render_mode: None or "human": `render` prints a line, each time that it is called; "ansi": it returns the line.
        legacy: the classic variant. No move truncates the episode; one more call of `step` after the last of
            `MAX_STEPS` moves does, whatever its action. It moves nothing and gives the reward of that last move again.
            Only for comparison with numbers that were published for it.

    Raises:
        ValueError: no such render mode.
    """

    LF_MIN: ClassVar[int] = 1
    RT_MAX: ClassVar[int] = 10
    MOVE_LF: ClassVar[int] = 0
    MOVE_RT: ClassVar[int] = 1
    MAX_STEPS: ClassVar[int] = 10
    REWARD_AWAY: ClassVar[int] = -2
    REWARD_STEP: ClassVar[int] = -1
    REWARD_GOAL: ClassVar[int] = 10

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, legacy: bool = False) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode: found {render_mode!r}, allowed: None and {self.metadata['render_modes']}")
        self.render_mode = render_mode
        self.legacy = legacy
        # From 0, so that a position is its own index.
        self.observation_space = spaces.Discrete(self.RT_MAX + 1)
        self.action_space = spaces.Discrete(2)
        self.goal = (self.LF_MIN + self.RT_MAX - 1) // 2
        self.starts = tuple(place for place in range(self.LF_MIN, self.RT_MAX) if place != self.goal)
        self.position = self.starts[0]
        self.reward = 0
        self.moves = 0
        self._over = True

    @property
    def info(self) -> dict[str, Any]:
        """Return the info of `step` and `reset`."""
        return {"dist": self.goal - self.position}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Begin an episode on a random place of `starts`; `seed` reproduces it and all that follow."""
        super().reset(seed=seed)
        self.position = self.starts[int(self.np_random.integers(len(self.starts)))]
        self.reward = 0
        self.moves = 0
        self._over = False
        return self.position, self.info

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Move.

        Raises:
            ValueError: no such action.
            gymnasium.error.ResetNeeded: the episode is over, or none has begun.
        """
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before the next step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action: found {action!r}, allowed: {self.MOVE_LF} (left) and {self.MOVE_RT} (right)")
        terminated = truncated = False
        if self.legacy and self.moves == self.MAX_STEPS:
            truncated = True
        else:
            terminated = self._move(action)
            truncated = not (terminated or self.legacy) and self.moves == self.MAX_STEPS
        self._over = terminated or truncated
        return self.position, float(self.reward), terminated, truncated, self.info

    def _move(self, action: int) -> bool:
        """Make one move; whether it has reached the goal."""
        before = abs(self.goal - self.position)
        wanted = self.position + (1 if action == self.MOVE_RT else -1)
        self.position = min(max(wanted, self.LF_MIN), self.RT_MAX)
        self.moves += 1
        after = abs(self.goal - self.position)
        if after == 0:
            self.reward = self.REWARD_GOAL
        else:
            self.reward = self.REWARD_STEP if after < before else self.REWARD_AWAY
        return after == 0

    def render(self) -> str | None:
        """Print where it stands, what the last move gave, and how far the goal is; with "ansi", return that line."""
        line = f"position: {self.position:2d} reward: {self.reward:2d} info: {self.info}"
        if self.render_mode == "ansi":
            return line
        print(line)
        return None
