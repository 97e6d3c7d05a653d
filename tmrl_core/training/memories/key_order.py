"""Order of Dict keys in batches: the order of the first samples, as the environment returned them.

Memories store leaves in the order of sorted keys, so that the rows of a file do not depend on the first worker.
`KeyOrders` holds the order of keys for batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from tmrl_core.samples.columns import leaves as leaves_of
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.memories.trees import flatten, rebuild, template
from tmrl_core.training.value_types import Tree

logger = logging.getLogger(__name__)


def numbered(tree: Tree) -> Tree:
    """Return the tree with each leaf replaced by its index in `flatten(tree)`; dicts keep their own order."""
    return _like(tree, rebuild(template(tree), list(range(len(flatten(tree))))))


def arranged(order: Tree, leaves: list[Tree]) -> Tree:
    """Return a `numbered` tree with its indices replaced by `leaves`, which are in the order of `flatten`."""
    return map_leaves(leaves.__getitem__, order)


class KeyOrders:
    """The order of keys of each column, by its name: the first sample's order."""

    def __init__(self) -> None:
        self._orders: dict[str, Tree] = {}
        self._warned = False

    def note(self, name: str, tree: Tree) -> bool:
        """Record the order of a column with a new structure, and warn once about samples in another order.

        Returns:
            True: the column had no order yet, or had another structure.
        """
        known = self._orders.get(name)
        if known == 0 and not isinstance(tree, dict | tuple):
            return False  # a single array has no keys; this saves a tenth of storing one row
        found = numbered(tree)
        if known != found:  # comparison of dicts ignores the order
            self._orders[name] = found
            return True
        if not self._warned and _numbers(found) != _numbers(known):
            self._warned = True
            logger.warning(
                "the %s of a sample has its keys in another order (%s) than the first sample's (%s), which batches "
                "keep. A policy that depends on the order of keys acts on other inputs than it is trained on: have all "
                "workers return one order.",
                name,
                _shown(tree),
                _shown(known),
            )
        return False

    def arranged(self, name: str, shape: Tree, leaves: list[Tree]) -> Tree:
        """Return the tree of `leaves` and the template `shape`, in the recorded order, or sorted without one."""
        order = self._orders.get(name)
        if order is None:
            return rebuild(shape, leaves)
        return leaves[0] if order == 0 else arranged(order, leaves)  # most spaces are one array

    def describe(self) -> dict[str, list[int]]:
        """Return JSON-able values; `restore` undoes it."""
        return {name: _numbers(order) for name, order in self._orders.items()}

    def restore(self, name: str, numbers: Tree, shape: Tree, count: int) -> None:
        """Restore the order that `describe` returned.

        Args:
            name: name of the column.
            numbers: numbers of its leaves, as `describe` listed them.
            shape: template of the column.
            count: number of its leaves.

        Raises:
            ValueError: `numbers` lists other leaves, or the template is nested too deeply.
        """
        if not isinstance(numbers, list) or sorted(numbers) != list(range(count)):
            raise ValueError(f"the order of keys of the {name} is not one of {count} leaves")
        place = {number: i for i, number in enumerate(numbers)}
        try:
            self._orders[name] = _sorted_by(place, rebuild(shape, list(range(count))))
        except RecursionError as exc:
            raise ValueError(f"the {name} is nested too deeply") from exc


def _like(tree: Tree, other: Tree) -> Tree:
    """Return `other` with its keys in the order of a tree of the same structure."""
    if isinstance(tree, dict):
        return {key: _like(item, other[key]) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple([_like(item, part) for item, part in zip(tree, other, strict=True)])
    return other


def _numbers(order: Tree) -> list[int]:
    numbers: Iterator[Tree] = leaves_of(order)
    return list(numbers)


def _sorted_by(place: dict[int, int], order: Tree) -> Tree:
    if isinstance(order, tuple):
        return tuple([_sorted_by(place, item) for item in order])
    if not isinstance(order, dict):
        return order

    def first(item: tuple[Tree, Tree]) -> int:
        return min((place[number] for number in _numbers(item[1])), default=len(place))

    return {key: _sorted_by(place, item) for key, item in sorted(order.items(), key=first)}


def _shown(tree: Tree) -> str:
    if isinstance(tree, dict):
        nested = [f": {_shown(item)}" if isinstance(item, (dict, tuple)) else "" for item in tree.values()]
        return "{" + ", ".join(f"{key}{inner}" for key, inner in zip(tree, nested, strict=True)) + "}"
    if isinstance(tree, tuple):
        return f"({', '.join(map(_shown, tree))})"
    return "..."
