from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.actor import ActorModule
from tmrl_core.actor.policies.torch.q_value import QValueMLPActor
from tmrl_core.config.algorithms import algorithms
from tmrl_core.errors import ConfigError, SampleRefusedError, WeightsError
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.updates.skipped_updates import SKIPPED

STATES = gym.spaces.Box(-10, 10, (2,), np.float32)
CHOICES = gym.spaces.Discrete(3)
ROWS = 6


def make(agent: Any, **kwargs: Any) -> TrainingAgentAlgorithm:
    return TrainingAgentAlgorithm(f"tmrl_core.training:{agent}", STATES, CHOICES, hidden_sizes=[8], **kwargs)


def batch(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    state = rng.standard_normal((ROWS + 1, 2))
    return {
        "state": state[:-1],
        "action": rng.integers(0, 3, ROWS),
        "reward": rng.standard_normal(ROWS),
        "next_state": state[1:],
        "discount": np.full(ROWS, 0.99, np.float32),
        "terminated": np.array([False, False, True, False, False, False]),
        "truncated": np.array([False, False, False, False, True, False]),
        **changed,
    }


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"action": np.array([0, 1, 2, 3, 0, 1])}, "Discrete"),
        ({"state": np.zeros((ROWS, 3))}, "'state'"),
        ({"next_state": {"a": np.zeros((ROWS, 2))}}, "'next_state'"),
        ({"discount": np.full(ROWS, 0.5)}, "discounts from 0.5"),
    ],
)
def test_experiences_that_cannot_be_trained_on_are_refused(changed: dict[str, Any], problem: str) -> None:
    made = make("PPOAgent")
    good = batch(logp=np.zeros(ROWS, np.float32))
    made.check_experiences(good)
    with pytest.raises(SampleRefusedError, match=problem):
        made.check_experiences({**good, **changed})
    for key in ("next_state", "logp"):
        with pytest.raises(SampleRefusedError, match=f"lacks {key}"):
            made.check_experiences({name: column for name, column in good.items() if name != key})


class Recorder(TrainingAgent):
    """An agent of a user, which keeps its batches."""

    wants_extras = True

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.actor = QValueMLPActor(observation_space, action_space, (4,))
        self.batches: list[Any] = []

    def train(self, batch: Any) -> dict[str, Any]:
        self.batches.append(batch)
        return {"loss": torch.tensor(0.5)}

    def get_actor(self) -> Any:
        return self.actor


class RoundRecorder(Recorder):
    collection = frozenset({"lockstep"})


class PlainRecorder(Recorder):
    wants_extras = False


def recorder(kind: type[Recorder]) -> TrainingAgentAlgorithm:
    return TrainingAgentAlgorithm(
        kind, STATES, CHOICES, actor="tmrl_core.actor:QValueMLPActor", actor_kwargs={"hidden_sizes": (4,)}
    )


@pytest.mark.parametrize("algorithm", algorithms().values(), ids=lambda algorithm: algorithm.name)
def test_each_built_in_agent_acts(algorithm: Any) -> None:
    for kind in sorted(algorithm.action_spaces):
        actions = CHOICES if kind == "discrete" else STATES
        arguments = f"tmrl_core.training:{algorithm.name}", STATES, actions
        small: dict[str, Any] = {"width": 8} if algorithm.name == "FlashSACAgent" else {"hidden_sizes": [8]}
        made = TrainingAgentAlgorithm(*arguments, **small)
        assert actions.contains(made.choose_action(np.zeros(2, np.float32), 0.5))


def test_convolutions_of_an_agent_are_those_of_its_policy() -> None:
    pictures = gym.spaces.Box(0, 255, (3, 40, 40), np.uint8)
    made = TrainingAgentAlgorithm(
        "tmrl_core.training:DQNAgent", pictures, CHOICES, hidden_sizes=[8], convolutions=[[4, 8, 4], [4, 4, 2]]
    )
    assert CHOICES.contains(made.choose_action(np.zeros(pictures.shape, np.uint8), 0.0))


