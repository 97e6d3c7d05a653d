"""Action spaces of policies: numbered values, or a Box with bounds; and errors of unsupported spaces.

Shape suffixes: B batch, A action elements, M choices, K values of the choice with the most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.errors import ConfigError


@dataclass(frozen=True)
class DiscreteActions:
    """The actions of a Discrete space.

    Args:
        count: number of actions.
        start: the first action.
    """

    count: int
    start: int

    def of(self, index: int) -> Any:
        """Return the action of this index, from 0, as an np.int64."""
        return np.int64(index + self.start)


def choice_counts(space: Any) -> tuple[int, ...]:
    """Return the number of values of each choice that an action consists of; empty for other spaces.

    An action of a Discrete space is one choice. One of MultiDiscrete or MultiBinary is one for each element.
    """
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    if isinstance(space, spaces.MultiBinary):
        return (2,) * math.prod(space.shape)
    return ()


@dataclass(frozen=True)
class CategoricalActions:
    """Actions that consist of independent choices among numbered values.

    A head has one logit for each value of each choice, in one vector of `size`.

    Args:
        counts: number of values of each choice.
        first: first value of each choice, with the shape and dtype of an action.
    """

    counts: tuple[int, ...]
    first: np.ndarray

    @property
    def size(self) -> int:
        """Number of values of all choices together."""
        return sum(self.counts)

    @cached_property
    def places(self) -> np.ndarray | None:
        """[M, K] places of each choice's values in the vector; its length stands for none. None: all have K values."""
        if len(set(self.counts)) == 1:
            return None
        places = np.full((len(self.counts), max(self.counts)), self.size)
        for choice, (start, count) in enumerate(zip(np.cumsum((0, *self.counts)), self.counts, strict=False)):
            places[choice, :count] = np.arange(start, start + count)
        return places

    def of(self, index: np.ndarray) -> Any:
        """Return actions [..., *shape] of indices [..., M] from 0."""
        return (index.reshape(index.shape[:-1] + self.first.shape) + self.first).astype(self.first.dtype)


def is_box_of_floats(space: Any) -> bool:
    """Tell whether a space is a Box of floats, with any bounds."""
    return isinstance(space, spaces.Box) and bool(np.issubdtype(space.dtype, np.floating))


def first_of_batch(action_space: Any) -> Any:
    """Return the index of the first action of a batch: that of a Box is an array, even with the shape ()."""
    return (0, ...) if isinstance(action_space, spaces.Box) else 0


def refusal(owner: str, wanted: str, space: Any) -> ConfigError:
    """Return the error of a policy that does not support the environment's action space, with policies that do.

    Args:
        owner: name of the policy.
        wanted: its requirement, such as `acts in a Box of floats`.
        space: the environment's action space.
    """
    if isinstance(space, spaces.Discrete):
        advice = "For it take actor.cls: QValueMLPActor or CategoricalMLPActor of tmrl_core.actor, with its agent."
    elif choice_counts(space):
        advice = (
            "For it take actor.cls: CategoricalMLPActor or CategoricalRNNActor of tmrl_core.actor, with PPOAgent, "
            "RecurrentPPOAgent or BehaviorCloningAgent."
        )
    elif is_box_of_floats(space):
        advice = (
            "For it take actor.cls: SquashedGaussianMLPActor, DeterministicMLPActor or GaussianMLPActor of "
            "tmrl_core.actor, with its agent."
        )
    else:
        advice = (
            "No policy here acts in it: make it a Box of floats or a Discrete space in the environment (such as with "
            "gymnasium.wrappers.TransformAction), or name a policy and an agent of your own in actor.cls and agent.cls."
        )
    return ConfigError(f"{owner} {wanted}, the environment's action space is {space}. {advice}")


def discrete_actions(owner: str, space: Any) -> DiscreteActions:
    """Return the actions of a Discrete space.

    Raises:
        ConfigError: the space is not Discrete.
    """
    if not isinstance(space, spaces.Discrete):
        raise refusal(owner, "chooses from a Discrete space", space)
    return DiscreteActions(int(space.n), int(space.start))


def categorical_actions(owner: str, space: Any) -> CategoricalActions:
    """Return the choices of a Discrete, MultiDiscrete or MultiBinary space.

    Raises:
        ConfigError: the space is another one.
    """
    counts = choice_counts(space)
    if not counts:
        raise refusal(owner, "chooses from a Discrete, MultiDiscrete or MultiBinary space", space)
    dtype = np.dtype(np.int64) if isinstance(space, spaces.Discrete) else space.dtype
    return CategoricalActions(counts, np.broadcast_to(getattr(space, "start", 0), space.shape).astype(dtype))


@dataclass(frozen=True)
class BoxBounds:
    """The bounds of a Box of actions, which may be infinite.

    Args:
        low, high: [size] float64.
        shape: of one action.
        dtype: of one action.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements of one action."""
        return int(self.low.size)

    def mixed(self, action_BA: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
        """Return [B, size] actions, a share of them replaced in place by uniformly sampled ones."""
        if share > 0.0:
            at = rng.random(len(action_BA)) < share
            action_BA[at] = rng.uniform(self.low, self.high, (int(at.sum()), self.size))
        return action_BA

    def clipped(self, action: np.ndarray) -> np.ndarray:
        """Return sampled actions [..., size], clipped to the bounds and with the space's shape and dtype."""
        clipped: np.ndarray = np.minimum(np.maximum(action, self.low), self.high).astype(self.dtype)
        return clipped.reshape(action.shape[:-1] + self.shape)


def box_bounds(owner: str, space: Any) -> BoxBounds:
    """Return the bounds of an action space for a Gaussian policy.

    Raises:
        ConfigError: the space is not a Box of floats.
    """
    if not is_box_of_floats(space):
        raise refusal(owner, "acts in a Box of floats", space)
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    return BoxBounds(low, high, space.shape, np.dtype(space.dtype))


def in_float32(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return True for each element that can be scaled to its bounds.

    Networks compute in float32. The width of its largest numbers, a common stand-in for no bounds, is infinite there.
    """
    with np.errstate(over="ignore"):
        result: np.ndarray = np.isfinite(2.0 * (np.abs(low) + np.abs(high)).astype(np.float32))
    return result


def action_bounds(owner: str, space: Any) -> BoxBounds:
    """Return the bounds of an action space for a squashed Gaussian policy.

    Raises:
        ConfigError: the space is not a Box of floats with low < high and `in_float32`.
    """
    bounds = box_bounds(owner, space)
    if not in_float32(bounds.low, bounds.high).all():
        raise ConfigError(
            f"{owner} needs finite bounds for each element of the action, at most 8e37 apart, the action space is "
            f"{space}. Bound it in the environment: gymnasium.wrappers.TransformAction(env, lambda action: action, a "
            "Box of finite bounds), in a callable that environment.cls names."
        )
    if not (bounds.low < bounds.high).all():
        raise ConfigError(f"{owner} needs low < high for each element of the action, the action space is {space}.")
    return bounds
