"""A task whose success can be seen: a square, and a number, at the right end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.sessions import Session, SessionWriter

PLACE = spaces.Box(-1, 2, (2,), np.float32)
ACTIONS = spaces.Box(-1, 1, (1,), np.float32)


def camera(side: int) -> spaces.Box:
    """The space of a picture."""
    return spaces.Box(0, 255, (side, side, 3), np.uint8)


class Reaching(gymnasium.Env[Any, Any]):
    """The square moves right by 0.1 a step; no reward, and no end of its own but 15 steps."""

    def __init__(self, side: int = 24, start: float = 0.0, speed: float = 0.1) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": camera(side),
                "place": PLACE,
            }
        )
        self.action_space = ACTIONS
        self._side, self._start, self._speed = side, start, speed
        self._steps = 0

    def observe(self, place: float, noise: int = 0) -> dict[str, Any]:
        picture = np.full((self._side, self._side, 3), 60 + noise % 20, np.uint8)
        size = self._side // 4
        left = round(place * (self._side - size))
        picture[size : 2 * size, left : left + size] = 240
        return {"camera": picture, "place": np.array([place, 0.01 * noise], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self.observe(self._start), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        place = min(1.0, self._start + self._speed * self._steps)
        return self.observe(place, self._steps), 0.0, False, self._steps == 15, {}


def session(number: int, success: bool | None, side: int = 24) -> Session:
    """A session that ends at the right end, or in the middle; None: without a label."""
    env = Reaching(side)
    last = 1.0 if success else 0.6
    places = np.linspace(0.0, last, 11)
    seen = [env.observe(float(place), number + at) for at, place in enumerate(places)]
    return Session(
        observations={key: np.stack([obs[key] for obs in seen]) for key in seen[0]},
        actions=np.zeros((10, 1), np.float32),
        rewards=np.zeros(10),
        infos={} if success is None else {10: {"is_success": success}},
        terminated=True,
    )


def record(folder: Path, labels: list[bool | None], side: int = 24) -> Path:
    """Record one session for each label."""
    with SessionWriter(folder, Reaching(side).observation_space, ACTIONS) as writer:
        for number, label in enumerate(labels):
            writer.write(session(number, label, side))
    return folder
