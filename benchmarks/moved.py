"""Former paths of modules and names, so that a benchmark also measures an older package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

FORMER = {
    "tmrl_core.networking.protocol": "tmrl_core.networking",
    "tmrl_core.networking.protocol.framing": "tmrl_core.networking.framing",
    "tmrl_core.networking.protocol.messages": "tmrl_core.networking.messages",
    "tmrl_core.networking.security": "tmrl_core.networking",
    "tmrl_core.networking.security.credentials": "tmrl_core.networking.credentials",
}


class _FormerPaths(MetaPathFinder, Loader):
    """Import the module at the former path under the new name; both names give one module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in FORMER else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(FORMER[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module was executed under its former name."""


def accept_former_paths() -> None:
    """Make the new names of `FORMER` importable where the package has them at the former paths only."""
    if find_spec("tmrl_core") is not None and find_spec("tmrl_core.networking.protocol") is None:
        sys.meta_path.insert(0, _FormerPaths())


def acknowledge(link: Any, received: Any) -> None:
    """Acknowledge what a trainer's link has received, by the name that the method has in this package."""
    (link.acknowledge if hasattr(link, "acknowledge") else link.commit)(received)
