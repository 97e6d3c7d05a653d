"""The environment: move along a line of integers to the goal."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces


class LineWalk(gymnasium.Env[Any, Any]):
    """Ten positions, a goal and two moves. An episode has at most ten moves.

    Observation: the position. Reward: `REWARD_GOAL` for the move onto the goal, which terminates the episode;
    `REWARD_STEP` for a move toward it; `REWARD_AWAY` for a move away from it or into a wall.

    Args:
        render_mode: "human" (or None): `render` prints a line; "ansi": `render` returns the line.
    """

    LF_MIN = 1
    RT_MAX = 10
    MOVE_LF = 0
    MOVE_RT = 1
    MAX_STEPS = 10
    REWARD_AWAY = -2
    REWARD_STEP = -1
    REWARD_GOAL = 10
    GOAL = 5
    STARTS = (1, 2, 3, 4, 6, 7, 8, 9)

    metadata: dict[str, Any] = {"render_modes": ["human", "ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(self.RT_MAX + 1)
        self.action_space = spaces.Discrete(2)
        self.position = self.GOAL
        self.reward = 0
        self.moves = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)  # creates self.np_random, seeded if there is a seed
        self.position = self.STARTS[int(self.np_random.integers(len(self.STARTS)))]
        self.reward = 0
        self.moves = 0
        return self.position, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        distance = abs(self.GOAL - self.position)
        move = 1 if action == self.MOVE_RT else -1
        self.position = min(max(self.position + move, self.LF_MIN), self.RT_MAX)
        self.moves += 1
        terminated = self.position == self.GOAL
        if terminated:
            self.reward = self.REWARD_GOAL
        elif abs(self.GOAL - self.position) < distance:
            self.reward = self.REWARD_STEP
        else:
            self.reward = self.REWARD_AWAY
        # Terminated: the task is over. Truncated: the time is over, and more reward could have followed.
        truncated = self.moves == self.MAX_STEPS and not terminated
        return self.position, float(self.reward), terminated, truncated, self._info()

    def render(self) -> str | None:
        line = f"position: {self.position:2d} reward: {self.reward:2d} info: {self._info()}"
        if self.render_mode == "ansi":
            return line
        print(line)
        return None

    def close(self) -> None:
        """Release nothing. Close windows, cameras and connections here."""

    def _info(self) -> dict[str, Any]:
        return {"dist": self.GOAL - self.position}
