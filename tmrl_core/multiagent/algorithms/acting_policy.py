"""The acting half of a training agent: its policy, without torch where there is a NumPy backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.module import BatchActor
from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.config.algorithms import ACTORS, action_space_kind, algorithm_of
from tmrl_core.envs.json_spaces import space_from_json
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob

_SHARED = {
    "hidden_sizes": "hidden_sizes",
    "activation": "activation",
    "dueling": "dueling",
    "normalize_observations": "normalize_observations",
    "exploration_noise": "noise",
    "cell": "cell",
    "cell_size": "cell_size",
    "state_interval": "state_interval",
}
"""Keyword arguments of built-in agents that shape their policies too, with the policies' names for them."""


class ActingPolicy(AgentAlgorithm):
    """The policy of a training agent, for actors: it acts with weights that a `TrainingAgentAlgorithm` has trained.

    Both take the same arguments. A built-in policy runs on its NumPy backend, so that actors need no torch.

    `epsilon` is the share of random actions of a policy that has one (`epsilon` or `random` in its `exploration`).
    Other policies explore with their own distributions, and `epsilon` changes nothing.

    A recurrent policy carries a state of each agent that shares it, and its extras hold the states to train from.

    Args:
        agent: class of the `TrainingAgent`, or its reference `package.module:Name`.
        observation_space: of the states, or as JSON (`tmrl_core.envs.json_spaces`).
        action_space: of the model actions, or as JSON.
        actor: class or reference of the policy; None: the policy of a built-in agent.
        actor_kwargs: further keyword arguments of the policy.
        backend: `auto`, `numpy` or `torch`, as `worker.backend`.
        device: device of the training agent; acting is on the CPU.
        kwargs: of the agent. Those that shape a built-in policy too are passed on to it.

    Raises:
        ConfigError: the policy is unknown, or does not fit an argument.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"runner", "_share"})

    def __init__(
        self,
        agent: str | Callable[..., Any],
        observation_space: Any,
        action_space: Any,
        *,
        actor: str | Callable[..., Any] | None = None,
        actor_kwargs: Mapping[str, Any] | None = None,
        backend: str = "auto",
        device: Any = "cpu",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        observations, actions = as_space(observation_space, "observation_space"), as_space(action_space, "action_space")
        if actor is None:
            actor = _policy_of(agent, actions)
            shared = {name: kwargs[key] for key, name in _SHARED.items() if kwargs.get(key) is not None}
            actor_kwargs = {**shared, **(actor_kwargs or {})}
        self.runner = PolicyRunner(choose_actor(actor, actor_kwargs, backend=backend), observations, actions)
        self.recurrent = isinstance(self.runner.actor, BatchActor)
        explored = self.runner.actor.exploration()
        self._share = next((name for name in ("epsilon", "random") if name in explored), None)
        self.seed(int(self.rng.integers(2**32)))
        self._prepare(agent, device, kwargs)

    def _prepare(self, agent: str | Callable[..., Any], device: Any, kwargs: Mapping[str, Any]) -> None:
        """Prepare to learn; see the constructor's arguments. A policy that only acts does not."""

    def seed(self, seed: int | np.random.SeedSequence) -> None:
        """Restart the generators of the algorithm and of its policy."""
        super().seed(seed)
        self.runner.seed(int(self.rng.integers(2**32)))

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return the policy's action."""
        return self.choose_action_with_extras(state, epsilon)[0]

    def choose_action_with_extras(self, state: Any, epsilon: float) -> tuple[Any, Mapping[str, Any]]:
        """Return the policy's action and its extras, such as `logp`.

        Raises:
            PolicyFailedError: the action is not finite.
        """
        if self._share is not None and not self.deterministic:
            self.runner.actor.set_exploration({self._share: epsilon})
        if self.recurrent:
            if self.carried is None:
                self.runner.reset()
            else:
                self.runner.carried = self.carried
        action, extras = self.runner.decide(state, self.deterministic, extras=True)
        self.carried = self.runner.carried
        return action, extras or {}

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Refuse to learn.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "ActingPolicy only acts. Make a TrainingAgentAlgorithm of the same arguments for a manager in mode training"
        )

    def get_model(self) -> Blob:
        """Return the policy's weights."""
        return Blob(*self.runner.actor.to_blob())

    def load_model(self, model: Blob) -> None:
        """Load weights of the same policy.

        Raises:
            WeightsError: they are of another policy; nothing has changed.
        """
        self.runner.actor = self.runner.actor.from_blob(model.format, model.data, self.runner.device)


def as_space(space: Any, name: str) -> Any:
    """Return a Gymnasium space, made from JSON if it is none."""
    from gymnasium import Space

    return space if isinstance(space, Space) else space_from_json(space, name)


def _policy_of(agent: str | Callable[..., Any], action_space: Any) -> str:
    """Return the reference of a built-in agent's policy."""
    reference = f"{agent.__module__}:{agent.__qualname__}" if inspect.isclass(agent) else agent
    algorithm = algorithm_of(reference) if isinstance(reference, str) else None
    if algorithm is None:
        raise ConfigError(
            f"agent: {agent!r} is no agent of tmrl_core.training, so its policy is unknown. Name the policy in `actor`"
        )
    kind = action_space_kind(action_space)
    fitting = [name for name in algorithm.actors if kind in ACTORS[name]]
    if not fitting:
        raise ConfigError(
            f"agent: {algorithm.name} acts in spaces of the kind {' or '.join(sorted(algorithm.action_spaces))}, the "
            f"action space is {action_space}. Take another agent"
        )
    return f"tmrl_core.actor:{fitting[0]}"
