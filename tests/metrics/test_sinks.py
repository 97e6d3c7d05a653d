from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tmrl_core.metrics import names
from tmrl_core.metrics.reading import read_records
from tmrl_core.metrics.records import MetricRecord, record
from tmrl_core.metrics.sinks import ConsoleSink, JsonLinesSink, MemorySink, MetricSink, describe
from tmrl_core.metrics.text import clock_text, number_text
from tmrl_core.testing.metric_sinks import SinkSuite, Written


def make(step: int = 0, **values: object) -> MetricRecord:
    return record("round", values, step=step, elapsed_s=65.0)


class TestMemorySink(SinkSuite):
    def setup_method(self) -> None:
        self.made: list[MemorySink] = []

    def make_sink(self, folder: Path) -> MetricSink:
        self.made.append(MemorySink())
        return self.made[-1]

    def read_back(self, folder: Path) -> list[Written]:
        return [(kept.env_steps or 0, kept.numbers()) for sink in self.made for kept in sink.records]


class TestJsonLinesSink(SinkSuite):
    def make_sink(self, folder: Path) -> MetricSink:
        return JsonLinesSink(folder / "deep" / "metrics.jsonl")

    def read_back(self, folder: Path) -> list[Written]:
        return [(kept.env_steps or 0, kept.numbers()) for kept in read_records(folder / "deep" / "metrics.jsonl")]


class TestJsonLinesSinkThatWaitsForTheDisk(TestJsonLinesSink):
    def make_sink(self, folder: Path) -> MetricSink:
        return JsonLinesSink(folder / "deep" / "metrics.jsonl", fsync=True)


class TestConsoleSink(SinkSuite):
    def make_sink(self, folder: Path) -> MetricSink:
        return ConsoleSink(log=lambda text: None)


def test_a_memory_sink_keeps_the_latest() -> None:
    sink = MemorySink(limit=2)
    for step in range(4):
        sink.write(make(step))
    assert [kept.step for kept in sink.records] == [2, 3]


def test_a_memory_sink_needs_a_positive_limit() -> None:
    with pytest.raises(ValueError, match="limit"):
        MemorySink(limit=0)


def test_a_line_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with JsonLinesSink(tmp_path / "metrics.jsonl") as sink:
        sink.write(make(1))
        assert len(read_records(tmp_path / "metrics.jsonl")) == 1


