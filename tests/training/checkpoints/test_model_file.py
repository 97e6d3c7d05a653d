from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tmrl_core.training.checkpoints.model_file import ModelFile


class Actor:
    """Weights that are a number."""

    def __init__(self) -> None:
        self.weights = 0

    def save(self, path: Path) -> None:
        path.write_text(str(self.weights))


@pytest.fixture
def training() -> Any:
    actor = Actor()
    return SimpleNamespace(agent=SimpleNamespace(actor=actor, get_actor=lambda: actor))


def test_weights_are_written_periodically_and_on_request(training: Any, tmp_path: Path) -> None:
    file = ModelFile(tmp_path / "deep" / "policy.tmod")
    found = []
    for now in (False, False, True):
        training.agent.actor.weights += 1
        file.write(training, now)
        found.append((tmp_path / "deep" / "policy.tmod").read_text())
    assert found == ["1", "1", "3"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["policy.tmod"]


def test_a_check_leaves_no_file_and_returns_the_reason(training: Any, tmp_path: Path) -> None:
    assert ModelFile(tmp_path / "deep" / "policy.tmod").check(training) == ""
    assert list((tmp_path / "deep").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in ModelFile(tmp_path / "file" / "policy.tmod").check(training)
    assert ModelFile(None).check(training) == ""


def test_a_failing_disk_does_not_end_training(training: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        ModelFile(tmp_path / "file" / "policy.tmod").write(training)
    assert "the current weights could not be written" in caplog.text


def test_without_a_path_or_a_policy_nothing_is_written(training: Any, tmp_path: Path) -> None:
    ModelFile(None).write(training, now=True)
    ModelFile(tmp_path / "policy.tmod").write(SimpleNamespace(agent=None), now=True)
    assert list(tmp_path.iterdir()) == []
