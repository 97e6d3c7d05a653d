"""Policies that do not learn: random play and rules written by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gymnasium import spaces

from tmrl_core.config.references import resolve
from tmrl_core.errors import ConfigError, WeightsError
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm, choices_of
from tmrl_core.multiagent.algorithms.acting_policy import as_space
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.networking.protocol.messages import Blob

NO_WEIGHTS = "none"
"""Format of the empty model of an algorithm that does not learn."""


class FixedPolicy(AgentAlgorithm):
    """A policy without weights. A subclass implements `choose_action`."""

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        """Learn nothing."""
        return {}

    def get_model(self) -> Blob:
        """Return an empty model."""
        return Blob(NO_WEIGHTS, b"")

    def load_model(self, model: Blob) -> None:
        """Check that the model is empty.

        Raises:
            WeightsError: it is not.
        """
        if model != Blob(NO_WEIGHTS, b""):
            raise WeightsError(
                f"the weights ({len(model.data)} bytes of the format {model.format!r}) are not for "
                f"{type(self).__name__}, which has none. Learner and actors must make the same algorithm."
            )


class RandomPolicy(FixedPolicy):
    """Random play: each action is drawn from the action space, or from the actions that a mask allows.

    Args:
        action_space: of the model actions, or as JSON (`tmrl_core.envs.json_spaces`).
    """

    type_id = "random_policy"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset({"_space"})

    def __init__(self, action_space: Any) -> None:
        super().__init__()
        self._space = copy.deepcopy(as_space(action_space, "action_space"))

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return a random action, whatever `epsilon` is.

        Raises:
            ObservationError: the state allows no action.
        """
        if isinstance(self._space, spaces.Discrete):
            choices = choices_of(state, int(self._space.n))
            return self._space.start + choices[self.rng.integers(len(choices))]
        # Spaces have generators of their own; actions shall depend on this algorithm's alone.
        self._space.seed(int(self.rng.integers(2**31)))
        return self._space.sample()


class RulePolicy(FixedPolicy):
    """A rule written by hand.

    Args:
        rule: `state -> model action`, or its reference `package.module:Name`.

    Raises:
        ConfigError: the rule cannot be called.
    """

    type_id = "rule_policy"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset({"rule"})

    def __init__(self, rule: str | Callable[[Any], Any]) -> None:
        super().__init__()
        found = resolve(rule, "rule") if isinstance(rule, str) else rule
        if not callable(found):
            raise ConfigError(f"rule: found {found!r:.100}, allowed: a function (state) -> model action")
        self.rule: Callable[[Any], Any] = found

    def choose_action(self, state: Any, epsilon: float) -> Any:
        """Return the action of the rule, whatever `epsilon` is."""
        return self.rule(state)