def test_an_incomplete_last_line_does_not_damage_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write(make(1))
        sink.write(make(2))
    path.write_bytes(path.read_bytes()[:-20])
    with JsonLinesSink(path) as sink:
        sink.write(make(3))
    assert [kept.step for kept in read_records(path)] == [1, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows renames and removes no open file")
@pytest.mark.parametrize("created", [False, True])
def test_a_renamed_file_is_followed_by_a_new_one(tmp_path: Path, created: bool) -> None:
    path, old = tmp_path / "metrics.jsonl", tmp_path / "metrics.jsonl.1"
    with JsonLinesSink(path) as sink:
        sink.write(make(1))
        path.rename(old)
        if created:
            path.touch()
        sink.write(make(2))
        sink.write(make(3))
    assert [[kept.step for kept in read_records(file)] for file in (old, path)] == [[1], [2, 3]]


def test_an_emptied_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonLinesSink(path) as sink:
        sink.write(make(1))
        os.truncate(path, 0)
        sink.write(make(2))
    assert [kept.step for kept in read_records(path)] == [2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_an_error_that_can_be_tried_again() -> None:
    sink = JsonLinesSink("/dev/full")
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            sink.write(make(1))
    sink.close()


def test_a_line_that_was_cut_by_a_failure_is_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    whole = sink._file

    class Full:
        """A file on a disk that fills up in the middle of a line."""

        closed = False

        def __init__(self) -> None:
            self.room = 10

        def write(self, data: memoryview) -> int:
            if not self.room:
                raise OSError(28, "No space left on device")
            written = whole.write(data[: self.room])
            self.room -= written
            return written

    sink._file = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        sink.write(make(1))
    sink._file = whole
    sink.write(make(1))
    sink.close()
    assert [kept.step for kept in read_records(path)] == [1]


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="taken"):
        JsonLinesSink(tmp_path / "taken" / "metrics.jsonl")


def test_lines_of_two_processes_would_not_mix(tmp_path: Path) -> None:
    """O_APPEND and one write a line: what a second writer adds lands between lines."""
    path = tmp_path / "metrics.jsonl"
    with JsonLinesSink(path) as first, JsonLinesSink(path) as second:
        for step in range(10):
            first.write(make(step))
            second.write(make(step))
    assert [kept.step for kept in read_records(path)] == [step for step in range(10) for _ in "ab"]


def test_the_console_shows_a_rounds_row() -> None:
    shown: list[str] = []
    sink = ConsoleSink(log=shown.append)
    sink.write(make(2000, epoch=0, round=3, loss_actor=1.23456, return_test=-187.25, memory_len=12345))
    (text,) = shown
    assert text.startswith("epoch 0, round 3 (1:05, 2,000 updates)\n")
    assert text.index("return_test") < text.index("memory_len") < text.index("loss_actor")
    for part in ("-187", "12,345", "1.235"):
        assert part in text


def test_the_console_omits_frequent_records() -> None:
    shown: list[str] = []
    sink = ConsoleSink(log=shown.append)
    sink.write(record("episode", {"x": 1}, step=0, elapsed_s=0.0))
    sink.write(record("network", {"x": 1}, step=0, elapsed_s=0.0))
    assert shown == []


def test_the_console_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ConsoleSink().write(make(5, return_test=-1.5))
    assert "return_test" in caplog.text


def test_an_evaluation_is_one_line() -> None:
    values = {"evaluation": 2, "return_evaluation": -150.5, "return_evaluation_std": 80.0, "episodes": 10,
              "return_target": -200.0}  # fmt: skip
    made = record("evaluation", values, step=1000, elapsed_s=65.0)
    text = "evaluation 2: mean return -150 ± 80 over 10 episodes, target -200 (1:05, 1,000 updates)"
    assert describe(made) == text


def test_an_event_is_its_message_or_its_values() -> None:
    made = record("event", {"event": "checkpoint", "message": "written"}, step=1, elapsed_s=1.0)
    assert describe(made) == "checkpoint: written (0:01, 1 updates)"
    made = record("event", {"event": "worker_joined", "worker": "robot7"}, step=1, elapsed_s=1.0)
    assert describe(made) == "worker_joined: worker robot7 (0:01, 1 updates)"
    values = {"event": "worker_joined", "worker": "robot7", "message": "worker robot7 joined"}
    assert describe(record("event", values, step=1, elapsed_s=1.0)) == "worker robot7 joined (0:01, 1 updates)"
    start: dict[str, str | float] = {"event": "start", "run_name": "pendulum", "return_target": -200.0}
    made = record("event", start, step=0, elapsed_s=1.0)
    assert describe(made) == "start: run pendulum, target -200 (0:01, 0 updates)"
    made = record("event", {"event": "phase", "phase": "learning"}, step=1, elapsed_s=1.0)
    assert describe(made) == "phase: learning (0:01, 1 updates)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "nan"), (float("nan"), "nan"), (float("-inf"), "-inf"), ("text", "text"), (True, "True"),
        (1234567, "1,234,567"), (-200.0, "-200"), (-187.25, "-187.2"), (0.00012345, "0.0001234"),
        (12345.6, "12,346"), (0, "0"),
    ],
)  # fmt: skip
def test_numbers_as_text(value: float | str | None, expected: str) -> None:
    assert number_text(value) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(-1, "0:00"), (59.9, "0:59"), (65, "1:05"), (3725, "1:02:05")])
def test_time_spans_as_text(seconds: float, expected: str) -> None:
    assert clock_text(seconds) == expected


@pytest.mark.parametrize("width", [80, 120])
def test_a_round_fits_the_terminal_with_important_values_first(width: int) -> None:
    row = dict.fromkeys(names.OF_ROWS, 12345.678) | {
        "loss_mine": 1.0,
        "updates_skipped": 3,
        "samples_stale": 0,
        "redistributed": 0,
    }
    heading, *lines = describe(record("round", row, step=2000, elapsed_s=65.0), width).splitlines()
    assert 1 <= len(lines) <= 3
    assert max(map(len, [heading, *lines])) <= width - 4  # a log indents further lines
    assert lines[0].split()[:3:2] == ["updates_skipped", "return_test"]
    for name in ("return_mean", "intervention_rate", "samples_per_s", "updates_per_s"):
        assert name in "".join(lines)
