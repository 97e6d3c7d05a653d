"""WorkerLink and TrainerLink: a client's I/O thread and the queues between it and the application."""

from tmrl_core.networking.links.trainer import TrainerCounts, TrainerLink
from tmrl_core.networking.links.worker import DrainReport, WorkerCounts, WorkerLink
from tmrl_core.networking.transports.select import LinkSettings

__all__ = [
    "DrainReport",
    "LinkSettings",
    "TrainerCounts",
    "TrainerLink",
    "WorkerCounts",
    "WorkerLink",
]
