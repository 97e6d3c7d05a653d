"""Checks of the environment's observations and rewards and of the policy's actions, cheap enough for every step.

Types, shapes and dtypes of observations must match the space, or are cast to it, and numbers must be finite. Bounds are
not checked: many environments exceed them, and nothing downstream breaks.
"""

# Theory of operation
#
# A check runs in each step of each worker, so its ordinary case is one comparison: type, dtype, shape, and one number
# that shows that all others are finite (a sum of few, a product with zeros of many). Only if that fails are `problem`
# and `cast` asked, which find the words.
#
# `problem` says what is wrong; `cast` makes the space's form of a value if nothing changes beyond rounding: a list of
# floats, float64 for float32, a number for an array of one element, another order of keys. After the first cast, with
# one warning, every observation is cast without another look for the problem. Where values would change (1e300 in
# float32, -1 in uint8), the problem stands.
#
# Bounds are not checked: many environments of Gymnasium exceed their own, by rounding or by design, and policies scale
# or clip by themselves.
#
# The order of a Dict's keys is that of the first observation, not of the space. A learner's columns have one order, and
# a space sorts its keys in some versions of Gymnasium.
#
# NaN and infinity are a `BadValue`, which may pass with the next reset. A wrong type or shape will not, so it is a
# breach of contract until a first valid result has shown otherwise.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import ndarray

from tmrl_core.errors import ContractError, EnvironmentFailedError
from tmrl_core.samples.finite import FEW

logger = logging.getLogger(__name__)

Problem = str | None


class BadValue(str):
    """A problem of a value, such as NaN, which a fresh reset may repair. All other problems are of a type or shape."""


def failure(problem: str, where: str = "") -> EnvironmentFailedError:
    """Return the error of a problem: a ContractError, unless it is a bad value."""
    return (EnvironmentFailedError if isinstance(problem, BadValue) else ContractError)(problem + where)


@dataclass(frozen=True, slots=True)
class ObservationCheck:
    """Check and cast observations of one space.

    Args:
        problem: describes the first problem of an observation, or returns None.
        cast: returns the observation with the dtypes, containers and key order of the space and of the first
            observation, if all values survive; `problem` describes the rest.
    """

    problem: Callable[[Any], Problem]
    cast: Callable[[Any], Any]


def make_observation_check(space: Any, name: str = "observation") -> ObservationCheck:
    """Return the check of a space. Spaces without a fixed structure (Sequence, Graph, Text, ...) accept all values."""
    if isinstance(space, spaces.Dict):
        return _dict_check(space, name)
    if isinstance(space, spaces.Tuple):
        return _tuple_check(space, name)
    if isinstance(space, spaces.Discrete):
        return _discrete_check(name)
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return _array_check(tuple(space.shape or ()), np.dtype(space.dtype), name)
    return ObservationCheck(lambda obs: None, lambda obs: obs)


