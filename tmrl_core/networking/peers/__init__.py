"""What a worker and a trainer say to the Server: the clients' ends of a link. Sans-I/O.

Each has a state that outlives its links (`WorkerState`, `TrainerState`) and a connection that lives as long as one link
(`WorkerConnection`, `TrainerConnection`). Nothing is lost with a connection: the next one goes on from the state.
"""

from tmrl_core.networking.peers.client import ClientState
from tmrl_core.networking.peers.observer import ObserverConnection, ObserverState
from tmrl_core.networking.peers.trainer import Member, TrainerConnection, TrainerState
from tmrl_core.networking.peers.worker import WorkerConnection, WorkerState

__all__ = [
    "ClientState",
    "Member",
    "ObserverConnection",
    "ObserverState",
    "TrainerConnection",
    "TrainerState",
    "WorkerConnection",
    "WorkerState",
]
