from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest

from tests.waiting import until
from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.config import CFG, Config, from_values, load
from tmrl_core.config.resuming import plain
from tmrl_core.config.room_sections import config_type
from tmrl_core.config.sections import (
    ActorSection,
    AgentSection,
    CheckpointSection,
    EvaluationSection,
    MemorySection,
    NetworkSection,
    RunSection,
    TrainerSection,
    WorkerSection,
)
from tmrl_core.envs import GenericGymEnv
from tmrl_core.errors import CheckpointError, ConfigError, FolderLockedError, StarvedError, StorageError
from tmrl_core.metrics import JsonLinesSink, names, read_records, record
from tmrl_core.metrics.branch import CUT_NAME
from tmrl_core.networking import RolloutWorker, Server, Trainer
from tmrl_core.networking.links import LinkSettings, WorkerLink
from tmrl_core.networking.links.viewer_link import ViewerLink
from tmrl_core.networking.protocol.messages import EPISODE_END
from tmrl_core.networking.protocol.telemetry import Order, OrderKind, Scene
from tmrl_core.roles import trainer as trainer_module
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.samples import Buffer, EpisodeRecord
from tmrl_core.storage import FolderLock
from tmrl_core.training import ReplayMemory
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.checkpoints import checkpoint_store
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.remote import interface as remote_module

SMALL: dict[str, Any] = {"hidden_sizes": [8, 8]}


