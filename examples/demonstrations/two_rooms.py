"""A task whose only reward is at the goal, and an expert that solves it. See docs/recorded_sessions.md."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.actor import ActorModule

WALL_X, DOOR_Y = 0.5, 0.8
"""A wall between two rooms, with a door from `DOOR_Y` to the top."""
GOAL = np.array([0.9, 0.1], np.float32)


class TwoRooms(gymnasium.Env[Any, Any]):
    """A point goes from the left room through the door at the top to the goal in the right one.

    Observation: its position, each coordinate from 0 to 1. Action: the step in each direction, at most `STEP`. Reward:
    1 at the goal, where the episode ends, and otherwise 0. An episode is cut after 100 steps.
    """

    STEP, RADIUS, LIMIT = 0.05, 0.1, 100
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform([0.05, 0.05], [0.25, 0.25]).astype(np.float32)
        self.steps = 0
        return self.position.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        move = np.clip(np.asarray(action, np.float32), -1, 1) * np.float32(self.STEP)
        target = np.clip(self.position + move, 0, 1)
        crosses = (self.position[0] < WALL_X) != (target[0] < WALL_X)
        if crosses and min(self.position[1], target[1]) < DOOR_Y:
            target[0] = self.position[0]  # the point slides along the wall
        self.position = target
        reached = bool(np.linalg.norm(self.position - GOAL) < self.RADIUS)
        truncated = self.steps >= self.LIMIT and not reached
        return self.position.copy(), float(reached), reached, truncated, {"is_success": reached}


class SeenTwoRooms(TwoRooms):
    """The same task, seen from above: observations are pictures [32, 32, 3] with wall, goal and point."""

    SIDE, MARGIN = 32, 3
    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = super().reset(seed=seed, options=options)
        return self.picture(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return self.picture(), *rest

    def picture(self) -> np.ndarray:
        """Return the rooms from above, the goal at the lower right."""
        # Coordinates of the middles of pixels. A margin shows that the rooms end there, also when pictures are shifted.
        width = self.SIDE - 2 * self.MARGIN
        x_W = (np.arange(self.SIDE) + 0.5 - self.MARGIN) / width
        x, y = x_W[None, :], 1.0 - x_W[:, None]

        def disc(middle: np.ndarray, radius: float) -> np.ndarray:
            # Edges are smooth, so that a picture shows a position between pixels.
            distance = np.hypot(x - middle[0], y - middle[1])
            return np.clip((radius - distance) * width + 0.5, 0.0, 1.0)[..., None]

        inside = ((x > 0) & (x < 1) & (y > 0) & (y < 1))[..., None]
        wall = ((np.abs(x - WALL_X) < 0.03) & (y < DOOR_Y))[..., None] & inside
        shown = np.where(inside, (60.0, 60.0, 70.0), (0.0, 0.0, 0.0))
        shown = np.where(wall, (200.0, 200.0, 200.0), shown)
        for alpha, colour in ((disc(GOAL, self.RADIUS), (60, 200, 90)), (disc(self.position, 0.05), (250, 90, 60))):
            shown = shown + alpha * (np.array(colour, float) - shown)
        return shown.astype(np.uint8)


class Expert(ActorModule):
    """Goes up, through the door and down to the goal, with noise, so that no two episodes are the same.

    Args:
        observation_space: of the environment.
        action_space: likewise.
        noise: standard deviation of noise on actions; none in a test.
    """

    def __init__(self, observation_space: Any, action_space: Any, noise: float = 0.3) -> None:
        super().__init__(observation_space, action_space)
        self.noise = noise
        self._generator = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def act(self, obs: Any, test: bool = False) -> Any:
        if obs[0] >= WALL_X:
            target = GOAL
        elif obs[1] >= DOOR_Y + 0.05:
            target = np.array([WALL_X + 0.1, 0.9])
        else:
            target = np.array([0.4, 0.92])
        action = (target - obs) / TwoRooms.STEP
        action /= max(1.0, np.abs(action).max())
        if not test:
            action = action + self.noise * self._generator.standard_normal(2)
        return np.clip(action, -1, 1).astype(np.float32)
