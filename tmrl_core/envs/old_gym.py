"""OldGym: environments of the interface that Gym had before version 0.26, and of the package gym itself."""

# Theory of operation
#
# For: environments that were written for Gym before its version 0.26, of which there are many, and for those of the
# package gym itself. Nothing else of this package knows that interface. gym is not imported: its spaces are recognized
# by the names of their classes, since an environment may come with a gym of any version, or with a copy of it: Crafter,
# without gym, has named tuples called BoxSpace and DiscreteSpace, whose bounds are single numbers.
#
# Differences, and what becomes of them:
#
# - `reset()` returned the observation alone. A result that is a pair with a dict is passed on as Gymnasium's, unless
#   the observation itself is a tuple: then a pair may be an observation.
# - `step` returned `done`. It was true both at the end of the task and at a time limit, which the wrapper TimeLimit
#   noted in `info`. Learners need the difference (after a termination nothing follows, after a truncation there is a
#   value), so the note decides.
# - `seed(seed)` seeded the environment. gym 0.26 has no such method and takes the seed in `reset`, so its signature is
#   asked. An environment with neither cannot be seeded, and is not refused for that: it never could.
# - `render(mode=...)` took its mode with each call.

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.config import resolve_with
from tmrl_core.errors import ConfigError


@runtime_checkable
class _Seeded(Protocol):
    def seed(self, seed: int | None = None) -> Any:
        """Seed the environment."""


@runtime_checkable
class _Closed(Protocol):
    def close(self) -> Any:
        """Close the environment."""


@runtime_checkable
class _Started(Protocol):
    start: Any


class OldGym(gymnasium.Env[Any, Any]):
    """An environment whose `reset()` returns the observation, whose `step` returns four values, and that has `seed`.

    `done` with `info["TimeLimit.truncated"]` becomes a truncation, any other `done` a termination. A step that returns
    Gymnasium's five values, or a reset that returns Gymnasium's two, is passed on. Spaces of the package gym become
    Gymnasium's; the package is not needed otherwise.

    Args:
        env: the environment, or the reference "package.module:Name" of a callable that makes it, such as a class or
            `gym:make`.
        kwargs: keyword arguments, if `env` is a reference.
        render_mode: argument of `render`.

    Raises:
        ConfigError: `env` names nothing, or a space has no counterpart.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012

    def __init__(self, env: Any, kwargs: Mapping[str, Any] | None = None, render_mode: str | None = None) -> None:
        made = resolve_with(env, kwargs or {}, "environment.kwargs.env")() if isinstance(env, str) else env
        self.env: Any = made
        self.render_mode = render_mode
        self.observation_space = as_space(made.observation_space)
        self.action_space = as_space(made.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. `seed` goes to the environment's `seed`, else to its `reset`, if that takes one, as those
        of gym 0.26 do. There are no options.
        """
        super().reset(seed=seed)
        seeds: dict[str, int] = {}
        if seed is not None and isinstance(self.env, _Seeded):
            self.env.seed(seed)
        elif seed is not None and self._reset_takes_seed():
            seeds["seed"] = seed
        result: Any = self.env.reset(**seeds)
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        if pair and not isinstance(self.observation_space, spaces.Tuple):
            return result[0], result[1]
        return result, {}

    def _reset_takes_seed(self) -> bool:
        # Calling it to see would begin an episode.
        try:
            inspect.signature(self.env.reset).bind(seed=0)
        except (TypeError, ValueError):
            return False
        return True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        result = self.env.step(action)
        if len(result) != 4:
            five: tuple[Any, Any, bool, bool, dict[str, Any]] = result
            return five
        obs, reward, done, info = result
        truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """Render in the mode `render_mode`."""
        return self.env.render(mode=self.render_mode)

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if isinstance(self.env, _Closed):
            self.env.close()


def as_space(space: Any) -> spaces.Space[Any]:
    """Return Gymnasium's counterpart of a space of the package gym; a space of Gymnasium is returned as it is.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(space, spaces.Space):
        return space
    kind = type(space).__name__.removesuffix("Space")
    if kind == "Box":
        dtype = np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        # Gym had no `start` before 0.22.
        return spaces.Discrete(int(space.n), start=int(space.start) if isinstance(space, _Started) else 0)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.nvec))
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind == "Dict":
        return spaces.Dict([(key, as_space(part)) for key, part in space.spaces.items()])
    if kind == "Tuple":
        return spaces.Tuple([as_space(part) for part in space.spaces])
    raise ConfigError(
        f"environment.kwargs.env: found the space {space!r:.100} of {type(space).__module__}, allowed: Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict and Tuple"
    )
