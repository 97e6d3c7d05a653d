from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.config import from_values
from tmrl_core.errors import ConfigError, ContractError
from tmrl_core.roles.environment_probe import is_probed, probe_environment

OWN = {"cls": "tests.roles.test_environment_probe:Lathe", "kwargs": {}}


class Lathe(gymnasium.Env[Any, Any]):
    """A machine. It notes what is done with it."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    calls: list[Any] = []  # noqa: RUF012

    def __init__(self, first: Any = (0.0, 0.0), high: float = 1.0) -> None:
        self.action_space = spaces.Box(-high, high, (1,), np.float32)
        self.first = np.asarray(first, np.float32)
        Lathe.calls = ["made"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Lathe.calls.append(seed)
        return self.first, {}

    def close(self) -> None:
        Lathe.calls.append("closed")


def cartpole(**sections: Any) -> Any:
    return from_values({"environment": {"kwargs": {"id": "CartPole-v1"}}, **sections})


@pytest.mark.parametrize(
    ("environment", "tried"),
    [
        ({}, True),
        ({"kwargs": {"id": "CartPole-v1"}}, True),
        ({"kwargs": {"id": "CartPole-v1"}, "probe": False}, False),
        ({"kwargs": {"id": "real-time-gym-v1"}}, False),
        ({"kwargs": {"id": "rtgym:real-time-gym-ts-v1"}}, False),
        (OWN, False),
        ({**OWN, "probe": True}, True),
    ],
)
def test_a_machine_is_tried_on_request_only(environment: Any, tried: bool) -> None:
    assert is_probed(from_values({"environment": environment})) is tried


def test_it_is_made_reset_once_and_closed_and_never_steps() -> None:
    probe_environment(from_values({"environment": OWN}))
    assert Lathe.calls == ["made", None, "closed"]


@pytest.mark.parametrize(("probe", "calls"), [(None, ["made", "closed"]), (True, ["made", None, "closed"])])
def test_an_environment_with_a_rate_is_reset_on_request_only(
    probe: bool | None, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lathe, "time_step_duration", 0.05, raising=False)
    probe_environment(from_values({"environment": {**OWN, "probe": probe}}))
    assert Lathe.calls == calls


@pytest.mark.parametrize(
    ("sections", "seed"),
    [
        ({"run": {"seed": 7}}, 7),
        ({"trainer": {"evaluation": {"every_updates": 10, "first_seed": 1000}}}, 1000),
    ],
)
def test_it_is_reset_with_a_seed_where_workers_do_that(sections: Any, seed: int) -> None:
    probe_environment(from_values({"environment": OWN, **sections}))
    assert Lathe.calls[1] == seed


def test_an_observation_of_another_shape_is_a_breach() -> None:
    environment = {**OWN, "kwargs": {"first": [[0.0, 0.0]]}}
    with pytest.raises(ContractError, match=r"the shape \(1, 2\), its space wants \(2,\), after a reset"):
        probe_environment(from_values({"environment": environment}))


def test_a_policy_is_made_for_the_environment() -> None:
    for high in (np.inf, float(np.finfo(np.float32).max)):
        with pytest.raises(ConfigError, match=r"SquashedGaussianMLPActor needs finite bounds .*TransformAction"):
            probe_environment(from_values({"environment": {**OWN, "kwargs": {"high": high}}}))


def two_lathes() -> Any:
    return gymnasium.vector.SyncVectorEnv([Lathe, Lathe])


def test_a_vector_environment_is_one_of_the_configuration_with_its_number_of_environments() -> None:
    values: Any = {"environment": {"cls": "tests.roles.test_environment_probe:two_lathes"}, "worker": {"envs": 2}}
    probe_environment(from_values({**values, "environment": {**values["environment"], "probe": True}}))
    for envs, words in ((1, r"Workers of a run take it with worker\.envs: 2"), (3, "both must be equal")):
        with pytest.raises(ConfigError, match=words):
            probe_environment(from_values({**values, "worker": {"envs": envs}}))
    for setting in ({"time_limit": 9}, {"drop": ["speed"]}):
        with pytest.raises(ConfigError, match=r"environment\.\w+: found .*allowed|Allowed"):
            probe_environment(from_values({**values, "environment": {**values["environment"], **setting}}))


def test_the_wrong_actions_are_refused_before_anything_starts() -> None:
    environment = {"cls": "tmrl_core.envs:GenericGymEnv", "kwargs": {"id": "CartPole-v1"}}
    with pytest.raises(
        ConfigError, match=r"action space is Discrete\(2\) \(discrete\); for it take agent.cls: (.|\n)*DQNAgent"
    ) as caught:
        probe_environment(from_values({"environment": environment}))
    assert str(caught.value).splitlines()[1:] == ["docs/choosing.md lists what works together."]
    probe_environment(from_values({}))
    mine = {"environment": environment, "agent": {"cls": "mine:Agent"}}
    probe_environment(from_values({**mine, "actor": {"cls": "mine:Actor"}}))
    with pytest.raises(ConfigError, match=r"actor\.cls: .*SquashedGaussianMLPActor acts in spaces of the kind box"):
        probe_environment(from_values(mine))


def test_observations_without_stacks_are_refused_before_anything_starts() -> None:
    memory = {"cls": "tmrl_core.training:FrameStackMemory"}
    for agent in ("tmrl_core.training:SacAgent", "mine:Agent"):
        with pytest.raises(
            ConfigError,
            match=r"stacks of 4 frames .* no part of the environment's observation space Box\(.*Take memory\.cls: ",
        ):
            probe_environment(from_values({"memory": memory, "agent": {"cls": agent}}))
