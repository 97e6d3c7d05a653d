"""Jobs of one thread, in turns of their owners. Sans-I/O.

The jobs of an owner keep their order. Owners take turns by the costs of their jobs (start-time fair queueing, as in
`relay.credit_flow`), so that nobody waits for all that another one has put before.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

Job: TypeAlias = Callable[[], None]


class FairQueue:
    """Unbounded queue between one thread that puts jobs and one that gets them.

    Attributes:
        turn: turn of the latest job that `get` has returned.
    """

    def __init__(self) -> None:
        self.turn = 0.0
        self._jobs: queue.PriorityQueue[tuple[float, int, Job | None]] = queue.PriorityQueue()
        self._order = count()
        self._turns: dict[str, float] = {}
        """Turn of the next job of each owner; as many as there are certificates and roles."""

    def put(self, owner: str, cost: int, job: Job, after: float = 0.0) -> float:
        """Add a job and return its turn, which is not before the turn `after` of a job of any owner."""
        turn = max(self.turn, self._turns.get(owner, 0.0), after)
        self._turns[owner] = turn + cost
        self._jobs.put((turn, next(self._order), job))
        return turn

    def end(self) -> None:
        """Let `get` return None after all jobs."""
        self._jobs.put((float("inf"), 0, None))

    def get(self) -> Job | None:
        """Wait for the next job and return it; None: there will be no more."""
        self.turn, _, job = self._jobs.get()
        return job
