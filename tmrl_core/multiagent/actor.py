"""The actor: plays episodes of an event-driven environment with the agents of a manager."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tmrl_core.errors import ConfigError, ContractError, EpisodeError, ObservationError
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.multiagent.manager import AgentManager
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking.protocol.messages import Blob

logger = logging.getLogger(__name__)


class RollOut(Protocol):
    """Protocol of a player of a learner's episodes: an actor in this process, or workers elsewhere."""

    def roll_out(
        self,
        models: Mapping[str, Blob] | None = None,
        epsilons: Mapping[str, float] | None = None,
        seed: int | None = None,
    ) -> tuple[Mapping[str, Any], Experiences]:
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
        max_decisions: maximum number of decisions in an episode; a longer one is an error.

    Raises:
        ConfigError: `env` is a class, or has methods in place of properties, or a number is not allowed.
    """

    def __init__(
        self, env: EventEnvironment, inference_agents: AgentManager, *, max_decisions: int = 1_000_000
    ) -> None:
        if max_decisions < 1:
            raise ConfigError(f"max_decisions must be at least 1, got {max_decisions}")
        if isinstance(env, type):
            raise ConfigError(f"env: found the class {env.__name__}, allowed: an environment, such as {env.__name__}()")
        for name in ("snapshot_list", "metrics"):
            if inspect.isfunction(getattr(type(env), name, None)):
                raise ConfigError(
                    f"{type(env).__name__}.{name} is a method: make it a property, with @property above it"
                )
        self.env = env
        self.agents = inference_agents
        self.max_decisions = max_decisions
        self._needs_reset = False

    def roll_out(
        self,
        models: Mapping[str, Blob] | None = None,
        epsilons: Mapping[str, float] | None = None,
        seed: int | None = None,
        *,
        test: bool = False,
        before_decision: Callable[[], object] | None = None,
    ) -> tuple[dict[str, Any], Experiences]:
        """Play an episode.

        After an error the trajectory is discarded and the environment is reset. The next call plays a new episode.

        Args:
            models: by policy name; None leaves the models as they are.
            epsilons: by agent id; None leaves them as they are.
            seed: of the environment and the policies; None leaves their generators as they are.
            test: act deterministically, without exploration.
            before_decision: called before each action is executed. An error that it raises ends the episode, and
                propagates.

        Returns:
            The performance, under the name `local`, and the experiences by agent.

        Raises:
            EpisodeError: the environment or a shaper failed, an event names no known agent, a state or reward is not
                finite, the action mask of a state allows no action, or the episode has more than `max_decisions`.
            PolicyFailedError: an action is not finite. It was not executed.
            ContractError: the environment does not have the interface of its kind.
        """
        env, agents = self.env, self.agents
        if self._needs_reset:
            self._reset()
        if seed is not None:
            env.set_seed(seed)
            agents.set_seed(seed)
        if epsilons is not None:
            agents.explorer.epsilons = epsilons
        if models is not None:
            agents.load_models(models)
        agents.deterministic = test
        self._needs_reset = True
        try:
            performance, experiences = self._play(before_decision)
        except ObservationError as exc:
            raise EpisodeError(f"a policy cannot act: {exc}") from exc
        finally:
            agents.deterministic = False
            agents.discard_trajectory()
            try:
                self._reset()
            except EpisodeError:
                logger.warning("the next episode begins with another reset of the environment", exc_info=True)
        return {"local": performance}, experiences

    def _play(self, before_decision: Callable[[], object] | None) -> tuple[Any, Experiences]:
        """Play an episode to its end. Return its performance and experiences."""
        env, choose_action, on_env_feedback = self.env, self.agents.choose_action, self.agents.on_env_feedback
        action, decisions = None, 0
        while True:
            try:
                metrics, event, done = env.step(action)
                snapshots = env.snapshot_list
            except (EpisodeError, ContractError):
                raise
            except Exception as exc:
                if isinstance(exc, TypeError | ValueError) and exc.__traceback__ and not exc.__traceback__.tb_next:
                    raise EpisodeError(f"step must return (metrics, decision_event, is_done): {exc}") from exc
                raise EpisodeError(f"the environment failed in step {decisions}: {type(exc).__name__}: {exc}") from exc
            if decisions:
                on_env_feedback(metrics)
            if done:
                break
            if decisions == self.max_decisions:
                raise EpisodeError(
                    f"the episode is not over after {decisions} decisions. Let the environment end it, or raise "
                    "max_decisions"
                )
            decisions += 1
            action = choose_action(event, snapshots)
            if before_decision is not None:
                before_decision()
        experiences = self.agents.post_process(snapshots)
        try:
            return env.metrics, experiences
        except Exception as exc:
            raise EpisodeError(f"the environment's metrics failed: {type(exc).__name__}: {exc}") from exc

    def _reset(self) -> None:
        try:
            self.env.reset()
        except ContractError:
            raise
        except Exception as exc:
            raise EpisodeError(f"the environment's reset failed: {type(exc).__name__}: {exc}") from exc
        self._needs_reset = False
