"""PettingZoo's environments as event environments, against PettingZoo's own loop."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from mpe2 import simple_spread_v3
from pettingzoo import AECEnv
from pettingzoo.classic.tictactoe import tictactoe

from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.multiagent import (
    Actor,
    AgentAlgorithm,
    AgentManager,
    Assembly,
    EventEnvironment,
    PolicySettings,
)
from tmrl_core.multiagent.pettingzoo import PettingZooEnvironment, Turn
from tmrl_core.multiagent.shapers import stacked
from tmrl_core.networking.protocol.messages import Blob

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it makes an environment in PettingZoo's old way
    from pettingzoo.test.example_envs import generated_agents_parallel_v0


class Crowd(AECEnv):  # type: ignore[misc]
    """Agents in no order that get rewards, end (in both ways) and appear at any time. Masks are in the infos."""

    metadata: ClassVar[dict[str, Any]] = {"name": "crowd_v0"}
    possible_agents: ClassVar[list[str]] = [f"agent_{i}" for i in range(9)]
    space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    actions = spaces.Discrete(4)

    def observation_space(self, agent: str) -> spaces.Box:
        return self.space

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.actions

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng, self.count = np.random.default_rng(seed), 0
        self.waiting = self.possible_agents[:]
        self.agents: list[str] = []
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        for _ in range(3):
            self.appear()
        self.agent_selection = self.agents[1]

    def appear(self) -> None:
        agent = self.waiting.pop(0)
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {"action_mask": np.array([1, 0, 1, 0], np.int8)}

    def observe(self, agent: str) -> Any:
        return np.array([self.count, self.possible_agents.index(agent)], np.float64)

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert self.infos[agent]["action_mask"][action]
        self.count += 1
        self._cumulative_rewards[agent] = 0.0
        self.rewards = {other: float(self.rng.integers(5)) for other in self.agents}
        self._accumulate_rewards()
        if self.waiting and self.rng.random() < 0.2:
            self.appear()
        for other in self.agents:
            self.infos[other] = {"action_mask": np.array([self.rng.random() < 0.5, 1, 0, 1], np.int8)}
            self.terminations[other] = bool(self.rng.random() < 0.03)
            self.truncations[other] = bool(self.rng.random() < 0.03) or self.count == 60
            if self.terminations[other] or self.truncations[other]:
                self.infos[other] = {}
        live = [other for other in self.agents if not (self.terminations[other] or self.truncations[other])]
        self.agent_selection = str(self.rng.choice(live)) if live else self.agents[0]
        self._deads_step_first()


class Ending(generated_agents_parallel_v0.parallel_env):  # type: ignore[misc]
    """The example counts no steps, so that it never ends."""

    def step(self, actions: Any) -> Any:
        self.num_steps += 1
        return super().step(actions)


MAKERS: dict[str, Callable[[], Any]] = {
    "tictactoe": tictactoe.env,
    "spread, turns": lambda: simple_spread_v3.env(max_cycles=7),
    "spread, parallel": lambda: simple_spread_v3.parallel_env(max_cycles=7),
    "agents appear": Crowd,
    "agents appear, parallel": lambda: Ending(max_cycles=30),
}


def chosen(space: Any, state: Any, rng: np.random.Generator) -> int:
    """A random allowed action."""
    mask = state.get("action_mask") if isinstance(state, Mapping) else None
    return int(rng.choice(np.arange(space.n) if mask is None else np.flatnonzero(mask)))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other)


Step = tuple[Any, int, float, Any, str]
"""Observation, action, rewards up to the next turn, its observation, and `terminated`, `truncated` or `turn`."""


def by_hand_in_turns(env: Any, seed: int) -> dict[str, list[Step]]:
    """PettingZoo's own loop. Rewards are summed from `rewards` after each step, not from `last`."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    steps: dict[str, list[Step]] = {}
    pending: dict[str, tuple[Any, int]] = {}
    sums: dict[str, float] = {}
    for agent in env.agent_iter():
        observation, cumulative, terminated, truncated, info = env.last()
        if isinstance(env, Crowd):
            info = info or {"action_mask": np.ones(4, np.int8)}
            observation = {"observation": observation, "action_mask": info["action_mask"]}
        kind = "terminated" if terminated else "truncated" if truncated else "turn"
        if agent in pending:
            assert cumulative == pytest.approx(sums[agent], abs=1e-9)
            steps.setdefault(agent, []).append((*pending.pop(agent), sums[agent], observation, kind))
        action = None if kind != "turn" else chosen(env.action_space(agent), observation, rng)
        if action is not None:
            pending[agent] = (observation, action)
            sums[agent] = 0.0
        env.step(action)
        if action is not None:
            for other, reward in env.rewards.items():
                sums[other] = sums.get(other, 0.0) + reward
    assert not pending
    return steps


