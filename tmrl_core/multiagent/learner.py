"""The learner: episode by episode, it has the agents play, stores their experiences and trains them."""

# Theory of operation
#
# The order of one episode is fixed, because each step uses the result of the one before: epsilons and models as they
# are now -> `roll_out` -> store -> train -> new epsilons. The `EpisodeResult` has the epsilons that were in force, not
# those for the next episode.
#
# The actor is any `RollOut`: an `Actor` in this process, or a `RemoteActor` whose workers play a round of episodes. So
# a script and a distributed run have the same learner, and with one worker and one seed the same results.
#
# Seeds. Tests have seeds of their own, derived from the first seed and the word "test", so that no test repeats a
# training episode, and every test plays the same episodes: scores over time can be compared.
#
# Early stopping looks at scores of tests if there are any, since a training score includes exploration. A score of NaN
# is an error there and not a silent "never".

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.actor import Actor, RollOut
from tmrl_core.multiagent.manager import AgentManager


def episode_seeds(seed: int) -> Callable[[int], int]:
    """Return a function from an episode's number to its own seed, for `Learner`."""
    return lambda episode: _derived(seed, episode)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStopping:
    """Conditions under which training ends early; the first that holds ends it.

    They look at the scores of tests, or of training episodes if the learner has no evaluation schedule.

    Args:
        target: score at which training ends; None: no target.
        patience: number of scores in a row without a new best one after which training ends; None: no limit.
        min_delta: a new best score exceeds the one before by more than this.

    Raises:
        ConfigError: neither a target nor a patience is set, or a number is out of range.
    """

    target: float | None = None
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.target is None and self.patience is None:
            raise ConfigError("early stopping needs a target, a patience or both")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience must be at least 1, got {self.patience}")
        if not self.min_delta >= 0:
            raise ConfigError(f"min_delta must be at least 0, got {self.min_delta}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeResult:
    """One episode of a learner, or one round of several workers.

    Args:
        episode: its number, from 1.
        performance: by worker.
        score: mean score of the performances; NaN if they have none.
        epsilons: exploration parameters in force, by agent.
        metrics: means over the updates, by policy.
        tests: performances of the test episodes after the updates; empty if none were due.
        test_score: mean score of the tests.
    """

    episode: int
    performance: Mapping[str, Any]
    score: float
    epsilons: Mapping[str, float]
    metrics: Mapping[str, Mapping[str, float]]
    tests: tuple[Any, ...] = ()
    test_score: float = math.nan


class Learner:
    """Trains the agents of a scenario.

    Args:
        trainable_agents: a manager in mode `training`.
        actor: plays the episodes.
        seed: an int goes to every `roll_out` as it is; a function from the episode's number (from 0) to its seed, such
            as `episode_seeds(seed)`, gives each episode its own; None seeds nothing. A seed also makes the sampling
            from the memories and the seeds of the tests repeatable.
        test_actor: plays the tests, in an environment of its own; None: `actor` does.
        evaluate_every: episodes from one test to the next; 0: no tests.
        test_episodes: episodes of a test.
        early_stopping: conditions under which training ends early.
        on_episode: called with the result of each episode.

    Raises:
        ConfigError: a number is out of range, or tests are wanted but the actor cannot play them.

    Attributes:
        episodes: number of episodes since the start of training.
    """

    def __init__(
        self,
        trainable_agents: AgentManager,
        actor: RollOut,
        seed: int | Callable[[int], int] | None = None,
        *,
        test_actor: Actor | None = None,
        evaluate_every: int = 0,
        test_episodes: int = 1,
        early_stopping: EarlyStopping | None = None,
        on_episode: Callable[[EpisodeResult], None] | None = None,
    ) -> None:
        if evaluate_every < 0 or test_episodes < 1:
            raise ConfigError(
                f"evaluate_every must be at least 0 and test_episodes at least 1, got {evaluate_every} and "
                f"{test_episodes}"
            )
        self.agents = trainable_agents
        self.actor = actor
        self.test_actor = actor if test_actor is None and isinstance(actor, Actor) else test_actor
        self.test_episodes = test_episodes
        self.episodes = 0
        self._seed = seed
        self._evaluate_every = evaluate_every
        self._early_stopping = early_stopping
        self._on_episode = on_episode
        self._best = -math.inf
        self._scores_since_best = 0
        if evaluate_every:
            self._check_test_actor()
        self._first_seed = seed(0) if callable(seed) else seed
        if self._first_seed is not None:
            trainable_agents.set_seed(self._first_seed)

    def train(self, total_episodes: int) -> list[EpisodeResult]:
        """Train for a number of episodes, or until early stopping.

        Returns:
            One result per episode.
        """
        results: list[EpisodeResult] = []
        for _ in range(total_episodes):
            result = self.run_episode()
            tested = self._evaluate_every and self.episodes % self._evaluate_every == 0
            if tested:
                tests = self.test()
                result = replace(result, tests=tuple(tests), test_score=self.agents.mean_score({"test": tests}))
            results.append(result)
            if self._on_episode is not None:
                self._on_episode(result)
            if (tested or not self._evaluate_every) and self._ends(result.test_score if tested else result.score):
                break
        return results

    def run_episode(self) -> EpisodeResult:
        """Play one episode (or round), store its experiences, train, and move the exploration parameters."""
        agents = self.agents
        epsilons = dict(agents.explorer.epsilons)
        seed = self._seed(self.episodes) if callable(self._seed) else self._seed
        performance, experiences = self.actor.roll_out(models=agents.get_models(), epsilons=epsilons, seed=seed)
        agents.store_experiences(experiences)
        metrics = agents.train()
        agents.update_epsilon(performance)
        self.episodes += 1
        return EpisodeResult(
            episode=self.episodes,
            performance=performance,
            score=agents.mean_score(performance),
            epsilons=epsilons,
            metrics=metrics,
        )

    def test(self, episodes: int | None = None) -> list[Any]:
        """Play episodes with the present models, deterministically and without exploration.

        Every call plays with the same seeds, which training episodes do not have, if the learner has a seed.

        Args:
            episodes: their number; None: `test_episodes`.

        Returns:
            The performance of each episode.

        Raises:
            ConfigError: the actor plays elsewhere, and there is no test actor.
        """
        actor = self._check_test_actor()
        models = self.agents.get_models()
        performances = []
        for number in range(self.test_episodes if episodes is None else episodes):
            seed = None if self._first_seed is None else _derived(self._first_seed, number, "test")
            performance, _ = actor.roll_out(models=models, seed=seed, test=True)
            performances.append(performance["local"])
        return performances

    def _check_test_actor(self) -> Actor:
        if self.test_actor is None:
            raise ConfigError("the actor of this learner plays elsewhere: give the learner a test_actor for its tests")
        return self.test_actor

    def _ends(self, score: float) -> bool:
        """Return True if early stopping ends training after this score."""
        stopping = self._early_stopping
        if stopping is None:
            return False
        if math.isnan(score):
            raise ConfigError(
                "early stopping needs a score, and the performance has none: override AgentManager.score, or give the "
                "environment's metrics the key 'score'"
            )
        if score > self._best + stopping.min_delta:
            self._best, self._scores_since_best = score, 0
        else:
            self._scores_since_best += 1
        return (stopping.target is not None and score >= stopping.target) or (
            stopping.patience is not None and self._scores_since_best >= stopping.patience
        )


def _derived(seed: int, number: int, kind: str = "") -> int:
    """Return a seed of 31 bits, which simulators in C take, from the arguments."""
    sequence = np.random.SeedSequence([seed, number, *kind.encode()])
    return int(sequence.generate_state(1)[0] >> 1)
