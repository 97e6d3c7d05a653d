"""Link of an observer, through which a command requests the Server's status and waits for the answer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from tmrl_core.errors import NetworkError
from tmrl_core.networking.observer.connection import ObserverConnection, ObserverState
from tmrl_core.networking.protocol.status import ServerStatus
from tmrl_core.networking.transports.base import Driver, new_event_loop
from tmrl_core.networking.transports.selection import LinkSettings, client_transport

_SLICE_S = 0.1
"""Maximum delay until the end of a wait is noticed."""
_ANSWER_S = 0.01
"""Maximum delay until an answer is noticed."""


class ObserverLink:
    """Observer's link, in the caller's thread: nothing happens between calls, `rest` included.

    Args:
        settings: address and credentials of the Server.
        run: name of the run, for display: an observer sees every run.
        timeout_s: limit on the time for connecting, and for each request.
    """

    def __init__(self, settings: LinkSettings, *, run: str = "", timeout_s: float = 10.0) -> None:
        self.settings = settings
        self._timeout_s = timeout_s
        transport, token = client_transport(settings, "observer")
        self._transport = transport
        self._state = ObserverState(run=run, name=f"pid {os.getpid()}", peer=os.urandom(16), token=token)
        self._connection: ObserverConnection | None = None
        self._driver: Driver | None = None
        self._loop = new_event_loop()

    def fetch_status(self, ending: Callable[[], bool] = lambda: False) -> ServerStatus | None:
        """Return the Server's current status, connecting first if there is no link; None: `ending` returned True.

        Raises:
            NetworkError: there is no Server, it refuses, the link broke, or no answer came in time.
        """
        settings = self.settings
        where = f"the Server at {settings.host} port {settings.port}"
        deadline = time.monotonic() + self._timeout_s
        if self._connection is None or self._connection.closing:
            connection = ObserverConnection(
                self._state, silent_s=settings.silent_s, heartbeat_s=settings.heartbeat_s, greeting_s=self._timeout_s
            )
            dialled = self._transport.dial(settings.host, settings.port, connection, self._timeout_s)
            self._driver = self._loop.run_until_complete(dialled)
            self._connection = connection
        connection, answers = self._connection, self._state.answers
        connection.request_status()
        while self._state.answers == answers:
            if connection.closing:
                raise connection.reason or NetworkError(f"{where} has closed the connection")
            if ending():
                return None
            if time.monotonic() >= deadline:
                raise NetworkError(f"{where} did not answer within {self._timeout_s:g} s")
            self._loop.run_until_complete(asyncio.sleep(_ANSWER_S))
        return self._state.status

    def rest(self, seconds: float, ending: Callable[[], bool] = lambda: False) -> bool:
        """Keep the link alive for `seconds`. False: `ending` returned True."""
        deadline = time.monotonic() + seconds
        while not ending() and (left := deadline - time.monotonic()) > 0:
            self._loop.run_until_complete(asyncio.sleep(min(left, _SLICE_S)))
        return not ending()

    def close(self) -> None:
        """Close the link in order. May be called more than once."""
        if not self._loop.is_closed():
            if self._driver is not None:
                self._loop.run_until_complete(self._driver.leave())
            self._loop.close()

    def __enter__(self) -> ObserverLink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
