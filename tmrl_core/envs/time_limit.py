"""TimeLimitAsTruncation: an environment that reports its time limit as an end of its task, put right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from tmrl_core.config import resolve_with
from tmrl_core.errors import ConfigError


class TimeLimitAsTruncation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Turn an end at the environment's own step limit into a truncation.

    Some environments terminate there, or set both flags. Learners then take the value of what follows as 0, although
    the task goes on. An episode that terminates earlier stays as it is. One that really ends at exactly that step
    becomes a truncation too.

    Args:
        env: the environment, or the reference "package.module:Name" of a callable that makes it.
        steps: its limit, in steps after the reset.
        kwargs: keyword arguments, if `env` is a reference.

    Raises:
        ConfigError: `steps` is below 1, or `env` is no gymnasium.Env and names none.
    """

    def __init__(self, env: Any, steps: int, kwargs: Mapping[str, Any] | None = None) -> None:
        if steps < 1:
            raise ConfigError(f"environment.time_limit: found {steps}, allowed: at least 1 step")
        made = resolve_with(env, kwargs or {}, "environment.kwargs.env")() if isinstance(env, str) else env
        if not isinstance(made, gymnasium.Env):
            raise ConfigError(f"environment.time_limit: found a {type(made).__name__}, allowed: a gymnasium.Env")
        super().__init__(made)
        self.steps = steps
        self._taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        self._taken = 0
        # Not every environment takes both arguments.
        given: dict[str, Any] = {
            name: value for name, value in (("seed", seed), ("options", options)) if value is not None
        }
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's, with the flags put right at the limit."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._taken += 1
        # Both flags at once are a truncation too: learners read the termination first.
        if terminated and self._taken == self.steps:
            terminated, truncated = False, True
        return obs, reward, terminated, truncated, info