def _array_check(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> ObservationCheck:
    floating = np.issubdtype(dtype, np.inexact)

    def problem(obs: Any) -> Problem:
        if not isinstance(obs, (ndarray, np.generic)):
            return f"the {name} is a {type(obs).__name__}, its space wants an array of {dtype} of shape {shape}"
        if obs.shape != shape:
            return f"the {name} has the shape {obs.shape}, its space wants {shape}"
        if obs.dtype != dtype:
            return f"the {name} is of {obs.dtype}, its space wants {dtype}"
        if floating and not np.isfinite(obs).all():
            found = "NaN" if np.isnan(obs).any() else "an infinite number"
            return BadValue(f"the {name} holds {found}, finite numbers are wanted")
        return None

    # Box(0.0, 1.0) has the shape (1,), and is often declared for an observation that is a number.
    one_element = shape != () and prod(shape) == 1

    def cast(obs: Any) -> Any:
        if not (isinstance(obs, (ndarray, np.generic)) and obs.dtype == dtype):
            obs = _cast_array(obs, dtype)
        is_number = one_element and isinstance(obs, (ndarray, np.generic)) and obs.shape == ()
        return obs.reshape(shape) if is_number else obs

    return ObservationCheck(problem, cast)


def _cast_array(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value as an array of `dtype`, or unchanged if numbers would change beyond rounding."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # a ragged list
        return value
    if array.dtype.kind not in "biuf":
        return value
    with np.errstate(all="ignore"):
        result = array.astype(dtype)
        if array.dtype.kind == "f" and dtype.kind == "f":
            survives = (np.isfinite(result) | ~np.isfinite(array)).all()
        else:
            survives = (result.astype(array.dtype) == array).all() and ((result < 0) == (array < 0)).all()
    return result if survives else value


def _discrete_check(name: str) -> ObservationCheck:
    def problem(obs: Any) -> Problem:
        if isinstance(obs, (int, np.integer)) and not isinstance(obs, bool):
            return None
        if isinstance(obs, ndarray) and obs.shape == () and np.issubdtype(obs.dtype, np.integer):
            return None
        return f"the {name} is {obs!r} of type {type(obs).__name__}, its space wants an integer"

    def cast(obs: Any) -> Any:
        if problem(obs) is None:
            return obs
        number = _cast_array(obs, np.dtype(np.int64))
        return number[()] if number is not obs and number.shape == () else obs

    return ObservationCheck(problem, cast)


def _dict_check(space: Any, name: str) -> ObservationCheck:
    entries = {key: make_observation_check(entry, f"{name}[{key!r}]") for key, entry in space.spaces.items()}
    order: list[Any] = []
    """Keys of the first observation, in the environment's order."""

    def problem(obs: Any) -> Problem:
        if not isinstance(obs, dict):
            return f"the {name} is a {type(obs).__name__}, its space wants a dict"
        keys = list(obs)
        if keys != order:
            if obs.keys() != entries.keys():
                return f"the {name} has the keys {sorted(map(str, obs))}, its space wants {sorted(map(str, entries))}"
            if order:
                return f"the {name} has its keys in the order {keys}, and had {order} at first"
            order.extend(keys)
        for key, inner in entries.items():
            found = inner.problem(obs[key])
            if found is not None:
                return found
        return None

    def cast(obs: Any) -> Any:
        if not isinstance(obs, Mapping) or obs.keys() != entries.keys():
            return obs
        return {key: entries[key].cast(obs[key]) for key in order or obs}

    return ObservationCheck(problem, cast)


def _tuple_check(space: Any, name: str) -> ObservationCheck:
    entries = [make_observation_check(entry, f"{name}[{index}]") for index, entry in enumerate(space.spaces)]

    def problem(obs: Any) -> Problem:
        if not isinstance(obs, tuple):
            return f"the {name} is a {type(obs).__name__}, its space wants a tuple"
        if len(obs) != len(entries):
            return f"the {name} has {len(obs)} entries, its space wants {len(entries)}"
        for inner, value in zip(entries, obs, strict=True):
            found = inner.problem(value)
            if found is not None:
                return found
        return None

    def cast(obs: Any) -> Any:
        if not isinstance(obs, (tuple, list)) or len(obs) != len(entries):
            return obs
        return tuple([inner.cast(value) for inner, value in zip(entries, obs, strict=True)])

    return ObservationCheck(problem, cast)


class StepCheck:
    """Check and cast the observations and rewards of one environment.

    Observations of another dtype, container or key order are cast if their values survive, with one warning.

    Args:
        space: observation space.
        strict: True: refuse such observations.

    Attributes:
        few, dtype: shape and dtype of observations that are short vectors of floats, which are finite if their sum is
            finite. `few` is None for other observations.
        reward_type: type of the latest checked reward, as the environment gave it.
    """

    __slots__ = ("_cast", "_observations", "_shape", "_strict", "_zeros", "dtype", "few", "reward_type")

    def __init__(self, space: Any, strict: bool = False) -> None:
        self._observations = make_observation_check(space)
        self._strict = strict
        self._cast: Callable[[Any], Any] | None = None
        # One number shows that all are finite: the sum of few numbers, or a product with zeros, is NaN or infinite if
        # one of them is. The sum takes a tenth and the product a third of the time of isfinite().all(). After a sum
        # that overflows, the exact check decides.
        floating = type(space) is spaces.Box and space.shape != () and np.issubdtype(space.dtype, np.floating)
        self._shape = space.shape if type(space) is spaces.Box and space.shape != () else None
        self.dtype = space.dtype
        self.few = few_values(space) if floating else None
        self._zeros = np.zeros(space.shape, space.dtype).ravel() if floating and self.few is None else None
        self.reward_type: Any = float

    def fits(self, obs: Any, reward: Any) -> bool:
        """Return True if `step` would change nothing but the reward's type. False: only `step` can decide."""
        return type(reward) is self.reward_type and isfinite(reward) and self.fits_observation(obs)

    def fits_observation(self, obs: Any) -> bool:
        """Return True if `observation` would change nothing. False: only `observation` can decide."""
        return (
            type(obs) is ndarray
            and obs.dtype is self.dtype
            and obs.shape == self._shape
            and (
                isfinite(sum(obs.tolist()))
                if self.few is not None
                else self._zeros is None or isfinite(np.vdot(obs, self._zeros))
            )
        )

    def step(self, obs: Any, reward: Any) -> tuple[Any, Any]:
        """Return the observation in the space's form, and the reward as a float.

        Everything downstream sees one type. Otherwise, an int among floats begins another chunk of samples, which cuts
        the recording of its episode, and a return is summed, and overflows, in a reward's own float16.

        Raises:
            EnvironmentFailedError: one of them is invalid (ContractError: its type or shape).
        """
        if self._cast is not None:
            obs = self._cast(obs)
        if self.fits(obs, reward):
            return obs, float(reward)
        obs, number = self.observation(obs), as_number(reward)
        problem = reward_problem(number)
        if problem is not None:
            raise failure(problem)
        self.reward_type = type(number)
        return obs, float(number)

    def observation(self, obs: Any, where: str = "") -> Any:
        """Return an observation in the space's form, cast if necessary.

        Args:
            obs: observation of the environment.
            where: text after the problem in messages.

        Raises:
            EnvironmentFailedError: the observation does not belong to the space (ContractError: its type or shape).
        """
        if self._cast is not None:
            obs = self._cast(obs)
        problem = self._observations.problem(obs)
        if problem is None:
            return obs
        if self._cast is None and not self._strict:
            fitting = self._observations.cast(obs)
            if self._observations.problem(fitting) is None:
                self._cast = self._observations.cast
                logger.warning("%s%s: it is cast, as all that follow (worker.strict_spaces refuses it)", problem, where)
                return fitting
        raise failure(problem, where)


def few_values(space: Any) -> tuple[int, ...] | None:
    """Return the shape of a space's vectors, if they are so short that their sum is the fastest check."""
    return space.shape if type(space) is spaces.Box and len(space.shape) == 1 and space.shape[0] <= FEW else None


def only_integers(space: Any) -> bool:
    """Return True for a space whose values are always finite."""
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)) or (
        isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating)
    )


