"""Parts that both backends of a policy share: actions, exploration, and sampling, which is NumPy's.

A policy consists of an encoder (flattened values, convolutions, hidden layers, and a recurrent layer where it has one),
last layers, its *heads*, and a distribution of actions. The class of a distribution (`numpy/squashed_gaussian.py` and
its neighbours) is the one place that says which heads it has and of what size, which arrays are learned beside them,
what is stored with an action, which exploration parameters there are, and how an action is chosen from a batch of
outputs. Each backend adds layers of its own: `numpy/mlp.py` and `numpy/recurrent.py`, `torch/mlp.py` and
`torch/recurrent.py`.

Shape suffixes: B batch.
"""

# Theory of operation
#
# A backend computes outputs; sampling is NumPy's for both, with a generator that the caller gives. Backends therefore
# explore alike, and sessions that share a policy explore independently.
#
# The agent decides the exploration of workers with each version: DQN's epsilon, TD3's noise, and uniform actions until
# the first update. A worker without a policy acts uniformly too, with torch as well as without. `test` never explores.
# Files of weights hold these parameters as metadata; messages send them beside the weights.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.module import STATE_COLUMN, ActorModule, BatchActor, RecurrentActor, State
from tmrl_core.actor.policies.activations import activation_name
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import layout_metadata, layout_of
from tmrl_core.actor.policies.masks import ALLOWED, allows_each, check_allowed, is_masked
from tmrl_core.actor.policies.spaces import choice_counts, first_of_batch
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves

OBSERVATION_LIMIT = 10.0
"""Bound of normalized observations, so that an element that was constant before does not dominate when it changes."""

CELLS = {"gru": ("h",), "lstm": ("h", "c")}
"""Names of the arrays of the recurrent state of each cell."""


