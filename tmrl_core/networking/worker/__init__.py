"""A worker's side of a link: its state, which outlives links, and its end of each. Sans-I/O.

A lost connection loses no data: the next one continues from the state. `seal.py` imports `cryptography`, which costs a
process about 10 MB, so it is imported only if end-to-end authentication is on.
"""

from tmrl_core.networking.worker.connection import WorkerConnection, WorkerState

__all__ = ["WorkerConnection", "WorkerState"]
