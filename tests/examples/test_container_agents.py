"""The ports that learn: their shapers, their configurations, and that they learn, in one process and over TLS."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.command_line import in_this_process
from tmrl_core.config import load
from tmrl_core.multiagent import Actor, Decision, Learner, Trajectory, episode_seeds
from tmrl_core.multiagent.from_config import environment_maker, make_manager

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "containers"
ASSEMBLIES = ("independent", "shared_memory", "shared_model")


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def parts(assembly: str, *changes: str) -> tuple[Any, Actor]:
    """Return a training manager and an actor as the configuration describes them."""
    config = load(EXAMPLE / f"{assembly}.yaml", changes, {})
    return make_manager(config, "training"), Actor(environment_maker(config)(), make_manager(config, "inference"))


def started(**config: Any) -> tuple[Any, Any]:
    from containers import ContainerInventory  # type: ignore[import-not-found,unused-ignore]

    env = ContainerInventory(config)
    env.set_seed(0)
    return env, env.step(None)[1]


@pytest.mark.parametrize("config", [{}, {"containers": 0}, {"orders": 0.0}, {"containers": 50_000, "ticks": 150}])
def test_states_are_finite_and_allowed_actions_are_valid(config: dict[str, Any]) -> None:
    from container_agents import (  # type: ignore[import-not-found,unused-ignore]
        SHARES,
        CallStateShaper,
        ShareActionShaper,
        state_size,
    )

    env, event = started(**config)
    shape_state, shape_action, draw = CallStateShaper(env.config), ShareActionShaper(), random.Random(0)
    while event is not None:
        snapshots = env.snapshot_list
        state = shape_state(event, snapshots)
        assert state["state"].shape == (state_size(env.config),)
        assert state["state"].dtype == np.float32
        assert np.isfinite(state["state"]).all()
        allowed = np.flatnonzero(state["action_mask"])
        actions = [shape_action(action, event, snapshots) for action in range(len(SHARES))]
        assert (min(actions), max(actions)) == (-event.loadable, event.dischargeable)
        for action, containers in enumerate(actions):
            if action not in allowed:
                assert containers == 0, "nothing else is excluded"
        assert SHARES.index(0.0) in allowed
        _, event, _ = env.step(actions[draw.choice(allowed)])


def test_a_state_tells_the_port_and_the_next_ports_of_the_ship() -> None:
    from container_agents import CallStateShaper

    env, event = started()
    shaper = CallStateShaper(env.config)
    for _ in range(30):
        state = shaper(event, env.snapshot_list)["state"]
        ports, unit = env.names, 10 * env.config.orders / len(env.names)
        route = next(ship.route for ship in env.config.ships if ship.name == event.ship)
        after = [route[(route.index(event.agent) + step) % len(route)] for step in (1, 2)]
        assert ports[int(state[2 : 2 + len(ports)].argmax())] == event.agent
        rest = state[2 + len(ports) :] * unit
        assert rest[:3] == pytest.approx([event.empty, event.dischargeable, event.free], abs=1e-2)
        assert [rest[3 + 4 * step] for step in (1, 2)] == pytest.approx(
            [env.snapshot_list.ports[name][event.tick].empty for name in after], abs=1e-2
        )
        _, event, _ = env.step(0)


def test_the_reward_is_the_shortage_of_the_next_ticks() -> None:
    from container_agents import ShortageExperienceShaper

    env, event = started()
    trajectory = Trajectory()
    while event is not None:
        state = {"state": np.zeros(1, np.float32)}
        trajectory.append(Decision(event.agent, state, 0, event))
        _, event, _ = env.step(0)
    ports, gamma = env.snapshot_list.ports, 0.5
    found = ShortageExperienceShaper(ticks=3, unit=10.0, gamma=gamma, k=2)(trajectory, env.snapshot_list)
    assert found.keys() == ports.keys()
    for agent, columns in found.items():
        calls = [decision.event.tick for decision in trajectory if decision.agent == agent]
        rewards = []
        for call in calls:
            ticks = range(call + 1, min(call + 4, env.config.ticks))
            rewards.append(-sum(states[tick].shortage for tick in ticks for states in ports.values()) / 10)
        expected = [one + gamma * other for one, other in zip(rewards, [*rewards[1:], 0.0], strict=True)]
        assert columns["reward"] == pytest.approx(expected, abs=1e-4)
        assert columns["terminated"].tolist() == [False] * (len(calls) - 2) + [True] * 2
    assert min(columns["reward"].min() for columns in found.values()) < 0


@pytest.mark.parametrize("assembly", ASSEMBLIES)
def test_an_assembly_shares_what_its_configuration_says(assembly: str) -> None:
    trained, actor = parts(assembly)
    algorithms = {id(agent.algorithm) for agent in trained.agents.values()}
    pools = {id(agent.experience_pool) for agent in trained.agents.values()}
    shared = {"independent": (6, 6), "shared_model": (1, 1), "shared_memory": (6, 1)}
    assert (len(algorithms), len(pools)) == shared[assembly]
    assert trained.agents.keys() == actor.agents.agents.keys() == set(environment_names(actor))


def environment_names(actor: Actor) -> tuple[str, ...]:
    names: tuple[str, ...] = actor.env.names  # type: ignore[attr-defined]
    return names


@pytest.mark.parametrize("assembly", ASSEMBLIES)
def test_an_episode_trains_every_policy_and_its_score_is_the_fulfilment(assembly: str) -> None:
    torch.manual_seed(0)
    policies = ["port"] if assembly == "shared_model" else ["shanghai", "los_angeles"]
    short = "{batch_size: 8, updates_per_episode: 2}"
    trained, actor = parts(assembly, *(f"multiagent.policies.{name}.parameters={short}" for name in policies))
    before = trained.get_models()
    (result,) = Learner(trained, actor, episode_seeds(0)).train(1)
    after = trained.get_models()
    assert all(before[name].data != after[name].data for name in policies)
    assert all(result.metrics[name] for name in policies)
    performance = result.performance["local"]
    assert result.score == pytest.approx(100 * (1 - performance["shortage"] / performance["orders"]))
    assert result.epsilons == dict.fromkeys(trained.agents, 1.0)
    assert trained.explorer.epsilons == pytest.approx(dict.fromkeys(trained.agents, 1 - 0.95 / 50))


def test_they_train_and_play_from_the_command_line(tmp_path: Path) -> None:
    given = ("-c", str(EXAMPLE / "shared_model.yaml"))
    changes = ["trainer.epochs=1", "trainer.rounds=1", "trainer.evaluation.every_updates=0"]
    changes.append("multiagent.policies.port.parameters.updates_per_episode=20")
    short = [word for change in changes for word in ("--set", change)]
    with in_this_process(tmp_path, ["containers", "container_agents"]) as run:
        trained = run("--local", "--single-process", "--workers", "2", *given, *short)
        assert trained.returncode == 0, trained.stderr
        played = run("--test", "--episodes", "2", *given)
        assert played.returncode == 0, played.stderr
    assert "mean return of 2 episodes" in played.stdout


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("assembly", ASSEMBLIES)
def test_ports_learn_to_be_better_than_the_rule(assembly: str) -> None:
    from container_baselines import nothing, play, rule  # type: ignore[import-not-found,unused-ignore]

    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trained, actor = parts(assembly)
        Learner(trained, actor, episode_seeds(0)).train(75)
    finally:
        torch.set_num_threads(threads)
    models, seeds = trained.get_models(), range(1000, 1020)
    episodes = [actor.roll_out(models=models, seed=seed, test=True)[0]["local"] for seed in seeds]
    learned = statistics.fmean(episode["shortage"] for episode in episodes)
    lost = [statistics.fmean(play(actor.env, policy, seed)["shortage"] for seed in seeds) for policy in (nothing, rule)]
    assert learned <= 0.7 * lost[0]
    assert learned <= lost[1]
