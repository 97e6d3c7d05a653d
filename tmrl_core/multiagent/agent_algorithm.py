"""The part of an agent that chooses actions and learns. This module needs no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tmrl_core.actor.policies.masks import ACTION_MASK, allowed_indices
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.training.checkpointable import StateOwner

if TYPE_CHECKING:
    from tmrl_core.multiagent.settings import AgentParameters

NO_EXTRAS: Mapping[str, Any] = MappingProxyType({})


class AgentAlgorithm(StateOwner, ABC):
    """A policy and its learning rule: what an `Agent` needs of an algorithm. Its attributes are its state.

    Attributes:
        rng: the generator that exploration and sampling draw from, and nothing else does.
        deterministic: act without sampling, for tests.
        trains_on_rounds: a batch holds all experiences since the last one, those of an agent's episode in their order.
        recurrent: the policy carries a state through the episode of an agent, in `carried`.
        carried: that state of the agent that acts: an `Agent` sets it before each action, and keeps it after. None: the
            episode begins.
        has_extras: the class overrides `choose_action_with_extras`.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"deterministic", "trains_on_rounds", "recurrent", "carried"})
    has_extras: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Note if managers ask the class for extras."""
        super().__init_subclass__()
        cls.has_extras = cls.choose_action_with_extras is not AgentAlgorithm.choose_action_with_extras

    def __init__(self) -> None:
        self.rng = np.random.default_rng()
        self.deterministic = False
        self.trains_on_rounds = False
        self.recurrent = False
        self.carried: Any = None

    def seed(self, seed: int | np.random.SeedSequence) -> None:
        """Restart the generator."""
        self.rng = np.random.default_rng(seed)

    @abstractmethod
    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return the model action.

        Args:
            state: the model state; a dict state may hold an `action_mask` (1 = allowed).
            epsilon: the agent's exploration parameter; 0 in tests.
        """

    def choose_action_with_extras(self, state: Any, epsilon: float) -> tuple[Any, Mapping[str, Any]]:
        """Return the model action and further values that belong to the experience, such as `logp`.

        Override it only if there are such values. Managers then call it instead of `choose_action`.
        """
        return self.choose_action(state, epsilon), NO_EXTRAS

    def check_parameters(self, params: AgentParameters) -> None:
        """Refuse parameters that this algorithm cannot train with.

        Raises:
            ConfigError: it trains on rounds, and the parameters are not on-policy.
        """
        if self.trains_on_rounds and not params.on_policy:
            raise ConfigError("it trains on all experiences since the last update, in their order. Set on_policy")

    def rows_of(self, experiences: Columns, params: AgentParameters, most: int) -> Columns:
        """Return the rows that the pool stores of an agent's experiences. The default are the experiences.

        Args:
            experiences: of one or more episodes, at least one.
            params: of the agent.
            most: capacity of the pool.

        Raises:
            SampleRefusedError: they cannot be trained on.
        """
        return experiences

    @abstractmethod
    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Make one update.

        Args:
            batch: columns of n experiences.

        Returns:
            Metrics. `priorities` [n], if given, become the weights by which the experiences are sampled.
        """

    def check_experiences(self, experiences: Columns) -> None:  # not abstract: not all can be checked
        """Refuse experiences with which `train_on_batch` would fail. The default accepts all.

        The trainer calls it with the experiences of each agent in an episode of a worker, which may hold any values.

        Raises:
            SampleRefusedError: the message names the column.
        """

    @abstractmethod
    def get_model(self) -> Blob:
        """Return the weights that acting needs."""

    @abstractmethod
    def load_model(self, model: Blob) -> None:
        """Take over weights.

        Raises:
            WeightsError: they belong to another model, which is unchanged.
        """


def choices_of(state: Any, count: int) -> np.ndarray:
    """Return the numbers, from 0, of the discrete actions that may be chosen in one state.

    Args:
        state: the state, with or without an action mask.
        count: number of all actions.

    Raises:
        ObservationError: no action is allowed.
    """
    masked = isinstance(state, Mapping) and ACTION_MASK in state
    return allowed_indices(state, count) if masked else np.arange(count)
