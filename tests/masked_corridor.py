"""A small environment with an action mask, for tests of policies, algorithms and runs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

PLACES, ACTIONS, LIMIT = 5, 24, 30


class MaskedCorridor(gymnasium.Env[Any, Any]):
    """A walk from place 0 to place 4. In each place, two actions of 24 are allowed: one goes on, the other back.

    An action that is not allowed raises an error, or ends the episode with the reward -1 if `illegal_ends`.

    Args:
        key: of the mask in the observation; another key than `action_mask` hides it from policies.
        step_reward: of each step that does not arrive; arriving gives 1.
        illegal_ends: an action that is not allowed ends the episode.
    """

    action_space: spaces.Space[Any] = spaces.Discrete(ACTIONS, start=2)

    def __init__(self, key: str = "action_mask", step_reward: float = -0.1, illegal_ends: bool = False) -> None:
        self.key, self.step_reward, self.illegal_ends = key, step_reward, illegal_ends
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(0, 1, (PLACES,), np.float32), key: spaces.Box(0, 1, (ACTIONS,), np.int8)}
        )

    @staticmethod
    def choices(place: int) -> tuple[int, int]:
        """Return the indices of the actions that go on and back; at the end there are none."""
        return (5 * place + 7) % ACTIONS, (5 * place + 2) % ACTIONS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.steps = 0
        return self.observation(), {}

    def observation(self, place: int | None = None) -> dict[str, Any]:
        place = self.place if place is None else place
        mask = np.zeros(ACTIONS, np.int8)
        if place < PLACES - 1:
            mask[list(self.choices(place))] = 1
        return {"place": np.eye(PLACES, dtype=np.float32)[place], self.key: mask}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        index = int(action) - 2
        on, back = self.choices(self.place)
        self.steps += 1
        if index not in (on, back):
            if not self.illegal_ends:
                raise ValueError(f"the action {action} is not allowed in the place {self.place}")
            return self.observation(), -1.0, True, False, {}
        self.place = self.place + 1 if index == on else max(0, self.place - 1)
        arrived = self.place == PLACES - 1
        return self.observation(), 1.0 if arrived else self.step_reward, arrived, self.steps >= LIMIT, {}


class MaskedChoices(MaskedCorridor):
    """A `MaskedCorridor` whose actions have a second choice of two, of which each place allows one."""

    action_space = spaces.MultiDiscrete([ACTIONS, 2], start=[2, 0])

    def __init__(self) -> None:
        super().__init__()
        mask = spaces.Tuple([spaces.Box(0, 1, (ACTIONS,), np.int8), spaces.MultiBinary(2)])
        self.observation_space = spaces.Dict({"place": spaces.Box(0, 1, (PLACES,), np.float32), self.key: mask})

    def observation(self, place: int | None = None) -> dict[str, Any]:
        found = super().observation(place)
        second = np.eye(2, dtype=np.int8)[self.place % 2]
        return {**found, self.key: (found[self.key], second)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        if action[1] != self.place % 2:
            raise ValueError(f"the action {action} is not allowed in the place {self.place}")
        return super().step(action[0])
