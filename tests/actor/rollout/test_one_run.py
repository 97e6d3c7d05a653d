from __future__ import annotations

import threading
import time

import pytest

from tmrl_core.actor.rollout.one_run import OneRun
from tmrl_core.errors import LinkClosedError


def test_one_thread_runs_at_a_time_and_none_after_the_end() -> None:
    one = OneRun()
    again = pytest.raises(RuntimeError, match="running already, in another thread")
    with one.running("anna"), again, one.running("anna"):
        pass
    with one.running("anna"):
        pass
    one.closed = True
    with pytest.raises(LinkClosedError, match="worker anna is closed"), one.running("anna"):
        pass


def test_idle_waits_for_another_thread_and_never_for_its_own() -> None:
    one = OneRun()
    entered, leave = threading.Event(), threading.Event()

    def run() -> None:
        with one.running("anna"):
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=run)
    thread.start()
    assert entered.wait(20)
    with one.idle(0.01):  # it continues after the timeout
        assert thread.is_alive()
    leave.set()
    with one.idle(20):
        thread.join(20)
    began = time.monotonic()
    with one.running("anna"), one.idle(20):
        pass
    assert time.monotonic() - began < 10
