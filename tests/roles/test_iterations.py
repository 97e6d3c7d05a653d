"""Lockstep and training round by round, with a Server, a Trainer and RolloutWorkers in one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.config import Config, from_values, use
from tmrl_core.errors import BadUpdatesError, CheckpointError, LinkClosedError
from tmrl_core.networking import RolloutWorker, Server, Trainer
from tmrl_core.networking.links import WorkerLink
from tmrl_core.roles import from_config as roles

VALUES: dict[str, Any] = {
    "run": {"name": "tests", "seed": 3},
    "environment": {"kwargs": {"id": "CartPole-v1", "to_float32": True}},
    "actor": {"cls": "tmrl_core.actor:CategoricalMLPActor", "kwargs": {"hidden_sizes": [8]}},
    "worker": {"collection": "lockstep", "name": "robot", "drain_timeout_s": 2.0},
    "network": {"transport": "local", "backoff_min_s": 0.01, "backoff_max_s": 0.05},
    "agent": {"cls": "tmrl_core.training:PPOAgent", "kwargs": {"update_epochs": 2, "minibatch_size": 32}},
    "trainer": {
        "loop": "tmrl_core.training:TrainingLockstep",
        "device": "cpu",
        "threads": 1,
        "epochs": 2,
        "rounds": 2,
        "lockstep": {"steps_per_round": 150, "grace_s": 20.0},
    },
    "metrics": {"console": False},
}


def make_config(tmp_path: Path, port: int = 55555, **sections: dict[str, Any]) -> Config:
    values = {name: {**section, **sections.get(name, {})} for name, section in VALUES.items()}
    values["run"] = {**values["run"], "folder": str(tmp_path)}
    values["server"] = {"port": port}
    return from_values({**values, **{name: value for name, value in sections.items() if name not in values}})


@contextlib.contextmanager
def worker_of(config: Config, name: str = "robot") -> Iterator[RolloutWorker]:
    """A worker that collects in a thread of its own, as `--worker` does."""
    use(config)
    try:
        worker = roles.make_worker(config, name=name)
    finally:
        use(None)

    def run() -> None:
        roles.run_worker(worker, config)
        worker.close()  # otherwise a trainer that finishes its workers would wait for it

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.close()
        thread.join(20)
        assert not thread.is_alive()


@contextlib.contextmanager
def pipeline(
    tmp_path: Path, workers: int = 1, **sections: dict[str, Any]
) -> Iterator[tuple[Trainer, list[RolloutWorker]]]:
    """A Server, workers that collect, and a Trainer that has not begun."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(port=0, config=make_config(tmp_path, 0, **sections)))
        config = make_config(tmp_path, server.port, **sections)
        robots = [stack.enter_context(worker_of(config, f"robot{number}")) for number in range(workers)]
        trainer = stack.enter_context(Trainer(config=config))
        yield trainer, robots


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.training.agent.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_an_iteration_reports_the_episodes_that_ended_in_it(tmp_path: Path) -> None:
    with pipeline(tmp_path) as (trainer, _):
        rows = [trainer.train_iteration() for _ in range(3)]
        trainer.finish()
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["memory_len"] == 150
        assert row["return_min"] <= row["return_mean"] <= row["return_max"]
        assert row["episodes"] > 2
        assert row["episode_length_mean"] == pytest.approx(row["return_mean"])  # CartPole's reward is 1
        assert row["samples_stale"] == 0


def test_other_workers_collect_the_assignment_of_a_refused_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shorter(act: Any, obs: Any, *rest: Any) -> tuple[Any, ...]:
        return (act, obs[:2], *rest)

    lockstep = {"lockstep": {"steps_per_round": 150, "grace_s": 0.5, "min_workers": 2}}
    with pipeline(tmp_path, workers=2, trainer=lockstep) as (trainer, robots):
        trainer.train_iteration()  # what samples look like is known now
        robots[1].sample_compressor = shorter
        rows = [trainer.train_iteration() for _ in range(2)]
        trainer.finish()
        assert [row["memory_len"] for row in rows] == [150, 150]
        assert rows[0]["redistributed"] > 0
        said = [message for message in caplog.messages if message.startswith("samples of worker robot1 are refused")]
        assert len(said) == 1
        assert "float32[2], and the environment declares float32[4]" in said[0]


def test_an_observation_of_another_space_is_named(tmp_path: Path) -> None:
    environment = {"kwargs": {"id": "FrozenLake-v1", "to_float32": True}}
    trainer = Trainer(config=make_config(tmp_path, environment=environment))
    assert trainer.act(15) in range(4)
    for obs in (77, -1, "north"):
        with pytest.raises(ValueError, match=rf"the observation {obs!r} is not of .* space, Discrete\(16\)"):
            trainer.act(obs)


def test_a_checkpoint_acts_and_trains_on_as_the_original(tmp_path: Path) -> None:
    obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    with pipeline(tmp_path) as (trainer, _):
        trainer.train_iteration()
        path = trainer.save(tmp_path / "saved")
        assert path == tmp_path / "saved" / "checkpoint_000001"
        saved = weights(trainer)
        trainer.train_iteration()
        assert not same(saved, weights(trainer))
        trainer.restore(path)
        assert same(saved, weights(trainer))
        assert trainer.train_iteration()["iteration"] == 2
    alone = Trainer(config=make_config(tmp_path))
    alone.restore(path)
    assert same(saved, weights(alone))
    assert alone.act(obs) in (0, 1)
    assert alone.act(obs) == alone.act(obs, test=True)
    assert {int(alone.act(obs, test=False)) for _ in range(50)} == {0, 1}
    with pytest.raises(CheckpointError):
        alone.restore(tmp_path / "nothing")
    assert same(saved, weights(alone))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be written into .*file"):
        alone.save(tmp_path / "file")


