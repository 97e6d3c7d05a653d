from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tmrl_core import long_calls
from tmrl_core.long_calls import LongCalls, watched


class Waiting:
    """Calls in a thread of its own, each of which lasts until `let_go`."""

    def __init__(self) -> None:
        self.entered: queue.Queue[None] = queue.Queue()
        self.gates: queue.Queue[None] = queue.Queue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        self.entered.get(timeout=10)

    def work(self) -> None:
        outer(self)
        outer(self)

    def call(self) -> None:
        self.entered.put(None)
        self.gates.get(timeout=10)

    def let_go(self, *, last: bool = False) -> None:
        self.gates.put(None)
        if last:
            self.thread.join(10)
        else:
            self.entered.get(timeout=10)


@watched("the outer call")
def outer(one: Waiting) -> None:
    inner(one)


@watched("the inner call")
def inner(one: Waiting) -> None:
    one.call()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    for _ in range(2):
        made.gates.put(None)
    made.thread.join(10)


def test_a_call_lasts_as_long_as_it_is_the_same(waiting: Waiting) -> None:
    now = 0.0
    calls = LongCalls(lambda: now)

    def look() -> Any:
        return calls.look()

    assert look().seconds == 0
    now = 40.0
    found = look()
    assert (found.name, found.seconds) == ("the inner call", 40.0)
    assert found.place.startswith(__file__), "the wait inside of the queue says nothing"
    assert found.place.endswith("in call")
    assert str(found) == f"the inner call has lasted 40 s ({found.place})"
    waiting.let_go()
    now = 50.0
    assert look().seconds == 0, "another call of the same function, perhaps at the same address"
    waiting.let_go(last=True)
    assert look() is None


def test_remarks_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_calls, "remarks", {})
    assert long_calls.trouble() == ""
    monkeypatch.setattr(long_calls, "remarks", {"a": "no step", "b": "no samples"})
    assert long_calls.trouble() == "no step; no samples"
