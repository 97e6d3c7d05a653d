"""Steps of the interpreter for an event at a Server: as many beside hundreds of workers as beside a few. Sans-I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.networking.relay.test_one_principal import End, Place
from tmrl_core.networking.protocol.messages import Ack, OpenStream, Resume, StreamOpened, Waits
from tmrl_core.networking.protocol.messages import Place as Number


def steps(event: Callable[[], object]) -> int:
    """Return the number of lines that the interpreter enters."""
    count = 0

    def line(frame: FrameType, kind: str, value: Any) -> Any:
        nonlocal count
        count += 1
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        event()
    finally:
        sys.settrace(before)
    return count


class Fleet:
    """Workers that call themselves the same, of four certificates, and their trainer."""

    def __init__(self, size: int) -> None:
        self.place = Place()
        self.workers = [self.join(number) for number in range(size)]
        opened = [message for message in self.place.trainer.heard() if isinstance(message, StreamOpened)]
        self.place.trainer.tell(*(Resume(message.channel, 0) for message in opened))
        self.channels = [message.channel for message in opened]
        for worker in self.workers:
            worker.read()

    def join(self, number: int) -> End:
        # The numbers of peers and streams differ, the names do not.
        worker = End(self.place.relay, "worker", f"c{number % 4}", number)
        worker.tell(OpenStream(0, b"%16d" % number, "robot"))
        return worker


def events(size: int) -> dict[str, int]:
    fleet = Fleet(size)
    workers, trainer = fleet.workers, fleet.place.trainer
    middle = workers[size // 2]
    measured = {
        "a worker joins": steps(lambda: fleet.join(size)),
        "a worker keeps its number": steps(lambda: middle.tell(Number(size + 5))),
        "a worker waits": steps(lambda: middle.tell(Waits(0, "waits for a policy"))),
        "an acknowledgement": steps(lambda: trainer.tell(Ack(fleet.channels[0], 0))),
    }
    workers[0].link.tick(2.5)  # logs the number of those that have joined
    measured |= {
        "time passes": steps(lambda: middle.link.tick(3.0)),
        "a worker leaves": steps(lambda: middle.link.lost(None, 3.0)),
        "it comes back": steps(lambda: fleet.join(size // 2)),
    }
    assert len(fleet.place.relay.workers) == size + 1
    return measured


def test_an_event_takes_as_long_in_a_large_fleet() -> None:
    small, large = events(20), events(800)
    assert large == pytest.approx(small, rel=0.05)
