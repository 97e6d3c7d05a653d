"""The layers of a policy between its encoder and its heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from tmrl_core.actor.policies.numpy.residual import RMS_EPS, HeldNoise
from tmrl_core.actor.policies.policy import CELLS, Policy, RecurrentPolicy
from tmrl_core.errors import ConfigError
from tmrl_core.onnx_export.graph import Graph

STATE, NEXT_STATE = "state.", "next_state."
"""Prefixes of the inputs and outputs that carry a recurrent state; the columns of samples have the first one too."""

_GATES = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
"""Places among torch's gates of those of ONNX, in ONNX's order: update, reset, candidate; input, output, forget,
candidate."""


_OPERATORS = {
    **{name.lower(): name for name in ("Relu", "Tanh", "Sigmoid", "Elu", "Selu", "Softplus", "Softsign")},
    "leakyrelu": "LeakyRelu",
}
ACTIVATIONS = (*_OPERATORS, "silu", "gelu")
"""Activations of hidden layers, with torch's default settings, which are ONNX's too."""


def _activated(graph: Graph, activation: str, x: str) -> str:
    if (operator := _OPERATORS.get(activation)) is not None:
        return graph.add(operator, x)
    if activation == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    error = graph.add("Erf", graph.add("Div", x, graph.floats(math.sqrt(2.0))))
    return graph.add("Mul", graph.add("Mul", x, graph.add("Add", error, graph.floats(1.0))), graph.floats(0.5))


def features(graph: Graph, policy: Policy, arrays: Mapping[str, np.ndarray], activation: str, encoded: str) -> str:
    """Add hidden layers, and inputs and outputs of a recurrent state.

    Args:
        graph: gets the nodes.
        policy: the policy.
        arrays: its weights.
        activation: name of the activation of its hidden layers.
        encoded: [batch, n] inputs of the first layer.

    Returns:
        The inputs [batch, n] of the heads.

    Raises:
        ConfigError: the activation is not known.
    """
    if isinstance(policy, HeldNoise):
        return _residual(graph, arrays, encoded)
    x = encoded
    for index in itertools.count(0, 2):
        if f"net.{index}.weight" not in arrays:
            break
        if activation not in ACTIVATIONS:
            raise ConfigError(
                f"actor.kwargs.activation: found {activation}, allowed for an export: {', '.join(ACTIVATIONS)}, with "
                "torch's default settings. Train a policy with one of them"
            )
        x = _activated(graph, activation, graph.linear(x, arrays, f"net.{index}"))
    return _recurrent(graph, policy, arrays, x) if isinstance(policy, RecurrentPolicy) else x


def _residual(graph: Graph, arrays: Mapping[str, np.ndarray], encoded: str) -> str:
    x = graph.linear(encoded, arrays, "net.0")
    for block in itertools.count(1):
        if f"net.{block}.wide.weight" not in arrays:
            break
        wide = graph.add("Relu", graph.linear(x, arrays, f"net.{block}.wide"))
        x = graph.add("Add", x, graph.add("Relu", graph.linear(wide, arrays, f"net.{block}.narrow")))
    mean = graph.add("ReduceMean", graph.add("Mul", x, x), axes=[1], keepdims=1)
    return graph.add("Div", x, graph.add("Sqrt", graph.add("Add", mean, graph.floats(RMS_EPS))))


def _recurrent(graph: Graph, policy: RecurrentPolicy, arrays: Mapping[str, np.ndarray], x: str) -> str:
    units, order = policy.cell_size, _GATES[policy.cell]
    of_torch = {name: arrays[f"rnn.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    rows = np.concatenate([np.arange(units) + gate * units for gate in order])
    # The axis in front counts directions.
    weight, recurrence = (
        graph.floats(of_torch[name][rows][None], f"rnn.{name}") for name in ("weight_ih", "weight_hh")
    )
    bias = graph.floats(np.concatenate([of_torch["bias_ih"][rows], of_torch["bias_hh"][rows]])[None], "rnn.bias")
    front = graph.integers([0])
    dtype = np.dtype(np.float32)
    before = [graph.add("Unsqueeze", graph.input(STATE + name, dtype, [units]), front) for name in CELLS[policy.cell]]
    # One tick: [1, batch, n]. An empty name stands for lengths of sequences, which are all the same.
    inputs = [graph.add("Unsqueeze", x, front), weight, recurrence, bias, "", *before]
    # Torch's GRU multiplies the reset gate with the product and the bias, and not with the state.
    settings = {"linear_before_reset": 1} if policy.cell == "gru" else {}
    _, *after = graph.add_many(policy.cell.upper(), inputs, 1 + len(before), hidden_size=units, **settings)
    states = [graph.add("Squeeze", state, front) for state in after]
    for name, state in zip(CELLS[policy.cell], states, strict=True):
        graph.output(NEXT_STATE + name, state, dtype, [units])
    return states[0]
