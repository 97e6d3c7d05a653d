"""Flattening of an observation of any supported space to one float32 vector, in one order with NumPy and torch."""

# Theory of operation
#
# The trainer's networks and the workers' policies, on both backends, see one vector for each observation. This file
# alone decides its order, so the two sides cannot disagree. It knows spaces and no networks: `layout_of` lists the
# leaves of a space with their places; torch flattens batches by the list (`torch/mlp.py`), NumPy one observation at a
# time (`flatten_into`).
#
# Order: a Dict's entries in the space's own order (Gymnasium sorts the keys of a plain dict), a Tuple's by index, each
# nested space in place; a Box in C order; a Discrete as a one-hot vector of its n values; a MultiDiscrete as one
# one-hot vector for each entry; a MultiBinary as zeros and ones. All images come after all values. An action mask is
# left out: torch's policies put it behind everything else.
#
# In numbers: Dict(camera: Box(0, 255, (8, 8, 3), uint8), mode: Discrete(3, start=1), speed: Box(2)) has the leaves
#
#     mode     elements 0 to 2      one_hot of mode - 1
#     speed    elements 3 and 4     values
#     camera   elements 5 to 196    image, to be scaled by 1/255 behind the flattening
#
# Bytes are scaled by their bounds, element by element: (x - low) / (high - low). Other numbers are taken as they are,
# since their bounds are often a formality (a position of plus or minus 3.4e38).
#
# What is an image? A Box of bytes with the bounds 0 and 255 and the shape of one: [height, width], with channels first
# or last, or frames of these along the first axis, with at least two rows and columns. The smaller one of the first and
# the last axis counts the channels; frames are further channels. A picture is declared by its bounds, because dividing
# a board of zeros and ones by 255 would hide it. Where convolutions are set explicitly, bytes with other bounds and
# floats with three or four dimensions are images too; with the convolutions `none` there are none.
#
# Two mistakes would be silent, so this file makes them visible: an observation that is taken for an image, or for
# numbers, without its user's knowledge is logged once; and because the shapes of weights do not show it, kinds and
# bounds of bytes are metadata of the weights, which both ends compare.
#
# Images come last because convolutions take slices of the vector, and everything else (statistics, normalization, a
# first layer) takes a prefix. Bytes that are scaled by 1/255 stay bytes until the encoder, which is a quarter of the
# traffic to a device where there is nothing else.

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.policies.convolutions import NO_CONVOLUTIONS, Convolutions
from tmrl_core.actor.policies.masks import ACTION_MASK, is_masked
from tmrl_core.actor.policies.spaces import is_box_of_floats
from tmrl_core.errors import ConfigError

logger = logging.getLogger(__name__)

_LONGEST_TEXT = 500
"""Characters of a layout in metadata."""

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
        scale: for an image, the factor by which the encoder multiplies its elements.
        low, width: lowest value and width of the bounds by which elements are scaled when they are flattened, float32,
            with as many axes as `shape`, of length 1 where all are equal. None: elements are taken as they are.
        bounds: of bytes, as text; empty for others.
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
    low: np.ndarray | None = field(default=None, compare=False)
    width: np.ndarray | None = field(default=None, compare=False)
    bounds: str = ""

    @property
    def is_whole_vector(self) -> bool:
        """True: the observation itself is the vector, if this is the only leaf."""
        return self.kind == "values" and not self.path and self.width is None

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

    def scale_by_bounds(self, elements: np.ndarray) -> None:
        """Scale float32 elements [size] by their bounds, in place."""
        if self.low is not None and self.width is not None:
            array = elements.reshape(self.shape)
            array -= self.low
            array /= self.width


