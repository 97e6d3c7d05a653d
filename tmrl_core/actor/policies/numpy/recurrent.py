"""The policies with a recurrent layer without torch: the same weights, a fraction of the time per action.

Shape suffixes: B batch, T ticks, D elements of a flattened observation, N outputs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import ALLOWED, FORBIDDEN, mask_of
from tmrl_core.actor.policies.numpy.mlp import NumpyActor
from tmrl_core.actor.policies.numpy.squashed_gaussian import LOG_STD_MAX, LOG_STD_MIN
from tmrl_core.actor.policies.recurrent import (
    CategoricalChoice,
    EpsilonGreedyChoice,
    GaussianChoice,
    RecurrentPolicy,
    SquashedGaussianChoice,
)
from tmrl_core.actor.policies.spaces import action_bounds, box_bounds, categorical_actions, discrete_actions
from tmrl_core.blas_threads import one_blas_thread
from tmrl_core.samples.columns import map_leaves

_GATES = {"gru": 3, "lstm": 4}
_CANDIDATE = 2
"""Number of the candidate among torch's gates, the only one with tanh."""


class NumpyRecurrentActor(RecurrentPolicy, NumpyActor):
    """A policy with one recurrent layer between its hidden layers and its heads.

    A sigmoid is computed as `(tanh(x / 2) + 1) / 2`: the weights of the gates are halved when they are loaded, and one
    call computes all gates. Buffers are kept for the batch size of the last call.

    The other arguments are those of `NumpyActor`.

    Args:
        cell: `gru` or `lstm`.
        cell_size: units of the recurrent layer.
        state_interval: number of ticks between two stored states.

    Raises:
        ConfigError: a space or a setting is not supported.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        heads: Mapping[str, int],
        hidden_sizes: Sequence[int],
        activation: Any,
        cell: str,
        cell_size: int,
        state_interval: int,
        seed: int | None,
        parameters: Mapping[str, np.ndarray] | None = None,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        self.set_cell(cell, cell_size, state_interval)
        super().__init__(
            observation_space,
            action_space,
            heads,
            hidden_sizes,
            activation,
            seed,
            parameters,
            normalize_observations,
            convolutions=convolutions,
        )
        self._make_buffers(1)

    def _add_layer(self, width: int) -> int:
        rows, bound = _GATES[self.cell] * self.cell_size, 1.0 / math.sqrt(self.cell_size)
        shapes = {
            "weight_ih": (rows, width),
            "weight_hh": (rows, self.cell_size),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
        }
        rng = self._rng.spawn(1)[0]  # the numbers of the other layers would come again from a generator of the seed
        for name, shape in shapes.items():
            self._parameters[f"rnn.{name}_l0"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        return self.cell_size

    def _take_over(self, weights: Mapping[str, np.ndarray]) -> None:
        super()._take_over(weights)
        units, kept = self.cell_size, self._parameters
        # The gates with a sigmoid come first, as in torch's GRU.
        order = np.arange(_GATES[self.cell] * units)
        if self.cell == "lstm":
            order = np.concatenate([order[: 2 * units], order[3 * units :], order[2 * units : 3 * units]])
        scale = np.where(order // units == _CANDIDATE, 1.0, 0.5).astype(np.float32)
        self._from_input, self._from_state = (
            np.ascontiguousarray(kept[f"rnn.weight_{kind}_l0"][order].T * scale) for kind in ("ih", "hh")
        )
        self._bias, state_bias = (kept[f"rnn.bias_{kind}_l0"][order] * scale for kind in ("ih", "hh"))
        # The reset gate of a GRU scales the state's part of the candidate, its bias included.
        self._candidate_bias = state_bias[-units:].copy()
        state_bias[-units:] *= self.cell == "lstm"
        self._bias += state_bias

    def _make_buffers(self, batch: int) -> None:
        units, gates = self.cell_size, _GATES[self.cell]
        self._flat_BD = np.empty((batch, self._widths[0]), np.float32)
        self._hidden = [np.empty((batch, width), np.float32) for width in self._widths[1:]]
        self._gates, self._state_gates = np.empty((2, batch, gates * units), np.float32)
        self._heads_BN = np.empty((batch, self._matrices[-1].shape[1]), np.float32)
        # Views that every step would otherwise make again.
        self._columns_of_heads = {name: self._heads_BN[:, at] for name, at in self._columns.items()}
        self._each_gate = [self._gates[:, at * units : (at + 1) * units] for at in range(gates)]
        self._sigmoids = self._gates[:, :-units]
        self._state_sigmoids, self._state_candidate = self._state_gates[:, :-units], self._state_gates[:, -units:]
        self._layers = [
            (matrix[:-1], matrix[-1], output) for matrix, output in zip(self._matrices, self._hidden, strict=False)
        ]

    def infer(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """Return the parameters of the action distributions, valid until the next call, and the next state."""
        if one_blas_thread.wanted:
            with one_blas_thread:
                return self.infer(obs_B, state_B)
        batch = self.check_state(state_B)
        if len(self._flat_BD) != batch:
            self._make_buffers(batch)
        x = self._flat_BD
        if len(self._layout) == 1 and self._layout[0].is_whole_vector and obs_B.shape == x.shape:
            x[:] = obs_B
        else:
            for row in range(batch):
                self._encode(map_leaves(itemgetter(row), obs_B), x[row])
        if self._normalizes:
            self._prepare(x)
        relu = self._activation == "relu"
        for weight, bias, output in self._layers:
            np.dot(x, weight, out=output)
            output += bias
            x = np.maximum(output, 0.0, out=output) if relu else np.tanh(output, out=output)
        after_B = self._next_state(x, state_B)
        np.dot(after_B["h"], self._matrices[-1][:-1], out=self._heads_BN)
        self._heads_BN += self._matrices[-1][-1]
        outputs_B = self._outputs(self._columns_of_heads)
        if self._masked:
            allowed_BN = mask_of(obs_B)
            outputs_B = {**outputs_B, ALLOWED: allowed_BN}
            if "logits" in outputs_B:
                outputs_B["logits"] = np.where(allowed_BN, outputs_B["logits"], np.float32(FORBIDDEN))
        return outputs_B, after_B

    def _next_state(self, x_BH: np.ndarray, state_B: Mapping[str, Any]) -> State:
        gates, state_gates = self._gates, self._state_gates
        before_BH = np.ascontiguousarray(state_B["h"], np.float32)
        np.dot(x_BH, self._from_input, out=gates)
        gates += self._bias
        np.dot(before_BH, self._from_state, out=state_gates)
        if self.cell == "gru":
            reset, update, candidate = self._each_gate
            self._sigmoids += self._state_sigmoids
            self._squash_gates()
            self._state_candidate += self._candidate_bias
            self._state_candidate *= reset
            candidate += self._state_candidate
            np.tanh(candidate, out=candidate)
            h_BH: np.ndarray = before_BH - candidate
            h_BH *= update
            h_BH += candidate
            return {"h": h_BH}
        take, keep, show, candidate = self._each_gate
        gates += state_gates
        self._squash_gates()
        np.tanh(candidate, out=candidate)
        candidate *= take
        c_BH: np.ndarray = keep * state_B["c"]
        c_BH += candidate
        h_BH = np.tanh(c_BH)
        h_BH *= show
        return {"h": h_BH, "c": c_BH}

    def _squash_gates(self) -> None:
        """Compute the sigmoids of gates in place, from the halves of their inputs."""
        np.tanh(self._sigmoids, out=self._sigmoids)
        self._sigmoids *= 0.5
        self._sigmoids += 0.5

    @abstractmethod
    def _outputs(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the parameters of the action distribution, of each head's [B, ...] outputs."""

    def step(self, obs_B: Any, state_B: Mapping[str, Any], deterministic: bool = False) -> tuple[np.ndarray, State]:
        """Act on one tick, as `RecurrentActor.step`."""
        action_B, after_B, _ = self.act_batch(obs_B, dict(state_B), self._rng, deterministic)
        return action_B, after_B

    def unroll(self, obs_BT: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """Compute the parameters of the action distributions of whole sequences, as `RecurrentActor.unroll`."""
        ticks: list[dict[str, np.ndarray]] = []
        after_B = dict(state_B)
        for tick in range(np.shape(self._layout[0].of(obs_BT))[1]):
            outputs_B, after_B = self.infer(map_leaves(itemgetter((slice(None), tick)), obs_BT), after_B)
            ticks.append({name: value.copy() for name, value in outputs_B.items()})
        return {name: np.stack([one[name] for one in ticks], axis=1) for name in ticks[0]}, after_B


class NumpySquashedGaussianRNNActor(SquashedGaussianChoice, NumpyRecurrentActor):
    """Acts as `SquashedGaussianRNNActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `SquashedGaussianRNNActor`, with `activation` and `seed` as in `NumpyActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    owner: ClassVar[str] = "SquashedGaussianRNNActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: Any = "relu",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        random: float | None = None,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._bounds = action_bounds(self.owner, action_space)
        heads = {"mu": self._bounds.size, "log_std": self._bounds.size}
        super().__init__(
            observation_space,
            action_space,
            heads,
            hidden_sizes,
            activation,
            cell,
            cell_size,
            state_interval,
            seed,
            convolutions=convolutions,
        )
        self.begin_exploration(random)

    def _outputs(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"mu": heads["mu"], "log_std": np.minimum(np.maximum(heads["log_std"], LOG_STD_MIN), LOG_STD_MAX)}


class NumpyQValueRNNActor(EpsilonGreedyChoice, NumpyRecurrentActor):
    """Acts as `QValueRNNActor` does.

    The arguments are those of `QValueRNNActor`, with `activation` and `seed` as in `NumpyActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    owner: ClassVar[str] = "QValueRNNActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: Any = "relu",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        dueling: bool = False,
        epsilon: float = 1.0,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._actions = discrete_actions(self.owner, action_space)
        count = self._actions.count
        heads = {"value": 1, "advantage": count} if dueling else {"q": count}
        super().__init__(
            observation_space,
            action_space,
            heads,
            hidden_sizes,
            activation,
            cell,
            cell_size,
            state_interval,
            seed,
            convolutions=convolutions,
        )
        self.epsilon = float(epsilon)

    def _outputs(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if "q" in heads:
            return heads
        advantage_BN = heads["advantage"]
        return {"q": heads["value"] + advantage_BN - advantage_BN.mean(axis=1, keepdims=True)}


class NumpyCategoricalRNNActor(CategoricalChoice, NumpyRecurrentActor):
    """Acts as `CategoricalRNNActor` does.

    The arguments are those of `CategoricalRNNActor`, with `activation` and `seed` as in `NumpyActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    owner: ClassVar[str] = "CategoricalRNNActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64,),
        activation: Any = "tanh",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        normalize_observations: bool = False,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._actions = categorical_actions(self.owner, action_space)
        super().__init__(
            observation_space, action_space, {"logits": self._actions.size}, hidden_sizes, activation, cell,
            cell_size, state_interval, seed, normalize_observations=normalize_observations,
            convolutions=convolutions,
        )  # fmt: skip

    def _outputs(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return heads


class NumpyGaussianRNNActor(GaussianChoice, NumpyRecurrentActor):
    """Acts as `GaussianRNNActor` does.

    The arguments are those of `GaussianRNNActor`, with `activation` and `seed` as in `NumpyActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    owner: ClassVar[str] = "GaussianRNNActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64,),
        activation: Any = "tanh",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        log_std: float = 0.0,
        normalize_observations: bool = False,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._bounds = box_bounds(self.owner, action_space)
        size = self._bounds.size
        super().__init__(
            observation_space, action_space, {"mu": size}, hidden_sizes, activation, cell,
            cell_size, state_interval, seed, {"log_std": np.full(size, log_std, np.float32)}, normalize_observations,
            convolutions,
        )  # fmt: skip

    def _outputs(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"mu": heads["mu"], "log_std": np.tile(self._parameters["log_std"], (len(heads["mu"]), 1))}
