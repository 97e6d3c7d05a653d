"""GenericGymEnv: any environment that Gymnasium knows, with the observations that a policy wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.space_tree import space_leaves

Convert = Callable[[Any], Any]


class GenericGymEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment made from its Gymnasium id.

    Args:
        id: Gymnasium's id, also as `package.module:Name-v0`, which imports the module first.
        gym_kwargs: keyword arguments for `gymnasium.make`.
        obs_scale: factor on every Box of floats in the observation; 0.0: as they are. The bounds follow.
        to_float32: True: every Box of other floats in the observation becomes float32, in the space too.
        observed: elements of the observation, a vector, that are observed; the others are hidden. None: all.

    Raises:
        ConfigError: `obs_scale` is given and there is no Box of floats to scale; or `observed` is given, and the
            observation is no vector with these elements.
        gymnasium.error.Error: Gymnasium cannot make the environment.
    """

    def __init__(
        self,
        id: str = "Pendulum-v1",
        gym_kwargs: Mapping[str, Any] | None = None,
        obs_scale: float = 0.0,
        to_float32: bool = False,
        observed: Sequence[int] | None = None,
    ) -> None:
        # Gymnasium's checker looks at every step; the worker checks what matters itself.
        env = gymnasium.make(id, **{"disable_env_checker": True, **(gym_kwargs or {})})
        if observed is not None:
            env = _partly_observed(env, id, list(observed))
        super().__init__(env)
        if obs_scale and not any(_is_float_box(leaf) for _, leaf in space_leaves(env.observation_space)):
            raise ConfigError(
                f"obs_scale is {obs_scale}, but the observations of {id} have no Box of floats to scale: "
                f"{env.observation_space}"
            )
        # Decided once: a step of an environment that needs no conversion costs one comparison.
        space, self._convert = _conversion(env.observation_space, float(obs_scale), to_float32)
        if self._convert is not None:
            self.observation_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As Gymnasium's, with the observation converted."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs if self._convert is None else self._convert(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As Gymnasium's, with the observation converted."""
        if self._convert is None:
            return self.env.step(action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._convert(obs), reward, terminated, truncated, info


def _partly_observed(env: gymnasium.Env[Any, Any], id: str, observed: list[int]) -> gymnasium.Env[Any, Any]:
    """Hide all elements of a vector but these.

    Raises:
        ConfigError: the observation is no vector with these elements.
    """
    space = env.observation_space
    size = space.shape[0] if isinstance(space, spaces.Box) and len(space.shape) == 1 else 0
    if not observed or len(set(observed)) < len(observed) or not all(0 <= number < size for number in observed):
        raise ConfigError(
            f"environment.kwargs.observed: found {observed}, allowed: different numbers of elements of the observation "
            f"of {id}, a vector; it is {space}"
        )
    assert isinstance(space, spaces.Box)
    seen = spaces.Box(space.low[observed], space.high[observed], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[observed], seen)


def _is_float_box(space: Any) -> bool:
    return isinstance(space, spaces.Box) and bool(np.issubdtype(space.dtype, np.floating))


def _conversion(space: Any, scale: float, to_float32: bool) -> tuple[Any, Convert | None]:
    """The space of the converted observations, and what converts them; None: nothing to do."""
    if isinstance(space, spaces.Dict):
        parts = {key: _conversion(entry, scale, to_float32) for key, entry in space.spaces.items()}
        if all(convert is None for _, convert in parts.values()):
            return space, None

        converts = {key: convert for key, (_, convert) in parts.items()}

        def convert_dict(obs: Any) -> Any:
            # In the order of the observation, which is the one that memories and policies keep.
            known = [(key, value, converts[key]) for key, value in obs.items() if key in converts]
            return {key: value if convert is None else convert(value) for key, value, convert in known}

        return spaces.Dict([(key, entry) for key, (entry, _) in parts.items()]), convert_dict
    if isinstance(space, spaces.Tuple):
        entries = [_conversion(entry, scale, to_float32) for entry in space.spaces]
        if all(convert is None for _, convert in entries):
            return space, None

        def convert_tuple(obs: Any) -> Any:
            pairs = zip(obs, entries, strict=True)
            return tuple([part if convert is None else convert(part) for part, (_, convert) in pairs])

        return spaces.Tuple([entry for entry, _ in entries]), convert_tuple
    if not _is_float_box(space):
        return space, None
    dtype = np.dtype(np.float32) if to_float32 else space.dtype
    if not scale and dtype == space.dtype:
        return space, None

    def convert_box(obs: Any) -> Any:
        return np.asarray(obs if not scale else np.asarray(obs) * scale, dtype)

    with np.errstate(over="ignore"):  # float64's largest number, a common bound, is infinite in float32
        bounds = [convert_box(space.low), convert_box(space.high)]
    if scale < 0:  # a negative factor exchanges the bounds
        bounds.reverse()
    return spaces.Box(bounds[0], bounds[1], dtype=dtype.type), convert_box
