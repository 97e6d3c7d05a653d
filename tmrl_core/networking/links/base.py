"""Base of the worker's and the trainer's link: the I/O thread that keeps one connection to the Server alive.

The I/O thread owns the event loop, the connection and their state; it never decodes samples or weights. The
application's thread passes work and takes results through a link's public methods. Only these methods may be called
from other threads. Passing work wakes the event loop only when the loop is idle, because waking it costs the
environment's loop more than all other work for a step.
"""

# Theory of operation
#
# A link is the only place of a client where threads, an event loop and sockets meet the sans-I/O objects. It knows when
# to connect, and nothing of what is said: no rule of the protocol stands here.
#
# One I/O thread for each link owns the loop, the connection and the role's state. The application's thread calls the
# public methods, from its own thread alone, and waits on `_changed`, or on `_news` for any change. Nothing here waits
# for the application, and the application waits for nothing but what it asks for.
#
# Two directions of waking, both rare on purpose, because a wake-up costs more than handling a message:
#
# - application -> I/O: work is put where `_serve` finds it, and `_wake_thread` wakes the loop once. `_poked` is True
#   until the loop has found nothing to do, 2 ms after the last work, so an environment that hands over a sample each
#   millisecond writes to the loop's pipe once and not a thousand times a second. The flag is reset under the lock and
#   the work looked for once more after it, or work that was submitted in between would wait for ever.
# - I/O -> application: `_on_change` asks for one `_notify`, at most one in a millisecond. It evaluates the conditions
#   of those that wait and wakes them only if one is met.
#
# States: start -> (dialling -> greeting -> open -> ended)* -> closed or failed. The role's state outlives connections,
# so each attempt begins with a new connection object and the same streams. An attempt ends with a reason:
#
#     refused for good (wrong token or certificate), never admitted   the link fails, and its owner gets the error
#     refused for good, but admitted before                           the longest wait: a person may be changing it
#     closed or refused for the moment                                waits that double, up to backoff_max_s
#     nothing answered                                                at most 2.5 s, so that a link is soon back
#     certificates of this machine have changed                       again at once
#
# A link that lasted less than the wait before it does not reset the waits: a Server that admits and drops would
# otherwise be asked hundreds of times a second. Waits are shortened at random by up to a half, or a fleet would come
# back together.
#
# The end. `close` of a role sends what it must, then `_stop_thread` sets the event that every wait of the thread
# includes, and joins it for 10 s. If the thread itself ends, for any reason, `_closed` is set and everybody who waits
# is woken, so no application waits on a link without a thread. A forked child has no such thread: `end_in_child` gives
# it new locks, since the old ones may be held by threads that the child lacks, and makes every call fail.

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from tmrl_core.errors import HandshakeError, LinkClosedError, NetworkError, RefusedError, TmrlError
from tmrl_core.forked import FORKED, end_in_forked_children
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.links.sealing import Identity
from tmrl_core.networking.protocol.client import ClientState
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.messages import RETRYABLE
from tmrl_core.networking.transports.base import Driver, Transport, new_event_loop
from tmrl_core.networking.transports.selection import LinkSettings, client_transport
from tmrl_core.rate_limited_log import RateLimitedLog

logger = logging.getLogger(__name__)

_CHECKS_S = 2.0
"""Time between two checks of the files of end-to-end authentication, and of the log."""
_NOTIFY_S = 0.001
"""Minimum time between two wake-ups of a waiting thread."""
_UNREACHABLE_WAIT_S = 2.5
"""Maximum wait between attempts to connect while the Server does not answer. Together with `connect_timeout_s` it
determines how fast a link recovers after a network that drops all packets. Packets of an attempt are repeated after 1,
3 and 7 s. In the worst case the network recovers just after the third packet: the rest of the 5 s, this wait and the
next attempt together take less than 5 s."""
_REASONS_KEPT = 20
"""Number of the latest reasons of lost links that are not logged again. A Server can invent any number of them."""
_LINES_PER_S = 0.1
"""Rate of lines about new and lost connections, after a burst. Connections that last longer are all logged."""
_IDLE_TICK_S = 0.002
"""Time that the I/O thread stays awake after the application passed work, so that the next work need not wake it."""


End = TypeVar("End", bound=Connection)
"""The role's end of one link."""


