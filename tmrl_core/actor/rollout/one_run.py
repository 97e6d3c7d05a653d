"""One `run` method of a worker at a time, until the worker is closed; and its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.blas_threads import one_blas_thread
from tmrl_core.errors import LinkClosedError
from tmrl_core.networking.protocol.delivery import CloseReport

CLOSE_S = 10.0
"""Maximum wait of `close` for the step that another thread is at, in seconds."""


class OneRun:
    """Guard of the `run` methods of a worker.

    Attributes:
        closed: True: the worker is closed, and nothing runs again.
    """

    def __init__(self) -> None:
        self.closed = False
        self._busy = threading.Lock()
        self._thread: int | None = None
        """Thread that is in a `run` method."""

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Enter a `run` method, with one thread of BLAS.

        Args:
            name: the worker's label for messages.

        Raises:
            LinkClosedError: the worker is closed.
            RuntimeError: another thread is in a `run` method.
        """
        if self.closed:
            raise LinkClosedError(f"worker {name} is closed")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this worker is running already, in another thread")
        self._thread = threading.get_ident()
        try:
            with one_blas_thread:
                yield
        finally:
            self._thread = None
            self._busy.release()

    @contextlib.contextmanager
    def idle(self, timeout_s: float) -> Iterator[None]:
        """Wait until no other thread is in a `run` method, at most `timeout_s` seconds; continue in any case.

        After `stop`, another thread returns after its step, unless its environment hangs.
        """
        waited = self._thread != threading.get_ident() and self._busy.acquire(timeout=timeout_s)
        try:
            yield
        finally:
            if waited:
                self._busy.release()

    def close(self, collector: Collector) -> CloseReport | None:
        """Stop a worker's collector, send the remaining samples, and close everything, once.

        Returns:
            As `Uplink.close`; None too if it is closed already.
        """
        collector.stop()
        with self.idle(CLOSE_S):
            if self.closed:
                return None
            self.closed = True
            collector.recorder.end()
            try:
                collector.close()  # before the link, which may wait long: motors stop first
            finally:
                report = collector.uplink.close()
            return report
