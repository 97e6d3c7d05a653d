"""The base class of drivers, with a transport that takes everything at once."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.transports.base import Driver


class Sink(Driver):
    """Counts what it takes."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection, loop)
        self.taken = 0
        self.finished = False

    def _writable(self) -> bool:
        return True

    def _write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        self.taken += sum(map(len, buffers))

    def _finish(self) -> None:
        self.finished = True

    def abort(self) -> None:
        self._lost(None)


class Source(Connection):
    """Has any number of messages, each of which costs 0.1 ms."""

    def __init__(self, messages: int) -> None:
        super().__init__(silent_s=10.0, heartbeat_s=1.0)
        self.messages, self.processor_s = messages, 0.0
        self.source = self._next_frame

    def _next_frame(self) -> bytes | None:
        if not self.messages:
            return None
        self.messages -= 1
        self.processor_s += 0.0001
        return bytes(44)


class Failing(Connection):
    """Fails when time passes."""

    def __init__(self) -> None:
        super().__init__(silent_s=10.0, heartbeat_s=1.0)

    def deadline(self) -> float:
        return self._now + 0.001

    def tick(self, now: float) -> None:
        raise KeyError("a defect")


def test_a_link_that_fails_when_time_passes_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        failing = Failing()
        sink = Sink(failing, loop)
        failing.connected(Identity("there"), loop.time())
        sink.wake()
        await asyncio.wait_for(asyncio.shield(sink.ended), 5.0)

    asyncio.run(main())
    assert "a link failed and is closed" in caplog.text


@pytest.mark.parametrize("closes", [False, True])
def test_a_link_with_much_to_send_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch, closes: bool) -> None:
    source = Source(20_000)
    monkeypatch.setattr(time, "thread_time", lambda: source.processor_s)
    turns = list[float]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        sink = Sink(source, loop)
        source.connected(Identity("there"), loop.time())
        source.state = "open"

        def other() -> None:
            turns.append(source.processor_s)
            if not sink.finished and (source.messages or closes):
                loop.call_soon(other)
                if closes and len(turns) == 5:
                    source.close()

        sink.wake()
        loop.call_soon(other)
        while not sink.finished and source.messages:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sink.finished == closes
        assert sink.taken == source.bytes_out
        assert (source.bytes_out == 20_000 * 44) != closes
        sink.abort()

    asyncio.run(main())
    spent = [after - before for before, after in pairwise(turns)]
    assert len(spent) >= 4
    assert max(spent) <= 0.01 + 128 * 0.0001
