"""Nested tuples and dicts as lists of leaves, and back."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeGuard

from tmrl_core.errors import SampleRefusedError
from tmrl_core.training.value_types import Tree

if TYPE_CHECKING:
    import torch


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def sorted_keys(tree: Tree) -> list[Hashable]:
    """Return the keys of a dict in order.

    Raises:
        SampleRefusedError: they have no order. A worker may send any keys.
    """
    try:
        return sorted(tree)
    except TypeError:
        kinds = ", ".join(sorted({type(key).__name__ for key in tree}))
        raise SampleRefusedError(f"a dict of the samples has keys without an order, of the types {kinds}") from None


def flatten(tree: Tree, path: str = "") -> list[tuple[str, Tree]]:
    """Return the leaves of nested tuples and dicts with their paths; dicts in the order of their sorted keys.

    Raises:
        SampleRefusedError: the keys of a dict have no order.
    """
    if isinstance(tree, dict):
        return [leaf for key in sorted_keys(tree) for leaf in flatten(tree[key], f"{path}/{key}")]
    if isinstance(tree, tuple):
        return [leaf for i, item in enumerate(tree) for leaf in flatten(item, f"{path}/{i}")]
    return [(path, tree)]


def leaves_of(tree: Tree) -> list[Tree]:
    """Return the leaves of nested tuples and dicts, in the order of `flatten`."""
    return [leaf for _, leaf in flatten(tree)]


def template(tree: Tree) -> Tree:
    """Return `tree` with the number of each leaf in `flatten` in its place; dicts keep their own order.

    JSON-able: dicts and tuples become ["dict", {...}] and ["tuple", [...]].
    """
    numbers = itertools.count()

    def numbered(tree: Tree) -> Tree:
        if isinstance(tree, dict):
            found = {key: numbered(tree[key]) for key in sorted_keys(tree)}
            return ["dict", {key: found[key] for key in tree}]
        if isinstance(tree, tuple):
            return ["tuple", [numbered(item) for item in tree]]
        return next(numbers)

    return numbered(tree)


def numbers_of(shape: Tree) -> list[int]:
    """Return the numbers in a template, in its order.

    Raises:
        ValueError: it is not a template.
    """
    if isinstance(shape, int):
        return [shape]
    kind, items = shape
    if kind not in ("dict", "tuple"):
        raise ValueError(f"a node of the kind {kind!r:.50}")
    return [number for item in (items.values() if kind == "dict" else items) for number in numbers_of(item)]


def rebuild(shape: Tree, leaves: Sequence[Tree]) -> Tree:
    """Return the tree of a template, with `leaves` in the order of `flatten`."""
    if isinstance(shape, int):
        return leaves[shape]
    kind, items = shape
    if kind == "dict":
        return {key: rebuild(item, leaves) for key, item in items.items()}
    return tuple([rebuild(item, leaves) for item in items])
