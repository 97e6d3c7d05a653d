"""End of a process's links in a child that was forked from it.

A forked child has none of its parent's threads, but copies of its sockets. Links and Servers refuse to be used there,
instead of waiting for threads that do not run. This package spawns its own processes.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

FORKED = (
    "this process was forked after its parent had made this object, and has none of its threads. Make the object in "
    "the child, or start processes by spawn (`multiprocessing.get_context('spawn')`)."
)


class Forkable(Protocol):
    """An object that must not be used in a forked child."""

    def end_in_child(self) -> None:
        """Refuse to be used from now on. Called in the child; locks may be held by threads that it does not have."""


_made: WeakSet[Forkable] = WeakSet()
_registered = False


def end_in_forked_children(made: Forkable) -> None:
    """Call `made.end_in_child` in each child that is forked from this process, as long as `made` exists."""
    global _registered
    _made.add(made)
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_end_all)


def _end_all() -> None:
    for made in list(_made):
        made.end_in_child()
