"""A process of a benchmark, the pipe to it, and the cost of work."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from typing import Any, NamedTuple

ANSWER_S = 300.0
"""A process that does not answer for so long has failed."""


class Cost(NamedTuple):
    """The cost of some work."""

    wall_s: float
    processor_s: float
    """Of all threads of the process; it says more than `wall_s` on a machine that others use too."""
    parts_s: tuple[float, ...] = ()
    """The same of each process, if there are several."""


def timed(work: Callable[[], object]) -> Cost:
    """Return the cost of a call in this process."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - started, time.process_time() - used)


class Process:
    """Runs `target(*args, pipe)` in a spawned process."""

    def __init__(self, target: Any, *args: Any) -> None:
        context = mp.get_context("spawn")
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=target, args=(*args, child), daemon=True)
        self.process.start()

    def recv(self) -> Any:
        """What the process sends next."""
        assert self.pipe.poll(ANSWER_S), "a process of the benchmark does not answer"
        return self.pipe.recv()

    def ask(self, command: Any) -> Any:
        """Send a command, and what the process answers."""
        self.pipe.send(command)
        return self.recv()

    def end(self) -> None:
        """Wait a little for its end, then end it."""
        self.process.join(10)
        self.process.kill()
        self.process.join()
