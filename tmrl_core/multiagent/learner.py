"""The learner: episode by episode, it has agents play, stores their experiences and trains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.actor import Actor, RollOut
from tmrl_core.multiagent.manager import AgentManager


def episode_seeds(seed: int) -> Callable[[int], int]:
    """Return a function from an episode's number to a seed of its own."""
    return lambda episode: int(np.random.SeedSequence([seed, episode]).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStopping:
    """The condition under which training ends early: of tests if there are any, else of training episodes.

    Args:
        target: stop at this score.
        patience: stop after so many scores in a row without a new best one.
        min_delta: a new best score is larger by more than this.
    """

    target: float | None = None
    patience: int | None = None
    min_delta: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeResult:
    """One episode, or round, of a learner.

    Args:
        episode: its number, from 1.
        performance: by worker.
        score: mean score of the performances; NaN without one.
        epsilons: the exploration parameters in force.
        metrics: of the updates, by policy.
        tests: performances of the test episodes after it.
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
            as `episode_seeds(seed)`, gives each episode its own; None seeds nothing.
        test_actor: plays the tests, in an environment of its own; None: `actor`.
        evaluate_every: test after each so many episodes; 0 never.
        test_episodes: episodes of a test.
        early_stopping: the condition under which training ends early.
        on_episode: called after each episode.
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
        self.agents = trainable_agents
        self.actor = actor
        self.seed = seed
        self.test_actor = test_actor
        self.evaluate_every = evaluate_every
        self.test_episodes = test_episodes
        self.early_stopping = early_stopping
        self.on_episode = on_episode
        self.episodes = 0

    def train(self, total_episodes: int) -> list[EpisodeResult]:
        """Train for a number of episodes, or until early stopping. Return one result per episode."""
        results = []
        for _ in range(total_episodes):
            results.append(self.run_episode())
        return results

    def run_episode(self) -> EpisodeResult:
        """Play one episode (or round), store its experiences, train, and move the exploration parameters."""
        agents = self.agents
        epsilons = dict(agents.explorer.epsilons)
        seed = self.seed(self.episodes) if callable(self.seed) else self.seed
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
        """Play episodes with the current models, deterministically. Return their performances."""
        actor = self.test_actor or self.actor
        if not isinstance(actor, Actor):
            raise ConfigError("the actor plays elsewhere: give the learner a test_actor")
        models = self.agents.get_models()
        performances = []
        for _ in range(self.test_episodes if episodes is None else episodes):
            performance, _ = actor.roll_out(models=models, test=True)
            performances.append(performance["local"])
        return performances
