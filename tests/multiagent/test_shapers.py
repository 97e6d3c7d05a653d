from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import ConfigError, EpisodeError
from tmrl_core.multiagent.shapers import (
    ActionShaper,
    ExperienceShaper,
    KStepExperienceShaper,
    StateShaper,
    rewards_between_turns,
)
from tmrl_core.multiagent.trajectory import Decision, Experiences, Trajectory


def decision(agent: str, state: Any, reward: float = 0.0, **more: Any) -> Decision:
    metrics = {"reward": reward, **more.pop("metrics", {})}
    return Decision(agent, state, more.pop("action", 0), None, metrics, more)


def own_reward(metrics: Any) -> float:
    return float(metrics["reward"])


def six_decisions() -> Trajectory:
    return Trajectory(decision("a", np.array([t], np.float32), float(t + 1), action=t) for t in range(6))


# --- calls ------------------------------------------------------------------------------------------------------------


def test_calls_go_to_the_methods_that_users_override() -> None:
    class State(StateShaper):
        def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
            return decision_event["stock"] / snapshot_list["capacity"]

    class Action(ActionShaper):
        def _shape(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
            return model_action * decision_event["stock"] / snapshot_list["capacity"]

    class Experience(ExperienceShaper):
        def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
            return {"a": {"reward": np.array(self._rewards(trajectory, snapshot_list))}}

    assert State()({"stock": 2.0}, {"capacity": 4.0}) == 0.5
    assert Action()(3, {"stock": 2.0}, {"capacity": 4.0}) == 1.5
    assert Experience(own_reward)(six_decisions(), None)["a"]["reward"].tolist() == [1, 2, 3, 4, 5, 6]  # type: ignore[union-attr]


@pytest.mark.parametrize("base", [StateShaper, ActionShaper, ExperienceShaper])
def test_a_base_class_has_no_shape_of_its_own(base: type) -> None:
    with pytest.raises(TypeError, match="_shape"):
        base()


# --- k-step returns ---------------------------------------------------------------------------------------------------


def test_rewards_of_1_to_6_over_two_steps() -> None:
    columns: Any = KStepExperienceShaper(own_reward, gamma=0.9, k=2)(six_decisions(), None)["a"]
    assert columns["reward"] == pytest.approx([2.8, 4.7, 6.6, 8.5, 10.4, 6.0])
    assert columns["discount"] == pytest.approx([0.81] * 5 + [0.9])
    assert columns["next_state"][:, 0].tolist() == [2, 3, 4, 5, 5, 5]
    assert columns["state"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert columns["action"].tolist() == [0, 1, 2, 3, 4, 5]
    assert columns["terminated"].tolist() == [False] * 4 + [True] * 2
    assert not columns["truncated"].any()
    dtypes = {key: str(column.dtype) for key, column in columns.items()}
    assert dtypes == {
        **{"state": "float32", "action": "int64", "reward": "float32", "next_state": "float32"},
        **{"discount": "float32", "terminated": "bool", "truncated": "bool"},
    }


def slowly(trajectory: Trajectory, gamma: float, k: int) -> dict[str, list[tuple[Any, ...]]]:
    """(state, action, reward, next state, discount, terminated, truncated) of each decision, by an obvious loop."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for agent in {decision.agent for decision in trajectory}:
        own = [decision for decision in trajectory if decision.agent == agent]
        end = "truncated" if trajectory[-1].metrics.get("truncated") else "terminated"
        for one in trajectory:
            if one.metrics.get("terminations", {}).get(agent):
                end = "terminated"
                break
            if one.metrics.get("truncations", {}).get(agent):
                end = "truncated"
                break
        rows = []
        for t, one in enumerate(own):
            total, discount = 0.0, 1.0
            for later in own[t : t + k]:
                total += discount * later.metrics["reward"]
                discount *= gamma
            inside = t + k < len(own)
            after = own[t + k] if inside else own[-1]
            flags = (not inside and end == "terminated", not inside and end == "truncated")
            rows.append((float(one.state[0]), one.action, total, float(after.state[0]), discount, *flags))
        found[agent] = rows
    return found


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Interleaved decisions of up to four agents; some agents end before the others."""
    alive = [f"agent {i}" for i in range(draw(st.integers(1, 4)))]
    trajectory = Trajectory()
    for t in range(draw(st.integers(1, 30))):
        agent = draw(st.sampled_from(alive))
        metrics: dict[str, Any] = {}
        if len(alive) > 1 and draw(st.integers(0, 5)) == 0:
            dead = draw(st.sampled_from(alive))
            alive.remove(dead)
            metrics[draw(st.sampled_from(["terminations", "truncations"]))] = {
                dead: True,
                **dict.fromkeys(alive, False),
            }
        reward = draw(st.floats(-100, 100))
        trajectory.append(decision(agent, np.array([t], np.float64), reward, action=t, metrics=metrics))
    trajectory[-1].metrics["truncated"] = draw(st.booleans())
    return trajectory


@given(
    trajectory=trajectories(),
    gamma=st.one_of(st.sampled_from([0.0, 1.0, 0, 1]), st.floats(0, 1)),
    k=st.one_of(st.integers(1, 6), st.sampled_from([29, 30, 31, 1000])),
)
def test_any_episode_equals_a_slow_loop(trajectory: Trajectory, gamma: float, k: int) -> None:
    found: Any = KStepExperienceShaper(own_reward, gamma=gamma, k=k)(trajectory, None)
    expected = slowly(trajectory, gamma, k)
    assert found.keys() == expected.keys()
    for agent, rows in expected.items():
        c = found[agent]
        state, action, reward, next_state, discount, terminated, truncated = zip(*rows, strict=True)
        assert c["state"][:, 0].tolist() == list(state)
        assert c["action"].tolist() == list(action)
        np.testing.assert_allclose(c["reward"], reward, rtol=1e-5, atol=1e-4)
        assert c["next_state"][:, 0].tolist() == list(next_state)
        np.testing.assert_allclose(c["discount"], discount, rtol=1e-5, atol=1e-30)
        assert c["terminated"].tolist() == list(terminated)
        assert c["truncated"].tolist() == list(truncated)


def test_truncated_runs_bootstrap_and_terminated_ones_do_not() -> None:
    for truncated in (False, True):
        trajectory = six_decisions()
        trajectory[-1].metrics["truncated"] = truncated
        columns: Any = KStepExperienceShaper(own_reward, gamma=0.5, k=3)(trajectory, None)["a"]
        assert columns["terminated"].tolist() == [False] * 3 + [not truncated] * 3
        assert columns["truncated"].tolist() == [False] * 3 + [truncated] * 3
        assert columns["discount"].tolist() == [0.125] * 4 + [0.25, 0.5]


def test_a_known_final_state_is_the_last_next_state() -> None:
    trajectory = six_decisions()
    trajectory[-1].metrics["truncated"] = True
    trajectory.final_states["a"] = np.array([99], np.float32)
    columns: Any = KStepExperienceShaper(own_reward, k=2)(trajectory, None)["a"]
    assert columns["next_state"][:, 0].tolist() == [2, 3, 4, 5, 99, 99]
    assert columns["state"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_agent_that_ends_early_ends_for_itself() -> None:
    trajectory = Trajectory(
        [
            decision("a", np.zeros(1), 1.0),
            decision("b", np.zeros(1), 1.0, metrics={"terminations": {"a": True, "b": False}}),
            decision("b", np.ones(1), 1.0, metrics={"truncated": True}),
        ]
    )
    found: Any = KStepExperienceShaper(own_reward)(trajectory, None)
    assert (found["a"]["terminated"].tolist(), found["a"]["truncated"].tolist()) == ([True], [False])
    assert (found["b"]["terminated"].tolist(), found["b"]["truncated"].tolist()) == ([False, False], [False, True])


def test_an_episode_without_decisions_has_no_experiences() -> None:
    assert KStepExperienceShaper()(Trajectory(), None) == {}


# --- rewards ----------------------------------------------------------------------------------------------------------


def test_rewards_between_turns_belong_to_the_last_decision_of_their_agent() -> None:
    given_rewards = [{"a": 1.0, "b": 100.0}, {"a": 2.0, "b": 3.0}, {"b": 4.0}, {"a": 5.0, "b": 6.0}]
    turns = ["a", "b", "a", "b"]
    trajectory = Trajectory(
        decision(agent, np.zeros(1), metrics={"rewards": rewards})
        for agent, rewards in zip(turns, given_rewards, strict=True)
    )
    trajectory.append(Decision("a", np.zeros(1), 0, None, None))
    assert rewards_between_turns(trajectory).tolist() == [3.0, 7.0, 5.0, 6.0, 0.0]
    found: Any = KStepExperienceShaper(gamma=1.0, k=9)(trajectory, None)
    assert found["a"]["reward"].tolist() == [8.0, 5.0, 0.0]
    assert found["b"]["reward"].tolist() == [13.0, 6.0]


def test_rewards_of_an_overriding_method_see_trajectory_and_snapshots() -> None:
    class Delayed(KStepExperienceShaper):
        def _rewards(self, trajectory: Trajectory, snapshot_list: Any) -> Sequence[float]:
            return [snapshot_list["profit"] / len(trajectory) for _ in trajectory]

    columns: Any = Delayed()(six_decisions(), {"profit": 12.0})["a"]
    assert columns["reward"].tolist() == [2.0] * 6


def test_metrics_without_rewards_name_the_remedy() -> None:
    with pytest.raises(EpisodeError, match=r"no `rewards`.*Give the experience shaper a function"):
        KStepExperienceShaper()(six_decisions(), None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_refused_with_their_agents(bad: float) -> None:
    trajectory = six_decisions()
    trajectory[4].metrics["reward"] = bad
    with pytest.raises(EpisodeError, match=rf"decision 4 is {bad}.*\['a'\]"):
        KStepExperienceShaper(own_reward)(trajectory, None)


def test_a_wrong_number_of_rewards_is_refused() -> None:
    class One(KStepExperienceShaper):
        def _rewards(self, trajectory: Trajectory, snapshot_list: Any) -> Sequence[float]:
            return [1.0]

    with pytest.raises(EpisodeError, match="one reward for each of 6 decisions"):
        One()(six_decisions(), None)


# --- columns ----------------------------------------------------------------------------------------------------------


def test_states_of_dicts_with_masks_and_extras_keep_structure_and_dtypes() -> None:
    trajectory = Trajectory(
        decision(
            "a",
            {"obs": {"x": np.full(2, t, np.float32), "n": t}, "action_mask": np.array([1, 0, t % 2], np.int8)},
            float(t),
            action=np.array([t, -t], np.int16),
            logp=np.float32(-t),
            hidden=np.full((1, 3), t, np.float16),
        )
        for t in range(4)
    )
    columns: Any = KStepExperienceShaper(own_reward, k=2)(trajectory, None)["a"]
    for name in ("state", "next_state"):
        assert list(columns[name]) == ["obs", "action_mask"]
        assert (columns[name]["obs"]["x"].dtype, columns[name]["obs"]["x"].shape) == (np.float32, (4, 2))
        assert (columns[name]["action_mask"].dtype, columns[name]["action_mask"].shape) == (np.int8, (4, 3))
    assert columns["state"]["obs"]["n"].tolist() == [0, 1, 2, 3]
    assert columns["next_state"]["obs"]["n"].tolist() == [2, 3, 3, 3]
    assert columns["next_state"]["action_mask"][:, 2].tolist() == [0, 1, 1, 1]
    assert (columns["action"].dtype, columns["action"].shape) == (np.int16, (4, 2))
    assert (columns["logp"].dtype, columns["logp"].tolist()) == (np.float32, [0, -1, -2, -3])
    assert (columns["hidden"].dtype, columns["hidden"].shape) == (np.float16, (4, 1, 3))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"state": np.zeros(2)}, "states of 'a' differ in shape"),
        ({"state": {"x": np.zeros(1)}}, "states of 'a' differ in shape or structure"),
        ({"state": np.array(["x"])}, "states of 'a' must be numbers"),
        ({"action": np.zeros(3)}, "actions of 'a' differ in shape"),
        ({"action": None}, "actions of 'a' must be numbers"),
        ({"logp": 1.0, "value": 2.0}, r"extras of 'a' differ in their keys; each must have the keys \['logp'\]"),
    ],
)
def test_decisions_that_differ_are_refused_by_name(second: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"state": np.zeros(1), "action": 0, "logp": 1.0}
    trajectory = Trajectory(decision(agent="a", reward=0.0, **fields) for fields in (usual, {**usual, **second}))
    with pytest.raises(EpisodeError, match=message):
        KStepExperienceShaper(own_reward)(trajectory, None)


def test_extras_with_the_name_of_a_column_are_refused() -> None:
    trajectory = Trajectory([decision("a", np.zeros(1), 1.0, discount=1.0)])
    with pytest.raises(EpisodeError, match=r"names of other columns: \['discount'\]"):
        KStepExperienceShaper(own_reward)(trajectory, None)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_a_discount_factor_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(ConfigError, match="gamma must be from 0 to 1"):
        KStepExperienceShaper(gamma=gamma)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_an_impossible_number_of_steps_is_refused(k: Any) -> None:
    with pytest.raises(ConfigError, match="k must be an integer of at least 1"):
        KStepExperienceShaper(k=k)


def test_a_state_that_is_no_dict_among_dicts_is_refused() -> None:
    trajectory = Trajectory([decision("a", {"x": 1.0}), decision("a", 1.0)])
    with pytest.raises(EpisodeError, match=r"states of 'a' differ in their keys; each must have the keys \['x'\]"):
        KStepExperienceShaper(own_reward)(trajectory, None)