def make_config(tmp_path: Path, *, collection: Any = "asynchronous", **settings: Any) -> Config:
    defaults: dict[str, Any] = {
        "epochs": 2,
        "rounds": 2,
        "steps": 20,
        "start_training": 30,
        "update_model_interval": 10,
        "update_buffer_interval": 10,
        "device": "cpu",
        "evaluation": EvaluationSection(episodes=2, every_updates=20),
    }
    return config_type()(
        run=RunSection(name="tests", folder=str(tmp_path), seed=3),
        network=NetworkSection(transport="local", backoff_min_s=0.01, backoff_max_s=0.05),
        worker=WorkerSection(name="robot", drain_timeout_s=2.0, collection=collection),
        memory=MemorySection(capacity=5000, batch_size=8),
        agent=AgentSection(kwargs=dict(SMALL)),
        checkpoint=CheckpointSection(keep_last=2),
        trainer=TrainerSection(**{**defaults, **settings}),
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(port=0, config=make_config(tmp_path)) as server:
        yield server


class PacedPendulum(GenericGymEnv):
    """Pendulum that leaves the interpreter to the trainer in the same process now and then."""

    def __init__(self) -> None:
        super().__init__("Pendulum-v1", to_float32=True)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Wait, then step."""
        time.sleep(0.0005)
        return super().step(action)


class Worker:
    """A RolloutWorker that collects short Pendulum episodes in a thread of its own."""

    def __init__(self, server: Server, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        # Where RolloutWorker looks for what is left out.
        monkeypatch.setattr("tmrl_core.roles.rollout_worker.current", lambda: config)
        self.worker = RolloutWorker(
            PacedPendulum,
            partial(SquashedGaussianMLPActor, hidden_sizes=(8, 8)),
            max_samples_per_episode=20,
            model_path=None,
            server_port=server.port,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.worker.run(verbose=False)
        self.report = self.worker.close()

    def close(self) -> None:
        self.worker.close()
        self.thread.join(20)


@pytest.fixture
def worker(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    worker = Worker(server, make_config(tmp_path), monkeypatch)
    yield worker
    worker.close()


def values(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    return [record.values for record in read_records(tmp_path / "tests" / "metrics.jsonl") if record.kind == kind]


def test_the_parameters_have_the_documented_order() -> None:
    parameters = list(inspect.signature(Trainer).parameters.values())
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        "training_cls", "server_ip", "server_port", "password", "security", "hostname",
        "model_path", "checkpoint_path", "dump_run_instance_fn", "load_run_instance_fn", "updater_fn",
    ]  # fmt: skip
    assert all(p.default is CFG for p in parameters[:8])
    assert all(p.default is None for p in parameters[8:11])


def test_training_on_a_worker_leaves_all_files_in_the_runs_folder(
    server: Server, worker: Worker, tmp_path: Path
) -> None:
    config = make_config(tmp_path)
    with Trainer(server_port=server.port, config=config) as trainer:
        trainer.run()
    training = trainer.training
    assert (training.epoch, training.total_updates) == (2, 80)
    assert training.total_samples >= 80
    folder = tmp_path / "tests"
    assert sorted(entry.name for entry in (folder / "checkpoint").iterdir() if entry.name.isdecimal())
    weights = SquashedGaussianMLPActor(*spaces(), hidden_sizes=(8, 8)).load(folder / "policy.tmod", "cpu")
    assert weights.to_blob() == training.agent.get_actor().to_blob()
    # The workers were told that the run is over, and everything that they had sent was taken.
    worker.thread.join(20)
    assert not worker.thread.is_alive()
    assert worker.report is not None
    assert worker.report.lost == 0
    rounds = values(tmp_path, "round")
    assert [(row["time/epoch"], row["time/round"]) for row in rounds] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "train/memory_fill", "time/fps"} <= rounds[-1].keys()
    assert not any(name.startswith("rollout/test") for name in rounds[-1])  # nobody plays test episodes here
    evaluations = values(tmp_path, "evaluation")
    assert evaluations
    assert all(row["eval/episodes"] == 2 and row["worker"] == "robot" for row in evaluations)
    events = [row["event"] for row in values(tmp_path, "event")]
    assert events[0] == "start"
    assert events[-1] == "end"
    assert {"worker_joined", "phase"} <= set(events)
    assert events.count("checkpoint") == 3  # the first samples, and two epochs
    episodes = values(tmp_path, "episode")
    assert sum(row["mode"] == "test" for row in episodes) >= 2 * len(evaluations)


def spaces() -> tuple[Any, Any]:
    env = gym.make("Pendulum-v1")
    return env.observation_space, env.action_space


def test_a_failing_wandb_does_not_stop_training(
    server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def fail(*args: Any, **kwargs: Any) -> None:
        asked.set()
        raise OSError("no space for the files of wandb")

    monkeypatch.setattr(pytest.importorskip("wandb"), "setup", fail)
    with Trainer(server_port=server.port, config=make_config(tmp_path)) as trainer:
        trainer.run_with_wandb(project="tests", entity=None, run_id="a1b2c3")
    assert asked.is_set()
    assert (trainer.training.epoch, trainer.training.total_updates) == (2, 80)
    assert len(values(tmp_path, "round")) == 4


def test_a_finished_checkpoint_returns_immediately(
    server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, epochs=1)
    Trainer(server_port=server.port, config=config).run()
    monkeypatch.setattr("tmrl_core.roles.trainer.FINISHED_S", 0.2)
    # Nobody listens there: it would wait for ever.
    again = Trainer(server_port=server.port + 1, config=config)
    again.run()
    assert again.training.epoch == 1


def test_a_trainer_of_a_finished_checkpoint_finishes_the_workers(
    server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, epochs=1)
    Trainer(server_port=server.port, config=config).run()
    worker.thread.join(20)
    # The Server's process, and with it what it kept for those who were away, is another one.
    with Server(port=0, config=config) as other:
        waiting = Worker(other, config, monkeypatch)
        try:
            Trainer(server_port=other.port, config=config).run()
            waiting.thread.join(20)
            assert not waiting.thread.is_alive(), "it waits for a run that is over"
            assert waiting.worker.link is not None
            assert waiting.worker.link.finished
        finally:
            waiting.close()


def test_a_resumed_run_calls_the_updater(
    server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.training.remote.run_shutdown.RETURN_S", 0.1)  # no worker waits for the second one
    Trainer(server_port=server.port, config=make_config(tmp_path, epochs=1)).run()
    worker.thread.join(20)
    called = []

    def updater(training: Any, training_cls: Any) -> Any:
        called.append((training.epoch, training.total_updates, len(training.memory), callable(training_cls)))
        training.epochs = 1
        return training

    config = make_config(tmp_path, epochs=3)
    trainer = Trainer(server_port=server.port, config=config, updater_fn=updater)
    trainer.run()
    ((epoch, updates, transitions, has_cls),) = called
    assert (epoch, updates, has_cls) == (1, 40, True)
    assert transitions > 30
    assert trainer.training.delivery["incarnation"] > 0
    assert len(trainer.training.delivery["marks"]) == 1


def test_only_the_configuration_in_force_is_written_to_the_runs_folder(
    server: Server, worker: Worker, tmp_path: Path
) -> None:
    config = from_values(plain(make_config(tmp_path, epochs=1)))
    written = tmp_path / "tests" / "config.yaml"

    def run(config: Config, port: int) -> None:
        trainer = Trainer(server_port=port, config=config)
        trainer.stop()
        trainer.run()

    run(config, 1)  # no Server lets it in
    assert not written.exists()
    Trainer(server_port=server.port, config=config).run()
    assert load(written, environ={}).trainer.epochs == 1
    other = msgspec.structs.replace(config, actor=ActorSection(kwargs={"hidden_sizes": [4]}), agent=AgentSection())
    with pytest.raises(CheckpointError, match=r"agent\.model"):
        run(other, server.port)
    run(config, server.port)  # finished: nothing goes on with it
    assert load(written, environ={}) == config
    assert [load(copy, environ={}) for copy in (tmp_path / "tests" / "configs").iterdir()] == [config]


def test_a_resumed_run_is_marked_in_its_records(server: Server, tmp_path: Path) -> None:
    config = make_config(tmp_path, epochs=1000)
    training = training_from_config(config)()
    training.total_updates, training.total_samples = 700, 800
    training.save(tmp_path / "tests" / "checkpoint")
    trainer = Trainer(server_port=server.port, config=config)
    trainer.stop()
    trainer.run()
    (start,) = (
        record for record in read_records(tmp_path / "tests" / "metrics.jsonl") if record.values.get("event") == "start"
    )
    assert start.step == 700  # with 0 it would be a new run, and the learning curve begin there


def test_what_a_killed_trainer_recorded_after_its_checkpoint_is_cut(
    server: Server, worker: Worker, tmp_path: Path
) -> None:
    path = tmp_path / "tests" / "metrics.jsonl"
    Trainer(server_port=server.port, config=make_config(tmp_path, epochs=1)).run()
    ended = path.read_bytes()
    elapsed_s = read_records(path)[-1].elapsed_s

    def resume() -> None:
        trainer = Trainer(server_port=server.port, config=make_config(tmp_path, epochs=3))
        trainer.stop()
        trainer.run()
        assert trainer.training.elapsed_s >= elapsed_s

    resume()
    resumed = path.read_bytes()
    assert resumed.startswith(ended)
    assert not path.with_name(CUT_NAME).exists()
    with JsonLinesSink(path) as sink:
        for step in (41, 80):
            sink.write(record("round", {}, step=step, elapsed_s=elapsed_s + step))
    resume()
    found = read_records(path)
    assert max(made.step for made in found) == 40
    times = [made.elapsed_s for made in found]
    assert times == sorted(times)
    lost = read_records(path.with_name(CUT_NAME))
    assert [made.step for made in lost][-2:] == [41, 80]
    counts = [made.number(names.CUT_RECORDS) for made in found if made.text(names.EVENT) == names.EVENT_CUT]
    assert counts == [len(lost)]


def test_a_failed_checkpoint_is_not_an_event(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(server_port=server.port, config=make_config(tmp_path, epochs=1000))
    trainer.training, _ = trainer._checkpoints.make_or_load()
    trainer.training.total_samples = 1
    trainer._checkpoints.write(trainer.training)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tmrl_core.training.checkpoints.checkpoint_store.write_checkpoint", full)
    trainer.stop()
    with pytest.raises(StorageError, match=r"No space left on device.*Free disk space.*start the trainer again"):
        trainer.run()
    events = values(tmp_path, "event")
    assert "checkpoint" not in [row["event"] for row in events]
    assert events[-1]["message"] == "stopped on request, but its end could not be written to disk"


@pytest.mark.parametrize("what", ["checkpoint_store.write_checkpoint", "os.replace"])
def test_the_end_of_a_run_waits_for_space_on_a_full_disk(
    server: Server,
    worker: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    config = make_config(tmp_path, epochs=1)
    trainer = Trainer(server_port=server.port, config=config)
    place: Any = checkpoint_store if what.startswith("checkpoint") else os
    name = what.rpartition(".")[2]
    real = getattr(place, name)
    failures: list[Any] = []

    def write(*arguments: Any) -> None:
        if trainer.training is not None and trainer.training.finished and len(failures) < 4:
            failures.append(arguments)
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(place, name, write)
    monkeypatch.setattr(trainer_module, "ROOM_RETRY_S", 0.01)
    with caplog.at_level(logging.ERROR):
        trainer.run()
    assert len(failures) == 4
    assert (
        sum("Free disk space or fix the problem: the trainer tries again" in message for message in caplog.messages)
        == 1
    )
    monkeypatch.undo()
    assert (tmp_path / "tests" / "policy.tmod").exists()
    training, is_new = Trainer(server_port=server.port, config=config)._checkpoints.make_or_load()
    assert not is_new
    assert training.finished
    (end,) = (row for row in read_records(tmp_path / "tests" / "metrics.jsonl") if row.values.get("event") == "end")
    assert end.step == training.total_updates == 40


def test_an_unwritable_file_of_weights_is_reported_immediately(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = make_config(tmp_path, model_path=str(tmp_path / "file" / "policy.tmod"))
    with pytest.raises(StorageError, match=r"policy\.tmod \(trainer\.model_path\)"):
        Trainer(server_port=server.port, config=config).run()


def test_a_run_without_space_for_its_end_fails(
    server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(server_port=server.port, config=make_config(tmp_path, epochs=1))
    real = os.replace

    def write(*arguments: Any) -> None:
        if trainer.training is not None and trainer.training.finished:
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(os, "replace", write)
    monkeypatch.setattr(trainer_module, "ROOM_S", 0.0)
    with pytest.raises(StorageError, match="No space left on device"):
        trainer.run()
    assert values(tmp_path, "event")[-1]["message"] == "all epochs are done, but its end could not be written to disk"


def test_stop_writes_a_checkpoint_and_workers_stay(server: Server, worker: Worker, tmp_path: Path) -> None:
    config = make_config(tmp_path, epochs=1000)
    trainer = Trainer(server_port=server.port, config=config)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    while trainer.training is None or trainer.training.total_updates < 20:
        thread.join(0.01)
    trainer.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert not worker.worker.link.finished  # type: ignore[union-attr]
    saved = Trainer(server_port=server.port, config=config)
    training, is_new = saved._checkpoints.make_or_load()
    assert not is_new
    assert training.total_updates == trainer.training.total_updates
    assert training.total_samples == trainer.training.total_samples


def test_stop_ends_a_trainer_that_waits_for_a_server(tmp_path: Path) -> None:
    trainer = Trainer(server_port=1, config=make_config(tmp_path))
    thread = threading.Thread(target=trainer.run)
    thread.start()
    while trainer.interface is None:
        thread.join(0.01)
    trainer.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_close_ends_a_run_in_another_thread(server: Server, worker: Worker, tmp_path: Path) -> None:
    trainer = Trainer(server_port=server.port, config=make_config(tmp_path, epochs=1000))
    failed = []

    def run() -> None:
        try:
            trainer.run()
        except Exception as exc:
            failed.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    while trainer.training is None or trainer.training.total_updates < 5:
        thread.join(0.01)
    trainer.close()
    thread.join(5)
    assert not thread.is_alive()
    assert failed == []


def test_without_a_checkpoint_path_none_is_written(server: Server, worker: Worker, tmp_path: Path) -> None:
    config = make_config(tmp_path, epochs=1)
    Trainer(server_port=server.port, config=config, checkpoint_path=None, model_path=None).run()
    assert not (tmp_path / "tests" / "checkpoint").exists()
    assert not (tmp_path / "tests" / "policy.tmod").exists()


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_a_memory_on_disk_continues_after_a_restart(
    server: Server, worker: Worker, tmp_path: Path, with_checkpoints: bool
) -> None:
    base = make_config(tmp_path, epochs=1000)
    config = msgspec.structs.replace(base, memory=MemorySection(capacity=5000, batch_size=8, storage="disk"))
    samples = 0
    for _ in range(2):
        kwargs: dict[str, Any] = {} if with_checkpoints else {"checkpoint_path": None}
        trainer = Trainer(server_port=server.port, config=config, **kwargs)
        thread = threading.Thread(target=trainer.run)
        thread.start()
        while trainer.training is None or trainer.training.total_samples < samples + 200:
            thread.join(0.01)
        first = trainer.training.memory.recorded
        trainer.stop()
        thread.join(30)
        assert not thread.is_alive()
        memory = trainer.training.memory
        offsets, counters = memory.recorded
        ((number, position),) = offsets.values()
        # Every sample that the worker numbered up to there was taken once, in this process or in the one before.
        assert counters["samples"] == trainer.training.total_samples == position
        assert counters["gap_samples"] == 0
        assert counters["incarnation"] > 0
        assert number > 0
        if samples:
            assert first is not None
            assert first[1]["samples"] >= samples
        samples = position
    assert len(memory) > 300
    with pytest.raises(StorageError, match="closed"):
        memory.commit(samples=1)
    assert (tmp_path / "tests" / "memory" / "lock").exists()


@pytest.mark.parametrize("by_rounds", [False, True])
def test_the_memory_of_another_run_is_refused_before_training_unless_it_is_asked_for(
    tmp_path: Path, by_rounds: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def config(name: str, **memory: Any) -> Config:
        shared = {"storage": "disk", "folder": str(tmp_path / "shared"), "batch_size": 8, **memory}
        return msgspec.structs.replace(
            make_config(tmp_path), run=RunSection(name=name, folder=str(tmp_path)), memory=MemorySection(**shared)
        )

    first = Trainer(config=config("first"))
    memory = first._made_training().memory
    buffer = Buffer(maxlen=None)
    for step in range(5):
        buffer.append_sample((np.zeros(1, np.float32), np.zeros(3, np.float32), 0.0, False, step == 4, {}))
    memory.append(buffer)
    memory.close()
    second = Trainer(config=config("second"))
    with pytest.raises(ConfigError, match=r"holds 4 transitions of run first-\w+, and this is run second-\w+"):
        second.train_iteration() if by_rounds else second.run()
    assert "there is no checkpoint" not in caplog.text
    again = Trainer(config=config("second", take_over=True))
    assert len(again._made_training().memory) == 4
    again._made_training().memory.close()
    assert "holds 4 transitions of run first-" in caplog.text


def test_a_second_trainer_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    config = msgspec.structs.replace(make_config(tmp_path), memory=MemorySection(storage="disk"))
    with (
        FolderLock(tmp_path / "tests" / "memory", "the replay memory"),
        pytest.raises(FolderLockedError, match=r"another run\.name"),
    ):
        Trainer(server_port=1, config=config).run()


def test_a_second_trainer_on_the_same_checkpoints_is_refused(tmp_path: Path) -> None:
    first = Trainer(server_port=1, config=make_config(tmp_path))
    thread = threading.Thread(target=first.run)
    thread.start()
    deadline = time.monotonic() + 60
    while first._checkpoints._lock is None:
        assert time.monotonic() < deadline
        thread.join(0.01)
    with pytest.raises(FolderLockedError, match=r"this run's checkpoints.*another run\.name"):
        Trainer(server_port=1, config=make_config(tmp_path)).run()
    first.close()
    thread.join(20)
    # Released with the run, so that the next may go on.
    FolderLock(tmp_path / "tests" / "checkpoint", "this run's checkpoints").close()


def test_the_first_checkpoint_is_written_once_samples_are_accepted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while training waits for more of them; a trainer that nobody sends anything leaves none."""
    caplog.set_level(logging.INFO)
    config = make_config(tmp_path, epochs=1000, start_training=10**6)
    unlimited = msgspec.structs.replace(config.worker, max_env_steps_per_update=None)
    config = msgspec.structs.replace(config, worker=unlimited)
    first = tmp_path / "tests" / "checkpoint" / "1" / "manifest.json"
    alone = Trainer(server_port=server.port + 1, config=config)
    alone.checkpoint()
    thread = threading.Thread(target=alone.run)
    thread.start()
    until(lambda: "no checkpoint is written: no sample has been accepted yet" in caplog.text)
    alone.stop()
    thread.join(20)
    assert not first.exists()
    assert not (tmp_path / "tests" / "policy.tmod").exists()  # nor a policy, which a test would play
    trainer = Trainer(server_port=server.port, config=config)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    worker = Worker(server, config, monkeypatch)
    try:
        until(first.exists)
        assert 0 < json.loads(first.read_bytes())["body"]["samples"] <= trainer.training.total_samples
        assert trainer.training.total_updates == 0
        trainer.checkpoint()
        until((first.parent.parent / "2" / "manifest.json").exists)
    finally:
        trainer.stop()
        thread.join(20)
        worker.close()


def test_an_unwritable_folder_of_checkpoints_is_reported_immediately(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trainer = Trainer(server_port=1, config=make_config(tmp_path), checkpoint_path=tmp_path / "file" / "below")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be written to .*below.*Set checkpoint\.path"):
        trainer.run()


def test_custom_functions_write_and_read_checkpoints(
    server: Server, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.roles.trainer.FINISHED_S", 0.2)  # there is no Server for the second trainer
    config = make_config(tmp_path, epochs=2)
    kept: dict[Path, Any] = {}
    dumps = []

    def dump(training: Any, path: Path) -> None:
        dumps.append(training.epoch)
        kept[path] = training
        path.write_text("kept elsewhere")

    place = tmp_path / "mine"
    Trainer(
        server_port=server.port, config=config, checkpoint_path=place, dump_run_instance_fn=dump,
        load_run_instance_fn=kept.__getitem__,
    ).run()  # fmt: skip
    assert dumps == [0, 1, 2, 2]
    again = Trainer(
        server_port=1, config=config, checkpoint_path=place, dump_run_instance_fn=dump,
        load_run_instance_fn=kept.__getitem__,
    )  # fmt: skip
    again.run()
    assert again.training is kept[place]


def test_reaching_the_target_ends_training_with_an_event(server: Server, worker: Worker, tmp_path: Path) -> None:
    evaluation = EvaluationSection(episodes=2, every_updates=10, target_return=-1e6)
    config = make_config(tmp_path, epochs=1000, evaluation=evaluation)
    Trainer(server_port=server.port, config=config).run()
    events = values(tmp_path, "event")
    assert "learned" in [event["event"] for event in events]
    assert events[-1]["message"] == "two evaluations have reached the target"
    said = [event["message"] for event in events if event["event"] in ("target", "learned")]
    assert said[0].endswith("training ends if a second evaluation confirms it")
    assert said[-1].startswith("a second evaluation confirms it: mean return ")
    # The policy as it was at the end was evaluated once more.
    assert len(values(tmp_path, "evaluation")) >= 2
    worker.thread.join(20)
    assert not worker.thread.is_alive()


def test_the_time_limit_ends_training(server: Server, worker: Worker, tmp_path: Path) -> None:
    evaluation = EvaluationSection(episodes=1, time_limit_s=0.5)
    config = make_config(tmp_path, epochs=1000, evaluation=evaluation)
    Trainer(server_port=server.port, config=config).run()
    assert values(tmp_path, "event")[-1]["message"] == "the time limit is reached"


@pytest.fixture
def raw_worker(server: Server) -> Iterator[WorkerLink]:
    link = WorkerLink(LinkSettings(port=server.port, transport="local"), name="raw", run="tests", drain_timeout_s=0.1)
    link.start()
    yield link
    link.close()


def leave(link: WorkerLink, thread: threading.Thread) -> None:
    """Leave a run that is over, as a worker does, and wait for the trainer, which else waits for this one."""
    until(lambda: link.finished or not thread.is_alive(), limit_s=30)
    link.close()
    thread.join(30)
    assert not thread.is_alive()


def send(link: WorkerLink, shape: int, rows: int = 6, reward: float = 0.0) -> None:
    buffer = Buffer(maxlen=None)
    buffer.append_sample((None, np.zeros(shape, np.float32), 0.0, False, False, {}))
    for i in range(rows - 1):
        obs = np.full(shape, i, np.float32)
        buffer.append_sample((np.zeros(1, np.float32), obs, reward, False, i == rows - 2, {}))
    buffer.end_episode(EpisodeRecord("", 0.0, rows - 1, "train", "truncated"))
    link.send(*buffer.take())


def train_until_the_server_is_away(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> tuple[Trainer, threading.Thread]:
    """Train for a while, close the Server, and let the time of the run end; return the trainer and its thread."""
    evaluation = EvaluationSection(episodes=2, time_limit_s=1.5)
    trainer = Trainer(config=make_config(tmp_path, epochs=10_000, evaluation=evaluation), server_port=server.port)
    running = threading.Thread(target=trainer.run)
    deadline = time.monotonic() + 60
    running.start()
    while trainer.training is None or not trainer.training.total_samples:
        assert time.monotonic() < deadline
        running.join(0.01)
    server.close()
    while "the Server is away: waiting" not in caplog.text:
        assert time.monotonic() < deadline
        running.join(0.01)
    return trainer, running


def test_the_end_of_a_run_waits_for_a_lost_server_to_notify_workers(
    server: Server, worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _, running = train_until_the_server_is_away(server, tmp_path, caplog)
        with Server(port=server.port, config=make_config(tmp_path)):
            running.join(20)
            worker.thread.join(20)
    assert not running.is_alive()
    assert not worker.thread.is_alive(), "it waits for a run that is over"
    assert worker.worker.link is not None
    assert worker.worker.link.finished


def test_a_stop_request_ends_the_wait_for_a_server(
    server: Server, worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer, running = train_until_the_server_is_away(server, tmp_path, caplog)
        trainer.stop()
        running.join(20)
    assert not running.is_alive()
    assert "stopped by hand" in caplog.text


def test_samples_of_another_shape_are_acknowledged_as_refused(
    server: Server, raw_worker: WorkerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path, epochs=1, start_training=12, evaluation=EvaluationSection())
    send(raw_worker, 3)
    trainer = Trainer(server_port=server.port, config=config)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    while raw_worker.counts.samples_acked < 6:
        raw_worker.wait_change(0.1)
    send(raw_worker, 5, rows=4)
    while raw_worker.counts.samples_refused < 4:
        raw_worker.wait_change(0.1)
    for _ in range(10):
        send(raw_worker, 3)
    assert raw_worker._wait(lambda: raw_worker.counts.samples_acked == 66, 20)
    leave(raw_worker, thread)
    assert trainer.training.total_updates == 40
    assert trainer.training.total_samples == 66
    assert raw_worker.counts.queued_samples == 0
    assert "float32[5]" in caplog.text
    assert "float32[3]" in caplog.text


def test_the_end_of_a_run_names_samples_that_workers_have_dropped(server: Server, tmp_path: Path) -> None:
    settings = LinkSettings(port=server.port, transport="local")
    link = WorkerLink(settings, name="raw", run="tests", queue_bytes=4_000, drain_timeout_s=0.1)
    link.start()
    try:
        while link.counts.samples_dropped < 6:
            send(link, 3)
            link.wait_change(0.001)
        trainer = Trainer(
            server_port=server.port,
            config=make_config(tmp_path, epochs=1, start_training=12, evaluation=EvaluationSection()),
        )
        thread = threading.Thread(target=trainer.run)
        thread.start()
        while thread.is_alive() and not link.finished:
            send(link, 3)
            link.wait_change(0.01)
        leave(link, thread)
        end = values(tmp_path, "event")[-1]["message"]
        assert re.search(r"; [1-9]\d* samples never arrived, because workers dropped them", end)
    finally:
        link.close()


def test_samples_that_are_not_finite_are_refused_for_any_memory(
    server: Server, raw_worker: WorkerLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path, epochs=1, start_training=12, evaluation=EvaluationSection(), check_spaces=False)
    trainer = Trainer(server_port=server.port, config=config)
    thread = threading.Thread(target=trainer.run)
    send(raw_worker, 3, rows=4, reward=float("nan"))
    thread.start()
    while raw_worker.counts.samples_refused < 4:
        raw_worker.wait_change(0.1)
    for _ in range(12):
        send(raw_worker, 3)
    leave(raw_worker, thread)
    assert trainer.training.total_updates == 40
    assert trainer.training.updates_skipped == 0
    assert "the reward holds NaN or an infinite number in 3 of 4 samples" in caplog.text


def test_no_evaluation_is_requested_from_a_worker_with_refused_samples(
    server: Server, raw_worker: WorkerLink, tmp_path: Path
) -> None:
    """Its environment is another one, or its policy does not take these weights: it may never play."""
    config = make_config(tmp_path, start_training=12)
    send(raw_worker, 5)
    trainer = Trainer(server_port=server.port, config=config)
    thread = threading.Thread(target=trainer.run)
    good = WorkerLink(LinkSettings(port=server.port, transport="local"), name="good", run="tests", drain_timeout_s=0.1)
    with contextlib.ExitStack() as closing:
        closing.callback(good.close)
        closing.callback(thread.join, 20)
        closing.callback(trainer.stop)
        thread.start()
        while not raw_worker.counts.samples_refused:
            assert thread.is_alive()
            raw_worker.wait_change(0.1)
        good.start()
        for _ in range(10):
            send(good, 3)
        while good.directive.evaluation is None:
            assert thread.is_alive()
            good.wait_change(0.1)
        assert raw_worker.directive.evaluation is None


def test_uncommitted_samples_are_sent_again_to_the_next_trainer(
    server: Server, raw_worker: WorkerLink, tmp_path: Path
) -> None:
    """A trainer that dies between receipt and append: its link is gone, nothing was acknowledged."""
    config = make_config(tmp_path, epochs=1, start_training=6, evaluation=EvaluationSection())

    class Dies(Exception):
        pass

    class Deadly(TrainingOffline):
        def update_buffer(self, interface: Any) -> None:
            if len(interface.retrieve_buffer()):
                raise Dies

    def make(cls: Any) -> Any:
        agent = partial(SacAgent, **SMALL)
        memory = partial(ReplayMemory, memory_size=100, batch_size=4)
        return lambda: cls(spaces(), memory, agent, epochs=1, rounds=1, steps=4, device="cpu")

    send(raw_worker, 3)
    first = Trainer(make(Deadly), server_port=server.port, config=config, checkpoint_path=None)
    with pytest.raises(Dies):
        first.run()
    assert raw_worker.counts.samples_acked == 0
    second = Trainer(make(TrainingOffline), server_port=server.port, config=config, checkpoint_path=None)
    thread = threading.Thread(target=second.run)
    thread.start()
    assert raw_worker._wait(lambda: raw_worker.counts.samples_acked == 6, 20)
    leave(raw_worker, thread)
    assert len(second.training.memory) == 5


def test_starvation_of_workers_and_trainer_is_reported(
    server: Server, raw_worker: WorkerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "STARVED_S", 0.3)
    config = make_config(tmp_path, collection="synchronous", start_training=100)
    send(raw_worker, 3)
    raw_worker.say_waits("(3 steps + 1) / (1 + 1 models received) is above 2")
    with pytest.raises(StarvedError, match=r"6 of trainer.start_training = 100 .*0 updates, 1 policies published"):
        Trainer(server_port=server.port, config=config).run()
    while not raw_worker.progress.gave_up:
        assert raw_worker.wait_change(20), "a worker that waits as well has to end too"
    assert raw_worker.progress.lack == "6 of trainer.start_training = 100 samples have arrived"


def test_a_long_episode_of_a_worker_is_shown_and_is_no_starvation(
    server: Server, raw_worker: WorkerLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "STARVED_S", 0.3)
    config = make_config(tmp_path, start_training=100)
    trainer = Trainer(server_port=server.port, config=config)
    raw_worker.say_waits(f"{EPISODE_END}, when its samples are sent")
    thread = threading.Thread(target=trainer.run)
    thread.start()

    def shown() -> list[float]:
        said = f"1 of 1: {EPISODE_END}, when its samples are sent"
        records = read_records(config.metrics_path) if config.metrics_path.exists() else []
        return [record.elapsed_s for record in records if record.values.get(names.WAITING) == said]

    until(lambda: len(shown()) > 1 and shown()[-1] - shown()[0] > 1.0)
    assert thread.is_alive()
    trainer.stop()
    thread.join(20)


@pytest.mark.parametrize(
    ("checked", "said"),
    [
        (True, "samples of worker odd are refused: another environment, observation_space Box(9) at the worker, Box("),
        (False, "worker odd has another environment, observation_space Box(9) at the worker, Box("),
    ],
)
def test_a_worker_with_another_environment_is_logged(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, checked: bool, said: str
) -> None:
    link = WorkerLink(
        LinkSettings(port=server.port, transport="local"), name="odd", run="tests", drain_timeout_s=0.1,
        signature={"observation_space": "Box(9)"},
    )  # fmt: skip
    link.start()
    trainer = Trainer(server_port=server.port, config=make_config(tmp_path, check_environment=checked))
    thread = threading.Thread(target=trainer.run)
    with caplog.at_level(logging.WARNING):
        thread.start()
        while said not in caplog.text and thread.is_alive():
            thread.join(0.01)
    trainer.stop()
    thread.join(20)
    link.close()
    assert caplog.text.count(said) == 1


def test_an_invalid_signature_does_not_end_training(server: Server, raw_worker: WorkerLink, tmp_path: Path) -> None:
    links = []
    for space in (np.zeros(2), [np.zeros(2)], 1 << 200, float("nan")):
        settings = LinkSettings(port=server.port, transport="local")
        signature = {"observation_space": space}
        links.append(WorkerLink(settings, name="odd", run="tests", drain_timeout_s=0.1, signature=signature))
        links[-1].start()
    trainer = Trainer(server_port=server.port, config=make_config(tmp_path, epochs=1000))
    thread = threading.Thread(target=trainer.run)
    thread.start()
    assert raw_worker.wait_policy(20)
    send(raw_worker, 3)
    while raw_worker.counts.samples_acked < 6:
        assert thread.is_alive()
        raw_worker.wait_change(0.1)
    trainer.stop()
    thread.join(20)
    for link in links:
        link.close()


def test_a_resumed_trainer_publishes_the_latest_policy_again_with_its_number(
    server: Server, raw_worker: WorkerLink, tmp_path: Path
) -> None:
    config = make_config(tmp_path, epochs=1000)
    training = training_from_config(config)()
    training.delivery = {"incarnation": 3, "counter": 7, "marks": {}}
    training.save(tmp_path / "tests" / "checkpoint")
    versions = []
    for _ in range(2):
        trainer = Trainer(server_port=server.port, config=config)
        thread = threading.Thread(target=trainer.run)
        thread.start()
        assert raw_worker.wait_policy(20)
        update = raw_worker.take_policy()
        trainer.stop()
        thread.join(20)
        assert update is not None
        versions.append(update.version)
        assert trainer.training.delivery["counter"] == 7
    assert [counter for _, counter in versions] == [7, 7]
    assert versions[1] > versions[0] > (3, 7)


def test_an_operator_pauses_training_and_changes_its_ratio(server: Server, worker: Worker, tmp_path: Path) -> None:
    config = make_config(tmp_path, epochs=10_000)
    config = msgspec.structs.replace(
        config, worker=msgspec.structs.replace(config.worker, max_env_steps_per_update=1000)
    )
    trainer = Trainer(server_port=server.port, config=config)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    try:
        with ViewerLink(LinkSettings(transport="local", port=server.port), name="anna") as viewer:
            viewer.start()

            def scene() -> Scene:
                assert viewer.scene is not None
                return viewer.scene

            def said(kind: OrderKind, value: float | None = None) -> str:
                order = viewer.order(Order(kind=kind, value=value))
                until(lambda: viewer.outcome(order))
                outcome = viewer.outcome(order)
                assert outcome is not None
                return outcome.outcome

            until(lambda: viewer.may_order and scene().updates and scene().workers)
            assert scene().settings["trainer.steps"] == "20"
            assert said("pause") == "done"
            assert (scene().state, scene().waits) == ("paused", "paused by anna")
            updates, samples = trainer.training.total_updates, trainer.training.total_samples
            checkpoints = len(scene().checkpoints)
            assert said("checkpoint") == "done"
            until(lambda: len(scene().checkpoints) > checkpoints)
            assert scene().checkpoints[-1].name.isdecimal()
            until(lambda: trainer.training.total_samples > samples)
            assert trainer.training.total_updates == updates
            assert "would wait for each other for ever" in said("ratio", 0.0001)
            assert "max_training_steps_per_env_step" in said("ratio", -1.0)
            assert said("ratio", 0.75) == "done"
            assert said("resume") == "done"
            until(lambda: trainer.training.total_updates > updates)
            trainer.stop()
            until(lambda: scene().state == "ended")
    finally:
        trainer.stop()
        thread.join(20)
    texts = [row["message"] for row in values(tmp_path, "event") if row["event"] == names.EVENT_ORDER]
    assert texts[0] == "anna: pause training: done"
    assert texts[-1] == "anna: resume training: done"
    resumed = Trainer(server_port=server.port, config=config)
    restored, is_new = resumed._checkpoints.make_or_load()
    assert not is_new
    assert restored.limiter._most.ratio.ratio == 0.75
