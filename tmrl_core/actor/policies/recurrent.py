"""Parts that the torch and the NumPy backend of a recurrent policy share: its state, and sampling, which is NumPy's.

Shape suffixes: B batch, A action elements, N discrete actions, or the values of all choices; M choices, R = B * M, K
values of the choice with the most.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from tmrl_core.actor.module import STATE_COLUMN, RecurrentActor, State
from tmrl_core.actor.policies.exploration import EpsilonGreedy, RandomUntilTrained
from tmrl_core.actor.policies.masks import ALLOWED, FORBIDDEN, allows_each, check_allowed, limited_choice
from tmrl_core.actor.policies.spaces import (
    BoxBounds,
    CategoricalActions,
    DiscreteActions,
    choice_counts,
    first_of_batch,
)
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves

CELLS = {"gru": ("h",), "lstm": ("h", "c")}
"""Names of the arrays of the recurrent state of each cell."""


class RecurrentPolicy(RecurrentActor):
    """A policy with one recurrent layer.

    Workers hold its state in their runner. For scripts, `act` carries a state of its own, from `begin_episode` on.

    Attributes:
        cell: `gru` or `lstm`.
        cell_size: units of the recurrent layer.
    """

    cell: str
    cell_size: int
    _own_state: State | None = None

    def set_cell(self, cell: str, cell_size: int, state_interval: int) -> None:
        """Set the kind and the size of the recurrent layer and the interval of stored states.

        Raises:
            ConfigError: one of them is not possible.
        """
        if cell not in CELLS:
            raise ConfigError(f"actor.kwargs.cell: found {cell!r}, allowed: {', '.join(CELLS)}")
        for name, value in (("cell_size", cell_size), ("state_interval", state_interval)):
            if value < 1:
                raise ConfigError(f"actor.kwargs.{name}: found {value}, allowed: at least 1")
        self.cell, self.cell_size, self.state_interval = cell, int(cell_size), int(state_interval)
        self._rng = np.random.default_rng()

    def seed(self, seed: int) -> None:
        """Seed the exploration of `step` and `act`; `act_batch` is given its generator."""
        super().seed(seed)
        self._rng = np.random.default_rng(seed)

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

    def act_batch(
        self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool
    ) -> tuple[Any, State, dict[str, Any]]:
        """Act on a batch of NumPy observations, with the random numbers of `rng` on every backend.

        Raises:
            ObservationError: the action mask of an observation allows no action.
        """
        outputs_B, state_B = self.infer(obs_B, state_B)
        if ALLOWED in outputs_B:
            check_allowed(bool(allows_each(outputs_B[ALLOWED], choice_counts(self.action_space)).all()))
        action_B, extras_B = self.choose(outputs_B, rng, deterministic)
        return action_B, state_B, extras_B

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
        states = {STATE_COLUMN + name: state_B[0] for name, state_B in before.items()}
        return action_B[first_of_batch(self.action_space)], {
            **{name: value_B[0] for name, value_B in extras_B.items()},
            **states,
        }

    @abstractmethod
    def infer(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[Mapping[str, np.ndarray], State]:
        """Return the parameters [B, ...] of the action distributions and the state after this tick, as new arrays.

        In an environment with an action mask, these include `allowed` [B, N] bool.
        """

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


class SquashedGaussianChoice(RandomUntilTrained, RecurrentPolicy):
    """Choose actions of a Gaussian that is squashed by tanh into the bounds."""

    _bounds: BoxBounds

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions without extras, a share `random` of them uniform."""
        bounds = self._bounds
        u_BA = outputs_B["mu"].astype(np.float64)
        if not deterministic:
            u_BA += np.exp(outputs_B["log_std"]) * rng.standard_normal(u_BA.shape)
        action_BA = bounds.low + (np.tanh(u_BA) + 1.0) * 0.5 * (bounds.high - bounds.low)
        if not deterministic and self.random > 0.0:
            at = rng.random(len(u_BA)) < self.random
            action_BA[at] = rng.uniform(bounds.low, bounds.high, (int(at.sum()), bounds.size))
        return bounds.clipped(action_BA), {}


