from __future__ import annotations

import logging
import threading

import pytest

from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.records import MetricRecord
from tmrl_core.metrics.sinks import MemorySink, MetricSink


class Gate(MemorySink):
    """A slow sink: its writes wait until the gate is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.open = threading.Event()
        self.ended = threading.Event()

    def write(self, record: MetricRecord) -> None:
        self.entered.set()
        assert self.open.wait(60.0)
        super().write(record)

    def close(self) -> None:
        super().close()
        self.ended.set()


class Counting(MemorySink):
    """A quick sink that a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.took = threading.Semaphore(0)

    def write(self, record: MetricRecord) -> None:
        super().write(record)
        self.took.release()


class Failing(MemorySink):
    """Fails the first so many writes, or all of them."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.tries = 0

    def write(self, record: MetricRecord) -> None:
        self.tries += 1
        if self.tries <= self.failures:
            raise OSError("no space left")
        super().write(record)


class FailingEnds(MemorySink):
    def flush(self) -> None:
        raise OSError("no flush")

    def close(self) -> None:
        super().close()
        raise OSError("no close")


def steps(sink: MemorySink) -> list[int]:
    return [kept.step for kept in sink.records]


def fill(recorder: Recorder, count: int) -> None:
    for step in range(count):
        recorder.record("round", {"return_test": float(step)}, step=step)


def test_every_sink_gets_every_record_in_order() -> None:
    sinks = [MemorySink(), MemorySink()]
    with Recorder(sinks) as recorder:
        fill(recorder, 100)
        assert recorder.flush(30.0)
        assert [steps(sink) for sink in sinks] == [list(range(100))] * 2
    assert all(sink.closed for sink in sinks)


def test_close_writes_waiting_records() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    fill(recorder, 500)
    assert recorder.close(30.0)
    assert steps(sink) == list(range(500))


def test_a_second_close_returns_the_same_and_later_records_are_ignored() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    assert recorder.close(30.0)
    fill(recorder, 1)
    assert recorder.flush(30.0)
    assert recorder.close(30.0)
    assert sink.records == []


def test_a_slow_sink_loses_its_oldest_records_and_delays_no_other() -> None:
    slow, quick = Gate(), Counting()
    recorder = Recorder([slow, quick], queue_records=3)
    recorder.record("round", {}, step=0)
    assert slow.entered.wait(30.0)
    assert quick.took.acquire(timeout=30.0)
    for step in range(1, 11):
        # The quick sink has taken each before the next comes, so that its queue of three never overflows.
        recorder.record("round", {}, step=step)
        assert quick.took.acquire(timeout=30.0)
    assert steps(quick) == list(range(11))
    slow.open.set()
    assert recorder.close(30.0)
    assert steps(slow) == [0, 8, 9, 10]
    assert [state.dropped for state in recorder.states] == [7, 0]
    assert recorder.dropped == 7


def test_flush_gives_up_on_a_slow_sink() -> None:
    slow = Gate()
    recorder = Recorder([slow])
    fill(recorder, 1)
    assert slow.entered.wait(30.0)
    assert not recorder.flush(0.01)
    slow.open.set()
    assert recorder.flush(30.0)
    assert recorder.close(30.0)


def test_close_abandons_a_hanging_sink_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    slow, quick = Gate(), MemorySink()
    recorder = Recorder([slow, quick])
    fill(recorder, 5)
    assert slow.entered.wait(30.0)
    assert not recorder.close(0.05)
    assert "Gate" in caplog.text
    assert "4 records" in caplog.text
    assert not recorder.close(30.0)
    slow.open.set()
    assert slow.ended.wait(30.0)
    assert steps(slow) == [0]
    assert slow.closed


def test_a_sink_that_fails_for_a_while_loses_nothing() -> None:
    sink = Failing(2)
    recorder = Recorder([sink], attempts=3, pause_s=0.0)
    fill(recorder, 5)
    assert recorder.close(30.0)
    assert steps(sink) == [0, 1, 2, 3, 4]
    (state,) = recorder.states
    assert (state.failed, state.error) == (0, "")


def test_a_sink_that_always_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    broken, good = Failing(10**9), MemorySink()
    recorder = Recorder([broken, good], attempts=2, pause_s=0.0)
    fill(recorder, 60)
    assert recorder.close(30.0)
    assert steps(good) == list(range(60))
    states = recorder.states
    assert (states[0].written, states[0].failed) == (0, 60)
    assert states[0].error == "OSError: no space left"
    assert (states[1].written, states[1].failed) == (60, 0)
    told = [entry for entry in caplog.records if "no space left" in entry.getMessage()]
    assert [entry.levelno for entry in told] == [logging.WARNING] * 3  # after 1, 10 and 100 failures


def test_the_pause_after_a_failure_ends_with_a_close() -> None:
    sink = Failing(1)
    recorder = Recorder([sink], pause_s=3600.0, longest_pause_s=3600.0)
    fill(recorder, 2)
    assert recorder.close(30.0)
    assert steps(sink) == [0, 1]


def test_failures_of_flush_and_close_are_logged_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    sink = FailingEnds()
    recorder = Recorder([sink], pause_s=0.0)
    fill(recorder, 3)
    assert recorder.close(30.0)
    assert steps(sink) == [0, 1, 2]
    assert "no flush" in caplog.text


def test_records_may_come_from_several_threads() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    threads = [threading.Thread(target=fill, args=(recorder, 200)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.close(30.0)
    assert sorted(steps(sink)) == sorted(list(range(200)) * 4)


def test_the_elapsed_time_continues_after_a_resume() -> None:
    now = [1000.0]
    sink = MemorySink()
    recorder = Recorder([sink], elapsed_s=60.0, clock=lambda: now[0], wall_clock=lambda: 5000.0)
    now[0] += 5.0
    assert recorder.elapsed_s == 65.0
    made = recorder.event("checkpoint", "written", step=3, path="runs/x")
    assert recorder.close(30.0)
    assert sink.records == [made]
    assert (made.time_s, made.elapsed_s, made.step, made.kind) == (5000.0, 65.0, 3, "event")
    assert made.values == {"event": "checkpoint", "message": "written", "path": "runs/x"}


@pytest.mark.parametrize("set_s", [-3 * 3600.0, 30 * 3600.0])
def test_setting_the_wall_clock_does_not_move_the_elapsed_time(set_s: float) -> None:
    wall_s = 5000.0
    with Recorder([], elapsed_s=60.0, wall_clock=lambda: wall_s) as recorder:
        before = recorder.record("round", {}, step=1)
        wall_s += set_s
        made = recorder.record("round", {}, step=2)
        assert made.time_s == 5000.0 + set_s
        assert 60.0 <= before.elapsed_s <= made.elapsed_s <= recorder.elapsed_s < 120.0


def test_a_recorder_without_sinks_does_nothing() -> None:
    sinks: list[MetricSink] = []
    with Recorder(sinks) as recorder:
        fill(recorder, 3)
        assert recorder.flush(1.0)
        assert recorder.dropped == 0


@pytest.mark.parametrize("wrong", [{"queue_records": 0}, {"attempts": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Recorder([], **wrong)  # type: ignore[arg-type]
