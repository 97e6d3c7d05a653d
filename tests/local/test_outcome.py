"""What a run has come to, in words."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.config import from_values
from tmrl_core.config.sections import WorkerSection
from tmrl_core.local.outcome import Outcome, files, python_here, what_next
from tmrl_core.metrics import MetricRecord
from tmrl_core.metrics import record as made
from tmrl_core.metrics.text import duration_text


def record(kind: str, step: int = 0, **values: float | str) -> MetricRecord:
    """A record of second 90."""
    return made(kind, values, step=step, elapsed_s=90.0, time_s=0.0)  # type: ignore[arg-type]


def test_an_evaluation_at_the_target_is_learned() -> None:
    outcome = Outcome(-200.0)
    outcome.take([record("round", step=100, samples_received=1500), record("evaluation", return_evaluation=-900.0)])
    assert outcome.sentence().startswith("Not learned: the last evaluation has a mean return of -900")
    outcome.take([record("evaluation", step=200, return_evaluation=-150.0, episodes=10)])
    assert outcome.learned
    assert outcome.sentence() == (
        "Learned: the last evaluation of 10 episodes has a mean return of -150, the target is -200; "
        "1,500 environment steps, 200 updates, 1 min 30 s."
    )


def test_returns_have_three_digits_or_more_to_differ_from_the_target() -> None:
    outcome = Outcome(0.8)
    outcome.take([record("round", samples_received=9), record("evaluation", return_evaluation=0.9123)])
    outcome.take([record("evaluation", return_evaluation=0.7996)])
    assert not outcome.learned  # the second evaluation did not confirm the first
    assert "a mean return of 0.7996 (best: 0.912), the target is 0.8;" in outcome.sentence()


def test_the_reason_names_missing_samples() -> None:
    def started(*arguments: Any, **options: Any) -> Outcome:
        outcome = Outcome(*arguments, **options)
        outcome.take([record("event", event="start")])
        return outcome

    assert started(-200.0).sentence() == "Not learned: no sample reached the trainer in 1 min 30 s."
    assert started(None).learned
    assert started(None).sentence().startswith("Done: no evaluation was finished")
    sentence = started(None, evaluates=False).sentence()
    assert sentence.startswith("Done: the policy was not evaluated (trainer.evaluation.every_updates is 0)")


def test_simulators_that_starve_the_trainer_are_named_with_the_key_that_makes_them_wait() -> None:
    outcome = Outcome(None)
    outcome.take([record("round", step=400, samples_received=757_896)])
    assert "1,894 steps for each update. worker.max_env_steps_per_update: 1" in outcome.advice(WorkerSection())
    assert outcome.advice(WorkerSection(max_env_steps_per_update=2.0)) == ""
    assert outcome.advice(WorkerSection(collection="lockstep")) == ""
    outcome.take([record("round", step=40_000)])
    assert outcome.advice(WorkerSection()) == ""


def test_samples_before_the_first_update_starve_nobody() -> None:
    outcome = Outcome(None)
    for samples, updates, elapsed_s in ((50_010, 10, 60.0), (50_310, 310, 90.0)):
        outcome.take([made("round", {"samples_received": samples}, step=updates, elapsed_s=elapsed_s, time_s=0.0)])
    assert outcome.trained_s == 30.0
    assert outcome.advice(WorkerSection()) == ""
    outcome.take([made("round", {"samples_received": 90_000}, step=320, elapsed_s=100.0, time_s=0.0)])
    assert "The workers made 129 steps for each update" in outcome.advice(WorkerSection())


def test_a_finished_run_names_the_way_to_continue() -> None:
    assert "finished before. To continue, raise trainer.epochs" in Outcome(None).sentence()


def test_the_wait_reason_is_shown_until_training_continues() -> None:
    outcome = Outcome(None)
    outcome.take([record("network", lack="no sample has arrived yet")])
    assert outcome.lack == "no sample has arrived yet"
    outcome.take([record("network", step=1)])
    assert outcome.lack == ""


def test_only_existing_files_are_listed(tmp_path: Path) -> None:
    (tmp_path / "policy.tmod").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "lock").touch()
    text = files(tmp_path)
    assert "policy.tmod" in text
    assert "logs" + os.sep in text
    assert "learning_curve.png" not in text
    assert "checkpoint" not in text  # the folder is there, with no checkpoint in it
    (tmp_path / "checkpoint" / "1").mkdir()
    assert "checkpoint" in files(tmp_path)


def test_the_next_commands_match_the_command_line() -> None:
    from tmrl_core.cli import main as cli

    for line in what_next(from_values({"run": {"name": "x"}})).splitlines():
        for command in line.split("python -m tmrl_core ")[1:]:
            words = command.split(" (")[0].split()
            if words[0] != "--credentials":
                assert cli.parser().parse_args(words).role in cli.ROLES


@pytest.mark.parametrize("display", ["", ":0"])
def test_the_suggested_test_uses_a_window_or_a_video(display: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    pendulum = {"cls": "tmrl_core.envs:GenericGymEnv", "kwargs": {"id": "Pendulum-v1"}}
    text = what_next(from_values({"environment": pendulum}))
    assert f"config.yaml --{'render' if display else 'video test.mp4'}\n" in text
    own = what_next(from_values({"environment": {"cls": "my_robot:Arm"}}))  # which may have no pictures
    assert "play ten episodes" in own
    assert "config.yaml\n" in own


def test_durations_are_readable() -> None:
    assert [duration_text(s) for s in (0.4, 59.4, 60, 125)] == ["0 s", "59 s", "1 min 00 s", "2 min 05 s"]


def test_the_suggested_python_is_the_running_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (Path.cwd() / python_here()).samefile(sys.executable)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert (python_here() == "python") == (shutil.which("python") is not None)
