"""What an environment may return: checks that are cheap enough for every step.

Types, shapes and dtypes of observations must be those of the space, and numbers must be finite. Bounds are not checked:
many environments leave them, and nothing downstream breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

Problem = str | None
Check = Callable[[Any], Problem]


def make_check(space: Any, name: str = "observation") -> Check:
    """What names the first thing wrong with an observation of `space`, or returns None.

    Spaces without a fixed structure (Sequence, Graph, Text, ...) take anything.
    """
    if isinstance(space, spaces.Dict):
        return _dict_check(space, name)
    if isinstance(space, spaces.Tuple):
        return _tuple_check(space, name)
    if isinstance(space, spaces.Discrete):
        return _discrete_check(name)
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return _array_check(tuple(space.shape or ()), np.dtype(space.dtype), name)
    return lambda obs: None


def _array_check(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Check:
    floating = np.issubdtype(dtype, np.inexact)

    def check(obs: Any) -> Problem:
        if not isinstance(obs, (np.ndarray, np.generic)):
            return f"the {name} is a {type(obs).__name__}, its space wants an array of {dtype} of shape {shape}"
        if obs.shape != shape:
            return f"the {name} has the shape {obs.shape}, its space wants {shape}"
        if obs.dtype != dtype:
            return (
                f"the {name} is of {obs.dtype}, its space wants {dtype} (GenericGymEnv's to_float32 turns float64 into "
                "float32)"
            )
        if floating and not np.isfinite(obs).all():
            found = "NaN" if np.isnan(obs).any() else "an infinite number"
            return f"the {name} holds {found}, finite numbers are wanted"
        return None

    return check


def _discrete_check(name: str) -> Check:
    def check(obs: Any) -> Problem:
        if isinstance(obs, (int, np.integer)) and not isinstance(obs, bool):
            return None
        if isinstance(obs, np.ndarray) and obs.shape == () and np.issubdtype(obs.dtype, np.integer):
            return None
        return f"the {name} is {obs!r} of type {type(obs).__name__}, its space wants an integer"

    return check


def _dict_check(space: Any, name: str) -> Check:
    checks = {key: make_check(entry, f"{name}[{key!r}]") for key, entry in space.spaces.items()}

    def check(obs: Any) -> Problem:
        if not isinstance(obs, Mapping):
            return f"the {name} is a {type(obs).__name__}, its space wants a dict"
        if obs.keys() != checks.keys():
            return f"the {name} has the keys {sorted(map(str, obs))}, its space wants {sorted(map(str, checks))}"
        for key, inner in checks.items():
            problem = inner(obs[key])
            if problem is not None:
                return problem
        return None

    return check


def _tuple_check(space: Any, name: str) -> Check:
    checks = [make_check(entry, f"{name}[{index}]") for index, entry in enumerate(space.spaces)]

    def check(obs: Any) -> Problem:
        if not isinstance(obs, (tuple, list)):
            return f"the {name} is a {type(obs).__name__}, its space wants a tuple"
        if len(obs) != len(checks):
            return f"the {name} has {len(obs)} entries, its space wants {len(checks)}"
        for inner, value in zip(checks, obs, strict=True):
            problem = inner(value)
            if problem is not None:
                return problem
        return None

    return check


def reward_problem(reward: Any) -> Problem:
    """What is wrong with a reward, or None."""
    try:
        finite = math.isfinite(reward)
    except (TypeError, ValueError):
        return f"the reward is {reward!r} of type {type(reward).__name__}, a number is wanted"
    return None if finite else f"the reward is {float(reward)}, a finite number is wanted"


def reset_problem(result: Any) -> Problem:
    """What is wrong with what a reset returned, its parts aside, or None."""
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return None
    found = f"{len(result)} things" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
    return f"the environment's reset returned {found}; wanted: obs, info (an observation and a dict)"


def unpacking_hint(fault: Exception) -> str:
    """What a step returns, where the fault is of unpacking something else; otherwise an empty text."""
    text = str(fault)
    if isinstance(fault, (TypeError, ValueError)) and (
        "values to unpack (expected 5" in text or text.startswith("cannot unpack non-iterable")
    ):
        return " (Gymnasium's step returns five: obs, reward, terminated, truncated, info)"
    return ""
