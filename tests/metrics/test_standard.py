from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.standard import WandbSettings, open_sinks


def test_json_lines_are_always_written(tmp_path: Path) -> None:
    with Recorder(open_sinks(tmp_path, console=False)) as recorder:
        assert [state.name for state in recorder.states] == ["JsonLinesSink"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_requested_sinks_are_added(tmp_path: Path) -> None:
    sinks = open_sinks(tmp_path, tensorboard=True, wandb=WandbSettings(project="tests"))
    with Recorder(sinks) as recorder:
        names = [state.name for state in recorder.states]
    assert names == ["JsonLinesSink", "ConsoleSink", "TensorBoardSink", "WandbSink"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


def test_a_missing_package_is_a_warning_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sinks = open_sinks(tmp_path, tensorboard=True, wandb=WandbSettings(project="tests"), console=False)
    with Recorder(sinks) as recorder:
        assert [state.name for state in recorder.states] == ["JsonLinesSink"]
    assert "tmrl_core[tensorboard]" in caplog.text
    assert "tmrl_core[wandb]" in caplog.text


def test_the_key_does_not_show() -> None:
    assert "secret" not in repr(WandbSettings(project="tests", key="secret"))
