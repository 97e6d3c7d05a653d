"""Weights of policies without torch, and a multi-layer perceptron's forward pass for one observation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.activations import activation_name
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import (
    flatten_into,
    images_of,
    layout_metadata,
    layout_of,
    values_of,
    vector_size,
)
from tmrl_core.actor.policies.masks import is_masked
from tmrl_core.actor.policies.numpy.encoder import NumpyImageEncoder
from tmrl_core.actor.policies.weights import (
    ADVICE,
    SAFETENSORS_FORMAT,
    check_finite,
    check_metadata,
    check_shapes,
    decode_arrays,
    describe,
    encode_arrays,
    exploration_in,
    with_exploration,
)
from tmrl_core.blas_threads import MIN_VALUES, one_blas_thread
from tmrl_core.errors import ConfigError
from tmrl_core.storage import read_whole

if TYPE_CHECKING:
    from typing_extensions import Self

SUPPORTED_ACTIVATIONS = ("relu", "tanh")
OBSERVATION_LIMIT = 10.0
"""Bound of normalized observations, so that an element that was constant before does not dominate when it changes."""


class NumpyActor(ActorModule):
    """A policy whose weights are safetensors of `net.<i>.weight`, `net.<i>.bias` and of one linear layer for each head.

    A layer's bias is the last row of its matrix; all heads are one matrix. All intermediate results are in arrays that
    are allocated once, so a policy is for one thread.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: action space of the environment.
        heads: number of outputs of each head, by its name, in the order of the outputs.
        hidden_sizes: width of each hidden layer.
        activation: `relu` or `tanh`, or torch's class of that name.
        seed: seed of the initial weights and of exploration; None: from the operating system.
        parameters: names and initial values of other arrays beside the weights.
        normalize_observations: True: normalize by the mean and the standard deviation that are sent with the weights.
        convolutions: layers for images, see `tmrl_core.actor.policies.convolutions`; None: the default ones.

    Raises:
        ConfigError: a space, an activation or the convolutions are not supported.
    """

    weights_format: ClassVar[str] = SAFETENSORS_FORMAT

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        heads: Mapping[str, int],
        hidden_sizes: Sequence[int],
        activation: Any,
        seed: int | None,
        parameters: Mapping[str, np.ndarray] | None = None,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self._layout = layout_of(observation_space, action_space, convolutions)
        self._value_leaves = values_of(self._layout)
        self._masked = is_masked(observation_space, action_space)
        self._activation = activation_name(activation)
        if self._activation not in SUPPORTED_ACTIVATIONS:
            raise ConfigError(
                f"activation is {self._activation!r}; without torch the policy knows "
                f"{' and '.join(SUPPORTED_ACTIVATIONS)}. Set worker.backend to torch for others."
            )
        self._metadata = {"activation": self._activation, **layout_metadata(self._layout)}
        self._rng = np.random.default_rng(seed)
        self._parameters = dict(parameters or {})
        self._encoders = [
            NumpyImageEncoder(leaf, convolutions, f"encoder.images.{index}")
            for index, leaf in enumerate(images_of(self._layout))
        ]
        self._values = values = vector_size(self._value_leaves)
        for encoder in self._encoders:
            # From a generator of its own, so that the other layers are the same with and without images.
            self._parameters |= encoder.initial_weights(self._rng.spawn(1)[0])
        features = values + sum(encoder.features for encoder in self._encoders)
        self._widths = widths = (features, *(int(width) for width in hidden_sizes))
        self._normalizes = normalize_observations
        if normalize_observations:
            self._parameters |= {"obs_mean": np.zeros(values, np.float32), "obs_std": np.ones(values, np.float32)}
        features = self._add_layer(widths[-1])
        self._shapes: dict[str, tuple[int, ...]] = {}
        for index, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            self._shapes[f"net.{2 * index}.weight"] = (fan_out, fan_in)
            self._shapes[f"net.{2 * index}.bias"] = (fan_out,)
        self._columns: dict[str, slice] = {}
        outputs = 0
        for head, size in heads.items():
            self._shapes[f"{head}.weight"] = (size, features)
            self._shapes[f"{head}.bias"] = (size,)
            self._columns[head] = slice(outputs, outputs + size)
            outputs += size
        weights = self._initial_weights()
        self._shapes |= {name: array.shape for name, array in self._parameters.items()}
        # Matrices [in + 1, out].
        self._matrices = [np.empty((fan_in + 1, fan_out), np.float32) for fan_in, fan_out in itertools.pairwise(widths)]
        self._matrices.append(np.empty((features + 1, outputs), np.float32))
        self._take_over({**weights, **self._parameters})

    def _add_layer(self, width: int) -> int:
        """Add the parameters of a layer between hidden layers of this width and heads; return the heads' inputs."""
        return width

    def _initial_weights(self) -> dict[str, np.ndarray]:
        """Uniform within 1/sqrt(inputs), as torch.nn.Linear begins, to explore with until a policy arrives."""
        weights: dict[str, np.ndarray] = {}
        for name, shape in self._shapes.items():
            fan_in = self._shapes[name.replace(".bias", ".weight")][1]
            bound = 1.0 / math.sqrt(fan_in)
            weights[name] = self._rng.uniform(-bound, bound, shape).astype(np.float32)
        return weights

    def _take_over(self, weights: Mapping[str, np.ndarray]) -> None:
        for index, matrix in enumerate(self._matrices[:-1]):
            matrix[:-1] = weights[f"net.{2 * index}.weight"].T
            matrix[-1] = weights[f"net.{2 * index}.bias"]
        for head, columns in self._columns.items():
            self._matrices[-1][:-1, columns] = weights[f"{head}.weight"].T
            self._matrices[-1][-1, columns] = weights[f"{head}.bias"]
        for name in self._parameters:
            self._parameters[name] = weights[name].astype(np.float32)
        for encoder in self._encoders:
            encoder.take_over(self._parameters)

    def seed(self, seed: int) -> None:
        """Seed the exploration."""
        self._rng = np.random.default_rng(seed)

    def architecture(self) -> dict[str, Any]:
        """Return names and shapes of the weights, the activation, and the layout of bytes."""
        return describe(self._shapes, self._metadata)

    def to_bytes(self) -> bytes:
        """The weights as the content of a safetensors file, which the torch policy reads."""
        weights = dict(self._parameters)
        for index, matrix in enumerate(self._matrices[:-1]):
            weights[f"net.{2 * index}.weight"] = matrix[:-1].T
            weights[f"net.{2 * index}.bias"] = matrix[-1]
        for head, columns in self._columns.items():
            weights[f"{head}.weight"] = self._matrices[-1][:-1, columns].T
            weights[f"{head}.bias"] = self._matrices[-1][-1, columns]
        return encode_arrays(weights, self._metadata)

    def from_bytes(self, data: bytes, device: Any = "cpu") -> Self:
        """Load the weights in place, and return self. After an error nothing has changed.

        Raises:
            WeightsError: names the part that does not fit.
        """
        arrays, metadata = decode_arrays(data)
        owner = self.owner or type(self).__name__
        check_shapes(owner, self._shapes, {name: array.shape for name, array in arrays.items()}, ADVICE)
        check_finite(owner, (name for name, array in arrays.items() if not np.isfinite(array).all()))
        check_metadata(owner, self._metadata, metadata)
        self._take_over(arrays)
        return self

    def save(self, path: str | Path) -> None:
        """Write the weights and the exploration parameters to a safetensors file."""
        Path(path).write_bytes(with_exploration(self.to_bytes(), self.exploration()))

    def load(self, path: str | Path, device: Any = "cpu") -> Self:
        """Load weights and exploration parameters of a safetensors file in place, and return self.

        Raises:
            WeightsError: names the part that does not fit.
        """
        data = read_whole(path)
        exploration = exploration_in(data)
        actor = self.from_bytes(data, device)
        if exploration:
            actor.set_exploration(exploration)
        return actor

    def _encode(self, obs: Any, vector: np.ndarray) -> None:
        """Write values and features of images of one observation, the inputs of the hidden layers."""
        flatten_into(self._value_leaves, obs, vector)
        start = self._values
        for encoder in self._encoders:
            encoder.encode(obs, vector[start : start + encoder.features])
            start += encoder.features

    def _prepare(self, vector: np.ndarray) -> None:
        """Normalize the values of encoded observations [..., size] in place."""
        vector = vector[..., : self._values]
        vector -= self._parameters["obs_mean"]
        vector /= self._parameters["obs_std"]
        np.clip(vector, -OBSERVATION_LIMIT, OBSERVATION_LIMIT, out=vector)


