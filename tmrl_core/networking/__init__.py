"""The public classes of the network: Buffer, Server, RolloutWorker, Trainer. Importing this loads none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.roles.buffer import Buffer
    from tmrl_core.roles.rollout_worker import RolloutWorker
    from tmrl_core.roles.server import Server
    from tmrl_core.roles.trainer import Trainer

__all__ = ["Buffer", "RolloutWorker", "Server", "Trainer"]

_, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".roles.buffer": "Buffer",
        ".roles.server": "Server",
        ".roles.trainer": "Trainer",
        ".roles.rollout_worker": "RolloutWorker",
    },
)
