"""Rounds of episodes that workers play over TLS: the same as in one process, for as many workers as there are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.multiagent.remote_scenario import AGENTS, Manager, Stocks, assembly, manager
from tests.multiagent.test_experiences import same
from tests.waiting import until
from tmrl_core.config import Config, from_values
from tmrl_core.errors import ConfigError, LinkClosedError
from tmrl_core.metrics import MetricRecord, read_records
from tmrl_core.multiagent import Actor, AgentManager, Learner, MultiAgentTraining, episode_seeds, remote_actor
from tmrl_core.multiagent.actor import RollOut
from tmrl_core.multiagent.collector import MultiAgentWorker
from tmrl_core.multiagent.from_config import make_manager, make_worker
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking import Server
from tmrl_core.networking.security import credentials
from tmrl_core.roles.trainer import Trainer

SCENARIO = "tests.multiagent.remote_scenario"
MANY: dict[str, Any] = {
    "manager": f"{SCENARIO}:Manager",
    "agents": {"north": "a", "south": "b"},
    "policies": {
        name: {
            "algorithm": f"{SCENARIO}:Weights",
            "memory": "all",
            "parameters": {"capacity": 500, "batch_size": 8, "updates_per_episode": 2},
        }
        for name in ("a", "b")
    },
    "exploration": {
        "cls": "tmrl_core.multiagent:LinearExplorer",
        "kwargs": {"initial": {"north": 0.9, "south": 0.5}, "final": 0.1, "episodes": 7},
    },
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


class Place:
    """A Server over TLS, and workers in threads of this process."""

    def __init__(self, keys: Path, folder: Path, stack: ExitStack) -> None:
        self._network = {"credentials_dir": str(keys), "security": "TLS"}
        self._folder = folder
        self._stack = stack
        self.server = Server(config=self.config(port=0))
        stack.callback(self.server.close)

    def config(
        self, port: int | None = None, many: Mapping[str, Any] = MANY, environment: str = "Stocks", **trainer: Any
    ) -> Config:
        lockstep = {"steps_per_round": None, "episodes_per_round": 1, "grace_s": 20.0, **trainer.pop("lockstep", {})}
        return from_values(
            {
                "run": {"name": "ports", "folder": str(self._folder), "seed": trainer.pop("seed", None)},
                "environment": {
                    "cls": f"{__name__ if environment == 'Hangs' else SCENARIO}:{environment}",
                    "kwargs": {},
                },
                "multiagent": many,
                "network": self._network,
                "server": {"port": self.server.port if port is None else port},
                "worker": {"collection": "lockstep", "drain_timeout_s": 2.0},
                "trainer": {"lockstep": lockstep, "device": "cpu", "threads": 1, **trainer},
            }
        )

    def worker(self, name: str, **kwargs: Any) -> MultiAgentWorker:
        """Start a worker."""
        worker = make_worker(self.config(**kwargs), name=name)

        def run() -> None:
            worker.run()
            worker.close()  # otherwise a trainer that finishes its workers would wait for it

        thread = threading.Thread(target=run, name=name)
        thread.start()
        self._stack.callback(thread.join, 20.0)
        self._stack.callback(worker.close)
        return worker

    def records(self, kind: str) -> list[MetricRecord]:
        path = self._folder / "ports" / "metrics.jsonl"
        return [record for record in read_records(path) if record.kind == kind]


@pytest.fixture
def place(keys: Path, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(keys, tmp_path / "runs", stack)


class Recorded:
    """An actor that keeps what passes through it."""

    def __init__(self, actor: RollOut) -> None:
        self.actor = actor
        self.passed: list[tuple[Any, Any, Any, Mapping[str, Any], Experiences]] = []

    def roll_out(self, models: Any = None, epsilons: Any = None, seed: int | None = None) -> Any:
        performances, experiences = self.actor.roll_out(models=models, epsilons=epsilons, seed=seed)
        self.passed.append((models, epsilons, seed, performances, experiences))
        return performances, experiences


def test_the_same_seed_and_weights_give_the_same_experiences_as_in_one_process(place: Place) -> None:
    local = Recorded(Actor(Stocks(), manager("inference")))
    here = manager("training")
    Learner(here, local, seed=episode_seeds(5)).train(4)
    place.worker("alone")
    there = manager("training")
    with remote_actor(place.config(), there) as actor:
        remote = Recorded(actor)
        Learner(there, remote, seed=episode_seeds(5)).train(4)
    for first, second in zip(local.passed, remote.passed, strict=True):
        assert first[:3] == second[:3]
        assert same(first[3]["local"], second[3]["alone"])
        assert same(first[4], second[4])
    assert here.get_models() == there.get_models()
    assert same(here.agents["north"].experience_pool.get(), there.agents["north"].experience_pool.get())


RECURRENT: dict[str, Any] = {
    "manager": f"{SCENARIO}:SingleSteps",
    "agents": {"north": "both", "south": "both"},
    "policies": {
        "both": {
            "agent": "tmrl_core.training:RecurrentDQNAgent",
            "kwargs": {
                "observation_space": {"stock": [[2], -100, 100], "action_mask": [[2], 0, 1]},
                "action_space": 2,
                "hidden_sizes": [8],
                "cell_size": 8,
                "state_interval": 2,
                "burn_in": 0,
            },
            "parameters": {"batch_size": 8, "updates_per_episode": 2, "sequence_length": 4},
        }
    },
    "exploration": {"cls": "tmrl_core.multiagent:Explorer", "kwargs": {"epsilon": 0.5}},
}


def test_a_recurrent_policy_gives_the_same_experiences_as_in_one_process(place: Place) -> None:
    """Each of two agents has a state of its own; both learn from sequences."""
    config = place.config(many=RECURRENT)

    def trained(make_actor: Callable[[AgentManager], RollOut]) -> tuple[Recorded, AgentManager]:
        torch.manual_seed(0)
        agents = make_manager(config, "training")
        recorded = Recorded(make_actor(agents))
        Learner(agents, recorded, seed=episode_seeds(5)).train(3)
        return recorded, agents

    local, here = trained(lambda agents: Actor(Stocks(), make_manager(config, "inference")))
    place.worker("alone", many=RECURRENT)
    with ExitStack() as stack:
        remote, there = trained(lambda agents: stack.enter_context(remote_actor(config, agents)))
    for first, second in zip(local.passed, remote.passed, strict=True):
        assert first[0] == second[0]
        assert same(first[4], second[4])
        assert np.asarray(first[4]["north"]["state.h"])[2::2].any(axis=1).all()
    assert len(here.agents["north"].experience_pool) == 3 * 2 * 2
    assert here.get_models() == there.get_models()


def test_epsilons_on_every_worker_equal_the_explorers(place: Place) -> None:
    for name in ("anna", "berta"):
        place.worker(name)
    agents = manager("training")
    config = place.config(lockstep={"min_workers": 2})
    with remote_actor(config, agents, episodes_per_round=4) as actor:
        recorded = Recorded(actor)
        Learner(agents, recorded, seed=3).train(5)
    for number, (_, epsilons, _, performances, experiences) in enumerate(recorded.passed):
        assert epsilons == {"north": 0.9 - 0.8 * number / 7, "south": 0.5 - 0.4 * number / 7} or number
        assert {name: len(played) for name, played in performances.items()} == {"anna": 2, "berta": 2}
        for agent in AGENTS:
            column = np.asarray(experiences[agent]["epsilon"])  # written at each decision, by the policy that acts
            assert len(column) == 4 * 6
            assert (column == epsilons[agent]).all()


def test_a_worker_may_join_and_another_may_leave(place: Place) -> None:
    first = place.worker("anna")
    agents = manager("training")
    with remote_actor(place.config(lockstep={"grace_s": 1.0}), agents, episodes_per_round=2) as actor:
        learner = Learner(agents, actor, seed=episode_seeds(1))
        assert set(learner.run_episode().performance) == {"anna"}
        place.worker("berta")
        for _ in range(200):
            if set(learner.run_episode().performance) == {"anna", "berta"}:
                break
        else:
            raise AssertionError("the new worker plays no episodes")
        first.close()
        for _ in range(200):
            result = learner.run_episode()
            if set(result.performance) == {"berta"}:
                break
        else:
            raise AssertionError("the rounds did not go on")
        assert len(result.performance["berta"]) == 2


class Misfit(Manager):
    """A worker's manager whose experiences no other worker's fit."""

    def post_process(self, snapshot_list: Any) -> Experiences:
        experiences = super().post_process(snapshot_list)
        return {agent: {**columns, "more": columns["reward"]} for agent, columns in experiences.items()}


def test_a_worker_whose_experiences_do_not_fit_harms_no_other(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.worker("anna")
    agents = manager("training")
    with remote_actor(place.config(lockstep={"grace_s": 0.5}), agents, episodes_per_round=2) as actor:
        learner = Learner(agents, actor)
        learner.run_episode()
        place.worker("misfit", many={**MANY, "manager": f"{__name__}:Misfit"})
        deadline = time.monotonic() + 30
        while "samples of worker misfit are refused" not in caplog.text:
            assert time.monotonic() < deadline
            assert set(learner.run_episode().performance) == {"anna"}
        assert set(learner.run_episode().performance) == {"anna"}
    assert "its pool holds" in caplog.text


class Hangs(Stocks):
    """The first environment that finds `hang` set stops in an episode until `go` is set."""

    hang = threading.Event()
    go = threading.Event()
    stopped = threading.Event()

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        if self.hang.is_set():
            self.hang.clear()
            self.stopped.set()
            assert self.go.wait(60)
        return super().step(action)


def test_a_worker_that_stops_within_a_round_is_replaced_after_its_grace_until_it_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hang", "go", "stopped"):
        monkeypatch.setattr(Hangs, name, threading.Event())
    for name in ("anna", "berta"):
        place.worker(name, environment="Hangs")
    agents = manager("training")
    config = place.config(lockstep={"min_workers": 2, "grace_s": 0.3})
    with remote_actor(config, agents, episodes_per_round=4) as actor:
        learner = Learner(agents, actor, seed=episode_seeds(1))

        def players() -> set[str]:
            played = learner.run_episode().performance
            assert sum(len(each) for each in played.values()) == 4
            return set(played)

        assert players() == {"anna", "berta"}
        Hangs.hang.set()
        (replacement,) = players()
        assert Hangs.stopped.is_set()
        assert players() == {replacement}
        Hangs.go.set()
        deadline = time.monotonic() + 30
        while players() != {"anna", "berta"}:
            assert time.monotonic() < deadline


def test_workers_of_other_policies_are_refused_with_the_reason_and_others_train(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    renamed = {**MANY, "agents": {"north": "a", "south": "c"}, "policies": dict.fromkeys("ac", MANY["policies"]["a"])}
    misfit = place.worker("renamed", many=renamed)
    until(lambda: "no trainer of run 'ports' is connected" in caplog.text)
    trained(place, place.config(epochs=1, rounds=3, lockstep={"min_workers": 1}))
    assert len(place.records("round")) == 3
    difference = "another policy, policies: a, c at the worker, a, b at the"
    assert f"samples of worker renamed are refused: {difference}" in caplog.text
    misfit.close()
    assert caplog.text.count(f"the trainer uses no samples of this worker: {difference}") == 1
    assert "worker renamed ends: 0 samples acknowledged" in caplog.text


def test_a_roll_out_needs_models_and_a_link(place: Place) -> None:
    training = MultiAgentTraining(partial(manager, "training"), device="cpu")
    with pytest.raises(ConfigError, match="the first roll_out needs models"):
        training.actor.roll_out()
    with pytest.raises(ConfigError, match="remote_actor"):
        training.actor.roll_out(models=training.manager.get_models())
    with pytest.raises(ConfigError, match="mode 'training'"):
        MultiAgentTraining(partial(manager, "inference"), device="cpu")
    with remote_actor(place.config(), training.manager) as actor:
        assert actor.interface is not None
        actor.interface.stop()  # type: ignore[attr-defined]
        with pytest.raises(LinkClosedError, match="its episodes are dropped"):
            actor.roll_out(models=training.manager.get_models())


# --- the Trainer ------------------------------------------------------------------------------------------------------


class Logged(Manager):
    """A manager that notes the calls of its learner."""

    calls: list[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls = []
        super().__init__(*args, **kwargs)

    def get_models(self) -> Any:
        self.calls.append("get_models")
        return super().get_models()

    def store_experiences(self, experiences: Experiences) -> None:
        self.calls.append("store_experiences")
        super().store_experiences(experiences)

    def train(self) -> Any:
        self.calls.append("train")
        return super().train()

    def update_epsilon(self, performance: Any) -> None:
        self.calls.append("update_epsilon")
        super().update_epsilon(performance)


def trained(place: Place, config: Config) -> tuple[MultiAgentTraining, Trainer]:
    """Run a Trainer of the configuration to its end, with a worker."""
    worker = place.worker("anna")
    with Trainer(config=config) as trainer:
        trainer.run()
        training: MultiAgentTraining = trainer.training
    worker.close()
    return training, trainer


def test_a_trainer_of_many_agents_records_evaluates_and_repeats_bit_for_bit(place: Place) -> None:
    evaluation = {"episodes": 2, "every_updates": 8}
    lockstep = {"episodes_per_round": 2}
    config = place.config(seed=7, epochs=2, rounds=3, lockstep=lockstep, evaluation=evaluation)
    first, trainer = trained(place, config)
    rounds = place.records("round")
    assert [record.values["time/iterations"] for record in rounds] == [1, 2, 3, 4, 5, 6]
    last = rounds[-1].numbers()
    assert last["train/n_updates"] == 24  # two policies, two updates each
    assert last["train/memory_len"] == 6 * 2 * 12
    assert last["rollout/experiences/north"] == last["rollout/experiences/south"] == 12
    assert last["rollout/ep_rew_min"] <= last["rollout/ep_rew_mean"] <= last["rollout/ep_rew_max"] <= 0
    assert last["rollout/exploration_rate"] == pytest.approx((0.9 + 0.5) / 2 - 0.6 * 5 / 7)
    assert {"train/a/loss", "train/b/loss"} <= last.keys()
    evaluations = place.records("evaluation")
    assert len(evaluations) >= 3
    assert evaluations[0].numbers()["eval/mean_reward"] <= 0
    with pytest.raises(ConfigError, match="no agent that can act"):
        trainer.act(None)
    # A finished run is not continued.
    again, _ = trained(place, config)
    assert again.manager.get_models() == first.manager.get_models()
    assert len(place.records("round")) == 6


def test_runs_of_one_seed_are_equal_and_those_of_others_are_not(keys: Path, tmp_path: Path) -> None:
    def models(seed: int, folder: str) -> Any:
        with ExitStack() as stack:
            place = Place(keys, tmp_path / folder, stack)
            return trained(place, place.config(seed=seed, epochs=1, rounds=4))[0].manager.get_models()

    first = models(1, "a")
    assert first == models(1, "b")
    assert first != models(2, "c")


def test_a_round_calls_the_agents_as_a_learner_in_one_process_does(place: Place) -> None:
    own = {**MANY, "manager": f"{__name__}:Logged"}
    training, _ = trained(place, place.config(epochs=1, rounds=3, many=own))
    agents = training.manager
    assert isinstance(agents, Logged)
    local = Logged("training", config=assembly())
    Learner(local, Actor(Stocks(), manager("inference"))).train(3)
    # The trainer also reads the models for its file and for the final evaluation.
    assert [call for call in agents.calls if call != "get_models"] == [
        call for call in local.calls if call != "get_models"
    ]
    assert agents.calls.index("get_models") < agents.calls.index("store_experiences")


def test_a_script_trains_round_by_round(place: Place, tmp_path: Path) -> None:
    place.worker("anna")
    training_cls = partial(MultiAgentTraining, partial(manager, "training"), seed=2, device="cpu", threads=1)
    with Trainer(training_cls=training_cls, config=place.config()) as trainer:
        rows = [trainer.train_iteration() for _ in range(2)]
        saved = trainer.save(tmp_path / "saved")
        models = trainer.training.manager.get_models()
    assert [row["rounds"] for row in rows] == [1, 2]
    assert rows[0]["episodes"] == 1
    assert rows[0]["return_mean"] <= 0
    assert rows[0]["train/a/loss"] != rows[1]["train/a/loss"]
    with Trainer(training_cls=training_cls, config=place.config()) as trainer:
        trainer.restore(saved)
        assert trainer.training.manager.get_models() == models
        assert trainer.training.rounds_done == 2


def test_training_ends_when_a_second_evaluation_confirms_the_target(place: Place) -> None:
    evaluation = {"episodes": 1, "every_updates": 4, "target_return": -1000.0}
    training, _ = trained(place, place.config(epochs=50, rounds=20, evaluation=evaluation))
    assert training.epoch < 50
    events = [record.values.get("event") for record in place.records("event")]
    assert "learned" in events