def layout_of(space: Any, action_space: Any = None, convolutions: Convolutions | None = None) -> tuple[Leaf, ...]:
    """Return the leaves of an observation space, in order, without the mask of these actions.

    Args:
        space: the observation space.
        action_space: of the environment.
        convolutions: set by the user; None: not set.

    Each Box of bytes is logged, once in a process: the user has to see which ones are images.

    Raises:
        ConfigError: the space, or a nested one, cannot be flattened to a vector of numbers; or convolutions are set,
            and there is no image.
    """
    masked = is_masked(space, action_space)
    found = _leaves_of(space, (), convolutions)
    leaves = [leaf for leaf in found if not (masked and leaf.path[:1] == (ACTION_MASK,))]
    if not leaves:
        raise ConfigError(f"the observation space {space} has no elements, a policy needs at least one.")
    # A stable sort: values keep their order among themselves, and so do images.
    leaves.sort(key=lambda leaf: leaf.kind == "image")
    if convolutions not in (None, NO_CONVOLUTIONS) and not images_of(leaves):
        raise ConfigError(
            f"actor.kwargs.convolutions: found {convolutions!r:.200}, and the observation space {space} has no image. "
            "Leave it out, or make observations Boxes of bytes [height, width], [height, width, channels] or "
            "[channels, height, width], or frames of these along a first axis; or Boxes of floats with three or four "
            "dimensions."
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


def _leaves_of(space: Any, path: tuple[Key, ...], convolutions: Convolutions | None) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, entry in space.spaces.items():
            yield from _leaves_of(entry, (*path, key), convolutions)
    elif isinstance(space, spaces.Tuple):
        for index, entry in enumerate(space.spaces):
            yield from _leaves_of(entry, (*path, index), convolutions)
    elif isinstance(space, spaces.Box):
        yield _box_of_bytes(space, path, convolutions) if space.dtype == np.uint8 else _box(space, path, convolutions)
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
        advice = f" Leave it out with environment.drop: [{path[0]}]." if path and isinstance(path[0], str) else ""
        raise ConfigError(
            f"the observation {_name(path)} is of the space {space}, which cannot become a vector of numbers. "
            f"Allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these.{advice}"
        )


def _box(space: spaces.Box, path: tuple[Key, ...], convolutions: Convolutions | None) -> Leaf:
    """Return the leaf of a Box of another dtype than bytes."""
    shape, size = space.shape, math.prod(space.shape)
    asked = convolutions not in (None, NO_CONVOLUTIONS)
    if asked and is_box_of_floats(space) and len(shape) in (3, 4) and size:
        return Leaf(path, "image", 0, size, shape, channels=_channels(shape))
    return Leaf(path, "values", 0, size, shape)


def _box_of_bytes(space: spaces.Box, path: tuple[Key, ...], convolutions: Convolutions | None) -> Leaf:
    """Return the leaf of a Box of bytes, and log it."""
    shape, size = space.shape, math.prod(space.shape)
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    # An element that has only one value becomes 0.
    width = np.where(high > low, high - low, np.float32(1))
    declared = convolutions is None and bool((low == 0).all() and (width == 255).all())
    asked = convolutions not in (None, NO_CONVOLUTIONS)
    bounds = f"{_told(space.low)} to {_told(space.high)}"
    leaf = Leaf(path, "values", 0, size, shape, low=_without_repetition(low), width=_without_repetition(width))
    leaf = replace(leaf, bounds=bounds)
    if (declared or asked) and _has_shape_of_image(shape):
        leaf = replace(leaf, kind="image", channels=_channels(shape))
        if (low == 0).all() and (width == width.flat[0]).all():
            # The encoder scales them, so that bytes stay bytes as long as possible.
            leaf = replace(leaf, scale=1.0 / float(width.flat[0]), low=None, width=None)
    elif (low == 0).all() and (width == 1).all():
        leaf = replace(leaf, low=None, width=None)
    kind = "an image, for convolutions" if leaf.kind == "image" else "numbers"
    _log_once(
        f"the observation {_name(path)}, uint8 of shape {shape}, is taken as {kind}, scaled by its bounds {bounds}"
    )
    return leaf


def _told(bounds: np.ndarray) -> str:
    """Return bounds as a short text, another one for each other bounds."""
    numbers = _without_repetition(bounds)
    text = ",".join(map(str, numbers.ravel().tolist()))
    return text if len(text) <= 40 else f"{text[:20]}... (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _without_repetition(bounds: np.ndarray) -> np.ndarray:
    """Return bounds with length 1 along each axis on which all are equal."""
    # A camera's bounds of 150,000 equal numbers become one, which broadcasts; the layout is made for each network.
    for axis, length in enumerate(bounds.shape):
        first = bounds.take(range(min(length, 1)), axis)
        if (bounds == first).all():
            bounds = first
    return bounds


@lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    # A process makes the layout of one space for each of its networks.
    logger.info("%s (actor.kwargs.convolutions)", text)


def _has_shape_of_image(shape: tuple[int, ...]) -> bool:
    """Tell whether convolutions take bytes of this shape: a single row or column is not an image."""
    if not 2 <= len(shape) <= 4 or 0 in shape:
        return False
    channels = _channels(shape)
    return all(length >= 2 for axis, length in enumerate(shape) if axis not in channels)


def _channels(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of an image that count channels and frames."""
    if len(shape) == 2:
        return ()
    frames = tuple(range(len(shape) - 3))
    first, last = len(shape) - 3, len(shape) - 1
    return (*frames, first if shape[first] < shape[last] else last)


def layout_metadata(layout: Sequence[Leaf]) -> dict[str, str]:
    """Return which bytes are images and by which bounds they are scaled, since shapes of weights do not show it.

    It is an entry of the metadata of weights; none where the layout has no bytes.
    """
    told = "; ".join(f"{_name(leaf.path)} {leaf.kind} {leaf.bounds}" for leaf in layout if leaf.bounds)
    if len(told) > _LONGEST_TEXT:
        # A worker sends it to the trainer in a message of limited size.
        told = f"{told[:_LONGEST_TEXT]}... (SHA-256 {hashlib.sha256(told.encode()).hexdigest()[:16]})"
    return {"layout": told} if told else {}


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
            leaf.scale_by_bounds(part)
            continue
        part[:] = 0.0
        offset = 0
        # A loop, since it can name the integer that is wrong.
        for number, count, first in zip(np.asarray(value).ravel().tolist(), leaf.counts, leaf.first, strict=True):
            index = int(number) - first
            if not 0 <= index < count:
                raise ValueError(f"observation {_name(leaf.path)} is {number}, not in {first}..{first + count - 1}")
            part[offset + index] = 1.0
            offset += count
