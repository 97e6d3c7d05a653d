from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError, PolicyFailedError
from tmrl_core.multiagent.algorithms.acting_policy import ActingPolicy
from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm

STATES = gym.spaces.Box(-1, 1, (2,), np.float32)
CHOICES = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
STATE = np.zeros(2, np.float32)


def acting(agent: Any, actions: Any = CHOICES, **kwargs: Any) -> ActingPolicy:
    return ActingPolicy(agent if callable(agent) else f"tmrl_core.training:{agent}", STATES, actions, **kwargs)


@pytest.mark.parametrize(
    ("agent", "actions", "policy"),
    [
        ("DQNAgent", CHOICES, "NumpyQValueMLPActor"),
        ("DiscreteSacAgent", CHOICES, "NumpyCategoricalMLPActor"),
        ("PPOAgent", CHOICES, "NumpyCategoricalMLPActor"),
        ("PPOAgent", BOX, "NumpyGaussianMLPActor"),
        ("SacAgent", BOX, "NumpySquashedGaussianMLPActor"),
        ("TD3Agent", BOX, "NumpyDeterministicMLPActor"),
        ("RecurrentDQNAgent", CHOICES, "NumpyQValueRNNActor"),
        ("RecurrentPPOAgent", CHOICES, "NumpyCategoricalRNNActor"),
        ("RecurrentPPOAgent", BOX, "NumpyGaussianRNNActor"),
        ("RecurrentSacAgent", BOX, "NumpySquashedGaussianRNNActor"),
        ("BehaviorCloningAgent", CHOICES, "NumpyCategoricalMLPActor"),
        ("BehaviorCloningAgent", BOX, "NumpySquashedGaussianMLPActor"),
    ],
)
def test_a_built_in_agent_acts_with_the_numpy_backend_of_its_policy(agent: str, actions: Any, policy: str) -> None:
    assert type(acting(agent, actions).runner.actor).__name__ == policy


def test_spaces_may_be_json() -> None:
    made = ActingPolicy("tmrl_core.training:DQNAgent", [[2], -1, 1], 3)
    assert made.runner.actor.observation_space == STATES
    assert made.runner.actor.action_space == CHOICES


CODE = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from tmrl_core.multiagent import ActingPolicy, RandomPolicy, RulePolicy
space = {"observation": [[2], -1, 1], "action_mask": [[3], 0, 1]}
state = {"observation": np.zeros(2, np.float32), "action_mask": np.array([0, 1, 0], np.float32)}
rules = [RandomPolicy(3), RulePolicy(lambda state: 1)]
agents = [ActingPolicy(f"tmrl_core.training:{agent}", space, 3) for agent in ("DQNAgent", "PPOAgent")]
for one in [*agents, *rules]:
    one.load_model(one.get_model())
print(json.dumps([int(one.choose_action(state, 0.5)) for one in [*agents, *rules]]))
"""


def test_actors_need_no_torch() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [1, 1, 1, 1]


def test_acting_equals_the_training_side() -> None:
    """Actions and extras depend on weights and seed only."""
    learner = TrainingAgentAlgorithm("tmrl_core.training:PPOAgent", STATES, CHOICES, hidden_sizes=[8])
    actor = acting("PPOAgent", hidden_sizes=[8])
    actor.load_model(learner.get_model())
    found = []
    for one in (learner, actor):
        one.seed(4)
        found.append([one.choose_action_with_extras(STATE, 0.0) for _ in range(30)])
    assert found[0] == found[1]
    assert len({int(action) for action, _ in found[0]}) == 3
    assert all(extras.keys() == {"logp"} for _, extras in found[0])


def test_epsilon_is_the_share_of_random_actions() -> None:
    made = acting("DQNAgent", hidden_sizes=[])
    made.seed(0)
    best = made.choose_action(STATE, 0.0)
    assert np.mean([made.choose_action(STATE, 0.3) != best for _ in range(2000)]) == pytest.approx(0.2, abs=0.03)
    made.deterministic = True
    assert {int(made.choose_action(STATE, 1.0)) for _ in range(20)} == {best}


def test_epsilon_is_the_share_of_uniform_actions_in_a_box() -> None:
    made = acting("TD3Agent", BOX, exploration_noise=0.0, hidden_sizes=[])
    made.seed(0)
    best = made.choose_action(STATE, 0.0)
    actions = np.array([made.choose_action(STATE, 0.5) for _ in range(1000)])
    assert np.mean((actions != best).any(axis=1)) == pytest.approx(0.5, abs=0.05)


def test_exploration_noise_is_the_agents() -> None:
    made = acting("TD3Agent", BOX, exploration_noise=0.02, hidden_sizes=[])
    made.seed(0)
    actions = np.array([made.choose_action(STATE, 0.0) for _ in range(500)])
    assert actions.std(axis=0) == pytest.approx([0.02, 0.02], rel=0.2)


def test_a_stochastic_policy_explores_by_itself() -> None:
    made = acting("SacAgent", BOX)
    actions = {tuple(made.choose_action(STATE, 0.0).tolist()) for _ in range(5)}
    assert len(actions) == 5


def test_an_action_that_is_not_finite_is_refused() -> None:
    made = acting("SacAgent", BOX)
    with pytest.raises(PolicyFailedError, match="not finite"):
        made.choose_action(np.full(2, np.nan, np.float32), 0.0)


def test_it_does_not_learn() -> None:
    with pytest.raises(NotImplementedError, match="Make a TrainingAgentAlgorithm of the same arguments"):
        acting("DQNAgent").train_on_batch({})


@pytest.mark.parametrize(
    ("agent", "actions", "kwargs", "message"),
    [
        ("DQNAgent", BOX, {}, "DQNAgent acts in spaces of the kind discrete, the action space is Box"),
        ("SacAgent", CHOICES, {}, "SacAgent acts in spaces of the kind box"),
        ("DQN", CHOICES, {}, "is no agent of tmrl_core.training, so its policy is unknown. Name the policy in `actor`"),
        (lambda **_: None, CHOICES, {}, "its policy is unknown"),
        ("DQNAgent", CHOICES, {"actor": "tmrl_core.actor:NoActor"}, "has no 'NoActor'"),
        ("DQNAgent", CHOICES, {"actor_kwargs": {"hidden_sizes": 3}}, "hidden_sizes: found 3"),
        ("DQNAgent", "three", {}, "action_space is 'three'; allowed are a number n"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(agent: Any, actions: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        acting(agent, actions, **kwargs)


def test_a_policy_of_ones_own_may_be_named() -> None:
    made = acting(
        lambda **_: None, actor="tmrl_core.actor:QValueMLPActor", actor_kwargs={"hidden_sizes": [4]}, backend="torch"
    )
    assert isinstance(made.runner.actor, torch.nn.Module)
    assert CHOICES.contains(made.choose_action(STATE, 0.5))
