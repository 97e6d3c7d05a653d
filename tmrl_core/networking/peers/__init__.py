"""Client side of the protocol: state and connection of a worker, a trainer and an observer. Sans-I/O.

Each client has a state that outlives its links (`WorkerState`, `TrainerState`) and one connection object for each link
(`WorkerConnection`, `TrainerConnection`). A lost connection loses no data: the next one continues from the state.
"""

from tmrl_core.networking.peers.client import ClientState
from tmrl_core.networking.peers.members import Member
from tmrl_core.networking.peers.observer import ObserverConnection, ObserverState
from tmrl_core.networking.peers.trainer import TrainerConnection, TrainerState
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
