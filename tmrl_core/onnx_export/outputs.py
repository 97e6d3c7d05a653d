"""The outputs of a graph: the parameters of the action distribution, and the action without exploration."""

# Theory of operation
#
# A program that only acts takes `action`: it is within the bounds, with the shape and the dtype of the action space.
# One that explores samples by itself from the other outputs, because a random number in the graph would be neither
# repeatable nor the same in two runtimes. README.md beside this file has the lines.
#
# Networks compute in float32. Scaling to the bounds is in float64 for a space of float64 alone: a bound such as 0.1 is
# another number in float32, and an action may not leave its bounds by a bit.

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tmrl_core.actor.policies.masks import FORBIDDEN
from tmrl_core.actor.policies.numpy.categorical import Categorical
from tmrl_core.actor.policies.numpy.deterministic import Deterministic
from tmrl_core.actor.policies.numpy.gaussian import Gaussian
from tmrl_core.actor.policies.numpy.q_value import EpsilonGreedy
from tmrl_core.actor.policies.numpy.residual import LOG_STD_HALF_RANGE, LOG_STD_LOW, HeldNoise
from tmrl_core.actor.policies.numpy.squashed_gaussian import LOG_STD_MAX, LOG_STD_MIN, SquashedGaussian
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.spaces import BoxBounds, box_bounds, categorical_actions
from tmrl_core.onnx_export.graph import Graph

ACTION, MEAN, LOG_STD, LOGITS, Q = "action", "mean", "log_std", "logits", "q"
OF_POLICIES = {MEAN: "mu", LOG_STD: "log_std", LOGITS: "logits", Q: "q"}
"""Name of each parameter of a distribution among the outputs of a policy."""
FLOAT32, FLOAT64, INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


def add_outputs(
    graph: Graph, policy: Policy, arrays: Mapping[str, np.ndarray], heads: Mapping[str, str], allowed: str
) -> None:
    """Add the outputs of a policy.

    Args:
        graph: gets the nodes.
        policy: the policy.
        arrays: its weights.
        heads: output [batch, n] of each head.
        allowed: [batch, n] mask of allowed actions; empty: there is none.
    """
    if isinstance(policy, HeldNoise):  # derives from the next one
        _held_noise(graph, policy, heads)
    elif isinstance(policy, SquashedGaussian):
        _squashed_gaussian(graph, policy, heads)
    elif isinstance(policy, Gaussian):
        _gaussian(graph, policy, arrays["log_std"], heads)
    elif isinstance(policy, Deterministic):
        _deterministic(graph, policy, heads)
    elif isinstance(policy, Categorical):
        _categorical(graph, policy, heads, allowed)
    else:
        assert isinstance(policy, EpsilonGreedy), policy
        _q_values(graph, policy, heads, allowed)


def _squashed_gaussian(graph: Graph, policy: Policy, heads: Mapping[str, str]) -> None:
    low, high = (graph.floats(limit) for limit in (LOG_STD_MIN, LOG_STD_MAX))
    log_std = graph.add("Clip", heads["log_std"], low, high)
    _squashed(graph, policy, heads["mu"], log_std)


def _held_noise(graph: Graph, policy: Policy, heads: Mapping[str, str]) -> None:
    raised = graph.add("Add", graph.add("Tanh", heads["log_std"]), graph.floats(1.0))
    above = graph.add("Mul", raised, graph.floats(LOG_STD_HALF_RANGE))
    _squashed(graph, policy, heads["mu"], graph.add("Add", above, graph.floats(LOG_STD_LOW)))


def _squashed(graph: Graph, policy: Policy, mean: str, log_std: str) -> None:
    bounds = box_bounds(policy.name, policy.action_space)
    graph.output(MEAN, mean, FLOAT32, [bounds.size])
    graph.output(LOG_STD, log_std, FLOAT32, [bounds.size])
    _within(graph, bounds, _scaled(graph, bounds, mean))


