"""Weights of policies without torch, and a multi-layer perceptron's forward pass for one observation.

Shape suffixes: B batch, D elements of a flattened observation, H features, N outputs.
"""

# Theory of operation
#
# Policies without torch, for workers: a robot acts within milliseconds and installs no gigabyte. NumPy takes a third of
# ONNX Runtime's time for one observation with two layers of 256 (2.7 to 3.6 times its rate), because the work is two
# small products and everything around them counts.
#
# There are two passes over the same weights, equal but for rounding:
#
# - `_forward`, for one observation of a policy without recurrence. It is one closure whose arrays and functions are
#   local variables. Inputs of layers have a constant 1 at their end, which is multiplied with the bias: for [257] times
#   [257, 256], one call in place of two. A batch of one takes twice as long.
# - `infer`, for a batch, with state. Arrays are kept for the size of the last batch, so several robots in one process
#   do not allocate.
#
# Weights. `_matrices` are [in + 1, out], a bias being the last row, and all heads are one matrix: one product.
# `_weights` are views of these by torch's names, transposed as torch has them, so loading a file is an assignment to
# views and nothing has to be made again. Encoders and recurrent layers, whose form differs, make their own arrays in
# `_take_over`, which is called after each load. A load checks everything before it assigns anything: after an error the
# policy acts as before.
#
# All arrays are written anew by each call. A policy therefore belongs to one thread, and its outputs are valid until
# the next call.
#
# BLAS. Small products are slower with several threads than with one, and the threads spin beside the environment.
# `one_blas_thread` limits them for the call where a matrix is large enough for BLAS to use several; below that, BLAS
# has one thread in any case, and entering the limit costs a microsecond.
#
# Initial weights are uniform within 1/sqrt(inputs), as torch.nn.Linear begins: a worker explores with them until a
# policy arrives.

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import flatten_into, images_of, values_of, vector_size
from tmrl_core.actor.policies.masks import ALLOWED, FORBIDDEN, mask_of
from tmrl_core.actor.policies.numpy.encoder import NumpyImageEncoder
from tmrl_core.actor.policies.policy import OBSERVATION_LIMIT, Policy
from tmrl_core.actor.policies.weights import (
    SAFETENSORS_FORMAT,
    check_weights,
    decode_arrays,
    describe,
    encode_arrays,
    load_file,
    with_exploration,
)
from tmrl_core.blas_threads import MIN_VALUES, one_blas_thread
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves

if TYPE_CHECKING:
    from typing_extensions import Self

SUPPORTED_ACTIVATIONS = ("relu", "tanh")


