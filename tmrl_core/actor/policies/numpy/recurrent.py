"""The recurrent layer of policies without torch.

Shape suffixes: B batch, T ticks, H features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.numpy.mlp import NumpyPolicy
from tmrl_core.actor.policies.policy import RecurrentPolicy
from tmrl_core.samples.columns import map_leaves

_GATES = {"gru": 3, "lstm": 4}
_CANDIDATE = 2
"""Number of the candidate among torch's gates, the only one with tanh."""


class NumpyRecurrentPolicy(RecurrentPolicy, NumpyPolicy):
    """A policy with one recurrent layer between its hidden layers and its heads.

    A sigmoid is computed as `(tanh(x / 2) + 1) / 2`: the weights of the gates are halved when they are loaded, and one
    call computes all gates.

    The arguments are those of `NumpyPolicy` and `RecurrentPolicy`.
    """

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
            self.arrays[f"rnn.{name}_l0"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        return self.cell_size

    def _take_over(self) -> None:
        super()._take_over()
        units, kept = self.cell_size, self.arrays
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
        super()._make_buffers(batch)
        units, gates = self.cell_size, _GATES[self.cell]
        self._gates, self._state_gates = np.empty((2, batch, gates * units), np.float32)
        self._each_gate = [self._gates[:, at * units : (at + 1) * units] for at in range(gates)]
        self._sigmoids = self._gates[:, :-units]
        self._state_sigmoids, self._state_candidate = self._state_gates[:, :-units], self._state_gates[:, -units:]

    def _batch_of(self, obs_B: Any, state_B: Mapping[str, Any]) -> int:
        return self.check_state(state_B)

    def _next_state(self, x_BH: np.ndarray, state_B: Mapping[str, Any]) -> tuple[np.ndarray, State]:
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
            return h_BH, {"h": h_BH}
        take, keep, show, candidate = self._each_gate
        gates += state_gates
        self._squash_gates()
        np.tanh(candidate, out=candidate)
        candidate *= take
        c_BH: np.ndarray = keep * state_B["c"]
        c_BH += candidate
        h_BH = np.tanh(c_BH)
        h_BH *= show
        return h_BH, {"h": h_BH, "c": c_BH}

    def _squash_gates(self) -> None:
        """Compute the sigmoids of gates in place, from the halves of their inputs."""
        np.tanh(self._sigmoids, out=self._sigmoids)
        self._sigmoids *= 0.5
        self._sigmoids += 0.5

    def step(self, obs_B: Any, state_B: Mapping[str, Any], deterministic: bool = False) -> tuple[np.ndarray, State]:
        """Act on one tick, as `RecurrentActor.step`."""
        action_B, after_B, _ = self.act_batch(obs_B, dict(state_B), self._rng, deterministic)
        return action_B, after_B

    def unroll(self, obs_BT: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """Compute the parameters of the action distributions of whole sequences, as `RecurrentActor.unroll`."""
        ticks: list[dict[str, np.ndarray]] = []
        after_B = dict(state_B)
        for tick in range(np.shape(self.layout[0].of(obs_BT))[1]):
            outputs_B, after_B = self.infer(map_leaves(itemgetter((slice(None), tick)), obs_BT), after_B)
            ticks.append({name: value.copy() for name, value in outputs_B.items()})
        return {name: np.stack([one[name] for one in ticks], axis=1) for name in ticks[0]}, after_B
