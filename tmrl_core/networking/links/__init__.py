"""WorkerLink, TrainerLink: a client's I/O thread, the queues between it and the application. ObserverLink: a look."""

from tmrl_core.networking.links.observer import ObserverLink
from tmrl_core.networking.links.trainer import TrainerCounts, TrainerLink
from tmrl_core.networking.links.worker import WorkerCounts, WorkerLink
from tmrl_core.networking.transports.selection import LinkSettings

__all__ = [
    "LinkSettings",
    "ObserverLink",
    "TrainerCounts",
    "TrainerLink",
    "WorkerCounts",
    "WorkerLink",
]
