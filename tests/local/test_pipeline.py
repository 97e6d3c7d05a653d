"""All roles on this machine: what is refused before the start, and what differs from a run on several."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tmrl_core.config import Config, from_values, with_changes
from tmrl_core.config.run_folder import claim_run_name, forget_unused
from tmrl_core.errors import ConfigError
from tmrl_core.local import pipeline as local
from tmrl_core.local.outcome import is_finished
from tmrl_core.metrics import record
from tmrl_core.metrics.records import encode_line
from tmrl_core.roles.shutdown import ShutdownSignal
from tmrl_core.training.checkpoints.checked_files import FileEntry
from tmrl_core.training.checkpoints.manifest import Manifest, write_manifest

STARVING = {
    "worker": {"collection": "synchronous", "max_steps_per_update": 1.0, "initial_steps": 10},
    "trainer": {"start_training": 5000, "max_training_steps_per_env_step": 0.1},
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_ratios_that_starve_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.start_training = 5000"):
        local.run_local(from_values(STARVING), [], ShutdownSignal(), workers=2)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_refuses_them_with_exit_status_2(tmp_path: Path) -> None:
    package = Path(local.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tmrl_core", "--local", "--set", "worker.max_env_steps_per_update=0.5"],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Their product, 0.5, must be at least 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_local_transport_connects_threads_only() -> None:
    config = from_values({"network": {"transport": "local"}})
    with pytest.raises(ConfigError, match="--single-process"):
        local.changes_for_this_machine(config, 2, single_process=False, quickstart=False)
    assert local.changes_for_this_machine(config, 2, single_process=True, quickstart=False) == [
        "network.transport=local"
    ]


def test_the_server_runs_on_this_machine() -> None:
    config = from_values({"server": {"host": "server.example.org", "bind": "0.0.0.0"}})
    changes = local.changes_for_this_machine(config, 2, single_process=False, quickstart=False)
    assert changes == ["server.host=127.0.0.1", "network.hostname=null", "server.bind=127.0.0.1"]
    assert local.changes_for_this_machine(Config(), 2, single_process=False, quickstart=False) == []


def test_the_first_round_in_lockstep_waits_for_all_that_are_started() -> None:
    def lockstep(min_workers: int) -> Config:
        return from_values(
            {
                "worker": {"collection": "lockstep"},
                "trainer": {
                    "loop": "tmrl_core.training:TrainingLockstep",
                    "lockstep": {"min_workers": min_workers},
                },
                "agent": {"cls": "tmrl_core.training:PPOAgent"},
                "actor": {"cls": "tmrl_core.actor:GaussianMLPActor"},
            }
        )

    def changes(least: int, workers: int) -> list[str]:
        return local.changes_for_this_machine(lockstep(least), workers, single_process=False, quickstart=False)

    assert changes(1, 3) == ["trainer.lockstep.min_workers=3"]
    assert changes(2, 2) == []
    with pytest.raises(ConfigError, match="waits for 4 workers, and 2 would be started"):
        changes(4, 2)


def test_a_run_that_ends_before_its_first_checkpoint_promises_none(tmp_path: Path) -> None:
    config = from_values({"run": {"name": "x"}})
    (tmp_path / "runs" / "x" / "checkpoint").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "checkpoint" / "lock").touch()
    assert "there is no checkpoint" in local.ended(config, new=False)
    (tmp_path / "runs" / "x" / "checkpoint" / "1").mkdir()
    assert local.ended(config, new=False) == "Ended on request; the same command resumes from the checkpoint."
    assert "without --new or --quickstart, and with --set run.name=x, the same" in local.ended(config, new=True)


def test_a_finished_run_is_said_to_be_finished_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(epochs: int, target: float | None = None) -> int:
        evaluation = {"target_return": target, "every_updates": 100}
        config = from_values({"run": {"name": "x"}, "trainer": {"epochs": epochs, "evaluation": evaluation}})
        return local.run_local(config, [], ShutdownSignal(), workers=2)

    none = FileEntry(0, 0)
    for counter, epoch in ((9, 2), (10, 3)):
        folder = tmp_path / "runs" / "x" / "checkpoint" / str(counter)
        folder.mkdir(parents=True)
        write_manifest(
            folder, Manifest(files={"state.json": none, "arrays.safetensors": none}, counter=counter, epoch=epoch)
        )
    assert started(3) == 0
    assert "this run was finished before. To continue, raise trainer.epochs; to start" in capsys.readouterr().out
    assert started(2, target=-200.0) == 1
    assert [path.name for path in (tmp_path / "runs" / "x").iterdir()] == ["checkpoint"]
    config = from_values({"run": {"name": "x"}, "trainer": {"epochs": 4}})
    assert not is_finished(config)
    (folder / "manifest.json").write_bytes(b"{")
    assert not is_finished(with_changes(config, ["trainer.epochs=3"])), "a damaged one is the trainer's to judge"
    assert not is_finished(with_changes(config, ["run.name=y"]))


class Gone(io.StringIO):
    """A terminal that can be hung up."""

    hung_up = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.hung_up:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_closed_terminal_does_not_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Gone()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with local.View(from_values({"run": {"name": "x"}})) as view:
        assert terminal.getvalue()
        terminal.hung_up = True
        view.refresh()
        view.say("ended")
    view.say("ended")


def test_what_starves_the_trainer_is_said_during_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    config = from_values({"run": {"name": "x"}})
    config.run_folder.mkdir(parents=True)
    with local.View(config) as view:
        for elapsed_s in (1.0, 20.0, 32.0, 50.0):
            values = {"samples_received": 100_000 * elapsed_s}
            with config.metrics_path.open("ab") as file:
                file.write(encode_line(record("round", values, step=100, elapsed_s=elapsed_s, time_s=0.0)))
            view.refresh()
            said = capsys.readouterr().out.count("max_env_steps_per_update: 1")
            assert said == (elapsed_s == 32.0), "once, when the ratio has lasted"


def test_new_runs_get_names_of_their_own(tmp_path: Path) -> None:
    config = from_values({"run": {"name": "x"}})
    names = [claim_run_name(config) for _ in range(3)]
    assert names == ["x", "x-2", "x-3"]
    (tmp_path / "runs" / "x-3" / "metrics.jsonl").touch()
    for name in names:
        forget_unused(with_changes(config, [f"run.name={name}"]))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x-3"]
    long = from_values({"run": {"name": "y" * 64}})
    (tmp_path / "runs" / ("y" * 64)).mkdir()
    assert claim_run_name(long) == "y" * 56 + "-2"