class NumpyPolicy(Policy):
    """A policy whose weights are safetensors of `net.<i>.weight`, `net.<i>.bias` and of one linear layer for each head.

    A layer's bias is the last row of its matrix; all heads are one matrix. All intermediate results are in arrays that
    are allocated once, so a policy is for one thread. Arrays of batches are kept for the size of the last one.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: action space of the environment.
        hidden_sizes: width of each hidden layer.
        activation: `relu` or `tanh`, or torch's class of that name.
        seed: seed of the initial weights and of exploration; None: from the operating system.
        convolutions: layers for images, see `tmrl_core.actor.policies.convolutions`; None: the default ones.
        normalize_observations: True: normalize by the mean and the standard deviation that are sent with the weights.
        settings: of the distribution.

    Raises:
        ConfigError: a space, an activation or the convolutions are not supported.
    """

    weights_format: ClassVar[str] = SAFETENSORS_FORMAT

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let messages name the policy as configurations do."""
        super().__init_subclass__(**kwargs)
        if "owner" not in vars(cls):
            cls.owner = cls.__name__.removeprefix("Numpy")

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int],
        activation: Any,
        seed: int | None,
        convolutions: Convolutions | None,
        normalize_observations: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(observation_space, action_space, activation, convolutions, **settings)
        self._value_leaves = values_of(self.layout)
        if self._activation not in SUPPORTED_ACTIVATIONS:
            raise ConfigError(
                f"activation is {self._activation!r}; without torch the policy knows "
                f"{' and '.join(SUPPORTED_ACTIVATIONS)}. Set worker.backend to torch for others."
            )
        self._rng = np.random.default_rng(seed)
        self._encoders = [
            NumpyImageEncoder(leaf, convolutions, f"encoder.images.{index}")
            for index, leaf in enumerate(images_of(self.layout))
        ]
        self._values = values = vector_size(self._value_leaves)
        for encoder in self._encoders:
            # From a generator of its own, so that the other layers are the same with and without images.
            self.arrays |= encoder.initial_weights(self._rng.spawn(1)[0])
        features = values + sum(encoder.features for encoder in self._encoders)
        self._widths = widths = (features, *(int(width) for width in hidden_sizes))
        self._normalizes = normalize_observations or self.behind_batch_norm
        if self._normalizes:
            self.arrays |= {"obs_mean": np.zeros(values, np.float32), "obs_std": np.ones(values, np.float32)}
        features = self._add_layer(widths[-1])
        stops = itertools.accumulate(self.heads.values())
        columns = zip(self.heads.items(), stops, strict=True)
        self._columns = {name: slice(stop - size, stop) for (name, size), stop in columns}
        # Matrices [in + 1, out].
        sizes = [*itertools.pairwise(widths), (features, sum(self.heads.values()))]
        self._matrices = [np.empty((fan_in + 1, fan_out), np.float32) for fan_in, fan_out in sizes]
        if self._encoders:
            # Column by column: for the features of images, megabytes of weights are read once for each action, and BLAS
            # reads them twice as fast this way.
            self._matrices[0] = np.asfortranarray(self._matrices[0])
        layers = {f"net.{2 * index}": matrix for index, matrix in enumerate(self._matrices[:-1])}
        layers |= {name: self._matrices[-1][:, at] for name, at in self._columns.items()}
        self._weights: dict[str, np.ndarray] = {}
        for name, matrix in layers.items():
            # Uniform within 1/sqrt(inputs), as torch.nn.Linear begins, to explore with until a policy arrives.
            bound = 1.0 / math.sqrt(len(matrix) - 1)
            for kind, view in (("weight", matrix[:-1].T), ("bias", matrix[-1])):
                view[...] = self._rng.uniform(-bound, bound, view.shape)
                self._weights[f"{name}.{kind}"] = view
        self._weights |= self.arrays
        self._take_over()
        self._make_buffers(1)

    def _add_layer(self, width: int) -> int:
        """Add the parameters of a layer between hidden layers of this width and heads; return the heads' inputs."""
        return width

    def _take_over(self) -> None:
        """Use new weights."""
        for encoder in self._encoders:
            encoder.take_over(self.arrays)

    def architecture(self) -> dict[str, Any]:
        """Return names and shapes of the weights, the activation, and the layout of bytes."""
        return describe({name: array.shape for name, array in self._weights.items()}, self._metadata)

    def to_bytes(self) -> bytes:
        """The weights as the content of a safetensors file, which the torch policy reads."""
        return encode_arrays(self._weights, self._metadata)

    def from_bytes(self, data: bytes, device: Any = "cpu") -> Self:
        """Load the weights in place, and return self. After an error nothing has changed.

        Raises:
            WeightsError: names the part that does not fit.
        """
        arrays, metadata = decode_arrays(data)
        shapes, found = ({name: array.shape for name, array in each.items()} for each in (self._weights, arrays))
        not_finite = (name for name, array in arrays.items() if not np.isfinite(array).all())
        check_weights(self.owner, shapes, found, self._metadata, metadata, not_finite)
        for name, array in self._weights.items():
            array[...] = arrays[name]
        self._take_over()
        return self

    def save(self, path: str | Path) -> None:
        """Write the weights and the exploration parameters to a safetensors file."""
        Path(path).write_bytes(with_exploration(self.to_bytes(), self.exploration()))

    def load(self, path: str | Path, device: Any = "cpu") -> Self:
        """Load weights and exploration parameters of a safetensors file in place, and return self.

        Raises:
            WeightsError: names the part that does not fit.
        """
        return load_file(path, lambda data: self.from_bytes(data, device))

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
        vector -= self.arrays["obs_mean"]
        vector /= self.arrays["obs_std"]
        if not self.behind_batch_norm:
            np.clip(vector, -OBSERVATION_LIMIT, OBSERVATION_LIMIT, out=vector)

    def _make_buffers(self, batch: int) -> None:
        """Allocate the arrays of a batch, and the views that every call would otherwise make again."""
        self._flat_BD = np.empty((batch, self._widths[0]), np.float32)
        hidden = [np.empty((batch, width), np.float32) for width in self._widths[1:]]
        self._layers = [
            (matrix[:-1], matrix[-1], output) for matrix, output in zip(self._matrices, hidden, strict=False)
        ]
        self._outputs_BN = np.empty((batch, self._matrices[-1].shape[1]), np.float32)
        self._outputs_of_heads = {name: self._outputs_BN[:, at] for name, at in self._columns.items()}

    def infer(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """Return the parameters of the action distributions, valid until the next call, and the next state."""
        if one_blas_thread.wanted:
            with one_blas_thread:
                return self.infer(obs_B, state_B)
        batch = self._batch_of(obs_B, state_B)
        if len(self._flat_BD) != batch:
            self._make_buffers(batch)
        x = self._flat_BD
        if len(self.layout) == 1 and self.layout[0].is_whole_vector and obs_B.shape == x.shape:
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
        x, after_B = self._next_state(x, state_B)
        np.dot(x, self._matrices[-1][:-1], out=self._outputs_BN)
        self._outputs_BN += self._matrices[-1][-1]
        outputs_B = self.outputs_of_heads(self._outputs_of_heads)
        if self.masked:
            allowed_BN = mask_of(obs_B)
            outputs_B = {**outputs_B, ALLOWED: allowed_BN}
            if "logits" in outputs_B:
                outputs_B["logits"] = np.where(allowed_BN, outputs_B["logits"], np.float32(FORBIDDEN))
        return outputs_B, after_B

    def _batch_of(self, obs_B: Any, state_B: Mapping[str, Any]) -> int:
        """Return the size of a batch."""
        return len(self.layout[0].of(obs_B))

    def _next_state(self, x_BH: np.ndarray, state_B: Mapping[str, Any]) -> tuple[np.ndarray, State]:
        """Return the inputs of the heads, given the outputs of the hidden layers, and the state after this tick."""
        return x_BH, {}


class NumpyMLPPolicy(NumpyPolicy):
    """A policy that computes one observation at a time with a multi-layer perceptron.

    A constant 1 at the end of a layer's input is multiplied with the bias, which saves a call per layer. A subclass
    implements `act` with `_forward`, whose outputs are equal to those of `infer` but for rounding.

    The arguments are those of `NumpyPolicy`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        # Inputs of each matrix: the values, then the 1 that meets the bias.
        self._inputs = [np.ones(width + 1, np.float32) for width in self._widths]
        self._heads = np.empty(self._matrices[-1].shape[1], np.float32)
        self._forward = self._make_forward()
        self._prepare_act()

    def _prepare_act(self) -> None:
        """Make what `act` uses besides `_forward`."""

    def _make_forward(self) -> Callable[[Any], np.ndarray]:
        """Return a function that computes the heads' outputs [sum of their sizes] of one observation.

        It writes into the same array each time. It uses local variables only, which are faster than attributes.
        """
        dot, ndarray, maximum, tanh = np.dot, np.ndarray, np.maximum, np.tanh
        layout, vector, heads = self.layout, self._inputs[0][:-1], self._heads
        encode = self._encode
        layers = [
            (layer_input, matrix, after[:-1], np.zeros_like(after[:-1]))
            for layer_input, matrix, after in zip(self._inputs, self._matrices, self._inputs[1:], strict=False)
        ]
        last_input, last_matrix = self._inputs[-1], self._matrices[-1]
        relu = self._activation == "relu"
        direct_shape = layout[0].shape
        flat = len(layout) == 1 and layout[0].is_whole_vector and len(direct_shape) == 1
        prepare = self._prepare if self._normalizes else None
        limit = one_blas_thread
        large = bool(self._encoders) or max(matrix.size for matrix in self._matrices) >= MIN_VALUES

        def forward(obs: Any) -> np.ndarray:
            # Whether threads are limited is asked at each call: other code of the process may change it meanwhile.
            if large and limit.wanted:
                with limit:
                    return forward(obs)
            # The most common observation, one vector of floats, skips the walk over the layout.
            if flat and isinstance(obs, ndarray) and obs.shape == direct_shape:
                vector[:] = obs
            else:
                encode(obs, vector)
            if prepare is not None:
                prepare(vector)
            if relu:
                for layer_input, matrix, output, zeros in layers:
                    dot(layer_input, matrix, out=output)
                    # An array of zeros: with a number, NumPy converts it at each call.
                    maximum(output, zeros, out=output)
            else:
                for layer_input, matrix, output, _ in layers:
                    dot(layer_input, matrix, out=output)
                    tanh(output, out=output)
            dot(last_input, last_matrix, out=heads)
            return heads

        return forward
