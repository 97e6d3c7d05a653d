"""The arm with a person beside it: its task, its person, and a short run of its files."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.command_line import in_this_process
from tmrl_core.config import load
from tmrl_core.errors import ContractError

FOLDER = Path(__file__).parents[2] / "examples" / "robot"


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], ModuleType]]:
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(FOLDER)
        changed.setattr(sys, "dont_write_bytecode", True)
        yield importlib.import_module
        for name in ("pick", "panda"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def pick(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("pick")


@pytest.fixture(scope="module")
def panda(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("panda")


def played(env: Any, seed: int, choose: Any) -> tuple[bool, list[Any]]:
    obs, _ = env.reset(seed=seed)
    seen = [obs]
    while True:
        obs, _, terminated, truncated, info = env.step(choose(obs))
        seen.append(obs)
        if terminated or truncated:
            return bool(info["is_success"]), seen


def test_the_expert_lifts_the_cube_and_chance_does_not(pick: ModuleType) -> None:
    env, rng = pick.Pick(), np.random.default_rng(0)
    expert = pick.Expert(env.observation_space, env.action_space)
    expert.seed(0)
    assert sum(played(env, seed, expert.act)[0] for seed in range(20)) >= 16
    assert sum(played(env, seed, lambda obs: rng.uniform(-1, 1, 4))[0] for seed in range(20)) == 0


def test_the_cube_lies_where_the_seed_says(pick: ModuleType) -> None:
    env = pick.Pick()
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert all(env.observation_space.contains(obs) for obs in played(env, 3, lambda obs: np.ones(4))[1])


def test_the_person_takes_over_without_progress_only(pick: ModuleType) -> None:
    env, person = pick.Pick(), pick.PersonByRule(patience=10)
    obs, _ = env.reset(seed=1)
    person.begin_episode()
    still = np.array([0, 0, 0, -1.0])
    acted = [person.poll(obs) is not None for _ in range(12)]
    assert acted == [False] * 10 + [True] * 2
    person.begin_episode()
    right = [person.poll(obs) for obs in played(env, 1, pick.Hand().right_action)[1]]
    assert not any(action is not None for action in right)
    person.begin_episode()
    helped = played(env, 1, lambda obs: still if (action := person.poll(obs)) is None else action)[0]
    assert not helped, "the policy stands still again once the cube is held"


def test_a_person_by_the_rule_knows_the_other_hand_too(panda: ModuleType) -> None:
    person = panda.PersonByRule(patience=10)
    away = np.array([0.1, 0.0, 0.0])
    obs = np.concatenate([[0.5, 0.5, 0.2, 0], [0.6, 0.5, 0.05], away, np.zeros(3)]).astype(np.float32)
    assert [person.poll(obs) is not None for _ in range(12)] == [False] * 10 + [True] * 2
    person.begin_episode()
    obs[4] = 0.81
    assert person.poll(obs) is not None, "the cube leaves its area"


def test_a_machine_without_the_simulator_knows_the_spaces(panda: ModuleType) -> None:
    env = panda.Panda()
    assert (env.observation_space.shape, env.action_space.shape) == ((13,), (4,))
    env.close()
    seen = panda.SeenPanda()
    assert (sorted(seen.observation_space), seen.action_space.shape) == (["arm", "front", "wrist"], (4,))
    if importlib.util.find_spec("gym_hil") is None:
        for one in (env, seen):
            with pytest.raises(ContractError, match=r"the arm needs gym-hil, `pip install gym-hil==0\.1\.14`"):
                one.reset()


def test_the_simulated_arm_is_the_same_task(panda: ModuleType) -> None:
    pytest.importorskip("gym_hil")
    env = panda.Panda()
    first, again, other = (env.reset(seed=seed)[0] for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    expert = panda.Expert(env.observation_space, env.action_space)
    expert.seed(0)
    assert sum(played(env, seed, expert.act)[0] for seed in range(10)) >= 9
    _, seen = played(env, 1, lambda obs: np.zeros(4))
    assert len(seen) == panda.LIMIT + 1
    env.close()


def test_the_person_acts_in_the_arm_that_is_seen(panda: ModuleType) -> None:
    pytest.importorskip("gym_hil")
    still = np.zeros(4, np.float32)
    for person, helped in (("shows", True), ("rule", True), ("away", False)):
        env = panda.SeenPanda(person=person)
        obs, _ = env.reset(seed=1)
        assert env.observation_space.contains(obs)
        acted = []
        for _ in range(15):
            obs, _, terminated, truncated, info = env.step(still)
            acted.append(info.get("is_intervention", False))
            if terminated or truncated:
                break
        assert any(acted) is helped, person
        env.close()


@pytest.mark.parametrize("file", ["expert", "takeover", "hg_dagger", "cloning", "pictures"])
def test_each_file_is_valid(file: str) -> None:
    assert load(FOLDER / f"{file}.yaml").environment.cls == f"panda:{'Seen' * (file == 'pictures')}Panda"


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", ["takeover", "hg_dagger"])
def test_a_short_run_trains_on_interventions(file: str, tmp_path: Path) -> None:
    stand_in = ("--set", "environment.cls=pick:Pick", "--set", "worker.interventions.cls=pick:PersonByRule")
    short = ("--set", "trainer.steps=60", "--set", "trainer.rounds=2", "--set", "trainer.start_training=200", *stand_in)
    with in_this_process(tmp_path, ["pick", "panda"]) as run:
        shown = ("-c", f"{FOLDER / 'expert.yaml'}", *stand_in[:2], "--set", "actor.cls=pick:Expert")
        run("--expert", "--record", "demonstrations", "--episodes", "5", *shown)
        local = ("--local", "--single-process", "--workers", "1", "-c", f"{FOLDER / file}.yaml")
        done = run(*local, *short, "--set", "server.port=0")
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.rglob("metrics.jsonl")
    text = metrics.read_text("utf-8")
    assert '"rollout/intervention_rate"' in text
    assert '/intervention_rate"' in text.replace("rollout/intervention_rate", "")