def by_hand_together(env: Any, seed: int) -> dict[str, list[Step]]:
    """PettingZoo's own loop over a parallel environment."""
    rng = np.random.default_rng(seed)
    observations, _ = env.reset(seed=seed)
    steps: dict[str, list[Step]] = {}
    while env.agents:
        actions = {agent: chosen(env.action_space(agent), observations[agent], rng) for agent in env.agents}
        after, rewards, terminations, truncations, _ = env.step(actions)
        for agent, action in actions.items():
            kind = "terminated" if terminations[agent] else "truncated" if truncations[agent] else "turn"
            steps.setdefault(agent, []).append((observations[agent], action, rewards[agent], after[agent], kind))
        observations = after
    return steps


def by_adapter(env: PettingZooEnvironment, seed: int) -> dict[str, list[Step]]:
    rng = np.random.default_rng(seed)
    env.set_seed(seed)
    steps: dict[str, list[Step]] = {}
    pending: dict[str, tuple[Any, int]] = {}
    sums: dict[str, float] = {}
    _, turn, done = env.step(None)
    while not done:
        assert turn is not None
        action = chosen(env.env.action_space(turn.agent), turn.state, rng)
        pending[turn.agent] = (turn.state, action)
        sums[turn.agent] = 0.0
        metrics, turn, done = env.step(np.int64(action))
        for agent, reward in metrics["rewards"].items():
            sums[agent] = sums.get(agent, 0.0) + reward
        ended = {
            **dict.fromkeys(metrics["truncations"], "truncated"),
            **dict.fromkeys(metrics["terminations"], "terminated"),
        }
        for agent, kind in ended.items():
            if agent in pending:
                state = metrics["final_events"][agent].state
                steps.setdefault(agent, []).append((*pending.pop(agent), sums[agent], state, kind))
        if turn is not None and turn.agent in pending:
            steps.setdefault(turn.agent, []).append((*pending.pop(turn.agent), sums[turn.agent], turn.state, "turn"))
    assert not pending
    return steps


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed", range(5))
def test_each_step_of_each_agent_is_that_of_the_own_loop(name: str, seed: int) -> None:
    env = MAKERS[name]()
    expected = (by_hand_together if "parallel" in name else by_hand_in_turns)(env, seed)
    found = by_adapter(PettingZooEnvironment(MAKERS[name]()), seed)
    assert {agent: len(steps) for agent, steps in found.items()} == {a: len(s) for a, s in expected.items()}
    for agent, steps in found.items():
        for one, other in zip(steps, expected[agent], strict=True):
            assert same(one[0], other[0])
            assert one[1] == other[1]
            assert one[2] == pytest.approx(other[2], abs=1e-9)
            assert same(one[3], other[3])
            assert one[4] == other[4]