def test_columns_become_the_agents_batch() -> None:
    made = recorder(Recorder)
    rows = batch(discount=np.linspace(0.5, 1.0, ROWS), logp=np.zeros(ROWS))
    assert made.train_on_batch(rows) == {"loss": 0.5}
    ((obs, action, reward, next_obs, terminated, truncated, extras),) = made.agent.batches
    found = {"state": obs, "reward": reward, "next_state": next_obs, "terminated": terminated, "truncated": truncated}
    found["discount"] = extras["discount"]
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        np.testing.assert_allclose(tensor.numpy(), rows[name], rtol=1e-6)
    assert action.dtype == torch.int64
    assert action.tolist() == rows["action"].tolist()
    assert extras.keys() == {"discount", "weights"}
    assert extras["weights"].tolist() == [1.0] * ROWS


def test_a_round_has_the_ends_of_its_runs_and_all_extras() -> None:
    made = recorder(RoundRecorder)
    assert made.trains_on_rounds
    made.train_on_batch(batch(logp=np.arange(ROWS), places=np.ones((ROWS, 3), np.int64)))
    extras = made.agent.batches[0][6]
    assert extras["ends"].tolist() == [0, 0, 1, 0, 1, 1]
    assert extras["logp"].tolist() == list(range(ROWS))
    assert extras["places"].shape == (ROWS, 3)


def test_an_agent_trains_on_whole_rounds_in_their_order() -> None:
    made = recorder(RoundRecorder)
    with pytest.raises(ConfigError, match=r"all experiences since the last update, in their order. Set on_policy"):
        Agent("a", made, SimpleStore(), AgentParameters())
    agent = Agent("a", made, SimpleStore(), AgentParameters(on_policy=True, batch_size=2, epochs=3))
    for reward in (0.0, 1.0):
        agent.store_experiences(batch(reward=np.arange(ROWS) + reward * ROWS))
    agent.train()
    assert [rows[2].tolist() for rows in made.agent.batches] == [list(range(2 * ROWS))]
    assert len(agent.experience_pool) == 0


def test_an_agent_without_extras_gets_six_columns() -> None:
    made = recorder(PlainRecorder)
    made.train_on_batch(batch())
    assert len(made.agent.batches[0]) == 6


def test_dict_states_pass() -> None:
    mask = np.ones((ROWS, 3), np.int8)
    made = recorder(Recorder)
    made.train_on_batch(batch(state={"observation": batch()["state"], "action_mask": mask}))
    assert made.agent.batches[0][0]["action_mask"].tolist() == mask.tolist()


def test_td_errors_become_priorities() -> None:
    made = make("DQNAgent")
    metrics = made.train_on_batch(batch())
    assert metrics["priorities"].shape == (ROWS,)
    assert (metrics["priorities"] > 0).all()


def test_unit_weights_change_no_update() -> None:
    torch.manual_seed(0)
    made = make("DQNAgent")
    torch.manual_seed(0)
    plain = DQNAgent(STATES, CHOICES, "cpu", hidden_sizes=[8])
    rows = batch()
    made.train_on_batch(rows)
    floats = {name: torch.from_numpy(value.astype(np.float32)) for name, value in rows.items() if name != "action"}
    columns = [floats[name] for name in ("state", "reward", "next_state", "terminated", "truncated")]
    columns.insert(1, torch.from_numpy(rows["action"]))
    plain.train((*columns, {"discount": floats["discount"]}))
    assert made.agent.get_actor().to_blob() == plain.get_actor().to_blob()


def test_a_skipped_update_gives_no_priorities() -> None:
    metrics = make("DQNAgent").train_on_batch(batch(reward=np.full(ROWS, np.nan)))
    assert metrics == {SKIPPED: True}


def test_it_acts_with_the_latest_policy() -> None:
    torch.manual_seed(0)
    made = make("DQNAgent", lr=1.0)
    made.deterministic = True
    states = np.random.default_rng(0).standard_normal((50, 2)).astype(np.float32)

    def actions() -> list[int]:
        return [int(made.choose_action(state, 0.0)) for state in states]

    before = actions()
    for _ in range(5):
        made.train_on_batch(batch())
    assert actions() != before
    assert actions() == [int(made.agent.get_actor().act_(state, test=True)) for state in states]


class Weightless(ActorModule):
    """A policy of a user that loads weights into a new object."""

    def __init__(self, observation_space: Any, action_space: Any, number: int = 0) -> None:
        super().__init__(observation_space, action_space)
        self.number = number

    def act(self, obs: Any, test: bool = False) -> int:
        return self.number

    def to_bytes(self) -> bytes:
        return bytes([self.number])

    def from_bytes(self, data: bytes, device: Any) -> ActorModule:
        return type(self)(self.observation_space, self.action_space, data[0])


