"""The observation's inputs of a graph, flattened, scaled and encoded as the policy does it."""

# Theory of operation
#
# Inputs are what the environment returns, with a batch axis in front: one for each array of the observation, in the
# dtype of its space, and not the flat vector that the networks take. A program in another language therefore need not
# know the order of keys, one-hot vectors or the scale of pixels; all of this is in the graph.
#
# Names: `observation`; in a Dict or a Tuple `observation.KEY`, nested ones joined by dots. The prefix keeps a key
# `action` or `mean` apart from the graph's outputs, which share one space of names.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.policies.convolutions import convolutions_of, features_of
from tmrl_core.actor.policies.flattening import Leaf, images_of, layout_of, values_of
from tmrl_core.actor.policies.masks import ACTION_MASK
from tmrl_core.actor.policies.policy import OBSERVATION_LIMIT, Policy
from tmrl_core.errors import ConfigError
from tmrl_core.onnx_export.graph import Graph

OBSERVATION = "observation"
FLOAT32 = np.dtype(np.float32)


def input_name(path: Sequence[str | int]) -> str:
    """Return the name of the input of an observation's array, given the keys that lead to it."""
    return ".".join([OBSERVATION, *map(str, path)])


def observation_arrays(obs_B: Any) -> dict[str, np.ndarray]:
    """Return a batch of observations, nested as the space is, as the inputs of an exported policy by name."""
    return dict(_arrays(obs_B, ()))


def _arrays(obs_B: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(obs_B, Mapping):
        for key, inner in obs_B.items():
            yield from _arrays(inner, (*path, key))
    elif isinstance(obs_B, tuple | list):
        for index, inner in enumerate(obs_B):
            yield from _arrays(inner, (*path, index))
    else:
        yield input_name(path), np.asarray(obs_B)


def encoded(graph: Graph, policy: Policy, arrays: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """Add the inputs of observations and their encoder.

    Args:
        graph: gets the nodes.
        policy: whose observations they are.
        arrays: its weights.

    Returns:
        The inputs [batch, n] of the hidden layers, and the mask of allowed actions, as bool; empty: there is none.

    Raises:
        ConfigError: two arrays of an observation have one name.
    """
    # Made anew: with torch, a policy's own layout has the action mask at its end.
    layout = layout_of(policy.observation_space, policy.action_space, policy.convolutions)
    names = [input_name(leaf.path) for leaf in layout]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"the observation space has two entries that would be the input {twice[0]!r}. Rename a key with a dot in "
            "it (a gymnasium.wrappers.TransformObservation around the environment), train with it, and export again."
        )
    values = [_values(graph, policy, leaf) for leaf in values_of(layout) if leaf.size]
    parts = [_normalized(graph, policy, arrays, graph.joined(values))] if values else []
    for index, leaf in enumerate(images_of(layout)):
        parts.append(_features(graph, policy, arrays, leaf, f"encoder.images.{index}"))
    return graph.joined(parts), _mask(graph, policy) if policy.masked else ""


def _input(graph: Graph, policy: Policy, leaf: Leaf, dtype: np.dtype[np.generic]) -> str:
    """Add the input of an array, and return it in this dtype."""
    space = policy.observation_space
    for key in leaf.path:
        space = space[key]
    declared = np.dtype(space.dtype)
    return graph.cast(graph.input(input_name(leaf.path), declared, leaf.shape), dtype, declared)


def _values(graph: Graph, policy: Policy, leaf: Leaf) -> str:
    """Return the elements [batch, n] of an array that is no image."""
    if leaf.kind == "values":
        elements = _scaled(graph, leaf, _input(graph, policy, leaf, FLOAT32))
        return graph.reshape(elements, [leaf.size], leaf.shape)
    # Each element of the one-hot vectors belongs to one integer and stands for one of its values.
    column = np.repeat(np.arange(len(leaf.counts)), leaf.counts)
    value = np.concatenate([first + np.arange(count) for first, count in zip(leaf.first, leaf.counts, strict=True)])
    found = _input(graph, policy, leaf, np.dtype(np.int64))
    integers = graph.reshape(found, [len(leaf.counts)], leaf.shape)
    repeated = graph.add("Gather", integers, graph.integers(column.tolist()), axis=1)
    return graph.as_floats(graph.add("Equal", repeated, graph.integers(value.tolist())))


def _scaled(graph: Graph, leaf: Leaf, elements: str) -> str:
    """Return the elements [batch, *shape] of bytes with bounds, scaled by these."""
    if leaf.low is None or leaf.width is None:
        return elements
    above = graph.add("Sub", elements, graph.floats(leaf.low))
    return graph.add("Div", above, graph.floats(leaf.width))


def _normalized(graph: Graph, policy: Policy, arrays: Mapping[str, np.ndarray], values: str) -> str:
    if "obs_mean" not in arrays:
        return values
    mean, std = (graph.floats(arrays[name], name) for name in ("obs_mean", "obs_std"))
    values = graph.add("Div", graph.add("Sub", values, mean), std)
    if policy.behind_batch_norm:
        return values
    limit = np.float32(OBSERVATION_LIMIT)
    return graph.add("Clip", values, graph.floats(-limit), graph.floats(limit))


def _features(graph: Graph, policy: Policy, arrays: Mapping[str, np.ndarray], leaf: Leaf, prefix: str) -> str:
    """Return the features [batch, n] of an image."""
    pixels = _scaled(graph, leaf, _input(graph, policy, leaf, FLOAT32))
    axes = [0, *(1 + axis for axis in (*leaf.channels, *leaf.sides))]
    image = graph.reshape(graph.add("Transpose", pixels, perm=axes), leaf.image_shape)
    layers = convolutions_of(policy.convolutions, leaf.image_shape)
    for index, layer in enumerate(layers):
        # The scale of the pixels is a part of the first layer's weights, as with NumPy.
        kernels = arrays[f"{prefix}.{index}.weight"] * np.float32(leaf.scale if index == 0 else 1.0)
        image = graph.add(
            "Conv",
            image,
            graph.floats(kernels, f"{prefix}.{index}.weight"),
            graph.floats(arrays[f"{prefix}.{index}.bias"], f"{prefix}.{index}.bias"),
            strides=[layer.stride, layer.stride],
            pads=[0, 0, *layer.padding],
        )
        image = graph.add("Relu", image)
    return graph.reshape(image, [features_of(layers)])


def _mask(graph: Graph, policy: Policy) -> str:
    mask: Any = policy.observation_space[ACTION_MASK]
    paths: list[tuple[str | int, ...]] = [(ACTION_MASK,)]
    if isinstance(mask, spaces.Tuple):
        paths = [(ACTION_MASK, index) for index in range(len(mask.spaces))]
    parts = []
    for path in paths:
        space = mask if len(path) == 1 else mask[path[1]]
        parts.append(graph.as_floats(graph.input(input_name(path), np.dtype(space.dtype), space.shape)))
    return graph.add("Greater", graph.joined(parts), graph.floats(0.0))