class Policy(ActorModule):
    """A policy whose network puts out the parameters of a distribution, from which NumPy chooses actions.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: of the environment.
        activation: of the hidden layers.
        convolutions: layers for images, see `tmrl_core.actor.policies.convolutions`; None: the default ones.
        settings: of the distribution.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.

    Attributes:
        convolutions: as given.
        layout: of a flattened observation.
        masked: True: the environment has an action mask.
        heads: number of outputs of each last layer by its name, in order.
        arrays: initial values of the arrays that are learned beside the layers, by name.
        extras: zeros like the values that are stored with one action, by name.
        explored_by: names of the attributes that are exploration parameters.
        on_policy: True: the initial weights are orthogonal, and the first actions depend little on observations.
        behind_batch_norm: True: the first layer was trained behind a batch normalization of the observations' values.
            They are always normalized then, and not cut.
    """

    explored_by: ClassVar[tuple[str, ...]] = ()
    on_policy: ClassVar[bool] = False
    behind_batch_norm: ClassVar[bool] = False
    heads: dict[str, int]
    arrays: dict[str, np.ndarray]
    extras: dict[str, Any]
    _rng: np.random.Generator

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        activation: Any,
        convolutions: Convolutions | None,
        **settings: Any,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.arrays, self.extras = {}, {}
        self.set_actions(**settings)
        self.convolutions = convolutions
        self.layout = layout_of(observation_space, action_space, convolutions)
        self.masked = is_masked(observation_space, action_space)
        self._activation = activation_name(activation)
        self._metadata = {"activation": self._activation, **layout_metadata(self.layout)}

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.owner or type(self).__name__

    @abstractmethod
    def set_actions(self, *args: Any, **settings: Any) -> None:
        """Set the attributes above, given the settings of this distribution.

        Raises:
            ConfigError: the distribution does not support the action space.
        """

    @abstractmethod
    def outputs_of_heads(self, heads: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of the action distribution, of each head's [B, ...] outputs."""

    @abstractmethod
    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions [B, *action shape] and the extras to store with them.

        Args:
            outputs_B: result of `infer`.
            rng: of the exploration.
            deterministic: True: the most likely action.
        """

    @abstractmethod
    def infer(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[Mapping[str, np.ndarray], State]:
        """Return the parameters [B, ...] of the action distributions and the state after this tick.

        In an environment with an action mask, these include `allowed` [B, N] bool.
        """

    def initial_state(self, batch: int) -> State:
        """Return the state at the beginning of `batch` episodes: an empty one, without recurrence."""
        return {}

    def act_batch(
        self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool
    ) -> tuple[Any, State, dict[str, Any]]:
        """Act on a batch of NumPy observations, with the random numbers of `rng` on every backend.

        The arguments and results are those of `BatchActor.act_batch`.

        Raises:
            ObservationError: the action mask of an observation allows no action.
        """
        outputs_B, state_B = self.infer(obs_B, state_B)
        action_B, extras_B = self.choose_allowed(outputs_B, rng, deterministic)
        return action_B, state_B, extras_B

    def choose_allowed(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the result of `choose`.

        Raises:
            ObservationError: as `act_batch`.
        """
        if ALLOWED in outputs_B:
            check_allowed(bool(allows_each(outputs_B[ALLOWED], choice_counts(self.action_space)).all()))
        return self.choose(outputs_B, rng, deterministic)

    def first(self, action_B: np.ndarray, extras_B: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the first action of a batch and its extras."""
        return action_B[first_of_batch(self.action_space)], {name: value_B[0] for name, value_B in extras_B.items()}

    def reset_extras(self) -> dict[str, Any]:
        """Return zeros."""
        return {**super().reset_extras(), **self.extras}

    def seed(self, seed: int) -> None:
        """Seed the exploration of `act` and `step`; `act_batch` is given its generator."""
        self._rng = np.random.default_rng(seed)

    def exploration(self) -> dict[str, float]:
        """Return the exploration parameters."""
        return {name: getattr(self, name) for name in self.explored_by}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Set the exploration parameters that are given; others are not this policy's."""
        for name in self.explored_by:
            if name in parameters:
                setattr(self, name, float(parameters[name]))


class StatefulPolicy(Policy, BatchActor):
    """A policy with a state that goes on from one step of an episode to the next.

    Workers hold the state in their runner. For scripts, `act` carries one of its own, from `begin_episode` on.
    """

    _own_state: State | None = None

    def stored(self, state_B: State) -> State:
        """Return the extras that store a state with the action that follows it: none by default."""
        return {}

    def begin_episode(self) -> None:
        """Let `act` begin with the initial state."""
        self._own_state = None

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the action for the next observation of an episode."""
        return self.act_with_extras(obs, test)[0]

    def act_(self, obs: Any, test: bool = False) -> Any:
        """As `act`."""
        return self.act(obs, test)

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the action for the next observation of an episode, and its extras with the state before it."""
        before = self._own_state or self.initial_state(1)
        obs_B = map_leaves(lambda leaf: np.asarray(leaf)[None], obs)
        action_B, self._own_state, extras_B = self.act_batch(obs_B, before, self._rng, test)
        return self.first(action_B, {**extras_B, **self.stored(before)})


class RecurrentPolicy(StatefulPolicy, RecurrentActor):
    """A policy with one recurrent layer.

    Args:
        arguments: of the backend.
        cell: `gru` or `lstm`.
        cell_size: units of the recurrent layer.
        state_interval: number of ticks between two stored states.
        settings: of the backend and of the distribution.

    Raises:
        ConfigError: one of them is not possible.
    """

    def __init__(self, *arguments: Any, cell: str, cell_size: int, state_interval: int, **settings: Any) -> None:
        if cell not in CELLS:
            raise ConfigError(f"actor.kwargs.cell: found {cell!r}, allowed: {', '.join(CELLS)}")
        for name, value in (("cell_size", cell_size), ("state_interval", state_interval)):
            if value < 1:
                raise ConfigError(f"actor.kwargs.{name}: found {value}, allowed: at least 1")
        self.cell, self.cell_size, self.state_interval = cell, int(cell_size), int(state_interval)
        super().__init__(*arguments, **settings)

    def initial_state(self, batch: int) -> State:
        """Return zeros: `h` [B, cell_size], and `c` for an LSTM."""
        return {name: np.zeros((batch, self.cell_size), np.float32) for name in CELLS[self.cell]}

    def check_state(self, state_B: Mapping[str, Any]) -> int:
        """Return the batch size of a state.

        Raises:
            ValueError: names or shapes are not those of this policy.
        """
        found = {name: tuple(value.shape) for name, value in state_B.items()}
        batch = next((shape[0] for shape in found.values() if shape), 0)
        allowed = dict.fromkeys(CELLS[self.cell], (batch, self.cell_size))
        if found != allowed:
            shapes = ", ".join(f"{name} [batch, {self.cell_size}]" for name in allowed)
            raise ValueError(f"the recurrent state has the arrays {found}; allowed for this {self.cell}: {shapes}")
        return batch

    def stored(self, state_B: State) -> State:
        """Return the columns of the state."""
        return {STATE_COLUMN + name: value_B for name, value_B in state_B.items()}