def _deterministic(graph: Graph, policy: Policy, heads: Mapping[str, str]) -> None:
    bounds = box_bounds(policy.name, policy.action_space)
    _within(graph, bounds, _scaled(graph, bounds, heads["mu"]))


def _gaussian(graph: Graph, policy: Policy, spread: np.ndarray, heads: Mapping[str, str]) -> None:
    bounds, mean = box_bounds(policy.name, policy.action_space), heads["mu"]
    log_std = graph.add("Expand", graph.floats(spread, "log_std.weight"), graph.add("Shape", mean))
    graph.output(MEAN, mean, FLOAT32, [bounds.size])
    graph.output(LOG_STD, log_std, FLOAT32, [bounds.size])
    _within(graph, bounds, graph.cast(mean, _precision(bounds), FLOAT32))


def _precision(bounds: BoxBounds) -> np.dtype[np.generic]:
    return FLOAT64 if bounds.dtype == FLOAT64 else FLOAT32


def _scaled(graph: Graph, bounds: BoxBounds, mean: str) -> str:
    """Return [batch, n] actions of numbers before squashing."""
    dtype = _precision(bounds)
    unit = graph.cast(graph.add("Tanh", mean), dtype, FLOAT32)
    low, half, one = (
        graph.constant(np.asarray(numbers, dtype)) for numbers in (bounds.low, (bounds.high - bounds.low) / 2.0, 1.0)
    )
    return graph.add("Add", graph.add("Mul", graph.add("Add", unit, one), half), low)


def _within(graph: Graph, bounds: BoxBounds, action: str) -> None:
    """Add the output of actions [batch, n], cut to the bounds, with the space's shape and dtype."""
    dtype = _precision(bounds)
    for operator, bound in (("Max", bounds.low), ("Min", bounds.high)):
        if np.isfinite(bound).any():
            action = graph.add(operator, action, graph.constant(bound.astype(dtype)))
    shaped = graph.reshape(action, bounds.shape, [bounds.size])
    graph.output(ACTION, graph.cast(shaped, bounds.dtype, dtype), bounds.dtype, bounds.shape)


def _categorical(graph: Graph, policy: Policy, heads: Mapping[str, str], allowed: str) -> None:
    actions, logits = categorical_actions(policy.name, policy.action_space), heads["logits"]
    if allowed:
        logits = graph.add("Where", allowed, logits, graph.floats(FORBIDDEN))
    graph.output(LOGITS, logits, FLOAT32, [actions.size])
    parts = [logits]
    if len(actions.counts) > 1:
        parts = graph.add_many("Split", [logits, graph.integers(actions.counts)], len(actions.counts), axis=1)
    index = graph.joined([graph.add("ArgMax", part, axis=1, keepdims=1) for part in parts])
    first = actions.first
    shaped = graph.reshape(index, first.shape, [len(actions.counts)])
    chosen = graph.add("Add", shaped, graph.constant(first.astype(np.int64))) if first.any() else shaped
    graph.output(ACTION, graph.cast(chosen, first.dtype, INT64), first.dtype, first.shape)


def _q_values(graph: Graph, policy: Policy, heads: Mapping[str, str], allowed: str) -> None:
    actions = categorical_actions(policy.name, policy.action_space)
    if "q" in heads:
        q = heads["q"]
    else:
        mean = graph.add("ReduceMean", heads["advantage"], axes=[1], keepdims=1)
        q = graph.add("Sub", graph.add("Add", heads["value"], heads["advantage"]), mean)
    graph.output(Q, q, FLOAT32, [actions.size])
    ranked = graph.add("Where", allowed, q, graph.floats(-np.inf)) if allowed else q
    index = graph.add("ArgMax", ranked, axis=1, keepdims=0)
    graph.output(ACTION, graph.add("Add", index, graph.integers(int(actions.first))), INT64, [])
