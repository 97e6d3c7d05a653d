"""A cart on a rail that is driven to a target: a simulation that goes on by itself, as a robot or a game does.

Needs the extra `realtime` (rtgym).
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import rtgym

WAY = 0.03
"""Seconds that a command takes to the cart."""


class Cart:
    """The robot: moves with the velocity that it was last told, whether anybody looks or not."""

    def __init__(self) -> None:
        self.position, self.velocity = 0.0, 0.0
        self.waiting: list[tuple[float, float]] = []
        self.now = time.perf_counter()

    def send(self, velocity: float) -> None:
        """Send a velocity, which arrives later."""
        self.waiting.append((time.perf_counter() + WAY, velocity))

    def look(self) -> float:
        """Return the present position."""
        now = time.perf_counter()
        while self.waiting and self.waiting[0][0] <= now:
            arrived, velocity = self.waiting.pop(0)
            self._move(arrived)
            self.velocity = velocity
        self._move(now)
        return self.position

    def _move(self, until: float) -> None:
        self.position = min(1.0, max(-1.0, self.position + self.velocity * (until - self.now)))
        self.now = until


class CartInterface(rtgym.RealTimeGymInterface):
    """Drive the cart to a target. The reward is minus the distance.

    Args:
        speed: highest velocity, in rails per second.
    """

    def __init__(self, speed: float = 2.0) -> None:
        self.speed = speed
        self.cart: Cart | None = None
        self.target = 0.0
        self.random = np.random.default_rng()

    def get_observation_space(self) -> gymnasium.Space[Any]:
        """Position and target. rtgym adds the latest actions."""
        return gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)])

    def get_action_space(self) -> gymnasium.Space[Any]:
        """Velocity, as a fraction of the highest one."""
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def get_default_action(self) -> np.ndarray:
        """Stand still: the action of a reset."""
        return np.zeros(1, np.float32)

    def send_control(self, control: np.ndarray | None) -> None:
        """Send an action, and return at once."""
        if control is not None and self.cart is not None:
            self.cart.send(self.speed * float(control[0]))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Choose another target. Connect to the robot at the first reset, not before."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        if self.cart is None:
            self.cart = Cart()
        self.target = float(self.random.uniform(-0.8, 0.8))
        return self._look(), {}

    def get_obs_rew_terminated_info(self) -> tuple[list[np.ndarray], float, bool, dict[str, Any]]:
        """Return the observation at the end of the time step, its reward, and False: the episode goes on."""
        seen = self._look()
        distance = abs(float(seen[0][0]) - self.target)
        return seen, -distance, False, {"distance": distance}

    def wait(self) -> None:
        """Stop the motor: the worker pauses or ends."""
        self.send_control(self.get_default_action())

    def _look(self) -> list[np.ndarray]:
        assert self.cart is not None
        return [np.array([self.cart.look(), self.target], np.float32)]
