"""Conversation with the Server that occupies no place: a probe, and measurements with echoes."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time

from tmrl_core.doctor.steps import FailedStepError, from_text
from tmrl_core.errors import NetworkError, RefusedError, RemoteProtocolError
from tmrl_core.networking.observer.admission_probe import ProbeConnection
from tmrl_core.networking.protocol.messages import MAX_BODY_BYTES, Control, Diagnosis, Echo, Refused, plain
from tmrl_core.networking.transports.base import Driver, Transport, new_event_loop

ECHO_BYTES = 64
"""Minimum cost of an echo besides its filler, counted against the allowance."""
_MOST_OUTSTANDING = 32

REFUSED_TODO = {
    "protocol": "Install the same version of tmrl_core on both sides: `pip install -U tmrl_core`.",
    "misuse": "Install the same version of tmrl_core on both sides.",
    "full": "Try again in a minute.",
}


class Conversation:
    """Control messages to and from the Server, in the caller's thread: nothing happens between calls.

    Args:
        transport: transport of a client.
        host, port: address of the Server.
        timeout_s: maximum wait for the link, and for an answer.
    """

    def __init__(self, transport: Transport, host: str, port: int, timeout_s: float) -> None:
        self._host = host
        self._transport = transport
        self._port = port
        self._timeout_s = timeout_s
        self._loop = new_event_loop()
        self._connection = ProbeConnection(silent_s=2 * timeout_s, heartbeat_s=timeout_s / 3, greeting_s=2 * timeout_s)
        self._driver: Driver | None = None

    def dial(self) -> None:
        """Open the link.

        Raises:
            NetworkError: the link cannot be opened.
        """
        dialling = self._transport.dial(self._host, self._port, self._connection, self._timeout_s)
        self._driver = self._loop.run_until_complete(dialling)

    def say(self, message: Control) -> None:
        """Send.

        Raises:
            FailedStepError: the connection broke.
        """
        if self._connection.closing:
            raise self._broken()
        self._connection.send(message)
        self._loop.run_until_complete(asyncio.sleep(0))

    def hear(self) -> Control:
        """Return the next message.

        Raises:
            FailedStepError: no message arrived in time, the connection broke, or the data is not a message.
        """
        connection = self._connection
        if not connection.heard and not connection.closing:
            self._loop.run_until_complete(self._change())
        if connection.heard:
            return connection.heard.popleft()
        if not connection.closing:
            raise FailedStepError(
                f"{self._host} did not answer within {self._timeout_s:g} s",
                "The Server hangs, or the link is too slow: look at its log and at this machine's network.",
            )
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
        if isinstance(reason, RemoteProtocolError):
            return FailedStepError(
                f"{self._host} does not speak our protocol ({reason})",
                "Another program listens there, or only one side has network.security null.",
            )
        return from_text(str(reason), "Check the Server's log for the reason.")

    def end(self) -> None:
        """Close in order."""
        if self._loop.is_closed():
            return
        if self._driver is not None:
            self._loop.run_until_complete(self._driver.leave())
        self._loop.close()

    def ask(self, message: Control) -> Diagnosis:
        """Send the first message and return the Server's answer.

        Raises:
            FailedStepError: the Server refuses this machine.
        """
        self.say(message)
        answer = self.hear()
        if isinstance(answer, Refused):
            found, _, todo = plain(answer.reason).partition(". ")
            todo = todo or REFUSED_TODO.get(answer.code, "See docs/security.md.")
            raise FailedStepError(f"refused ({plain(answer.code, 50)}): {found}", todo)
        if not isinstance(answer, Diagnosis):
            raise FailedStepError(f"{self._host} answered with {type(answer).__name__}", REFUSED_TODO["misuse"])
        return answer

    def echo(self, echo: Echo) -> None:
        """Wait for the answer to an echo.

        Raises:
            FailedStepError: another message arrives, or none.
        """
        answer = self.hear()
        if isinstance(answer, Refused):
            raise FailedStepError(f"refused ({plain(answer.code, 50)}): {plain(answer.reason)}", REFUSED_TODO["full"])
        if not isinstance(answer, Echo) or answer.number != echo.number or len(answer.filler) != echo.size:
            raise FailedStepError(f"{self._host} answered with {type(answer).__name__}", REFUSED_TODO["misuse"])


def round_trips(conversation: Conversation) -> tuple[float, float]:
    """Return the median and the longest of ten round-trip times of small messages, one after the other, in seconds."""
    seconds = []
    for number in range(10):
        begun = time.perf_counter()
        conversation.say(Echo(number))
        conversation.echo(Echo(number))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), max(seconds)


def rate(conversation: Conversation, *, up: bool, most_bytes: int, most_s: float) -> tuple[float, int]:
    """Return the bytes per second in one direction, and the number of bytes measured, in about `most_s` seconds.

    The number of bytes in transit doubles with each round trip, so that a slow link is not filled for long.
    """
    filler = bytes(MAX_BODY_BYTES)
    begun = time.perf_counter()
    spent = number = answered = 0
    waiting: list[Echo] = []
    while True:
        more = spent + MAX_BODY_BYTES + ECHO_BYTES <= most_bytes and time.perf_counter() - begun < most_s
        if more and len(waiting) < min(_MOST_OUTSTANDING, answered + 2):
            conversation.say(Echo(number, 0, filler) if up else Echo(number, MAX_BODY_BYTES))
            waiting.append(Echo(number, 0 if up else MAX_BODY_BYTES))
            spent += MAX_BODY_BYTES + ECHO_BYTES
            number += 1
        elif waiting:
            conversation.echo(waiting.pop(0))
            answered += 1
        else:
            measured = answered * MAX_BODY_BYTES
            return measured / max(time.perf_counter() - begun, 1e-9), measured