def test_one_worker_and_one_seed_give_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    found = []
    for run in ("first", "second"):
        evaluation = {**VALUES["trainer"], "evaluation": {"episodes": 2, "every_updates": 8}}
        with pipeline(tmp_path / run, trainer=evaluation) as (trainer, _):
            for _ in range(4):
                trainer.train_iteration()
            found.append(weights(trainer))
            evaluator = trainer.interface.evaluator if trainer.interface is not None else None
            assert evaluator is not None
            assert evaluator.results
    assert same(*found)


def test_several_punctual_workers_give_the_same_weights(tmp_path: Path) -> None:
    found = []
    lockstep = {"lockstep": {"steps_per_round": 150, "min_workers": 3}}
    for run in ("first", "second"):
        with pipeline(tmp_path / run, workers=3, trainer={**VALUES["trainer"], **lockstep}) as (trainer, robots):
            for _ in range(3):
                trainer.train_iteration()
            assert all(robot.steps_collected >= 150 for robot in robots)
            found.append(weights(trainer))
    assert same(*found)


def test_all_training_samples_have_the_trained_version(tmp_path: Path) -> None:
    trained: list[tuple[int, set[tuple[int, int]]]] = []
    with pipeline(tmp_path, workers=2) as (trainer, _):
        training = trainer.make_training()
        trainer.training = training
        train = training.agent.train

        def note(batch: Any) -> Any:
            versions = {tuple(row) for row in training.memory.versions().tolist()}
            trained.append((len(batch[2]), versions))
            return train(batch)

        training.agent.train = note
        for _ in range(5):
            trainer.train_iteration()
    assert [rows for rows, _ in trained] == [150] * 5
    versions = [next(iter(found)) for _, found in trained if len(found) == 1]
    assert len(versions) == 5
    assert versions == sorted(set(versions))


def test_run_trains_all_epochs_and_finishes_the_workers(tmp_path: Path) -> None:
    with pipeline(tmp_path) as (trainer, (robot,)):
        trainer.run()
        assert trainer.training.epoch == 2
        assert trainer.training.rounds_done == 4
        assert robot.link is not None
        assert robot.link.finished


def test_a_round_may_consist_of_whole_episodes(tmp_path: Path) -> None:
    lockstep = {"lockstep": {"steps_per_round": None, "episodes_per_round": 5}}
    with pipeline(tmp_path, workers=2, trainer={**VALUES["trainer"], **lockstep}) as (trainer, _):
        rows = [trainer.train_iteration() for _ in range(3)]
    assert [row["episodes"] for row in rows] == [5] * 3
    for row in rows:
        assert row["memory_len"] == round(5 * row["episode_length_mean"])


def test_stop_ends_an_iteration_that_waits(tmp_path: Path) -> None:
    with pipeline(tmp_path, workers=0) as (trainer, _):
        threading.Timer(0.3, trainer.stop).start()
        with pytest.raises(LinkClosedError, match="was stopped"):
            trainer.train_iteration()


def test_a_disconnected_worker_does_not_stop_a_round(tmp_path: Path) -> None:
    lockstep = {"lockstep": {"steps_per_round": 150, "grace_s": 0.3}}
    with pipeline(tmp_path, workers=1, trainer={**VALUES["trainer"], **lockstep}) as (trainer, (robot,)):
        trainer.train_iteration()
        robot.close()
        assert isinstance(robot.link, WorkerLink)
        config = make_config(tmp_path, robot.link.settings.port)
        with worker_of(config, "another"):
            assert trainer.train_iteration()["memory_len"] == 150


def test_ppo_trains_on_the_sampled_continuous_actions(tmp_path: Path) -> None:
    with pipeline(
        tmp_path,
        environment={"kwargs": {"id": "Pendulum-v1", "to_float32": True}},
        actor={"cls": "tmrl_core.actor:GaussianMLPActor", "kwargs": {"hidden_sizes": [8]}},
    ) as (trainer, _):
        row = trainer.train_iteration()
    assert row["memory_len"] == 150
    # The first minibatch is trained on with the weights that collected it.
    assert row["kl"] < 0.05


class Overflowing(gym.RewardWrapper[Any, Any]):
    """Rewards that are finite, but not their squares."""

    def reward(self, reward: Any) -> float:
        return 1e30


def overflowing(**kwargs: Any) -> gym.Env[Any, Any]:
    return Overflowing(gym.make("CartPole-v1", **kwargs))


def test_useless_rounds_are_counted_and_end_training(tmp_path: Path) -> None:
    gym.register("Overflowing-v0", entry_point=overflowing)
    try:
        environment = {"kwargs": {"id": "Overflowing-v0", "to_float32": True}}
        limit = {"max_bad_updates": 2}
        with pipeline(tmp_path, environment=environment, trainer=limit) as (trainer, _):
            row = trainer.train_iteration()
            before = weights(trainer)
            assert row["updates_skipped"] == 10  # two epochs of five minibatches
            assert row["updates"] == 0
            with pytest.raises(BadUpdatesError, match="2 updates in a row"):
                trainer.train_iteration()
            assert same(before, weights(trainer))
    finally:
        del gym.registry["Overflowing-v0"]