class GaussianChoice(RecurrentPolicy):
    """Choose actions of a Gaussian, clipped to the bounds."""

    _bounds: BoxBounds

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions, the unclipped ones as `drawn`, and the log-densities of these, `logp`."""
        log_std_BA = outputs_B["log_std"].astype(np.float64)
        drawn_BA = outputs_B["mu"].astype(np.float64)
        negative_logp_BA = log_std_BA + 0.5 * math.log(2.0 * math.pi)
        if not deterministic:
            noise_BA = rng.standard_normal(drawn_BA.shape)
            drawn_BA += np.exp(log_std_BA) * noise_BA
            negative_logp_BA += 0.5 * noise_BA * noise_BA
        logp_B = -np.add.reduce(negative_logp_BA, axis=1)
        extras = {"logp": logp_B.astype(np.float32), "drawn": drawn_BA.astype(np.float32)}
        return self._bounds.clipped(drawn_BA), extras

    def reset_extras(self) -> dict[str, Any]:
        """Return zeros."""
        zeros = {"logp": np.float32(0.0), "drawn": np.zeros(self._bounds.size, np.float32)}
        return {**super().reset_extras(), **zeros}


class CategoricalChoice(RecurrentPolicy):
    """Choose discrete actions by their probabilities; actions of several choices by those of each."""

    _actions: CategoricalActions

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions and their log-probabilities, `logp`."""
        logits_BN, places_MK = outputs_B["logits"].astype(np.float64), self._actions.places
        batch, choices = len(logits_BN), len(self._actions.counts)
        if places_MK is not None:
            logits_BN = np.pad(logits_BN, ((0, 0), (0, 1)), constant_values=FORBIDDEN)[:, places_MK]
        # One row for each choice.
        logits_RK = logits_BN.reshape(batch * choices, -1)
        logits_RK -= logits_RK.max(axis=1, keepdims=True)
        sums_RK = np.exp(logits_RK).cumsum(axis=1)
        if deterministic:
            index_R = logits_RK.argmax(axis=1)
        else:
            # Below the last sum, which rounding may otherwise let it reach.
            index_R = (rng.random((len(sums_RK), 1)) * sums_RK[:, -1:] >= sums_RK[:, :-1]).sum(axis=1)
            if ALLOWED in outputs_B or places_MK is not None:  # the last sum may be that of an earlier value
                index_R = np.minimum(index_R, (sums_RK == sums_RK[:, -1:]).argmax(axis=1))
        logp_R = logits_RK[np.arange(len(index_R)), index_R] - np.log(sums_RK[:, -1])
        logp_B = logp_R.reshape(batch, choices).sum(axis=1)
        return self._actions.of(index_R.reshape(batch, choices)), {"logp": logp_B.astype(np.float32)}

    def reset_extras(self) -> dict[str, Any]:
        """Return zeros."""
        return {**super().reset_extras(), "logp": np.float32(0.0)}


class EpsilonGreedyChoice(EpsilonGreedy, RecurrentPolicy):
    """Choose the best discrete action, or a random one with the probability `epsilon`."""

    _actions: DiscreteActions

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions without extras."""
        allowed_BN = outputs_B.get(ALLOWED)
        q_BN = outputs_B["q"]
        index_B = (q_BN if allowed_BN is None else np.where(allowed_BN, q_BN, -np.inf)).argmax(axis=1)
        if not deterministic:
            at = rng.random(len(index_B)) < self.epsilon
            if allowed_BN is None:
                index_B[at] = rng.integers(self._actions.count, size=int(at.sum()))
            else:
                index_B[at] = limited_choice(allowed_BN[at], rng)
        return index_B + self._actions.start, {}
