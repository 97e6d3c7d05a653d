"""The actor: the order of calls, arguments that are None, seeds, tests, and episodes that fail."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.multiagent.ring import IDS, Ring, Table, algorithm_of, array, assembly, manager
from tmrl_core.errors import ConfigError, EpisodeError, PolicyFailedError, WrongModeError
from tmrl_core.multiagent import Actor, AgentManager, Explorer, KStepExperienceShaper, StateShaper
from tmrl_core.multiagent.trajectory import Columns, Experiences, Trajectory
from tmrl_core.networking.protocol.messages import Blob


class Noted(AgentManager):
    """A manager that notes its calls among those of the environment."""

    calls: list[Any]

    def choose_action(self, decision_event: Any, snapshot_list: Any) -> Any:
        self.calls.append(("choose_action", decision_event["agent"], snapshot_list))
        return super().choose_action(decision_event, snapshot_list)

    def on_env_feedback(self, metrics: Any) -> None:
        self.calls.append(("on_env_feedback", metrics["tick"]))
        super().on_env_feedback(metrics)

    def post_process(self, snapshot_list: Any) -> Experiences:
        self.calls.append(("post_process", snapshot_list))
        return super().post_process(snapshot_list)


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    return bool(first.dtype == second.dtype and np.array_equal(first, second))


def test_an_episode_makes_the_calls_in_order() -> None:
    env = Ring(length=2)
    agents = Noted("inference", IDS, config=assembly(), experience_shaper=KStepExperienceShaper(lambda _: 1.0))
    agents.calls = env.calls
    performance, experiences = Actor(env, agents).roll_out(seed=5)
    actions = [int(array(experiences[agent], "action")[0]) for agent in ("a", "b")]
    assert env.calls == [
        ("set_seed", 5),
        ("step", None),
        ("choose_action", "a", "snapshots until 0"),
        ("step", actions[0]),
        ("on_env_feedback", 1),
        ("choose_action", "b", "snapshots until 1"),
        ("step", actions[1]),
        ("on_env_feedback", 2),
        ("post_process", "snapshots until 2"),
        "metrics",
        "reset",
    ]
    assert performance == {"local": {"score": sum(actions), "decisions": 2}}


def test_the_trajectory_has_every_decision_with_the_metrics_that_followed() -> None:
    seen: list[Trajectory] = []

    class Keep(KStepExperienceShaper):
        def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
            seen.append(trajectory)
            return super()._shape(trajectory, snapshot_list)

    Actor(Ring(), manager("inference", experience_shaper=Keep(lambda metrics: metrics["reward"]))).roll_out()
    (trajectory,) = seen
    assert [decision.agent for decision in trajectory] == ["a", "b", "c", "a", "b", "c", "a"]
    assert [decision.metrics["tick"] for decision in trajectory] == [1, 2, 3, 4, 5, 6, 7]
    assert [decision.metrics["reward"] for decision in trajectory] == [decision.action for decision in trajectory]
    assert [decision.event["tick"] for decision in trajectory] == [0, 1, 2, 3, 4, 5, 6]


def test_states_are_those_of_their_decisions_though_the_environment_reuses_the_array() -> None:
    _, experiences = Actor(Ring(), manager("inference")).roll_out(seed=3)
    drawn = np.random.default_rng(3).random((8, 3)).astype(np.float32)
    assert np.array_equal(array(experiences["a"], "state"), drawn[[0, 3, 6]])
    assert np.array_equal(array(experiences["b"], "state"), drawn[[1, 4]])


def test_epsilons_are_assigned_and_reach_the_policies() -> None:
    agents = manager("inference")
    Actor(Ring(), agents).roll_out(epsilons={"a": 0.25, "b": 0.5, "c": 0.75})
    assert dict(agents.explorer.epsilons) == {"a": 0.25, "b": 0.5, "c": 0.75}
    assert [epsilon for epsilon, _ in algorithm_of(agents, "a").acted] == [0.25, 0.5, 0.25, 0.5, 0.25]
    assert [epsilon for epsilon, _ in algorithm_of(agents, "c").acted] == [0.75, 0.75]


def test_models_are_loaded_by_policy_name() -> None:
    agents = manager("inference")
    Actor(Ring(), agents).roll_out(models={"two": Table(scale=3).get_model()})
    assert np.array_equal(algorithm_of(agents, "b").scores, Table(scale=3).scores)
    assert np.array_equal(algorithm_of(agents, "c").scores, Table().scores)


def test_none_leaves_models_epsilons_and_generators_as_they_are() -> None:
    env, agents = Ring(), manager("inference", explorer=Explorer(IDS, 0.5))
    algorithm_of(agents, "a").scores = np.full((3, 4), 7.0)
    rng = algorithm_of(agents, "a").rng
    Actor(env, agents).roll_out()
    assert dict(agents.explorer.epsilons) == {"a": 0.5, "b": 0.5, "c": 0.5}
    assert np.array_equal(algorithm_of(agents, "a").scores, np.full((3, 4), 7.0))
    assert algorithm_of(agents, "a").rng is rng
    assert not [call for call in env.calls if call[0] == "set_seed"]


def test_the_same_seed_and_models_give_the_same_experiences_in_another_actor() -> None:
    models = {"two": Table(scale=2).get_model(), "one": Table(scale=3).get_model()}
    epsilons = dict.fromkeys(IDS, 0.5)
    played = Actor(Ring(length=50), manager("inference"))
    played.roll_out(seed=1)
    first = played.roll_out(models, epsilons, 11)
    second = Actor(Ring(length=50), manager("inference")).roll_out(models, epsilons, 11)
    other = Actor(Ring(length=50), manager("inference")).roll_out(models, epsilons, 12)
    assert first[0] == second[0]
    assert same(first[1], second[1])
    assert not same(first[1], other[1])


def test_policies_draw_different_numbers_from_the_same_seed() -> None:
    agents = manager("inference")
    agents.set_seed(4)
    assert algorithm_of(agents, "a").rng.random() != algorithm_of(agents, "c").rng.random()


def test_a_test_explores_nothing_and_changes_no_epsilon() -> None:
    agents = manager("inference", explorer=Explorer(IDS, 0.5))
    actor = Actor(Ring(), agents)
    actor.roll_out(test=True)
    assert set(algorithm_of(agents, "a").acted) == {(0.0, True)}
    assert dict(agents.explorer.epsilons) == {"a": 0.5, "b": 0.5, "c": 0.5}
    algorithm_of(agents, "a").acted.clear()
    actor.roll_out()
    assert set(algorithm_of(agents, "a").acted) == {(0.5, False)}


def test_an_episode_without_a_decision_has_no_experiences() -> None:
    env = Ring(fault=lambda _: ({}, None, True))
    performance, experiences = Actor(env, manager("inference")).roll_out()
    assert experiences == {}
    assert performance == {"local": {"score": 0.0, "decisions": 0}}


def test_a_manager_for_training_cannot_act() -> None:
    with pytest.raises(WrongModeError, match="choose_action belongs to the mode 'inference', and this manager is in m"):
        Actor(Ring(), manager("training")).roll_out()


# --- episodes that fail -----------------------------------------------------------------------------------------------


def raising(at: int, exc: Exception) -> Callable[[int], Any]:
    """A fault in one step of the first episode."""
    left = [exc]

    def fault(decisions: int) -> None:
        if decisions == at and left:
            raise left.pop()

    return fault


def fails_once(env: Ring, agents: AgentManager, message: str, kind: type[Exception] = EpisodeError) -> None:
    """Check that an episode raises, and that the next one has exactly its own decisions."""
    actor = Actor(env, agents)
    with pytest.raises(kind, match=message):
        actor.roll_out()
    assert env.calls[-1] == "reset"
    env.fault = None
    _, experiences = actor.roll_out(seed=2)
    assert same(experiences, Actor(Ring(), manager("inference")).roll_out(seed=2)[1])


@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_environment_that_fails_is_reset_and_its_trajectory_dropped(at: int) -> None:
    env = Ring(fault=raising(at, ValueError("the crane is stuck")))
    fails_once(env, manager("inference"), f"the environment failed in step {at}: ValueError: the crane is stuck")


def test_an_interrupted_episode_leaves_nothing_behind() -> None:
    actor = Actor(Ring(fault=raising(3, KeyboardInterrupt())), manager("inference"))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        actor.roll_out()
    assert len(actor.roll_out()[1]["a"]["reward"]) == 3


@pytest.mark.parametrize(
    ("result", "found"),
    [(7, "cannot unpack non-iterable int"), (({}, {"agent": "a"}), "not enough values to unpack (expected 3, got 2)")],
)
def test_a_step_of_another_form_is_refused(result: Any, found: str) -> None:
    env = Ring(fault=lambda decisions: result if decisions == 2 else None)
    fails_once(env, manager("inference"), re.escape(f"step must return (metrics, decision_event, is_done): {found}"))


def test_an_episode_without_an_end_is_bounded() -> None:
    actor = Actor(Ring(length=100), manager("inference"), max_decisions=5)
    with pytest.raises(
        EpisodeError, match=r"not over after 5 decisions. Let the environment end it, or raise max_deci"
    ):
        actor.roll_out()
    assert len(Actor(Ring(length=5), manager("inference"), max_decisions=5).roll_out()[1]["a"]["reward"]) == 2


def test_max_decisions_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="max_decisions must be at least 1, got 0"):
        Actor(Ring(), manager("inference"), max_decisions=0)


def test_a_class_and_methods_in_place_of_properties_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env: found the class Ring, allowed: an environment, such as Ring\(\)"):
        Actor(Ring, manager("inference"))  # type: ignore[arg-type]
    for name in ("snapshot_list", "metrics"):
        env = type("Forgot", (Ring,), {name: lambda self: {}})()
        with pytest.raises(ConfigError, match=f"Forgot.{name} is a method: make it a property, with @property"):
            Actor(env, manager("inference"))


def test_an_event_of_an_unknown_agent_names_the_known_ones() -> None:
    env = Ring(fault=lambda decisions: ({}, {"agent": "z"}, False) if decisions == 2 else None)
    fails_once(env, manager("inference"), r"names the agent 'z'; the agents are \['a', 'b', 'c'\]")


def test_an_event_without_an_agent_says_how_to_name_one() -> None:
    env = Ring(fault=lambda decisions: ({}, {"port": 3}, False) if decisions == 2 else None)
    fails_once(
        env, manager("inference"), r"no agent was found in the decision event \{'port': 3\} \(KeyError.*agent_of"
    )


def test_a_state_shaper_that_raises_is_named_with_the_decision() -> None:
    class Broken(StateShaper):
        def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
            if decision_event["tick"] == 4 and not failed:
                failed.append(True)
                raise KeyError("stock")
            return decision_event["state"]

    failed: list[bool] = []
    agents = manager("inference", state_shaper=Broken())
    fails_once(Ring(), agents, "the state shaper failed at decision 4, of the agent 'b': KeyError: 'stock'")


def test_a_state_that_does_not_fit_the_model_is_named_with_its_shape() -> None:
    class Narrow(Table):
        def choose_action(self, state: Any, epsilon: float) -> Any:
            return np.zeros((2, 3)) @ state["stock"]

    class Wide(StateShaper):
        def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
            return {"stock": np.zeros(4, np.float32), "tick": 3}

    agents = manager("inference", assembly(Narrow), state_shaper=Wide())
    said = (
        r"the policy 'two', with a state of \{stock: float32 and shape \(4,\), tick: int64 and shape \(\)\}, failed at "
        "decision 0, of the agent '.': ValueError: matmul"
    )
    with pytest.raises(EpisodeError, match=said):
        Actor(Ring(), agents).roll_out()


def test_a_state_that_is_not_finite_never_becomes_an_experience() -> None:
    bad = {"agent": "c", "state": np.array([0.0, np.nan, 0.0], np.float32)}
    env = Ring(fault=lambda decisions: ({"reward": 0.0}, bad, False) if decisions == 2 else None)
    fails_once(env, manager("inference"), r"'state' of experience 0 of 'c' holds \[ 0. nan  0.\]; it must be finite")


def test_a_reward_that_is_not_finite_is_named() -> None:
    event = {"agent": "c", "state": np.zeros(3, np.float32)}
    env = Ring(fault=lambda decisions: ({"reward": np.inf}, event, False) if decisions == 2 else None)
    fails_once(env, manager("inference"), "the reward of decision 1 is inf")


class Continuous(Table):
    """Acts with the mean of the state."""

    def choose_action(self, state: Any, epsilon: float) -> Any:
        return np.mean(state, keepdims=True)


def test_an_action_from_a_state_that_is_not_finite_is_not_executed() -> None:
    bad = {"agent": "c", "state": np.array([0.0, np.nan, 0.0], np.float32)}
    env = Ring(fault=lambda decisions: ({"reward": 0.0}, bad, False) if decisions == 2 else None)
    with pytest.raises(EpisodeError, match="the state of decision 2, of the agent 'c', is not finite"):
        Actor(env, manager("inference", assembly(Continuous))).roll_out()
    assert not [call for call in env.calls if call[0] == "step" and call[1] is not None and np.isnan(call[1])]


def test_an_action_that_is_not_finite_is_not_executed() -> None:
    class Diverged(Table):
        def choose_action(self, state: Any, epsilon: float) -> Any:
            return np.array([np.inf])

    env = Ring()
    with pytest.raises(PolicyFailedError, match=r"the policy 'two' chose an action that is not finite: \[inf\]"):
        Actor(env, manager("inference", assembly(Diverged))).roll_out()
    assert env.calls == [("step", None), "reset"]


def test_an_agent_that_decides_after_its_end_is_an_error() -> None:
    event = {"agent": "c", "state": np.zeros(3, np.float32)}
    ended = {"reward": 0.0, "terminations": {"a": True}}
    env = Ring(fault=lambda decisions: (ended, event, False) if decisions == 2 else None)
    fails_once(env, manager("inference"), "decision 3 is by the agent 'a', whose run had terminated")


def test_experiences_of_a_shaper_are_checked() -> None:
    class Short(KStepExperienceShaper):
        def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
            columns: Columns = {"state": np.zeros(2), "action": np.zeros(1), "reward": np.zeros(2)}
            return {"a": columns}

    with pytest.raises(EpisodeError, match="the experiences of 'a' have 2 rewards, but 1 rows of 'action'"):
        Actor(Ring(), manager("inference", experience_shaper=Short())).roll_out()


def test_a_reset_that_fails_loses_no_experiences_and_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Ring):
        resets = 0

        def reset(self) -> None:
            super().reset()
            self.resets += 1
            if self.resets == 1:
                raise OSError("no answer")

    env = Stuck()
    actor = Actor(env, manager("inference"))
    with caplog.at_level(logging.WARNING):
        _, experiences = actor.roll_out()
    assert len(experiences["a"]["reward"]) == 3
    assert "the next episode begins with another reset" in caplog.text
    env.calls.clear()
    actor.roll_out()
    assert env.calls[:2] == ["reset", ("step", None)]


def test_a_model_of_an_unknown_policy_is_refused_before_any_is_loaded() -> None:
    agents = manager("inference")
    models = {"two": Table(scale=3).get_model(), "tow": Blob("table", b"")}
    with pytest.raises(ValueError, match=r"models of unknown policies \['tow'\]; the policies are \['two', 'one'\]"):
        Actor(Ring(), agents).roll_out(models)
    assert np.array_equal(algorithm_of(agents, "a").scores, Table().scores)
