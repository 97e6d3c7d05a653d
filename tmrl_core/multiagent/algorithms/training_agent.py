"""Training agents of this project as algorithms of agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from tmrl_core.config.references import check_kwargs, resolve
from tmrl_core.errors import SampleRefusedError
from tmrl_core.multiagent.algorithm import AgentAlgorithm
from tmrl_core.multiagent.algorithms.acting_policy import ActingPolicy
from tmrl_core.multiagent.algorithms.batches import IMPORTANCE, KEYS, require, tensors_of
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.batches import ENDS
from tmrl_core.training.contracts import as_agent
from tmrl_core.training.memories.sample_schema import check_space
from tmrl_core.training.memories.trees import is_tensor
from tmrl_core.training.updates.skipped_updates import SKIPPED

TRANSITION = ("state", "action", "reward", "next_state", "discount", "terminated", "truncated")
"""Columns that every training agent needs."""


class TrainingAgentAlgorithm(AgentAlgorithm):
    """A `TrainingAgent` as the algorithm of agents: SAC, REDQ, TD3, DDPG, DQN, discrete SAC, PPO, behaviour cloning.

    It acts with an `ActingPolicy`: the same seed and weights give the same actions as in an actor. An agent that
    collects in lockstep only, as PPO does, learns from whole rounds (`trains_on_rounds`) of single steps. It computes
    its own returns, so experiences have k = 1 and its gamma.

    The arguments are those of `ActingPolicy`.

    Raises:
        ConfigError: as for `ActingPolicy`, or the agent refuses an argument.
        WeightsError: the acting policy is another one than the agent's; the message says what differs.

    Attributes:
        agent: the training agent.
        acting: the policy that acts.
        updates: number of calls of `train_on_batch` so far.
    """

    type_id = "training_agent_algorithm"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset({"acting", "_agent", "_acts_at"})

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
        self.acting = ActingPolicy(
            agent, observation_space, action_space, actor=actor, actor_kwargs=actor_kwargs, backend=backend, **kwargs
        )
        make = resolve(agent, "agent") if isinstance(agent, str) else agent
        check_kwargs(make, kwargs, "kwargs")
        policy = self.acting.runner.actor
        self.agent = make(policy.observation_space, policy.action_space, device=device, **kwargs)
        self._agent = as_agent(self.agent)
        self.trains_on_rounds = self._agent.collection == {"lockstep"}
        self.updates = 0
        self._acts_at = -1
        self._follow()

    def seed(self, seed: int | np.random.SeedSequence) -> None:
        """Restart the generators."""
        super().seed(seed)
        self.acting.seed(seed)

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return the action of the latest policy."""
        return self.choose_action_with_extras(state, epsilon)[0]

    def choose_action_with_extras(self, state: Any, epsilon: float) -> tuple[Any, Mapping[str, Any]]:
        """Return the action of the latest policy and its extras."""
        self._follow()
        self.acting.deterministic = self.deterministic
        return self.acting.choose_action_with_extras(state, epsilon)

    def get_model(self) -> Blob:
        """Return the weights of the policy."""
        return Blob(*self.agent.get_actor().to_blob())

    def load_model(self, model: Blob) -> None:
        """Load weights into the policy; value functions stay as they are.

        Raises:
            WeightsError: they are of another policy; nothing has changed.
        """
        self.acting.load_model(model)
        self.agent.get_actor().from_blob(model.format, model.data, self._agent.device)

    def _follow(self) -> None:
        """Act with the latest policy."""
        if self._acts_at != self.updates:
            self.acting.load_model(self.get_model())
            self._acts_at = self.updates

    def check_experiences(self, experiences: Columns) -> None:
        """Refuse experiences that lack a column, or whose states or actions are not of the spaces."""
        policy = self.acting.runner.actor
        try:
            require(experiences, *TRANSITION, *(policy.reset_extras() if self.trains_on_rounds else ()))
            self._check_discounts(experiences)
        except ValueError as exc:
            raise SampleRefusedError(str(exc)) from exc
        for key in ("state", "next_state"):
            check_space(policy.observation_space, experiences[key], repr(key))
        check_space(policy.action_space, experiences["action"], "'action'")

    def _check_discounts(self, columns: dict[str, Any]) -> None:
        if isinstance(self.agent, PPOAgent) and not np.allclose(columns["discount"], self.agent.gamma):
            raise ValueError(
                f"{type(self.agent).__name__} computes its own returns, from single steps with its gamma = "
                f"{self.agent.gamma:g}; the batch has discounts from {np.min(columns['discount']):g} to "
                f"{np.max(columns['discount']):g}. Make the experiences with k = 1 and this gamma"
            )

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Make one update, or one of a round. `priorities` are the TD errors of agents with a replay memory.

        Raises:
            ValueError: a column is missing, or a round does not hold single steps.
        """
        require(batch, *TRANSITION)
        columns: dict[str, Any] = dict(batch)
        if self.trains_on_rounds:
            columns = self._round(columns)
        else:
            columns = {key: columns[key] for key in KEYS & columns.keys()}
            # With weights, an agent leaves its TD errors.
            columns["weights"] = columns.pop(IMPORTANCE, np.ones(len(columns["reward"]), np.float32))
        t = tensors_of(columns, torch.device(self._agent.device or "cpu"))
        extras = {key: value for key, value in t.items() if key not in KEYS or key == "discount"}
        rows = (t["state"], t["action"], t["reward"], t["next_state"], t["terminated"], t["truncated"])
        found = self.agent.train((*rows, extras) if self._agent.wants_extras else rows)
        self.updates += 1
        metrics = {name: value.item() if is_tensor(value) else value for name, value in found.items()}
        if self._agent.td_error_B is not None and not metrics.get(SKIPPED):
            metrics["priorities"] = self._agent.td_error_B.cpu().numpy()
        return metrics

    def _round(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of a round with the ends of its runs."""
        self._check_discounts(columns)
        if ENDS not in columns:
            ends = np.asarray(columns["terminated"], bool) | np.asarray(columns["truncated"], bool)
            ends[-1:] = True
            columns[ENDS] = ends
        return columns
