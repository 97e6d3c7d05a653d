from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.config import Config, from_values
from tmrl_core.errors import CheckpointError, FolderLockedError
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.training import ReplayMemory
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.checkpoints.manifest import read_manifest
from tmrl_core.training.checkpoints.resumption import RunCheckpoints
from tmrl_core.training.loops.training_loop import TrainingOffline

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))


class Idle(TrainingAgent):
    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> Any:
        return None


class Own(TrainingOffline):
    """Has a format of its own: one number in a file."""

    def save(self, path: str | Path) -> None:
        Path(path).write_text(str(self.epoch))

    def load(self, path: str | Path) -> None:
        self.epoch = int(Path(path).read_text())


def make(cls: type[TrainingOffline] = TrainingOffline) -> TrainingOffline:
    return cls(SPACES, lambda nb_steps, device: ReplayMemory(memory_size=10), Idle)


def test_a_run_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    checkpoints = RunCheckpoints(tmp_path / "checkpoint", Config(), make)
    training, is_new = checkpoints.make_or_load()
    assert is_new
    for training.epoch in (1, 2):
        checkpoints.write(training, wait=True)
    training, is_new = RunCheckpoints(tmp_path / "checkpoint", Config(), make).make_or_load()
    assert (training.epoch, is_new) == (2, False)
    replaced = make()
    updated = RunCheckpoints(tmp_path / "checkpoint", Config(), make, updater=lambda loaded: replaced)
    assert updated.make_or_load() == (replaced, False)


def test_without_a_folder_nothing_is_written_or_read() -> None:
    checkpoints = RunCheckpoints(None, Config(), make)
    training, is_new = checkpoints.make_or_load()
    checkpoints.write(training, wait=True, on_written=lambda: pytest.fail("nothing was written"))
    checkpoints.close()
    assert is_new


def test_custom_formats_are_written_and_read(tmp_path: Path) -> None:
    said: list[str] = []
    own = RunCheckpoints(tmp_path / "own", Config(), lambda: make(Own))
    training, _ = own.make_or_load()
    training.epoch = 5
    own.write(training, on_written=lambda: said.append("written"))
    assert own.make_or_load()[0].epoch == 5

    def dump(training: Any, path: Path) -> None:
        path.write_text(str(2 * training.epoch))

    def load(path: Path) -> Any:
        training = make()
        training.epoch = int(path.read_text()) // 2
        return training

    given = RunCheckpoints(tmp_path / "given", Config(), make, dump, load)
    given.write(training, on_written=lambda: said.append("written"))
    given.write_separately(training, tmp_path / "apart")
    assert [given.make_or_load()[0].epoch, given.read(tmp_path / "apart").epoch] == [5, 5]
    assert said == ["written"] * 2


def test_checkpoints_are_locked_until_release(tmp_path: Path) -> None:
    first, second = (RunCheckpoints(tmp_path, Config(), make) for _ in range(2))
    first.locked = second.locked = True
    training, _ = first.make_or_load()
    with pytest.raises(FolderLockedError, match="this run's checkpoints"):
        second.make_or_load()
    training.total_samples = 1
    first.write(training)
    first.unlock()
    assert second.make_or_load()[1] is False
    second.unlock()


def test_only_the_first_one_has_to_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = RunCheckpoints(tmp_path / "below", Config(), make)
    training, _ = checkpoints.make_or_load()
    assert checkpoints.write(training, wait=True) == ""  # nothing to go back to
    assert not (tmp_path / "below" / "1").exists()
    training.total_samples = 1
    (tmp_path / "below").rmdir()
    (tmp_path / "below").write_text("")
    with pytest.raises(CheckpointError, match=r"the first checkpoint cannot be written to .*below"):
        checkpoints.write(training)
    checkpoints.write(training, wait=True)
    assert caplog.text.count("could not be written") == 2


def test_checkpoints_are_due_with_the_first_samples_on_request_and_by_time(tmp_path: Path) -> None:
    now = 1000.0
    config = from_values({"checkpoint": {"every_s": 60}})
    checkpoints = RunCheckpoints(tmp_path, config, make, clock=lambda: now)
    training, _ = checkpoints.make_or_load()
    checkpoints.asked = True
    assert not checkpoints.due(training)
    training.total_samples = 1
    assert checkpoints.due(training)
    checkpoints.write(training)
    assert not checkpoints.due(training)
    checkpoints.asked = True
    assert checkpoints.due(training)
    checkpoints.write(training, wait=True)
    now += 60.0
    assert not checkpoints.due(training)  # nothing has changed
    training.total_updates = 1
    assert checkpoints.due(training)
    now -= 1.0
    assert not checkpoints.due(training)
    checkpoints.unlock()


def test_a_configuration_that_has_changed_takes_effect_or_is_refused_with_both_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def checkpoints(**sections: Any) -> RunCheckpoints:
        values = {"trainer": {"device": "cpu"}, "actor": {"kwargs": {"hidden_sizes": [8]}}, **sections}
        config = from_values(values)
        return RunCheckpoints(tmp_path, config, training_from_config(config), configured=True)

    first = checkpoints(run={"seed": 1})
    training, _ = first.make_or_load()
    training.total_samples = 1
    first.write(training, wait=True)
    configuration = read_manifest(tmp_path / "1").configuration
    assert configuration is not None
    assert configuration["run"]["seed"] == 1
    changed = checkpoints(run={"seed": 2}, agent={"kwargs": {"lr_actor": 0.25}})
    training, is_new = changed.make_or_load()
    assert not is_new
    agent: Any = training.agent
    assert agent.optimizer_actor.param_groups[0]["lr"] == 0.25
    assert changed.in_force.run.seed == 1  # generators go on
    assert "agent.kwargs.lr_actor: left out in the checkpoint, 0.25 now, which takes effect" in caplog.text
    assert "run.seed: 1 in the checkpoint, 2 now: the checkpoint's value stays in force" in caplog.text
    with pytest.raises(CheckpointError, match=r"memory\.n_step: 1 in the checkpoint, 3 now"):
        checkpoints(memory={"n_step": 3}).make_or_load()
    with pytest.raises(CheckpointError, match=r"actor\.kwargs\.hidden_sizes: \[8\] in the checkpoint, \[16\] now"):
        checkpoints(actor={"kwargs": {"hidden_sizes": [16]}}).make_or_load()
