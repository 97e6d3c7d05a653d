"""Links of clients: `WorkerLink` and `TrainerLink` with I/O threads, `ObserverLink` for single requests."""

from tmrl_core.networking.links.observer_link import ObserverLink
from tmrl_core.networking.links.trainer_link import TrainerCounts, TrainerLink
from tmrl_core.networking.links.worker_link import WorkerCounts, WorkerLink
from tmrl_core.networking.transports.selection import LinkSettings

__all__ = [
    "LinkSettings",
    "ObserverLink",
    "TrainerCounts",
    "TrainerLink",
    "WorkerCounts",
    "WorkerLink",
]
