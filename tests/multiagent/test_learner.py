"""The learner: the order of calls, seeds, tests, their schedule, and early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.multiagent.ring import IDS, Ring, Table, algorithm_of, array, assembly, manager
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent import (
    Actor,
    AgentManager,
    EarlyStopping,
    EpisodeResult,
    Explorer,
    KStepExperienceShaper,
    Learner,
    episode_seeds,
)
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking.protocol.messages import Blob


class Falling(Explorer):
    """Halves the shares."""

    def update(self, score: Any) -> None:
        self.epsilons = {agent: value / 2 for agent, value in self.epsilons.items()}


class Noted(AgentManager):
    """A manager that notes the calls of its learner."""

    calls: list[Any]

    def get_models(self) -> dict[str, Blob]:
        self.calls.append("get_models")
        return super().get_models()

    def store_experiences(self, experiences: Experiences) -> None:
        self.calls.append(("store_experiences", sorted(experiences)))
        super().store_experiences(experiences)

    def train(self) -> dict[str, Mapping[str, float]]:
        self.calls.append("train")
        return super().train()

    def update_epsilon(self, performance: Mapping[str, Any]) -> None:
        self.calls.append(("update_epsilon", performance))
        super().update_epsilon(performance)


class Played:
    """Plays episodes with given performances, and notes its arguments."""

    def __init__(self, calls: list[Any] | None = None, scores: list[float] | None = None) -> None:
        self.calls = [] if calls is None else calls
        self.scores = scores

    def roll_out(
        self,
        models: Mapping[str, Blob] | None = None,
        epsilons: Mapping[str, float] | None = None,
        seed: int | None = None,
    ) -> tuple[Mapping[str, Any], Experiences]:
        self.calls.append(("roll_out", sorted(models or {}), dict(epsilons or {}), seed))
        performance = self.scores.pop(0) if self.scores else 0.0
        return {"local": performance}, {"a": {key: np.ones(2) for key in ("state", "action", "reward")}}


def test_an_episode_makes_the_calls_in_order() -> None:
    agents = Noted("training", IDS, config=assembly(), explorer=Falling(IDS, 0.8))
    agents.calls = []
    Learner(agents, Played(agents.calls), seed=9).train(2)
    first, second = agents.calls[:5], agents.calls[5:]
    for calls, epsilon in ((first, 0.8), (second, 0.4)):
        assert calls == [
            "get_models",
            ("roll_out", ["one", "two"], dict.fromkeys(IDS, epsilon), 9),
            ("store_experiences", ["a"]),
            "train",
            ("update_epsilon", {"local": 0.0}),
        ]


def test_seeds_are_none_an_int_or_one_per_episode() -> None:
    def seeds(seed: Any) -> list[Any]:
        played = Played()
        Learner(manager("training"), played, seed).train(3)
        return [call[3] for call in played.calls]

    assert seeds(None) == [None, None, None]
    assert seeds(4) == [4, 4, 4]
    assert seeds(lambda episode: 10 + episode) == [10, 11, 12]
    own = seeds(episode_seeds(4))
    assert own == seeds(episode_seeds(4))
    assert len({*own, *seeds(episode_seeds(5))}) == 6
    assert all(0 <= seed < 2**63 for seed in own)


def learner(**arguments: Any) -> Learner:
    agents = manager("training", explorer=Explorer(IDS, 0.5))
    return Learner(agents, Actor(Ring(), manager("inference")), **arguments)


def test_training_in_one_process_fills_pools_updates_models_and_reports_each_episode() -> None:
    seen: list[EpisodeResult] = []
    one = learner(seed=3, on_episode=seen.append)
    results = one.train(4)
    assert results == seen
    assert [result.episode for result in results] == [1, 2, 3, 4]
    assert results[0].epsilons == dict.fromkeys(IDS, 0.5)
    assert results[0].performance == {"local": {"score": results[0].score, "decisions": 7}}
    assert results[3].metrics == {"two": {"loss": 4.0}, "one": {"loss": 4.0}}
    assert len(one.agents.agents["a"].experience_pool) == 4 * 5
    assert np.array_equal(algorithm_of(one.agents, "a").scores, Table().scores + 4)
    assert isinstance(one.actor, Actor)
    assert np.array_equal(algorithm_of(one.actor.agents, "a").scores, Table().scores + 3)


def test_the_same_seed_gives_the_same_training() -> None:
    batches = []
    for seed in (3, 3, 4):
        one = learner(seed=episode_seeds(seed))
        one.train(3)
        batches.append([array(batch, "reward").tolist() for batch in algorithm_of(one.agents, "a").batches])
    assert batches[0] == batches[1] != batches[2]


def test_a_second_call_goes_on_with_the_numbers_of_episodes() -> None:
    one = learner()
    one.train(2)
    assert [result.episode for result in one.train(2)] == [3, 4]


# --- tests ------------------------------------------------------------------------------------------------------------


def test_tests_play_the_present_models_without_exploration_in_their_own_environment() -> None:
    test_env, test_agents = Ring(length=2), manager("inference")
    one = learner(seed=3, test_actor=Actor(test_env, test_agents), test_episodes=2)
    one.train(3)
    assert test_env.calls == []
    assert [performance["decisions"] for performance in one.test()] == [2, 2]
    assert len(one.test(5)) == 5
    assert set(algorithm_of(test_agents, "a").acted) == {(0.0, True)}
    assert np.array_equal(algorithm_of(test_agents, "a").scores, algorithm_of(one.agents, "a").scores)


def test_every_test_has_the_same_seeds_and_no_training_episode_has_them() -> None:
    test_env = Ring()
    one = learner(seed=3, test_actor=Actor(test_env, manager("inference")), test_episodes=2)
    one.test()
    one.test()
    seeds = [call[1] for call in test_env.calls if call[0] == "set_seed"]
    assert seeds[:2] == seeds[2:]
    assert len({3, *seeds}) == 3


def test_seeds_of_episodes_fit_simulators_that_take_31_bits() -> None:
    seeds = [episode_seeds(3)(episode) for episode in range(50)]
    assert max(seeds) < 2**31
    assert len(set(seeds)) == len(seeds)


def test_a_test_without_a_seed_sets_none() -> None:
    test_env = Ring()
    learner(test_actor=Actor(test_env, manager("inference"))).test()
    assert not [call for call in test_env.calls if call[0] == "set_seed"]


def test_tests_follow_their_schedule() -> None:
    test_env = Ring(length=2)
    one = learner(test_actor=Actor(test_env, manager("inference")), evaluate_every=2, test_episodes=3)
    results = one.train(5)
    assert [len(result.tests) for result in results] == [0, 3, 0, 3, 0]
    assert results[1].test_score == np.mean([test["score"] for test in results[1].tests])
    assert np.isnan(results[0].test_score)


def test_the_actor_of_training_also_tests_if_there_is_no_other() -> None:
    one = learner(evaluate_every=1)
    one.train(1)
    assert isinstance(one.actor, Actor)
    assert not one.actor.agents.deterministic


def test_an_actor_that_plays_elsewhere_cannot_test() -> None:
    with pytest.raises(ConfigError, match=r"plays elsewhere: give the learner a test_actor"):
        Learner(manager("training"), Played()).test()
    with pytest.raises(ConfigError, match=r"plays elsewhere: give the learner a test_actor"):
        Learner(manager("training"), Played(), evaluate_every=1)


# --- early stopping ---------------------------------------------------------------------------------------------------


def episodes_until_stopped(scores: list[float], **settings: Any) -> int:
    played = Played(scores=list(scores))
    results = Learner(manager("training"), played, early_stopping=EarlyStopping(**settings)).train(len(scores))
    return len(results)


def test_training_ends_at_the_target() -> None:
    assert episodes_until_stopped([1.0, 2.0, 3.0, 4.0], target=3.0) == 3
    assert episodes_until_stopped([1.0, 2.0], target=3.0) == 2


def test_training_ends_without_a_new_best_score() -> None:
    assert episodes_until_stopped([1.0, 3.0, 2.0, 3.0, 5.0], patience=2) == 4
    assert episodes_until_stopped([1.0, 2.0, 1.0, 3.0, 2.0], patience=2) == 5


def test_small_gains_are_no_new_best_score() -> None:
    assert episodes_until_stopped([1.0, 1.4, 1.5, 9.0], patience=2, min_delta=0.5) == 3
    assert episodes_until_stopped([1.0, 1.6, 1.7, 9.0], patience=2, min_delta=0.5) == 4


def test_with_a_schedule_early_stopping_looks_at_tests() -> None:
    class Constant(Ring):
        @property
        def metrics(self) -> Any:
            return {"score": 7.0}

    test_actor = Actor(Constant(), manager("inference"))
    one = Learner(
        manager("training"),
        Played(scores=[99.0] * 9),
        test_actor=test_actor,
        evaluate_every=3,
        early_stopping=EarlyStopping(target=50.0, patience=1),
    )
    assert len(one.train(9)) == 6


def test_early_stopping_needs_scores() -> None:
    class Unscored(AgentManager):
        def score(self, performance: Any) -> float:
            return float("nan")

    shaper = KStepExperienceShaper(lambda _: 0.0)
    agents = Unscored("training", IDS, config=assembly(), experience_shaper=shaper)
    with pytest.raises(ConfigError, match=r"early stopping needs a score.*override AgentManager.score"):
        Learner(agents, Played(), early_stopping=EarlyStopping(patience=1)).train(1)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a target, a patience or both"):
        EarlyStopping()
    with pytest.raises(ConfigError, match="patience must be at least 1, got 0"):
        EarlyStopping(patience=0)
    with pytest.raises(ConfigError, match="min_delta must be at least 0, got -1"):
        EarlyStopping(patience=1, min_delta=-1)
    with pytest.raises(ConfigError, match="evaluate_every must be at least 0 and test_episodes at least 1, got -1 and"):
        learner(evaluate_every=-1)
    with pytest.raises(ConfigError, match="test_episodes at least 1, got 0 and 0"):
        learner(test_episodes=0)