class Link(Generic[End]):
    """Base of the worker's and the trainer's link: a thread that keeps one connection to the Server alive.

    Args:
        settings: address and credentials of the Server.
        state: state of the client, which outlives connections.
        identity: certificates of the end-to-end authentication; None: it is off.
        log: log of what other members cause; its summaries are written beside the connection.
    """

    _end: ClassVar[Callable[..., Any]]
    """Class of the role's end of one link, made from the state and times in seconds."""
    _hurries = False
    """True: the work in `_serve` continues immediately while there is some."""

    def __init__(self, settings: LinkSettings, state: ClientState, identity: Identity | None, log: RemarkLog) -> None:
        self.settings = settings
        self._log = log
        self._state = state
        self._identity = identity
        self._changed = threading.Condition()
        self._news = threading.Event()
        """Set: something has changed since the last call of `WorkerLink.wait_change`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lost_text = ""
        """Reason why the latest attempt to connect, or the latest connection, has ended."""
        self._connection: End | None = None
        self._stop: asyncio.Future[None] | None = None
        """Done: the thread is to end."""
        self._closed = False
        self._failure: TmrlError | None = None
        self._welcomes = 0
        self._logged_reasons: deque[str] = deque(maxlen=_REASONS_KEPT)
        self._connected_line = RateLimitedLog(logger.info, "that were new connections", _LINES_PER_S)
        self._lost_line = RateLimitedLog(logger.warning, "that were other reasons", _LINES_PER_S)
        self._poked = False
        self._wake_lock = threading.Lock()
        self._notify_scheduled = False
        self._notified = 0.0
        self._waiting: list[Callable[[], bool]] = []
        self._has_work: Callable[[], bool] = lambda: False
        """Returns True if `_serve` has work to do now."""
        # The connection calls it in the I/O thread; nothing else of the link is known to it.
        state.on_change = self._on_change
        if identity is not None:
            state.on_revocations = identity.take_revocations

    # --- for the application ---

    def start(self) -> None:
        """Start connecting, in the background.

        Raises:
            CredentialsError: there are no credentials to connect with.
        """
        transport, token = client_transport(self.settings, self._state.role)
        self._state.token = token
        started = threading.Event()
        end_in_forked_children(self)
        self._thread = threading.Thread(
            target=self._run, args=(transport, started), name=f"tmrl-{self._state.role}-link", daemon=True
        )
        self._thread.start()
        # Without it, a call that follows at once would find no loop, and its message would be lost.
        started.wait()

    @property
    def connected(self) -> bool:
        """Return True if the Server has accepted this link."""
        connection = self._connection
        return connection is not None and connection.state == "open" and not connection.closing

    @property
    def was_connected(self) -> bool:
        """Return True if a Server has ever accepted this link."""
        return self._state.connections > 0

    @property
    def closed(self) -> bool:
        """Return True if the link was closed or has failed permanently."""
        return self._closed or self._failure is not None

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the Server has accepted this link. False: the time is over.

        Raises:
            NetworkError: the Server refuses this peer permanently.
        """
        return self._wait(lambda: self.connected, timeout_s)

    def end_in_child(self) -> None:
        """Fail permanently, in a process that was forked from this link's."""
        self._changed, self._news, self._wake_lock = threading.Condition(), threading.Event(), threading.Lock()
        self._news.set()
        self._loop = self._connection = self._thread = None
        self._failure = LinkClosedError(FORKED)

    def check(self) -> None:
        """Raise the error that has ended this link, if there is one."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise LinkClosedError("the link is closed")

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._changed:
            self._waiting.append(condition)
            try:
                met = self._changed.wait_for(lambda: condition() or self.closed, timeout_s)
            finally:
                self._waiting.remove(condition)
        if self._failure is not None:
            raise self._failure
        return met and condition()

    def _on_change(self) -> None:
        # Waking a waiting thread costs more than a message, so a flood of messages wakes it once per millisecond.
        if not self._notify_scheduled and self._loop is not None:
            self._notify_scheduled = True
            due = self._notified + _NOTIFY_S
            if self._loop.time() >= due:
                self._loop.call_soon(self._notify)  # earlier than a due timer would
            else:
                self._loop.call_at(due, self._notify)

    def _notify(self) -> None:
        """Wake waiting threads after a change. Called in the I/O thread, and when the link ends."""
        self._notify_scheduled = False
        if self._loop is not None:
            self._notified = self._loop.time()
        if self._state.connections > self._welcomes:
            self._welcomes = self._state.connections
            again = " again" if self._welcomes > 1 else ""
            line = f"connected to the Server at {self.settings.host} port {self.settings.port}{again}"
            self._connected_line(line, time.monotonic())
        with self._changed:
            # Checked before waking a thread, because an unnecessary wake-up costs as much as a necessary one.
            for condition in self._waiting:
                if self._closed or self._failure is not None or condition():
                    self._changed.notify_all()
                    break
        self._news.set()

    def _wake_thread(self) -> None:
        """Make `_serve` run in the I/O thread soon."""
        with self._wake_lock:
            if self._poked:
                return
            self._poked = True
        self._call(self._serve_and_rest)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so there is nothing left to do
                loop.call_soon_threadsafe(function, *args)

    def _tell(self, act: Callable[[End], object]) -> None:
        """Have the present connection act, in the I/O thread. A later one does by itself what it missed."""
        if (connection := self._connection) is not None:
            self._call(act, connection)

    # --- in the I/O thread ---

    def _serve(self) -> bool:
        """Do part of the submitted work. Return True if there was some."""
        return self._has_work()

    def _serve_and_rest(self) -> None:
        assert self._loop is not None
        if self._serve():
            if self._connection is not None:
                self._connection.wake()
            if self._hurries and self._has_work():
                self._loop.call_soon(self._serve_and_rest)  # input that has arrived is handled in between
            else:
                self._loop.call_later(_IDLE_TICK_S, self._serve_and_rest)
            return
        with self._wake_lock:
            self._poked = False
        if self._has_work():  # submitted between the last check and the flag
            self._wake_thread()

    def _run(self, transport: Transport, started: threading.Event) -> None:
        loop = new_event_loop()
        self._loop = loop
        try:
            loop.run_until_complete(self._keep_connected(transport, started))
        except Exception as exc:
            logger.exception("the link's thread failed")
            self._failure = NetworkError(f"the link's thread failed: {exc!r}")
        finally:
            started.set()
            self._closed = True
            self._loop = None
            loop.close()
            self._notify()

    async def _keep_connected(self, transport: Transport, started: threading.Event) -> None:
        self._stop = stop = asyncio.get_running_loop().create_future()
        started.set()
        settings = self.settings
        delay = settings.backoff_min_s
        while not stop.done():
            connection: End = self._end(
                self._state,
                silent_s=settings.silent_s,
                heartbeat_s=settings.heartbeat_s,
                greeting_s=settings.connect_timeout_s,
            )
            reason: Exception | None
            welcomes = self._state.connections
            lasted_s = 0.0
            try:
                # Set before `_on_welcome`, because the application's messages may follow immediately.
                self._connection = connection
                if self._identity is not None:
                    self._identity.refresh()
                token = transport.renewed_token()
                if token is not None:
                    self._state.token = token
                driver = await transport.dial(settings.host, settings.port, connection, settings.connect_timeout_s)
                self._wake_thread()
                begun = asyncio.get_running_loop().time()
                await self._until_ended(transport, driver, stop)
                if stop.done() or not driver.ended.done():
                    await driver.leave()
                    if not stop.done():
                        logger.info("certificates were reloaded; connecting again")
                    continue
                reason = self._explained(connection.reason)
                lasted_s = asyncio.get_running_loop().time() - begun
            except NetworkError as exc:
                reason = exc
            finally:
                self._connection = None
            self._notify()
            # Only a person can resolve it; otherwise another attempt may succeed.
            final: NetworkError | None = reason if isinstance(reason, HandshakeError) else None
            if isinstance(reason, RefusedError) and reason.code not in RETRYABLE and reason.code != "superseded":
                final = reason
            if final is not None and not self._welcomes:
                self._failure = final
                return
            welcomed = self._state.connections > welcomes
            if welcomed and lasted_s >= min(delay, settings.silent_s):
                # Only a link that has lasted resets the back-off. A Server that accepts and drops links is not retried
                # quickly.
                delay = settings.backoff_min_s
            if welcomed and lasted_s >= settings.silent_s:
                self._logged_reasons.clear()
            answered = welcomed or isinstance(reason, RefusedError | HandshakeError)
            most = settings.backoff_max_s if answered else min(settings.backoff_max_s, _UNREACHABLE_WAIT_S)
            text = str(reason) if reason is not None else "the Server has closed the connection"
            self._lost_text = text
            if text not in self._logged_reasons:
                self._lost_line(f"{text.rstrip('.')}; trying again, at most every {most:g} s", time.monotonic())
                self._logged_reasons.append(text)
            wait = most if final is not None else min(delay, most)
            delay = min(2 * delay, most)
            await asyncio.wait({stop}, timeout=wait * random.uniform(0.5, 1.0))

    async def _until_ended(self, transport: Transport, driver: Driver, stop: asyncio.Future[Any]) -> None:
        """Wait until the connection ends, the link stops, or the certificates of this machine have changed."""
        ends: set[asyncio.Future[Any]] = {driver.ended, stop}
        identity = self._identity
        while not (await asyncio.wait(ends, timeout=_CHECKS_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            self._log.summarize()
            transport.warn_of_expiry()
            if identity is not None and identity.refresh():
                return

    def _explained(self, reason: Exception | None) -> Exception | None:
        """Name the argument `password` if it is the token that the Server has refused."""
        if not (isinstance(reason, RefusedError) and reason.code == "token" and self.settings.token_is_argument):
            return reason
        found = reason.reason.partition(". ")[0].rstrip(".")  # without the Server's advice, which is about files
        return RefusedError(
            reason.code,
            f"the argument `password` was refused: {found}. With TLS, leave out password here, in the Server and in "
            "the other roles: their certificates and tokens come from the credentials. Without TLS, pass the Server's.",
        )

    def _end_soon(self) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)

    def _stop_thread(self) -> None:
        self._closed = True
        self._call(self._end_soon)
        self._notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            # A thread that hangs in a name look-up or a full disk must not keep the program from ending: it is a
            # daemon.
            self._thread.join(timeout=10.0)