class NumpyMLPActor(NumpyActor):
    """A policy that computes one observation at a time with a multi-layer perceptron.

    A constant 1 at the end of a layer's input is multiplied with the bias, which saves a call per layer. A subclass
    implements `act` with `_forward`.

    The arguments are those of `NumpyActor`.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        heads: Mapping[str, int],
        hidden_sizes: Sequence[int],
        activation: Any,
        seed: int | None,
        parameters: Mapping[str, np.ndarray] | None = None,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, heads, hidden_sizes, activation, seed, parameters,
            normalize_observations, convolutions,
        )  # fmt: skip
        # Inputs of each matrix: the values, then the 1 that meets the bias.
        self._inputs = [np.ones(width + 1, np.float32) for width in self._widths]
        self._heads = np.empty(self._matrices[-1].shape[1], np.float32)
        self._forward = self._make_forward()

    def _make_forward(self) -> Callable[[Any], np.ndarray]:
        """Return a function that computes the heads' outputs [sum of their sizes] of one observation.

        It writes into the same array each time. It uses local variables only, which are faster than attributes.
        """
        dot, ndarray = np.dot, np.ndarray
        layout, vector, heads = self._layout, self._inputs[0][:-1], self._heads
        encode = self._encode
        first_matrix, first_input = self._matrices[0], self._inputs[0]
        first_output = self._inputs[1][:-1] if len(self._matrices) > 1 else heads
        layers = [
            (self._inputs[index], self._matrices[index], self._inputs[index + 1][:-1])
            for index in range(1, len(self._matrices) - 1)
        ]
        last_input, last_matrix = self._inputs[-1], self._matrices[-1]
        hidden = len(self._matrices) > 1
        relu = self._activation == "relu"
        maximum, tanh_ufunc = np.maximum, np.tanh
        first_zeros = np.zeros_like(first_output)
        rows = [(*layer, np.zeros_like(layer[2])) for layer in layers]
        direct = len(layout) == 1 and layout[0].is_whole_vector
        direct_shape = layout[0].shape
        flat = direct and len(direct_shape) == 1
        prepare = self._prepare if self._normalizes else None
        limit = one_blas_thread
        large = bool(self._encoders) or max(matrix.size for matrix in self._matrices) >= MIN_VALUES

        def forward(obs: Any) -> np.ndarray:
            if large and limit.wanted:
                with limit:
                    return forward(obs)
            if flat and isinstance(obs, ndarray) and obs.shape == direct_shape:
                vector[:] = obs
            else:
                encode(obs, vector)
            if prepare is not None:
                prepare(vector)
            dot(first_input, first_matrix, out=first_output)
            if not hidden:
                return heads
            if relu:
                maximum(first_output, first_zeros, out=first_output)
                for layer_input, matrix, output, zero in rows:
                    dot(layer_input, matrix, out=output)
                    maximum(output, zero, out=output)
            else:
                tanh_ufunc(first_output, out=first_output)
                for layer_input, matrix, output, _ in rows:
                    dot(layer_input, matrix, out=output)
                    tanh_ufunc(output, out=output)
            dot(last_input, last_matrix, out=heads)
            return heads

        return forward
