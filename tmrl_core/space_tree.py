"""Dict and Tuple spaces as trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces

Path: TypeAlias = "tuple[Any, ...]"
"""Keys and indices that lead to a part of a space, or of its values."""


def parts_of(space: Space[Any]) -> list[tuple[Any, Space[Any]]] | None:
    """Return the parts of a space with their keys or indices, in order; None: it has none."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return None


def space_leaves(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """Yield all parts without further parts, in order."""
    parts = parts_of(space)
    if parts is None:
        yield path, space
    for key, part in parts or ():
        yield from space_leaves(part, (*path, key))


def with_leaves(
    space: Space[Any], change: Callable[[Path, Space[Any]], Space[Any] | None], path: Path = ()
) -> Space[Any] | None:
    """Return a space with other leaves; None: nothing is left.

    Args:
        space: of any kind.
        change: returns the leaf in place of another one; None leaves it out.
        path: of the space.
    """
    parts = parts_of(space)
    if parts is None:
        return change(path, space)
    kept = [(key, left) for key, part in parts if (left := with_leaves(part, change, (*path, key))) is not None]
    if not kept:
        return None
    # As a list: Gymnasium sorts the keys of a dict.
    return spaces.Dict(kept) if isinstance(space, spaces.Dict) else spaces.Tuple([part for _, part in kept])


def widest(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    """Return the space of all arrays of a shape and a dtype of numbers."""
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(least, most, shape, dtype.type)
