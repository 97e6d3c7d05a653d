"""The actor: plays episodes of an event-driven environment with the agents of a manager."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

from tmrl_core.errors import EpisodeError
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.multiagent.manager import AgentManager
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking.protocol.messages import Blob


class RollOut(Protocol):
    """Anything that plays the episodes of a learner: an actor in this process, or workers elsewhere."""

    def roll_out(
        self,
        models: Mapping[str, Blob] | None = None,
        epsilons: Mapping[str, float] | None = None,
        seed: int | None = None,
    ) -> tuple[dict[str, Any], Experiences]:
        """Play an episode, or one round of them.

        Args:
            models: by policy name; None leaves the models as they are.
            epsilons: by agent id; None leaves them as they are.
            seed: of the environment and the policies; None leaves their generators as they are.

        Returns:
            The performances by worker, and the experiences by agent.
        """


class Actor:
    """Plays episodes in this process.

    Args:
        env: the environment.
        inference_agents: a manager in mode `inference`.
        max_decisions: an episode with more decisions is an error.
    """

    def __init__(
        self, env: EventEnvironment, inference_agents: AgentManager, *, max_decisions: int = 1_000_000
    ) -> None:
        self.env = env
        self.agents = inference_agents
        self.max_decisions = max_decisions

    def roll_out(
        self,
        models: Mapping[str, Blob] | None = None,
        epsilons: Mapping[str, float] | None = None,
        seed: int | None = None,
        *,
        test: bool = False,
    ) -> tuple[dict[str, Any], Experiences]:
        """Play an episode. If it fails, its trajectory is dropped, and the next call plays a new one.

        Args:
            models: by policy name; None leaves the models as they are.
            epsilons: by agent id; None leaves them as they are.
            seed: of the environment and the policies; None leaves their generators as they are.
            test: act deterministically, without exploration.

        Returns:
            The performance, under the name `local`, and the experiences by agent.

        Raises:
            EpisodeError: the episode has no end, or an agent, a shaper or a value in it is wrong.
        """
        env, agents = self.env, self.agents
        if seed is not None:
            env.set_seed(seed)
            agents.set_seed(seed)
        if epsilons is not None:
            agents.explorer.epsilons = epsilons
        if models is not None:
            agents.load_models(models)
        agents.deterministic = test
        try:
            _, event, done = env.step(None)
            decisions = 0
            while not done:
                if decisions == self.max_decisions:
                    raise EpisodeError(f"the episode has more than {self.max_decisions} decisions")
                decisions += 1
                action = agents.choose_action(event, env.snapshot_list)
                metrics, event, done = env.step(action)
                agents.on_env_feedback(metrics)
            experiences = agents.post_process(env.snapshot_list)
            performance = env.metrics
        except BaseException:
            agents.discard_trajectory()
            with contextlib.suppress(Exception):
                env.reset()
            raise
        env.reset()
        return {"local": performance}, experiences
