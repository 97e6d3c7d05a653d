"""The public classes of the network: Buffer, Server, RolloutWorker, Trainer. Importing this loads none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_core.roles.buffer import Buffer
    from tmrl_core.roles.server import Server
    from tmrl_core.roles.trainer import Trainer
    from tmrl_core.roles.worker import RolloutWorker

__all__ = ["Buffer", "RolloutWorker", "Server", "Trainer"]

_PLACES = {
    "Buffer": "tmrl_core.roles.buffer",
    "RolloutWorker": "tmrl_core.roles.worker",
    "Server": "tmrl_core.roles.server",
    "Trainer": "tmrl_core.roles.trainer",
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted(__all__)