class NewModule(QValueMLPActor):
    """A torch policy that loads weights into a new object."""

    def from_bytes(self, data: bytes, device: Any = None) -> NewModule:
        return super(type(self), copy.deepcopy(self)).from_bytes(data, device)


class Holder(Recorder):
    def __init__(self, observation_space: Any, action_space: Any, device: Any, kind: Any = Weightless) -> None:
        TrainingAgent.__init__(self, observation_space, action_space, device)
        self.actor = kind(observation_space, action_space)


class Hidden(Holder):
    """An agent whose policy is in no attribute of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hidden = [self.__dict__.pop("actor")]

    def get_actor(self) -> Any:
        return self.hidden[0]


def test_a_policy_that_is_loaded_as_a_new_object_replaces_the_agents() -> None:
    made = TrainingAgentAlgorithm(Holder, STATES, CHOICES, actor=Weightless)
    made.load_model(Blob("file", bytes([2])))
    assert made.get_model() == Blob("file", bytes([2]))
    assert made.choose_action(np.zeros(2, np.float32), 0.0) == 2
    hidden = TrainingAgentAlgorithm(Hidden, STATES, CHOICES, actor=Weightless)
    with pytest.raises(WeightsError, match=r"Hidden has no attribute that holds its policy. Let `load`"):
        hidden.load_model(Blob("file", bytes([2])))
    assert hidden.choose_action(np.zeros(2, np.float32), 0.0) == 0


def test_weights_of_a_new_module_are_those_that_optimizers_train() -> None:
    first, second = (TrainingAgentAlgorithm(Holder, STATES, CHOICES, actor=NewModule, kind=NewModule) for _ in range(2))
    policy = second.agent.get_actor()
    assert first.get_model() != second.get_model()
    second.load_model(first.get_model())
    assert first.get_model() == second.get_model()
    assert second.agent.get_actor() is policy


def test_ppo_refuses_returns_of_several_steps() -> None:
    rows = batch(discount=np.full(ROWS, 0.99**2), logp=np.zeros(ROWS))
    with pytest.raises(ValueError, match=r"single steps with its gamma = 0.99; .*with k = 1 and this gamma"):
        make("PPOAgent").train_on_batch(rows)


def test_ppo_refuses_experiences_without_logp() -> None:
    with pytest.raises(ConfigError, match="logp"):
        make("PPOAgent").train_on_batch(batch())


@pytest.mark.parametrize("missing", ["next_state", "discount", "truncated"])
def test_a_missing_column_is_named(missing: str) -> None:
    rows = batch()
    del rows[missing]
    with pytest.raises(ValueError, match=f"the batch lacks {missing}; it has state"):
        make("DQNAgent").train_on_batch(rows)


def test_unknown_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="unexpected keyword argument 'rate'"):
        make("DQNAgent", rate=1.0)


def test_a_policy_of_another_size_than_the_agents_is_refused() -> None:
    with pytest.raises(WeightsError, match="hidden_sizes"):
        make("DQNAgent", actor_kwargs={"hidden_sizes": [16]})


@pytest.mark.parametrize("agent", ["DQNAgent", "PPOAgent"])
def test_it_learns_a_bandit(agent: str) -> None:
    torch.manual_seed(0)
    kwargs = {"lr": 1e-2, "minibatch_size": 32} if agent == "PPOAgent" else {"lr": 1e-2, "target_interval": 1}
    made = make(agent, **kwargs)
    made.seed(0)
    states = np.eye(2, dtype=np.float32)
    for _ in range(15):
        seen = states[np.arange(64) % 2]
        chosen = [made.choose_action_with_extras(state, 0.5) for state in seen]
        actions = np.array([action for action, _ in chosen])
        extras = {name: np.array([more[name] for _, more in chosen]) for name in chosen[0][1]}
        made.train_on_batch(
            {
                "state": seen,
                "action": actions,
                "reward": (actions == 1 + np.arange(64) % 2).astype(np.float32),
                "next_state": seen,
                "discount": np.full(64, 0.99, np.float32),
                "terminated": np.ones(64, bool),
                "truncated": np.zeros(64, bool),
                **extras,
            }
        )
    made.deterministic = True
    assert [int(made.choose_action(state, 0.0)) for state in states] == [1, 2]