class Random(AgentAlgorithm):
    """Random allowed actions, of all spaces in this file."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.space = space

    def choose_action(self, state: Any, epsilon: float) -> int:
        return chosen(self.space, state, self.rng)

    def train_on_batch(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_model(self) -> Blob:
        return Blob("none", b"")

    def load_model(self, model: Blob) -> None:
        pass


@pytest.mark.parametrize("name", ["tictactoe", "spread, parallel", "agents appear"])
def test_experiences_are_the_steps_of_each_agent(name: str) -> None:
    env = PettingZooEnvironment(MAKERS[name]())
    policies = {agent: PolicySettings(algorithm=partial(Random, env.action_space(agent))) for agent in env.agents}
    assembly = Assembly(agents={agent: agent for agent in policies}, policies=policies)
    manager = AgentManager("inference", list(policies), config=assembly)
    _, experiences = Actor(env, manager).roll_out(seed=4)
    # The same episode again, by hand.
    env.set_seed(4)
    manager.set_seed(4)
    seen: dict[str, list[Turn]] = {}
    rewards: dict[str, list[float]] = {}
    ends: dict[str, str] = {}
    _, turn, done = env.step(None)
    while not done:
        assert turn is not None
        seen.setdefault(turn.agent, []).append(turn)
        rewards.setdefault(turn.agent, []).append(0.0)
        metrics, turn, done = env.step(manager.agents[turn.agent].choose_action(turn.state, 0.0))
        for agent, reward in metrics["rewards"].items():
            if agent in rewards:
                rewards[agent][-1] += reward
        for agent, last in metrics["final_events"].items():
            seen.setdefault(agent, []).append(last)
            ends[agent] = "terminated" if metrics["terminations"].get(agent) else "truncated"
    assert experiences.keys() == rewards.keys()
    for agent, columns in experiences.items():
        states = [turn.state for turn in seen[agent]]
        assert same(columns["state"], stacked(states[:-1], ""))
        # The state after the end of a terminated run has no value.
        following = [*states[1:-1], states[-1 if ends[agent] == "truncated" else -2]]
        assert same(columns["next_state"], stacked(following, ""))
        assert columns["reward"] == pytest.approx(rewards[agent])
        for flag in ("terminated", "truncated"):
            assert list(columns[flag]) == [*[False] * (len(states) - 2), ends[agent] == flag]
    expected = {"tictactoe": {"terminated"}, "spread, parallel": {"truncated"}}
    assert set(ends.values()) == expected.get(name, {"terminated", "truncated"})


def played(env: EventEnvironment, rng: np.random.Generator, first: Turn | None = None) -> list[Any]:
    """An episode at random: the agents and states of its turns."""
    assert isinstance(env, PettingZooEnvironment)
    turns = []
    _, turn, done = env.step(None)
    while not done:
        assert turn is not None
        turns.append((turn.agent, turn.state))
        _, turn, done = env.step(chosen(env.action_space(turn.agent), turn.state, rng))
    return turns


def test_agents_of_a_parallel_environment_decide_with_the_observations_of_one_time() -> None:
    turns = played(PettingZooEnvironment(simple_spread_v3.parallel_env(max_cycles=4)), np.random.default_rng(0))
    env = simple_spread_v3.parallel_env(max_cycles=4)
    assert [agent for agent, _ in turns] == env.possible_agents * 4
    # The first two numbers are the agent's speed, the next two its place: all others see it there at the same time.
    for i in range(0, len(turns), 3):
        one, two, three = (state for _, state in turns[i : i + 3])
        assert one[10:12] == pytest.approx(two[2:4] - one[2:4], abs=1e-6)
        assert one[12:14] == pytest.approx(three[2:4] - one[2:4], abs=1e-6)
        assert two[12:14] == pytest.approx(three[2:4] - two[2:4], abs=1e-6)


def test_a_seed_repeats_one_episode_and_the_next_differs() -> None:
    env = PettingZooEnvironment("mpe2.simple_spread_v3", {"max_cycles": 3})
    env.set_seed(7)
    first, second = played(env, np.random.default_rng(0)), played(env, np.random.default_rng(0))
    env.reset()
    env.set_seed(7)
    assert [same(a[1], b[1]) for a, b in zip(first, played(env, np.random.default_rng(0)), strict=True)] == [True] * 9
    assert not same(first[0][1], second[0][1])


def test_an_episode_can_be_left_at_any_point() -> None:
    env = PettingZooEnvironment(tictactoe.env())
    for moves in range(4):
        env.set_seed(0)
        _, turn, _ = env.step(None)
        assert turn is not None
        assert (turn.agent, turn.state["observation"].sum()) == ("player_1", 0)
        for move in range(moves):
            env.step(move)
        env.reset()


def test_the_performance_has_the_returns() -> None:
    env = PettingZooEnvironment("classic/tictactoe-v3")
    env.step(None)
    for move in (0, 3, 1, 4, 2):
        metrics, _, done = env.step(move)
    assert done
    assert metrics["rewards"] == {"player_1": 1.0, "player_2": -1.0}
    assert env.metrics == {"score": 0.0, "returns": {"player_1": 1.0, "player_2": -1.0}, "turns": 5}


def test_a_mask_in_the_observation_counts_before_that_of_the_info() -> None:
    mask = np.array([1, 0])
    assert Turn("a", {"observation": 1, "action_mask": mask}, {"action_mask": None}).state["action_mask"] is mask
    assert Turn("a", {"x": 1}, {"action_mask": mask}).state == {"x": 1, "action_mask": mask}
    assert Turn("a", 3, {}).state == 3


def test_observations_are_copies() -> None:
    class Reusing(Crowd):
        buffer = np.zeros(2)

        def observe(self, agent: str) -> Any:
            self.buffer[:] = super().observe(agent)
            return self.buffer

    env = PettingZooEnvironment(Reusing())
    env.set_seed(0)
    assert (
        Counter(state["observation"][0] for _, state in played(env, np.random.default_rng(0))).most_common(1)[0][1] == 1
    )


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        ("pettingzoo.classic.tictactoe_v33", {}, "environment.kwargs.env: .*tictactoe_v33' was not found"),
        ("classic/tictactoe-v33", {}, "environment.kwargs.env: .*v33.*Available version: v3"),
        ("pettingzoo.classic.tictactoe.tictactoe:environment", {}, "has no 'environment'"),
        ("classic/tictactoe-v3", {"heigth": 3}, "environment.kwargs.kwargs: .*heigth"),
        ("collections:Counter", {}, "is a Counter, not an environment of PettingZoo"),
        (3, {}, "3 is a int, not an environment of PettingZoo. Allowed: an AECEnv"),
    ],
)
def test_wrong_names_are_refused(env: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PettingZooEnvironment(env, kwargs)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "tmrl_core.multiagent.pettingzoo")
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[marl\]"):
        importlib.import_module("tmrl_core.multiagent.pettingzoo")
