"""Flattening of an observation of any supported space to one float32 vector, in one order with NumPy and torch.

Order of the elements: a Dict's entries in the space's own order (Gymnasium sorts the keys of a plain dict), a Tuple's
entries by index, each nested space in place; a Box in C order; a Discrete as a one-hot vector of its n values; a
MultiDiscrete as one one-hot vector per entry; a MultiBinary as zeros and ones. Values are taken as they are, without
scaling. An action mask (see `masks`) is left out. Images (uint8 Boxes of two dimensions or more) are rejected: a
multi-layer perceptron does not suit them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.policies.masks import ACTION_MASK, is_masked
from tmrl_core.errors import ConfigError

Kind = Literal["values", "one_hot", "one_hots"]
Key = str | int


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation and its place in the vector.

    Args:
        path: keys and indices from the observation to the array.
        kind: `values` copies elements, `one_hot` encodes one integer, `one_hots` encodes several.
        start: first element of the vector.
        size: number of elements of the vector.
        shape: of one observation's array.
        counts: for the one-hot kinds, the number of values of each integer.
        first: for the one-hot kinds, the lowest value of each integer.
    """

    path: tuple[Key, ...]
    kind: Kind
    start: int
    size: int
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()
    first: tuple[int, ...] = ()

    def of(self, obs: Any) -> Any:
        """Return this leaf's array (or batch of arrays) in an observation."""
        for key in self.path:
            obs = obs[key]
        return obs


def layout_of(space: Any, action_space: Any = None) -> tuple[Leaf, ...]:
    """Return the leaves of an observation space, in order, without the mask of these actions.

    Raises:
        ConfigError: the space, or a nested one, cannot be flattened to a vector of numbers.
    """
    leaves: list[Leaf] = []
    if is_masked(space, action_space):
        for key, entry in space.spaces.items():
            if key != ACTION_MASK:
                _collect(entry, (key,), leaves)
    else:
        _collect(space, (), leaves)
    if not leaves:
        raise ConfigError(f"the observation space {space} has no elements, a policy needs at least one.")
    return tuple(leaves)


def vector_size(layout: tuple[Leaf, ...]) -> int:
    """Return the length of the vector that a layout describes."""
    return layout[-1].start + layout[-1].size


def _collect(space: Any, path: tuple[Key, ...], leaves: list[Leaf]) -> None:
    start = vector_size(tuple(leaves)) if leaves else 0
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            _collect(entry, (*path, key), leaves)
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            _collect(entry, (*path, index), leaves)
    elif isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and len(space.shape) >= 2:
            raise ConfigError(
                f"the observation {_name(path)} is an image of shape {space.shape}. A multi-layer perceptron is not "
                "made for images: name a policy with convolutions of your own in actor.cls (and agent.kwargs), or make "
                "numbers of the image in the environment (gymnasium.wrappers.TransformObservation, with an "
                "observation_space of floats), in a callable that environment.cls names."
            )
        leaves.append(Leaf(path, "values", start, math.prod(space.shape), space.shape))
    elif isinstance(space, spaces.MultiBinary):
        shape = tuple(np.atleast_1d(space.shape).tolist())
        leaves.append(Leaf(path, "values", start, math.prod(shape), shape))
    elif isinstance(space, spaces.Discrete):
        count = int(space.n)
        leaves.append(Leaf(path, "one_hot", start, count, (), (count,), (int(space.start),)))
    elif isinstance(space, spaces.MultiDiscrete):
        counts = tuple(int(n) for n in space.nvec.ravel())
        first = tuple(int(n) for n in np.broadcast_to(space.start, space.nvec.shape).ravel())
        leaves.append(Leaf(path, "one_hots", start, sum(counts), space.nvec.shape, counts, first))
    else:
        raise ConfigError(
            f"the observation {_name(path)} is of the space {space}, which cannot become a vector of numbers. "
            "Allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these."
        )


def _name(path: tuple[Key, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path) or "itself"


def flatten_into(layout: tuple[Leaf, ...], obs: Any, vector: np.ndarray) -> None:
    """Write one observation into `vector` ([size] float32).

    Raises:
        ValueError: an array has another shape than the space, or an integer is not one of its values.
    """
    for leaf in layout:
        part = vector[leaf.start : leaf.start + leaf.size]
        value = leaf.of(obs)
        if leaf.kind == "values":
            array = np.asarray(value)
            if array.shape != leaf.shape:
                raise ValueError(f"observation {_name(leaf.path)} has the shape {array.shape}, not {leaf.shape}")
            part[:] = array.ravel()
            continue
        part[:] = 0.0
        offset = 0
        for number, count, first in zip(np.asarray(value).ravel().tolist(), leaf.counts, leaf.first, strict=True):
            index = int(number) - first
            if not 0 <= index < count:
                raise ValueError(f"observation {_name(leaf.path)} is {number}, not in {first}..{first + count - 1}")
            part[offset + index] = 1.0
            offset += count
