"""Flattening of an observation of any supported space to one float32 vector, in one order with NumPy and torch.

Order of the elements: a Dict's entries in the space's own order (Gymnasium sorts the keys of a plain dict), a Tuple's
entries by index, each nested space in place; a Box in C order; a Discrete as a one-hot vector of its n values; a
MultiDiscrete as one one-hot vector per entry; a MultiBinary as zeros and ones. Values are taken as they are, without
scaling. An action mask (see `masks`) is left out.

Images come after all values, in C order. An encoder with convolutions scales them and makes features of them. A Box is
an image if it is of bytes (uint8) and has two to four dimensions: [height, width], with channels first or last, or
frames of these along the first axis. The smaller one of the first and the last axis counts the channels. Frames are
further channels. Boxes of floats with three or four dimensions are images too where convolutions are set explicitly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import ACTION_MASK, is_masked
from tmrl_core.actor.policies.spaces import is_box_of_floats
from tmrl_core.errors import ConfigError

Kind = Literal["values", "one_hot", "one_hots", "image"]
Key = str | int


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation and its place in the vector.

    Args:
        path: keys and indices from the observation to the array.
        kind: `values` copies elements, `one_hot` encodes one integer, `one_hots` encodes several; `image` copies the
            elements of an image.
        start: first element of the vector.
        size: number of elements of the vector.
        shape: of one observation's array.
        counts: for the one-hot kinds, the number of values of each integer.
        first: for the one-hot kinds, the lowest value of each integer.
        channels: for an image, the axes that count channels and frames.
        scale: for an image, the factor of its elements.
    """

    path: tuple[Key, ...]
    kind: Kind
    start: int
    size: int
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    scale: float = 1.0

    @property
    def sides(self) -> tuple[int, ...]:
        """The axes of an image's height and width."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.channels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Number of channels, height and width of an image."""
        height, width = (self.shape[axis] for axis in self.sides)
        return math.prod(self.shape[axis] for axis in self.channels), height, width

    def of(self, obs: Any) -> Any:
        """Return this leaf's array (or batch of arrays) in an observation."""
        for key in self.path:
            obs = obs[key]
        return obs


def layout_of(space: Any, action_space: Any = None, convolutions: Convolutions | None = None) -> tuple[Leaf, ...]:
    """Return the leaves of an observation space, in order, without the mask of these actions.

    Args:
        space: the observation space.
        action_space: of the environment.
        convolutions: set by the user; None: not set.

    Raises:
        ConfigError: the space, or a nested one, cannot be flattened to a vector of numbers; or convolutions are set,
            and there is no image.
    """
    masked = is_masked(space, action_space)
    found = _leaves_of(space, (), convolutions is not None)
    leaves = [leaf for leaf in found if not (masked and leaf.path == (ACTION_MASK,))]
    if not leaves:
        raise ConfigError(f"the observation space {space} has no elements, a policy needs at least one.")
    leaves.sort(key=lambda leaf: leaf.kind == "image")
    if convolutions is not None and not images_of(leaves):
        raise ConfigError(
            f"actor.kwargs.convolutions: found {convolutions!r:.200}, and the observation space {space} has no image. "
            "Leave it out, or make observations Boxes of bytes, or of floats with three or four dimensions."
        )
    start, placed = 0, []
    for leaf in leaves:
        placed.append(replace(leaf, start=start))
        start += leaf.size
    return tuple(placed)


def vector_size(layout: Sequence[Leaf]) -> int:
    """Return the length of the vector that a layout describes."""
    return sum(leaf.size for leaf in layout)


def images_of(layout: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Return the images of a layout."""
    return tuple(leaf for leaf in layout if leaf.kind == "image")


def values_of(layout: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Return the leaves of a layout before its images."""
    return tuple(leaf for leaf in layout if leaf.kind != "image")


def _leaves_of(space: Any, path: tuple[Key, ...], float_images: bool) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            yield from _leaves_of(entry, (*path, key), float_images)
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            yield from _leaves_of(entry, (*path, index), float_images)
    elif isinstance(space, spaces.Box):
        shape, size = space.shape, math.prod(space.shape)
        if space.dtype == np.uint8 and len(shape) >= 2:
            yield Leaf(path, "image", 0, size, shape, channels=_channels(path, shape), scale=1.0 / 255.0)
        elif float_images and is_box_of_floats(space) and len(shape) in (3, 4):
            yield Leaf(path, "image", 0, size, shape, channels=_channels(path, shape))
        else:
            yield Leaf(path, "values", 0, size, shape)
    elif isinstance(space, spaces.MultiBinary):
        shape = tuple(np.atleast_1d(space.shape).tolist())
        yield Leaf(path, "values", 0, math.prod(shape), shape)
    elif isinstance(space, spaces.Discrete):
        count = int(space.n)
        yield Leaf(path, "one_hot", 0, count, (), (count,), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        counts = tuple(int(n) for n in space.nvec.ravel())
        first = tuple(int(n) for n in np.broadcast_to(space.start, space.nvec.shape).ravel())
        yield Leaf(path, "one_hots", 0, sum(counts), space.nvec.shape, counts, first)
    else:
        raise ConfigError(
            f"the observation {_name(path)} is of the space {space}, which cannot become a vector of numbers. "
            "Allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these."
        )


def _channels(path: tuple[Key, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of an image that count channels and frames.

    Raises:
        ConfigError: the shape is not one of an image.
    """
    if len(shape) > 4 or 0 in shape:
        raise ConfigError(
            f"the observation {_name(path)} is an image of shape {shape}. Allowed: [height, width], "
            "[height, width, channels] or [channels, height, width], and frames of these along a first axis. Reshape "
            "it in the environment (gymnasium.wrappers.ReshapeObservation), in a callable that environment.cls names."
        )
    if len(shape) == 2:
        return ()
    frames = tuple(range(len(shape) - 3))
    first, last = len(shape) - 3, len(shape) - 1
    return (*frames, first if shape[first] < shape[last] else last)


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
        if leaf.kind in ("values", "image"):
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
