"""Waiting for what other threads and processes do."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], object], *processes: subprocess.Popen[str], limit_s: float = 20.0) -> None:
    """Wait until a condition is met; none of the processes may end before."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        pause.wait(0.005)
