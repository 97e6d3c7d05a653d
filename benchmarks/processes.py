"""A process of a benchmark, and the pipe to it."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

ANSWER_S = 300.0
"""A process that does not answer for so long has failed."""


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
