"""Control channel over a link of the transport tlspyo."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tmrl_core.doctor.connection import Conversation
from tmrl_core.doctor.steps import FailedStepError, from_text
from tmrl_core.errors import NetworkError, RefusedError
from tmrl_core.networking.peers.probe import ProbeConnection
from tmrl_core.networking.protocol.messages import Control, Refused
from tmrl_core.networking.transports.base import Driver, Transport, new_event_loop


class LinkConversation(Conversation):
    """Control channel in the caller's thread: nothing happens between calls.

    Args:
        transport: transport of a client.
        host, port: address of the Server.
        timeout_s: maximum wait for the link, and for an answer.
    """

    def __init__(self, transport: Transport, host: str, port: int, timeout_s: float) -> None:
        super().__init__(host)
        self._transport = transport
        self._port = port
        self._timeout_s = timeout_s
        self._loop = new_event_loop()
        self._connection = ProbeConnection(silent_s=timeout_s, heartbeat_s=timeout_s / 3, greeting_s=timeout_s)
        self._driver: Driver | None = None

    def dial(self) -> None:
        """Open the link.

        Raises:
            NetworkError: the link cannot be opened.
        """
        dialling = self._transport.dial(self._host, self._port, self._connection, self._timeout_s)
        self._driver = self._loop.run_until_complete(dialling)

    def say(self, message: Control) -> None:
        """Send."""
        if self._connection.closing:
            raise self._broken()
        self._connection.send(message)
        self._loop.run_until_complete(asyncio.sleep(0))

    def hear(self) -> Control:
        """Return the next message."""
        connection = self._connection
        if not connection.heard and not connection.closing:
            self._loop.run_until_complete(self._change())
        if connection.heard:
            return connection.heard.popleft()
        if not connection.closing:
            raise self._silent(self._timeout_s)
        reason = connection.reason
        if isinstance(reason, RefusedError):
            return Refused(reason.code, reason.reason)
        raise self._broken()

    async def _change(self) -> None:
        changed = asyncio.Event()
        self._connection.on_change = changed.set
        connection = self._connection
        deadline = time.monotonic() + self._timeout_s
        while not (connection.heard or connection.closing) and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), left)
            changed.clear()

    def _broken(self) -> FailedStepError:
        reason = self._connection.reason or NetworkError(f"{self._host} closed the connection without a message")
        return from_text(str(reason), "Look at the Server's log: it says why.")

    def end(self) -> None:
        """Close in order."""
        if self._loop.is_closed():
            return
        if self._driver is not None:
            self._loop.run_until_complete(self._driver.leave())
        self._loop.close()
