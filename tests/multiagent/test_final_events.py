"""Events after the last decision of truncated agents become the states that their values are estimated from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import EpisodeError
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.manager import AgentManager
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.multiagent.shapers import StateShaper
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.networking.protocol.messages import Blob


class Still(AgentAlgorithm):
    def choose_action(self, state: Any, epsilon: float) -> Any:
        return 0

    def train_on_batch(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_model(self) -> Blob:
        return Blob("none", b"")

    def load_model(self, model: Blob) -> None: ...


class Manager(AgentManager):
    def assemble_agents(self, config: Any) -> None:
        for name in self.agent_ids:
            self.agents[name] = Agent(name, Still(), SimpleStore(10), AgentParameters())


def played(manager: AgentManager, steps: list[dict[str, Any]]) -> Any:
    """The experiences of an episode in which agent a decides in each step, with these metrics after it."""
    for number, metrics in enumerate(steps):
        manager.choose_action({"agent": "a", "state": np.full(1, number, np.float32)}, None)
        manager.on_env_feedback({"rewards": {"a": 1.0}, **metrics})
    return manager.post_process(None)["a"]


def event(state: float) -> dict[str, Any]:
    return {"agent": "a", "state": np.full(1, state, np.float32)}


@pytest.mark.parametrize("end", [{"truncated": True}, {"truncations": {"a": True}}])
def test_a_truncated_agent_bootstraps_from_its_final_event(end: dict[str, Any]) -> None:
    columns = played(Manager("inference", ["a"]), [{}, {**end, "final_events": {"a": event(7)}}])
    assert columns["next_state"].tolist() == [[1], [7]]
    assert columns["truncated"].tolist() == [False, True]


def test_the_final_event_of_a_terminated_agent_is_ignored() -> None:
    columns = played(Manager("inference", ["a"]), [{}, {"terminations": {"a": True}, "final_events": {"a": None}}])
    assert columns["next_state"].tolist() == [[1], [1]]
    assert columns["terminated"].tolist() == [False, True]


def test_final_events_go_through_the_state_shaper() -> None:
    class Shaper(StateShaper):
        def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
            return decision_event["state"] + 100

    manager = Manager("inference", ["a"], state_shaper=Shaper())
    columns = played(manager, [{"truncated": True, "final_events": {"a": event(7)}}])
    assert (columns["state"].tolist(), columns["next_state"].tolist()) == ([[100]], [[107]])


def test_a_final_event_without_a_state_names_the_agent() -> None:
    with pytest.raises(EpisodeError, match="state shaper failed at decision 1, of the agent 'a'"):
        played(Manager("inference", ["a"]), [{"truncated": True, "final_events": {"a": {}}}])


def test_final_events_of_agents_without_a_decision_are_harmless() -> None:
    manager = Manager("inference", ["a", "b"])
    events = {"a": event(7), "b": {"agent": "b", "state": np.zeros(3)}}
    columns = played(manager, [{"truncated": True, "final_events": events}])
    assert columns["next_state"].tolist() == [[7]]


def test_final_events_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(EpisodeError, match=r"metrics\['final_events'\] must map agent ids to events, got 3"):
        played(Manager("inference", ["a"]), [{"truncated": True, "final_events": 3}])
