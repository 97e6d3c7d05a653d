"""An arm that picks up a cube: a task with a sparse reward, an expert, and a person by a rule.

It needs no simulator: a small model of the task of `panda.py`, which has the same expert and person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.actor import ActorModule
from tmrl_core.actor.interventions import InterventionSource

REACH, PUSH, LIFTED = 0.03, 0.09, 0.5
"""Horizontal distance at which the gripper encloses the cube, at which its fingers push it, and height of success."""
LOW = 0.06
"""Height below which the fingers are beside the cube."""


class Pick(gymnasium.Env[Any, Any]):
    """A gripper over a table. It encloses a cube, closes, and lifts it.

    Observation [10]: position of the gripper (3), closed or not, position of the cube (3), and the way to it (3), in
    widths of the table. Action [4]: step in each direction, as parts of the longest one, and the gripper: it closes
    above 0.3, opens below -0.3, and stays between. Reward: 1 when the cube is lifted, where the episode ends, and
    otherwise 0. After 60 steps it is cut.

    Fingers that come down beside the cube push it away, and out of the area it can be lost.
    """

    STEP, LIMIT = 0.06, 60
    observation_space = spaces.Box(-2, 2, (10,), np.float32)
    action_space = spaces.Box(-1, 1, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.gripper = np.array([0.5, 0.5, 0.4])
        self.cube = np.array([*self.np_random.uniform(0.15, 0.85, 2), 0.0])
        self.closed = self.holding = False
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        action = np.clip(np.asarray(action, np.float64), -1, 1)
        closes = bool(action[3] > 0.3) or (self.closed and action[3] > -0.3)
        self.gripper = np.clip(self.gripper + action[:3] * self.STEP, 0, 1)
        away = self.cube[:2] - self.gripper[:2]
        distance = float(np.linalg.norm(away))
        if not (self.holding and closes):
            self.holding = False
            self.cube[2] = 0.0
            if self.gripper[2] < LOW:
                if distance < REACH:
                    self.holding = closes and not self.closed  # only fingers that were open enclose it
                elif distance < PUSH:
                    self.cube[:2] += away / distance * (PUSH - distance)
        if self.holding:
            self.cube = self.gripper.copy()
        self.closed = closes
        lifted = self.holding and self.gripper[2] > LIFTED
        truncated = self.steps >= self.LIMIT and not lifted
        return self._observation(), float(lifted), lifted, truncated, {"is_success": lifted}

    def _observation(self) -> Any:
        parts = (self.gripper, [float(self.closed)], self.cube, self.cube - self.gripper)
        return np.clip(np.concatenate(parts), -2, 2).astype(np.float32)


@dataclass(frozen=True)
class Hand:
    """Distances by which a person works with a hand, in widths of the table."""

    over: float = REACH * 0.6
    """Horizontal distance at which the hand is over the cube."""
    down: float = LOW - 0.01
    """Height below which it encloses the cube."""
    held: float = 0.01
    """Distance of a cube that is held."""
    lifted: float = LIFTED
    """Height of success."""
    area: tuple[tuple[float, float], tuple[float, float]] = ((0.05, 0.05), (0.95, 0.95))
    """Corners of the area outside which the cube is soon lost."""

    def holds(self, obs: Any) -> bool:
        """Return True if the hand holds the cube."""
        return bool(obs[3] > 0.5 and np.abs(obs[7:10]).max() < self.held)

    def right_action(self, obs: Any) -> Any:
        """Return what picks up the cube: over it, down, close, up."""
        if self.holds(obs):
            return np.array([0, 0, 1, 1], np.float32)
        closed, height, away = obs[3] > 0.5, obs[2], obs[7:10]
        over = float(np.linalg.norm(away[:2])) < self.over
        down = over and height >= self.down
        action = np.zeros(4, np.float32)
        action[:2] = np.clip(away[:2] / Pick.STEP, -1, 1)
        action[2] = (-1.0 if down else 0.0) if over else np.clip((0.25 - height) / Pick.STEP, -1, 1)
        action[3] = 1.0 if over and not down and not closed else -1.0
        return action


class Expert(ActorModule):
    """A person who shows the task, not quite steadily: noise on the steps, so that no two episodes are the same."""

    hand = Hand()

    def __init__(self, observation_space: Any, action_space: Any, noise: float = 0.2) -> None:
        super().__init__(observation_space, action_space)
        self.noise = noise
        self._generator = np.random.default_rng()

    def seed(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def act(self, obs: Any, test: bool = False) -> Any:
        action = self.hand.right_action(obs)
        if not test:
            action[:3] += self._generator.normal(0, self.noise, 3).astype(np.float32)
        return np.clip(action, -1, 1)


class PersonByRule(InterventionSource):
    """Watches the state, and takes over if there is no progress. Never by the clock, and never with what it foresees.

    Progress is a shorter way to the cube, or a cube that is higher. After `patience` steps without any, or if the cube
    has left its area, the person acts until the way is shorter by `helped`: by default, until the cube is held.

    Args:
        patience: steps without progress.
        helped: part of the way after which the policy gets the arm back.
    """

    hand = Hand()

    def __init__(self, patience: int = 10, helped: float = 0.5) -> None:
        self.patience, self.helped = patience, helped
        self.begin_episode()

    def begin_episode(self) -> None:
        self._best, self._stuck, self._since = np.inf, 0, None

    def poll(self, obs: Any) -> Any:
        left = self._way_left(obs)
        if left < self._best - 0.01:
            self._best, self._stuck = left, 0
        else:
            self._stuck += 1
        low, high = self.hand.area
        lost = bool(np.any(obs[4:6] < low) or np.any(obs[4:6] > high))
        if self._since is None and (self._stuck >= self.patience or lost):
            self._since = left
        elif self._since is not None and left < self._since - self.helped and not lost:
            self._since, self._best, self._stuck = None, left, 0
        return None if self._since is None else self.hand.right_action(obs)

    def _way_left(self, obs: Any) -> float:
        """The way to the cube and up again, in table widths."""
        if self.hand.holds(obs):
            return self.hand.lifted - float(obs[2])
        return 1.0 + float(np.linalg.norm(obs[7:10]))