def as_number(reward: Any) -> Any:
    """Return the number in an array, list or tensor with one element, as a NumPy scalar; other values unchanged."""
    if isinstance(reward, (int, float, np.generic)) or reward is None:
        return reward
    try:
        array = np.asarray(reward)
    except (TypeError, ValueError):  # a ragged list
        return reward
    return array.reshape(())[()] if array.size == 1 and array.dtype.kind in "biuf" else reward


def copy_action(action: Any) -> Any:
    """Return a copy of an action for the environment, which may change it."""
    if isinstance(action, ndarray):
        return action.copy()
    if isinstance(action, dict):
        return {key: copy_action(item) for key, item in action.items()}
    return tuple(map(copy_action, action)) if type(action) is tuple else action


def reward_problem(reward: Any) -> Problem:
    """Return the first problem of a reward, or None."""
    try:
        finite = isfinite(reward)
    except (TypeError, ValueError):
        vector = " (several objectives need a wrapper that makes one of them)" if isinstance(reward, ndarray) else ""
        return f"the reward is {reward!r:.200} of type {type(reward).__name__}, a number is wanted{vector}"
    except OverflowError:  # an int of hundreds of digits
        return BadValue("the reward is an integer beyond the range of floats")
    return None if finite else BadValue(f"the reward is {float(reward)}, a finite number is wanted")


def reset_problem(result: Any) -> Problem:
    """Return the problem of a reset's result, without checking its parts, or None."""
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return None
    found = f"{len(result)} things" if isinstance(result, (tuple, list)) else f"a {type(result).__name__}"
    return f"the environment's reset returned {found}; wanted: obs, info (an observation and a dict). {_OLD}"


_OLD = "tmrl_core.envs:OldGym makes both of an environment of the old Gym interface"


def unpacking_hint(fault: Exception) -> str:
    """Return a hint with Gymnasium's signature if the exception shows a wrong `step` or `reset`; else an empty text."""
    text = str(fault)
    if isinstance(fault, TypeError) and "reset() got an unexpected keyword argument 'seed'" in text:
        return f" (Gymnasium's reset takes the keywords seed and options). {_OLD}"
    if isinstance(fault, (TypeError, ValueError)) and (
        "values to unpack (expected 5" in text or text.startswith("cannot unpack non-iterable")
    ):
        return f" (Gymnasium's step returns five: obs, reward, terminated, truncated, info). {_OLD}"
    return ""
