"""Parallel environments of PettingZoo: those that its converter takes give the same, others run or are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from tmrl_core.errors import ContractError, EpisodeError
from tmrl_core.multiagent import Actor, AgentManager, Assembly, KStepExperienceShaper, PolicySettings, RandomPolicy
from tmrl_core.multiagent.pettingzoo import PettingZooEnvironment

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of PettingZoo's own imports
    from pettingzoo.test import parallel_api_test

OBS, ACT = Box(-99, 99, (2,), np.float32), Discrete(3)


class Herd(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Agents come and go at random.

    Args:
        keep: entries that the dicts hold besides those of the agents that acted or are there: `dead` agents, or `all`.
        listed: keep agents that have ended in `agents`.
    """

    metadata = {"name": "herd_v0"}  # noqa: RUF012
    possible_agents = list("edcba")  # noqa: RUF012
    render_mode = None

    def __init__(self, seed: int = 0, keep: str = "", listed: bool = False, first: str = "bca") -> None:
        self.rng = np.random.default_rng(seed)
        self.keep, self.listed, self.first = keep, listed, first

    def observation_space(self, agent: str) -> Box:
        return OBS

    def action_space(self, agent: str) -> Discrete:
        return ACT

    def seen(self, agents: Any) -> dict[str, Any]:
        return {agent: np.array([self.steps, ord(agent)], np.float32) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps, self.agents, self.dead = 0, list(self.first), set[str]()
        shown = self.possible_agents if self.keep == "all" else self.agents
        return self.seen(shown), {agent: {} for agent in shown}

    def step(self, actions: dict[str, Any]) -> Any:
        live = [agent for agent in self.agents if agent not in self.dead]
        assert sorted(actions) == sorted(live), "ended agents do not act"
        self.steps += 1
        ends = {agent for agent in live if self.rng.random() < 0.2 or self.steps == 30}
        cut = {agent for agent in ends if self.rng.random() < 0.5}
        fresh = [agent for agent in self.possible_agents if agent not in self.agents and agent not in self.dead]
        came = [agent for agent in fresh if self.rng.random() < 0.1 and self.steps < 30]
        self.dead |= ends
        shown = [*live, *came]
        if self.keep == "dead":
            shown += sorted(self.dead - set(shown))
        elif self.keep == "all":
            shown = list(self.possible_agents)
        self.agents = [agent for agent in self.agents if self.listed or agent not in ends] + came
        return (
            self.seen(shown),
            {agent: float(actions.get(agent, 9.0)) + self.steps for agent in shown},
            {agent: agent in self.dead - cut for agent in shown},
            {agent: agent in cut for agent in shown},
            {agent: {"step": self.steps} for agent in shown},
        )


def played(made: Any, seed: int) -> list[Any]:
    """Return all that three episodes give, with actions at random."""
    env, rng, found = PettingZooEnvironment(made), np.random.default_rng(seed), []
    for episode in range(3):
        env.set_seed(seed + episode)
        action = None
        while True:
            metrics, turn, done = env.step(action)
            ends = {name: {k: str(v) for k, v in part.items()} for name, part in metrics.items()}
            found.append((ends, str(turn), done, env.metrics["score"]))
            if done:
                break
            action = int(rng.integers(3))
        env.reset()
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_the_converter_takes_gives_the_same(seed: int) -> None:
    assert played(Herd(), seed) == played(parallel_to_aec(Herd()), seed)


@pytest.mark.parametrize(
    ("keep", "listed"), [("dead", False), ("all", False), ("dead", True), ("all", True), ("", True)]
)
@pytest.mark.parametrize("seed", range(5))
def test_agents_that_have_ended_may_stay_in_dicts_and_lists(keep: str, listed: bool, seed: int) -> None:
    expected = played(Herd(), seed)
    assert played(Herd(keep=keep, listed=listed), seed) == expected


def test_pettingzoos_own_test_accepts_such_dicts() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns, and passes
        parallel_api_test(Herd(keep="dead"), num_cycles=50)


def actor(env: PettingZooEnvironment) -> Actor:
    ids = tuple(env.agents)
    settings = {"p": PolicySettings(algorithm=lambda: RandomPolicy(ACT))}
    assembly = Assembly(agents=dict.fromkeys(ids, "p"), policies=settings)
    return Actor(
        env, AgentManager("inference", ids, config=assembly, experience_shaper=KStepExperienceShaper(gamma=1.0))
    )


def test_a_reset_without_agents_is_an_empty_episode() -> None:
    performance, experiences = actor(PettingZooEnvironment(Herd(first=""))).roll_out()
    assert performance["local"] == {"score": 0.0, "returns": {}, "turns": 0}
    assert sum(map(len, experiences.values())) == 0


def changed(call: str, change: Callable[[Any], Any]) -> Any:
    """Return an environment whose results of one call are changed."""
    env = Herd(seed=3)
    before = getattr(env, call)
    setattr(env, call, lambda *args, **kwargs: change(before(*args, **kwargs)))
    return env


def without(index: int) -> Callable[[Any], Any]:
    def change(result: Any) -> Any:
        result[index].pop("b")
        return result

    return change


@pytest.mark.parametrize(
    ("call", "change", "said"),
    [
        ("reset", lambda result: result[0], r"Herd\.reset returned a dict; wanted: a dict of observations"),
        ("reset", without(0), r"Herd\.reset has the agents \['b'\], and its dict of observations lacks them"),
        ("step", lambda result: result[:4], r"Herd\.step returned \(dict, dict, dict, dict\); wanted five dicts"),
        ("step", lambda result: (1, *result[1:]), r"Herd\.step returned \(int, dict,"),
        ("step", without(0), r"Herd\.step has the agents \['b'\], and its dict of observations lacks them"),
        ("step", without(1), r"Herd\.step acted for \['b'\], and its dict of rewards lacks them"),
        ("step", without(2), r"its dict of terminations lacks them"),
        ("step", without(3), r"its dict of truncations lacks them"),
    ],
)
def test_a_result_of_another_form_is_named_and_not_repeated(call: str, change: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        actor(PettingZooEnvironment(changed(call, change))).roll_out()


def test_an_agent_that_goes_without_an_end_is_named() -> None:
    class Vanishing(Herd):
        def step(self, actions: dict[str, Any]) -> Any:
            self.agents.remove("c")
            values: tuple[Any, ...] = (0.0, False, False, {})
            return self.seen("abc"), *[dict.fromkeys("abc", value) for value in values]

    with pytest.raises(ContractError, match=r"Vanishing\.step removed \['c'\] from `agents` without `terminations`"):
        actor(PettingZooEnvironment(Vanishing())).roll_out()


def test_missing_infos_are_empty() -> None:
    assert len(played(changed("step", lambda result: (*result[:4], {})), 1)) > 3


def test_an_exception_of_the_environment_stays_a_failure() -> None:
    def fail(result: Any) -> Any:
        raise OSError("no contact")

    with pytest.raises(EpisodeError, match="no contact"):
        actor(PettingZooEnvironment(changed("step", fail))).roll_out()
