"""Order of Dict keys in batches: the order of the first samples, as the environment returned them.

Memories store leaves in the order of sorted keys, so that the rows of a file do not depend on the first worker. The
order for batches is that of the template in their `TreeSpec`.
"""

from __future__ import annotations

import logging

from tmrl_core.training.memories.layout import TreeSpec
from tmrl_core.training.memories.trees import numbers_of
from tmrl_core.training.value_types import Tree

logger = logging.getLogger(__name__)


class KeyOrders:
    """Warn once about samples whose keys are in another order than the first ones'."""

    def __init__(self) -> None:
        self._warned = False

    def check(self, name: str, found: TreeSpec, held: TreeSpec) -> None:
        """Compare the orders of two equal specs."""
        # A single array has no keys, and most spaces are one.
        if self._warned or found.shape == 0 or numbers_of(found.shape) == numbers_of(held.shape):
            return
        self._warned = True
        logger.warning(
            "the %s of a sample has its keys in another order (%s) than the first sample's (%s), which batches "
            "keep. A policy that depends on the order of keys acts on other inputs than it is trained on: have all "
            "workers return one order.",
            name,
            _shown(found.shape),
            _shown(held.shape),
        )


def _shown(shape: Tree) -> str:
    if isinstance(shape, int):
        return "..."
    kind, items = shape
    if kind == "tuple":
        return f"({', '.join(map(_shown, items))})"
    nested = [f": {_shown(item)}" if isinstance(item, list) else "" for item in items.values()]
    return "{" + ", ".join(f"{key}{inner}" for key, inner in zip(items, nested, strict=True)) + "}"
