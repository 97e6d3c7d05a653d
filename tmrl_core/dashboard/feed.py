"""The streams of server-sent events: one for each page that is open."""

# Theory of operation
#
# A source changes in threads of its own; pages are served by one event loop. One thread waits for the source and wakes
# the loop. The loop encodes what has changed once, whatever the number of pages, and only while a page is open.
#
# There is no queue. A stream holds two numbers: of the curves and of the screen that it has sent. It sends what is
# newer, waits until the connection has taken it, and looks again. A slow reader therefore skips to the latest, and
# costs one event of memory. Example: a telephone takes 3 s for a screen; of three screens made meanwhile it gets the
# third.
#
# Ids. An event has the id `BOOT-CURVES-SCREEN`. After a broken connection the browser sends the last one as
# `Last-Event-ID`; curves that it has are not sent again, which are most of the bytes. BOOT is random, so that numbers
# of an earlier process mean nothing.
#
# Events are compressed with one zlib stream for each connection (if the browser takes gzip): a screen repeats most of
# the one before it, so of 8 kB a few hundred bytes remain. The window is 16 kB, for less memory: 64 kB a page.
#
# A silent source still gives an event each second, because ages grow: a worker becomes silent by nothing happening.
# Comments are heartbeats for proxies, sent only while there is nothing else.

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable

import msgspec

from tmrl_core.dashboard.screen import Screen, curves
from tmrl_core.dashboard.source import Source
from tmrl_core.networking.protocol.telemetry import History, Scene

HEARTBEAT_S = 15.0
EACH_S = 1.0
"""Seconds after which the screen is made again although nothing has changed."""
LEAST_S = 0.2
"""Least seconds between two screens."""
RETRY_MS = 2000
"""Milliseconds after which a browser connects again."""


class Feed:
    """Events for all pages.

    Args:
        source: of the content.
        make: makes the screen of a scene with its age in seconds; None: there is no scene.
        clock: seconds, monotonic.

    Attributes:
        viewers: number of open streams.
    """

    def __init__(
        self, source: Source, make: Callable[[Scene | None, float], Screen], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._make = make
        self._clock = clock
        self._boot = secrets.token_hex(4)
        self.viewers = 0
        self._told_s: float | None = None
        self._told_at = clock()
        self._history: History | None = None
        self._curves = b""
        self._curves_no = 0
        self._screen = b""
        self._screen_no = 0
        self._made_at = -1e9
        self._next = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Follow the source until the task is cancelled."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        ended = threading.Event()

        def follow() -> None:
            seen = -1
            while not ended.is_set():
                self._source.wait(EACH_S, seen)
                seen = self._source.changed
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(woken.set)
                ended.wait(LEAST_S)

        thread = threading.Thread(target=follow, name="tmrl-dashboard-source", daemon=True)
        thread.start()
        try:
            while True:
                await woken.wait()
                woken.clear()
                self.refresh()
        finally:
            ended.set()

    def refresh(self) -> None:
        """Take what has changed, and wake the streams."""
        scene, history = self._source.scene, self._source.history
        now = self._clock()
        # A source may make the object anew, as with round-trip times of its own; the trainer's time tells scenes apart.
        told_s = None if scene is None else scene.time_s
        if told_s != self._told_s:
            self._told_s, self._told_at = told_s, now
        if history is not self._history:
            self._history = history
            self._curves = b"" if history is None else msgspec.json.encode(curves(history))
            self._curves_no += 1
        if self.viewers == 0:
            return
        self._screen = msgspec.json.encode(self._make(scene, now - self._told_at))
        self._screen_no += 1
        self._made_at = now
        self._wake()

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    def stop(self) -> None:
        """End all streams. Call it in the event loop."""
        self._stopping = True
        self._wake()

    async def stream(self, last_id: str = "", *, compressed: bool = False) -> AsyncIterator[bytes]:
        """Yield the events of one page.

        Args:
            last_id: id of the last event that the page has.
            compressed: True: as one gzip stream.
        """
        packer = zlib.compressobj(6, zlib.DEFLATED, 16 + 14, 7) if compressed else None

        def packed(data: bytes) -> bytes:
            return data if packer is None else packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)

        curves_no, screen_no = self._position(last_id)
        self.viewers += 1
        try:
            if self._clock() - self._made_at > LEAST_S:
                self.refresh()
            yield packed(b"retry: %d\n\n" % RETRY_MS)
            while not self._stopping:
                following = self._next
                if screen_no != self._screen_no and self._screen:
                    screen_no = self._screen_no
                    yield packed(self._event(b"screen", self._screen, curves_no, screen_no))
                if curves_no != self._curves_no and self._curves:
                    curves_no = self._curves_no
                    yield packed(self._event(b"curves", self._curves, curves_no, screen_no))
                    continue  # a newer screen may have been made meanwhile
                try:
                    await asyncio.wait_for(following.wait(), HEARTBEAT_S)
                except asyncio.TimeoutError:
                    yield packed(b": \n\n")
            yield packed(b"event: end\ndata: {}\n\n")
        finally:
            self.viewers -= 1

    def _event(self, kind: bytes, data: bytes, curves_no: int, screen_no: int) -> bytes:
        head = b"id: %s-%d-%d\nevent: %s\ndata: " % (self._boot.encode(), curves_no, screen_no, kind)
        return head + data + b"\n\n"  # JSON has no line break

    def _position(self, last_id: str) -> tuple[int, int]:
        boot, _, rest = last_id.partition("-")
        curves_no, _, screen_no = rest.partition("-")
        if boot != self._boot or not (curves_no.isdecimal() and screen_no.isdecimal()) or len(rest) > 40:
            return 0, 0
        return int(curves_no), int(screen_no)
