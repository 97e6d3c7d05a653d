"""Smallest and largest values of recorded actions, compared with the bounds of their space."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tmrl_core.errors import StorageError
from tmrl_core.samples import Tree
from tmrl_core.samples.columns import Array
from tmrl_core.sessions.spaces import bound_of_json, bound_to_json
from tmrl_core.space_tree import Path, space_leaves
from tmrl_core.storage import write_whole

FILE = "actions.json"
VERSION = 1
TOLERANCE = 1e-3
"""Part of a dimension's width by which recorded actions may exceed its bounds, for those that were rounded."""
MAX_NAMED = 4
"""Maximum number of dimensions in a message."""


class ActionRanges:
    """Smallest and largest value of each dimension of the actions in Box spaces.

    Actions without the form of the space, which a worker's `sample_compressor` may make, are left out.

    Args:
        space: of the actions; None: unknown, so that all are left out.
    """

    def __init__(self, space: Space[Any] | None) -> None:
        leaves = () if space is None else space_leaves(space)
        self._boxes = {path: leaf for path, leaf in leaves if isinstance(leaf, spaces.Box) and np.prod(leaf.shape)}
        self._found: dict[Path, tuple[Array, Array]] = {}

    def add(self, actions: Tree, present: Array | None = None) -> bool:
        """Include actions; return True if a range has become wider.

        Args:
            actions: leaves [T, ...].
            present: [T] bool, rows to look at; None: all.
        """
        wider = False
        for path, box in self._boxes.items():
            column = _column(actions, path, box)
            if column is None:
                continue
            rows = column if present is None else column[present]
            if not len(rows):
                continue
            # fmin and fmax: NaN is refused elsewhere, and would hide all other values here.
            wider |= self._include(path, np.fmin.reduce(rows, axis=0), np.fmax.reduce(rows, axis=0))
        return wider

    # float64 holds all values of the dtypes that spaces have, but for int64 beyond 2**53.
    def _include(self, path: Path, low: Array, high: Array) -> bool:
        old = self._found.get(path)
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        if old is not None:
            if not ((low < old[0]) | (high > old[1])).any():
                return False
            low, high = np.fmin(low, old[0]), np.fmax(high, old[1])
        self._found[path] = low, high
        return True

    def clipped(self, actions: Tree) -> tuple[Any, int]:
        """Return the actions, moved into the bounds of their space, and the number of rows that changed."""
        changed: Any = False

        def walk(tree: Any, path: Path) -> Any:
            nonlocal changed
            if isinstance(tree, dict):
                return {key: walk(child, (*path, key)) for key, child in tree.items()}
            if isinstance(tree, tuple):
                return tuple(walk(child, (*path, index)) for index, child in enumerate(tree))
            box = self._boxes.get(path)
            if box is None or _column(actions, path, box) is None:
                return tree
            moved = np.clip(tree, box.low, box.high).astype(tree.dtype, copy=False)
            changed = changed | (moved != tree).reshape(len(tree), -1).any(axis=1)
            return moved

        found = walk(actions, ())
        return found, int(np.count_nonzero(changed))

    def lines(self) -> list[str]:
        """Return one line for each dimension, with its range."""
        return [f"{name} {low:g} to {high:g}" for name, low, high, _, _ in self._dimensions()]

    def problem(self) -> str:
        """Return the dimensions beyond their bounds by more than `TOLERANCE` of the width; empty: there are none."""
        found = []
        for name, low, high, least, most in self._dimensions():
            width = most - least
            # A dimension with one bound has no width; its bound is the only measure that there is.
            margin = TOLERANCE * (width if np.isfinite(width) else max(1.0, *(abs(b) for b in _finite(least, most))))
            if low < least - margin or high > most + margin:
                found.append(f"{name} is {low:g} to {high:g}, allowed: {least:g} to {most:g}")
        more = len(found) - MAX_NAMED
        return "; ".join(found[:MAX_NAMED]) + (f"; and {more} further dimensions" if more > 0 else "")

    def _dimensions(self) -> Iterator[tuple[str, float, float, float, float]]:
        for path, (low, high) in self._found.items():
            box = self._boxes[path]
            name = "/".join(["action", *map(str, path)])
            for at in np.ndindex(low.shape):
                place = f"[{', '.join(map(str, at))}]" if at else ""
                yield name + place, float(low[at]), float(high[at]), float(box.low[at]), float(box.high[at])

    def write(self, folder: pathlib.Path) -> None:
        """Write the ranges to a recording.

        Raises:
            OSError: the file cannot be written.
        """
        # Lists, because JSON has no tuples and its keys are text: a Tuple space has the keys 0, 1, ...
        found = [[list(path), bound_to_json(low), bound_to_json(high)] for path, (low, high) in self._found.items()]
        write_whole(folder / FILE, json.dumps({"version": VERSION, "ranges": found}, allow_nan=False).encode())

    def read(self, folder: str | os.PathLike[str]) -> None:
        """Include the ranges of a recording, if it has any.

        Raises:
            StorageError: the file is damaged.
        """
        file = pathlib.Path(folder) / FILE
        if not file.exists():  # a recording whose actions have no Box
            return
        try:
            value = json.loads(file.read_bytes())
            if value["version"] != VERSION:
                raise StorageError(f"{file} is of version {value['version']!r:.40}; {VERSION} is read")
            for path, low, high in value["ranges"]:
                shape = self._boxes[tuple(path)].shape
                both = (np.broadcast_to(np.asarray(bound_of_json(bound), np.float64), shape) for bound in (low, high))
                self._include(tuple(path), *both)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
            raise StorageError(
                f"{file} is damaged: {exc!r}. It holds the ranges of the actions only: remove it to read the sessions"
            ) from exc


def _column(actions: Any, path: Path, box: spaces.Box) -> Array | None:
    """Return the column of a part of the space; None: the actions have another form."""
    for key in path:
        inside = key in actions if isinstance(actions, dict) else isinstance(actions, tuple) and key < len(actions)
        if not inside:
            return None
        actions = actions[key]
    numeric = isinstance(actions, np.ndarray) and actions.dtype.kind in "biuf"
    return actions if numeric and actions.shape[1:] == box.shape else None


def _finite(*bounds: float) -> list[float]:
    return [bound for bound in bounds if np.isfinite(bound)] or [0.0]
