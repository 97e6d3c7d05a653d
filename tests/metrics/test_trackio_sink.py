"""The trackio sink: metrics over an axis, one branch after a resume, and a missing package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.errors import MissingExtraError
from tmrl_core.metrics import names
from tmrl_core.metrics.branch import cut_after, position_in
from tmrl_core.metrics.records import MetricRecord, record
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.standard import open_sinks
from tmrl_core.metrics.trackio_sink import TrackioSink
from tmrl_core.testing.metric_sinks import SinkSuite, Written

trackio = pytest.importorskip("trackio")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """trackio reads its folder from the environment when it is imported, and keeps it in several modules."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "trackio" and "TRACKIO_DIR" in vars(module):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    yield
    trackio.context_vars.current_run.set(None)


def stored(project: str, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trackio.SQLiteStorage.get_logs(project, run)
    return found


class TestTrackioSink(SinkSuite):
    reads_unclosed = False

    def make_sink(self, folder: Path) -> MetricSink:
        return TrackioSink(project="suite", run_name="whole")

    def read_back(self, folder: Path) -> list[Written]:
        return [
            (log["step"], {name: value for name, value in log.items() if "/" in name})
            for log in stored("suite", "whole")
        ]


def made(updates: int, value: float) -> MetricRecord:
    row = {"return_test": value, "samples_received": 2 * updates}
    return record("round", row, step=updates, elapsed_s=1.0 * updates)


def test_a_resumed_run_has_one_branch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sinks = open_sinks(folder, console=False, further={"trackio": {"project": "branches"}})
    for updates in (1, 2, 3):
        for sink in sinks:
            sink.write(made(updates, 0.5))
        if updates == 1:
            position = position_in(folder / "metrics.jsonl")
    for sink in sinks:
        sink.close()
    cut = cut_after(folder / "metrics.jsonl", position, updates=1, elapsed_s=1.0)
    assert cut is not None
    assert cut.event is not None
    sinks = open_sinks(folder, console=False, cut=cut, further={"trackio": {"project": "branches"}})
    trackio_sink = sinks[1]
    trackio_sink.write(cut.event)
    trackio_sink.write(made(2, 0.75))
    trackio_sink.close()
    sinks[0].close()
    logs = [log for log in stored("branches", "run") if names.RETURN_TEST in log]
    assert [(log["step"], log[names.RETURN_TEST]) for log in logs] == [(2, 0.5), (4, 0.75)]
    assert [run.name for run in trackio.Api().runs("branches")] == ["run"]


def test_a_run_that_ended_in_order_is_continued(tmp_path: Path) -> None:
    for updates in (1, 2):
        sinks = open_sinks(tmp_path / "run", console=False, further={"trackio": {"project": "plain"}})
        sinks[1].write(made(updates, 0.5))
        for sink in sinks:
            sink.close()
    assert [log["step"] for log in stored("plain", "run")] == [2, 4]


def test_without_trackio_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[trackio\]"):
        TrackioSink(run_name="any")
