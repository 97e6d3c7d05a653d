from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

from tests.gateway.advice.conftest import advice_config
from tmrl_core.config import from_values
from tmrl_core.errors import ConfigError
from tmrl_core.gateway.advice.from_config import advice_agent

OWN: dict[str, Any] = {"observation_space": None, "action_space": None}


def test_spaces_are_those_of_the_agent(tmp_path: Path) -> None:
    agent = advice_agent(advice_config(tmp_path), "game")
    assert (agent.observation_space, agent.action_space) == (spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    by_id = advice_agent(advice_config(tmp_path, **OWN, env_id="CartPole-v1"), "game")
    assert by_id.observation_space.shape == (4,)


def test_without_spaces_those_of_the_run_count(tmp_path: Path) -> None:
    agent = advice_agent(advice_config(tmp_path, "SacAgent", **OWN), "game")
    assert agent.observation_space.shape == (3,)  # of Pendulum, the default


def test_agent_and_actor_of_the_run_are_the_defaults(tmp_path: Path) -> None:
    config = from_values(
        {
            "run": {"folder": str(tmp_path)},
            "actor": {"cls": "tmrl_core.actor:QValueMLPActor"},
            "agent": {"cls": "tmrl_core.training:DQNAgent"},
            "gateway": {"agents": {"game": {"mode": "advice", "env_id": "CartPole-v1"}}},
        }
    )
    agent = advice_agent(config, "game")
    learner = agent._make_learner(agent._context("s1", None))  # type: ignore[arg-type]
    assert learner.algorithm == "dqn"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"agent": {"cls": "tmrl_core.training:PPOAgent"}}, "PPO learns only from rounds of its own policy"),
        ({"agent": {"cls": "tmrl_core.training:ReplayMemory"}}, "learn with one of .*, DQNAgent, "),
        ({"agent": {"cls": "tmrl_core.training:DQNAgent", "kwargs": {"gama": 1}}}, "gama"),
        ({"env_id": "CartPole-v1"}, "give either env_id"),
        ({"observation_space": "wide"}, "observation_space is 'wide'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        advice_agent(advice_config(tmp_path, **settings), "game")
    assert str(caught.value).startswith("gateway.agents.game: ")
