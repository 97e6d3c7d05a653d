"""Turns of a Server's links in being read: rounds are short, and each link that has input has its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.relay.processor_time import MAX_READ_BYTES
from tmrl_core.networking.transports.read_turns import LIGHT_BYTES, LIGHT_S, ROUND_S, ReadTurns
from tmrl_core.networking.transports.tls import TlsTransport, _TlsDriver


class Link:
    """Has input whenever it is asked."""

    def __init__(self) -> None:
        self.waits = False
        self.reads = 0

    def wait_turn(self) -> None:
        self.waits = True

    def end_wait(self) -> None:
        self.waits = False


class Loop:
    """Reads from all links with input, then calls what was scheduled."""

    def __init__(self, count: int) -> None:
        self.soon: list[Callable[[], None]] = []
        self.turns = ReadTurns(self.soon.append)
        self.links = [Link() for _ in range(count)]

    def round(self, seconds: float = 0.0003, n: int = MAX_READ_BYTES) -> list[Link]:
        """Return the links that were read."""
        read = [link for link in self.links if not link.waits]
        for link in read:
            link.reads += 1
            self.turns.took(link, n, seconds, first=False)
        soon, self.soon[:] = list(self.soon), []
        for call in soon:
            call()
        return read


def test_rounds_are_short_and_each_link_has_its_turn() -> None:
    loop = Loop(200)
    assert len(loop.round()) == 200, "all were ready before any had been read"
    loop.round()  # with those that had come before the time was used up
    for _ in range(600):
        assert ROUND_S <= 0.0003 * len(loop.round()) <= ROUND_S + 0.0003
    reads = [link.reads for link in loop.links]
    assert max(reads) - min(reads) <= 1


def test_links_that_fit_one_round_never_wait() -> None:
    loop = Loop(2)
    for _ in range(10):
        assert len(loop.round(ROUND_S / 2)) == 2


def test_a_link_that_is_busy_alone_never_waits() -> None:
    loop = Loop(1)
    light = Link()
    for _ in range(10):
        assert len(loop.round(3 * ROUND_S)) == 1
        loop.turns.took(light, LIGHT_BYTES, LIGHT_S, first=False)
    other = Link()
    loop.turns.took(loop.links[0], MAX_READ_BYTES, 3 * ROUND_S, first=False)
    loop.turns.took(other, MAX_READ_BYTES, ROUND_S, first=False)
    assert not loop.links[0].waits
    assert other.waits


def test_light_reads_never_wait() -> None:
    loop = Loop(20)
    small = Link()
    for _ in range(10):
        loop.round()
        loop.turns.took(small, LIGHT_BYTES, LIGHT_S, first=False)
        assert not small.waits
    # Tiny messages may take long although they are few bytes.
    loop.turns.took(small, LIGHT_BYTES, 2 * LIGHT_S, first=False)
    assert small.waits


def test_the_first_one_is_read_in_the_next_round() -> None:
    loop = Loop(200)
    trainer = Link()
    loop.round()
    loop.turns.took(trainer, MAX_READ_BYTES, ROUND_S, first=True)
    assert trainer.waits
    loop.round()
    assert not trainer.waits


def test_a_link_is_read_again_after_both_its_turn_and_its_pause() -> None:
    class Socket:
        calls = ""

        def pause_reading(self) -> None:
            self.calls += "p"

        def resume_reading(self) -> None:
            self.calls += "r"

    async def main() -> None:
        driver = _TlsDriver(
            TlsTransport(None), Connection(silent_s=10.0, heartbeat_s=1.0), asyncio.get_event_loop(), None
        )
        sock = Socket()
        driver._socket = cast(asyncio.Transport, sock)
        driver.wait_turn()
        driver._pause(0.001)
        driver.end_wait()
        assert sock.calls == "pp"
        await asyncio.sleep(0.01)
        assert sock.calls == "ppr"
        driver._pause(0.001)
        driver.wait_turn()
        await asyncio.sleep(0.01)
        assert sock.calls == "pprpp"
        driver.end_wait()
        assert sock.calls == "pprppr"

    asyncio.run(main())
