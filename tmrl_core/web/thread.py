"""The thread of a program that serves pages: its event loop, its start, its failure and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING

from tmrl_core.errors import NetworkError, TmrlError
from tmrl_core.networking.transports.base import new_event_loop
from tmrl_core.web.server import WebServer

if TYPE_CHECKING:
    from typing_extensions import Self

    from tmrl_core.roles.shutdown import ShutdownSignal

logger = logging.getLogger(__name__)


class WebThread(ABC):
    """A web server and what belongs to it, in a thread of its own.

    A subclass makes everything that may be refused in its constructor, in the caller's thread, and calls `_begin` then.
    The first failure in the thread ends it, and `wait` raises it in the caller's.

    Args:
        web: the server; it listens already.
        name: what is served, for errors and the name of the thread.
    """

    def __init__(self, web: WebServer, name: str) -> None:
        self._web = web
        self._name = name
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._web.port

    @property
    def url(self) -> str:
        """Address for the browser."""
        return self._web.url

    @abstractmethod
    async def _serve(self) -> None:
        """Set `_ready` once requests are answered, and return after `close`, when everything has ended."""

    def _begin(self) -> None:
        """Start the thread, and return once requests are answered.

        Raises:
            TmrlError: it has failed before.
        """
        self._loop = new_event_loop()
        threading.Thread(target=self._run, name=f"tmrl-{self._name.replace(' ', '-')}", daemon=True).start()
        self._ready.wait()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as exc:
            self._failure = exc if isinstance(exc, TmrlError) else NetworkError(f"the {self._name} failed: {exc!r}")
            if not isinstance(exc, TmrlError):
                logger.exception("the %s failed", self._name)
        finally:
            self._ready.set()
            self._ended.set()
            asyncio.set_event_loop(None)
            self._loop.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; return False after the timeout.

        Raises:
            TmrlError: it ended because something failed.
        """
        ended = self._ended.wait(timeout_s)
        if ended:
            self._raise_failure()
        return ended

    def serve(self, shutdown: ShutdownSignal, *, announce: bool) -> None:
        """Serve until a stop is requested.

        Args:
            shutdown: the request.
            announce: print the port as JSON, for the process that has started this one.
        """
        if announce:
            print(json.dumps({"port": self.port}), flush=True)
        while not (shutdown.wait(0.5) or self.wait(0)):
            pass

    def close(self) -> None:
        """End in order, and wait for that. From any thread, more than once."""
        self._web.stop()
        self._ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
