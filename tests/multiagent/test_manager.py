"""The agent manager: modes, models by policy, storing, training, exploration, and how users assemble agents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.multiagent.ring import IDS, Table, algorithm_of, array, assembly, manager
from tmrl_core.errors import ConfigError, SampleRefusedError, WrongModeError
from tmrl_core.multiagent import (
    ActionShaper,
    Agent,
    AgentManager,
    AgentParameters,
    Assembly,
    Explorer,
    PolicySettings,
    SimpleStore,
    StateShaper,
)
from tmrl_core.multiagent.manager import Mode
from tmrl_core.multiagent.trajectory import Columns


def columns(rows: int = 3, **others: Any) -> Columns:
    return {"state": np.ones((rows, 3)), "action": np.zeros(rows, int), "reward": np.arange(rows) * 1.0, **others}


def event(agent: str = "a") -> dict[str, Any]:
    return {"agent": agent, "state": np.zeros(3)}


CALLS: dict[str, tuple[Mode, Any]] = {
    "choose_action": ("inference", lambda agents: agents.choose_action(event(), None)),
    "on_env_feedback": ("inference", lambda agents: agents.on_env_feedback({})),
    "post_process": ("inference", lambda agents: agents.post_process(None)),
    "load_models": ("inference", lambda agents: agents.load_models({})),
    "get_models": ("training", lambda agents: agents.get_models()),
    "store_experiences": ("training", lambda agents: agents.store_experiences({})),
    "train": ("training", lambda agents: agents.train()),
    "update_epsilon": ("training", lambda agents: agents.update_epsilon({"local": 1.0})),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_wrong_mode_is_an_error_that_says_so(name: str) -> None:
    right, call = CALLS[name]
    wrong: Mode = "training" if right == "inference" else "inference"
    message = f"{name} belongs to the mode '{right}', and this manager is in mode '{wrong}'"
    with pytest.raises(WrongModeError, match=message):
        call(manager(wrong))


def test_epsilons_are_readable_and_assignable_in_both_modes() -> None:
    for mode in ("inference", "training"):
        agents = manager(mode)
        assert dict(agents.explorer.epsilons) == {"a": 0.0, "b": 0.0, "c": 0.0}
        agents.explorer.epsilons = {"b": 0.5}
        assert agents.explorer.epsilons["b"] == 0.5


def test_shapers_stand_between_environment_and_policy() -> None:
    seen: list[Any] = []

    class Double(StateShaper):
        def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
            return np.full(3, 2.0) * snapshot_list

    class Order(ActionShaper):
        def _shape(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
            return f"{decision_event['agent']} orders {model_action} at {snapshot_list}"

    class Seeing(Table):
        def choose_action(self, state: Any, epsilon: float) -> Any:
            seen.append(state)
            return 3

    agents = manager("inference", assembly(Seeing), state_shaper=Double(), action_shaper=Order())
    assert agents.choose_action(event("b"), 4) == "b orders 3 at 4"
    assert np.array_equal(seen[0], np.full(3, 8.0))


def test_an_event_may_be_an_object_and_agent_of_may_be_overridden() -> None:
    @dataclass
    class Arrival:
        agent: str
        state: Any

    class Ports(AgentManager):
        def agent_of(self, decision_event: Any) -> str:
            return "abc"[int(decision_event["port"])]

    agents = manager("inference")
    agents.choose_action(Arrival("c", np.zeros(3)), None)
    assert len(algorithm_of(agents, "c").acted) == 1
    ports = Ports("inference", IDS, config=assembly())
    ports.choose_action({"port": 2, "state": np.zeros(3)}, None)
    assert len(algorithm_of(ports, "c").acted) == 1


def test_extras_of_the_policy_become_columns() -> None:
    class Sampling(Table):
        def choose_action_with_extras(self, state: Any, epsilon: float) -> tuple[Any, dict[str, Any]]:
            return 1, {"logp": np.float32(-0.5)}

    agents = manager("inference", assembly(Sampling))
    agents.choose_action(event(), None)
    agents.on_env_feedback({"reward": 1.0})
    assert agents.post_process(None)["a"]["logp"] == np.array([-0.5], np.float32)


def test_an_agent_of_a_user_chooses_by_itself() -> None:
    class Constant(Agent):
        def choose_action(self, model_state: Any, epsilon: float) -> Any:
            return 2

    class Rules(AgentManager):
        def assemble_agents(self, config: Any) -> None:
            self.agents = {agent: Constant(agent, Table(), SimpleStore(9), AgentParameters()) for agent in IDS}

    assert Rules("inference", IDS).choose_action(event(), None) == 2


def test_an_action_that_is_changed_in_place_is_recorded_as_it_was_chosen() -> None:
    class Continuous(Table):
        def choose_action(self, state: Any, epsilon: float) -> Any:
            return np.ones(2)

    class Doubling(ActionShaper):
        def _shape(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
            model_action *= 2
            return model_action

    agents = manager("inference", assembly(Continuous), action_shaper=Doubling())
    assert agents.choose_action(event(), None).tolist() == [2, 2]
    agents.on_env_feedback({"reward": 1.0})
    assert np.array_equal(array(agents.post_process(None)["a"], "action"), [[1, 1]])


def test_a_discarded_trajectory_leaves_nothing_behind() -> None:
    agents = manager("inference")
    agents.choose_action(event(), None)
    agents.discard_trajectory()
    assert agents.post_process(None) == {}


def test_models_are_those_of_the_policies_by_name() -> None:
    models = manager("training").get_models()
    assert list(models) == ["two", "one"]
    agents = manager("inference")
    agents.load_models({"one": Table(scale=3).get_model()})
    assert np.array_equal(algorithm_of(agents, "c").scores, Table(scale=3).scores)
    assert np.array_equal(algorithm_of(agents, "a").scores, Table().scores)


def test_experiences_go_to_the_pools_and_each_policy_trains_once() -> None:
    agents = manager("training")
    agents.store_experiences({"a": columns(3), "b": columns(4), "c": columns(5)})
    assert [len(agents.agents[agent].experience_pool) for agent in IDS] == [7, 7, 5]
    assert agents.train() == {"two": {"loss": 1.0}, "one": {"loss": 1.0}}
    assert len(algorithm_of(agents, "a").batches) == 1


@pytest.mark.parametrize(
    ("experiences", "message"),
    [
        ({"z": columns()}, r"name the agent 'z'; the agents are \['a', 'b', 'c'\]"),
        ({"c": {"state": np.ones(2), "reward": np.ones(2)}}, r"of 'c' lack \['action'\]"),
        ({"c": columns(reward=np.array([0.0, np.inf, 0.0]))}, "'reward' of experience 1 of 'c' holds inf"),
        ({"c": columns(next_state={"x": np.array([0.0, 1.0, np.nan])})}, "'next_state' of experience 2 of 'c'"),
        ({"c": columns(action=np.zeros(2))}, "3 rewards, but 2 rows of 'action'"),
        ([], "must map agent ids to columns, got list"),
    ],
)
def test_bad_experiences_are_refused_and_nothing_is_stored(experiences: Any, message: str) -> None:
    agents = manager("training")
    if isinstance(experiences, dict):
        experiences = {"a": columns(), **experiences}
    with pytest.raises(SampleRefusedError, match=message):
        agents.store_experiences(experiences)
    assert len(agents.agents["a"].experience_pool) == 0


class Remembering(Explorer):
    """Keeps the scores."""

    def __init__(self) -> None:
        super().__init__(IDS)
        self.scores: list[Any] = []

    def update(self, score: Any) -> None:
        self.scores.append(score)


def test_epsilons_are_updated_with_the_mean_score_of_all_episodes() -> None:
    explorer = Remembering()
    agents = manager("training", explorer=explorer)
    agents.update_epsilon({"local": {"score": 4}})
    agents.update_epsilon({"worker": np.float32(3.0), "other": [1.0, {"score": 5.0}]})
    agents.update_epsilon({"local": {"shortage": 1}})
    agents.update_epsilon({})
    assert explorer.scores[:2] == [4.0, 3.0]
    assert all(map(math.isnan, explorer.scores[2:]))


def test_the_score_may_be_overridden() -> None:
    class Shortage(AgentManager):
        def score(self, performance: Any) -> float:
            return -float(performance["shortage"])

    explorer = Remembering()
    Shortage("training", IDS, config=assembly(), explorer=explorer).update_epsilon({"local": {"shortage": 3}})
    assert explorer.scores == [-3.0]


def test_a_seed_repeats_the_sampling_from_the_pools() -> None:
    drawn = []
    for seed in (1, 1, 2):
        agents = manager("training", assembly(batch_size=8))
        agents.set_seed(seed)
        agents.store_experiences({"a": columns(50)})
        agents.train()
        drawn.append(algorithm_of(agents, "a").batches[0])
    assert np.array_equal(array(drawn[0], "reward"), array(drawn[1], "reward"))
    assert not np.array_equal(array(drawn[0], "reward"), array(drawn[2], "reward"))


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="a seed must be at least 0, got -1"):
        manager("inference").set_seed(-1)


# --- construction -----------------------------------------------------------------------------------------------------


class OwnAssembly(AgentManager):
    """Makes its agents from a number of policies; agents share them in turn."""

    def assemble_agents(self, config: Any) -> None:
        algorithms = [Table() for _ in range(config)]
        for number, agent in enumerate(self.agent_ids):
            self.agents[agent] = Agent(agent, algorithms[number % config], SimpleStore(9), AgentParameters())


def test_users_assemble_agents_from_their_own_config() -> None:
    agents = OwnAssembly("training", IDS, config=2)
    assert agents.agents["a"].algorithm is agents.agents["c"].algorithm
    assert list(agents.get_models()) == ["a", "b"]
    assert agents.policy_of == {"a": "a", "b": "b", "c": "a"}


def test_an_algorithm_with_two_pools_trains_on_both_and_reports_the_mean() -> None:
    agents = OwnAssembly("training", IDS, config=1)
    agents.store_experiences({agent: columns() for agent in IDS})
    assert agents.train() == {"a": {"loss": 2.0}}
    assert len(algorithm_of(agents, "a").batches) == 3


def test_an_agent_left_out_is_an_error() -> None:
    class Forgetful(AgentManager):
        def assemble_agents(self, config: Any) -> None:
            self.agents["a"] = Agent("a", Table(), SimpleStore(9), AgentParameters())

    with pytest.raises(ConfigError, match=r"one agent for each of \['a', 'b', 'c'\], got \['a'\]"):
        Forgetful("training", IDS)


def test_a_policy_name_for_two_algorithms_is_an_error() -> None:
    class Double(OwnAssembly):
        def assemble_agents(self, config: Any) -> None:
            super().assemble_agents(config)
            self.policy_of = dict.fromkeys(IDS, "same")

    with pytest.raises(ConfigError, match="gave the policy 'same' two algorithms"):
        Double("training", IDS, config=2)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="mode must be 'inference' or 'training', got 'acting'"):
        manager("acting")  # type: ignore[arg-type]
    for ids in ([], ["a", "b", "a"]):
        with pytest.raises(ConfigError, match="agent_ids must be one or more unique ids"):
            AgentManager("training", ids, config=assembly())
    with pytest.raises(
        ConfigError, match=r"config must be an Assembly, got dict. For another config override assemble"
    ):
        AgentManager("training", IDS, config={})
    with pytest.raises(ConfigError, match=r"the explorer has no epsilon for \['c'\]"):
        manager("training", explorer=Explorer(["a", "b"]))


# --- sharing ----------------------------------------------------------------------------------------------------------


def shared(agents: dict[str, str], memories: dict[str, str | None]) -> AgentManager:
    policies = {name: PolicySettings(algorithm=Table, memory=memory) for name, memory in memories.items()}
    return manager("training", Assembly(agents=agents, policies=policies))


def objects(agents: AgentManager) -> tuple[int, int]:
    """Numbers of algorithms and pools."""
    algorithms = {id(agent.algorithm) for agent in agents.agents.values()}
    pools = {id(agent.experience_pool) for agent in agents.agents.values()}
    return len(algorithms), len(pools)


def test_independent_agents_share_nothing() -> None:
    agents = shared({"a": "x", "b": "y", "c": "z"}, {"x": None, "y": None, "z": None})
    assert objects(agents) == (3, 3)


def test_agents_of_one_policy_share_its_algorithm_and_pool() -> None:
    agents = shared({"a": "x", "b": "x", "c": "z"}, {"x": None, "z": None})
    assert objects(agents) == (2, 2)
    assert agents.agents["a"].algorithm is agents.agents["b"].algorithm
    assert agents.agents["a"].experience_pool is agents.agents["b"].experience_pool


def test_policies_of_one_memory_share_the_pool_alone() -> None:
    agents = shared({"a": "x", "b": "y", "c": "z"}, {"x": "all", "y": "all", "z": "all"})
    assert objects(agents) == (3, 1)
    agents.store_experiences({"a": columns(2), "c": columns(3)})
    assert len(agents.agents["b"].experience_pool) == 5
    assert list(agents.train()) == ["x", "y", "z"]


def test_two_managers_share_nothing() -> None:
    config = assembly()
    first, second = manager("training", config), manager("inference", config)
    assert first.agents["a"].algorithm is not second.agents["a"].algorithm
