"""The project's own policy without torch: the same weights, a third of the time per action."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.activations import activation_name
from tmrl_core.actor.flattening import action_bounds, flatten_into, layout_of, vector_size
from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.weights import ADVICE, SAFETENSORS_FORMAT, check_shapes, decode_arrays, encode_arrays
from tmrl_core.errors import ConfigError, WeightsError

LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0

SUPPORTED_ACTIVATIONS = ("relu", "tanh")

_NOISE_BLOCK = 4096
"""Gaussian numbers drawn at once: one call per action would cost more than the action's last layer."""

_SCALAR_ACTIONS = 4
"""Up to so many action elements, Python's own floats are faster than calls to NumPy."""


class NumpySquashedGaussianMLPActor(ActorModule):
    """Acts as `SquashedGaussianMLPActor` does, on weights that it reads from the same safetensors.

    A layer's bias is kept as the last row of its matrix and meets a constant 1 at the end of the layer's input, which
    spares a call per layer. All intermediate results live in arrays made once; `act` is therefore for one thread.

    Args:
        observation_space: flattened as `tmrl_core.actor.flattening` says.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer.
        activation: `relu` or `tanh`, or torch's class of that name.
        seed: of the initial weights and of exploration; None: from the operating system.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    weights_format: ClassVar[str] = SAFETENSORS_FORMAT

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Any = "relu",
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self._layout = layout_of(observation_space)
        self._bounds = action_bounds("NumpySquashedGaussianMLPActor", action_space)
        self._activation = activation_name(activation)
        if self._activation not in SUPPORTED_ACTIVATIONS:
            raise ConfigError(
                f"activation is {self._activation!r}; without torch the policy knows "
                f"{' and '.join(SUPPORTED_ACTIVATIONS)}. Set worker.backend to torch for others."
            )
        self._rng = np.random.default_rng(seed)
        widths = (vector_size(self._layout), *(int(width) for width in hidden_sizes))
        self._shapes: dict[str, tuple[int, ...]] = {}
        for index, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            self._shapes[f"net.{2 * index}.weight"] = (fan_out, fan_in)
            self._shapes[f"net.{2 * index}.bias"] = (fan_out,)
        for head in ("mu", "log_std"):
            self._shapes[f"{head}.weight"] = (self._bounds.size, widths[-1])
            self._shapes[f"{head}.bias"] = (self._bounds.size,)
        # Matrices [in + 1, out]; the two heads are one matrix, mu first.
        self._matrices = [np.empty((fan_in + 1, fan_out), np.float32) for fan_in, fan_out in itertools.pairwise(widths)]
        self._matrices.append(np.empty((widths[-1] + 1, 2 * self._bounds.size), np.float32))
        # Inputs of each matrix: the values, then the 1 that meets the bias.
        self._inputs = [np.ones(width + 1, np.float32) for width in widths]
        self._vector = self._inputs[0][:-1]
        self._heads = np.empty(2 * self._bounds.size, np.float32)
        self._noise: list[float] = []
        self._take_over(self._initial_weights())
        self._act = self._make_act()

    def seed(self, seed: int) -> None:
        """Seed the exploration; what had been drawn ahead is thrown away."""
        self._rng = np.random.default_rng(seed)
        self._noise.clear()

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """The action for one observation, a new array of the action space; `test`: the most likely one."""
        return self._act(obs, test)

    def _initial_weights(self) -> dict[str, np.ndarray]:
        """Uniform within 1/sqrt(inputs), as torch.nn.Linear begins, to explore with until a policy arrives."""
        weights: dict[str, np.ndarray] = {}
        for name, shape in self._shapes.items():
            fan_in = self._shapes[name.replace(".bias", ".weight")][1]
            bound = 1.0 / math.sqrt(fan_in)
            weights[name] = self._rng.uniform(-bound, bound, shape).astype(np.float32)
        return weights

    def _take_over(self, weights: dict[str, np.ndarray]) -> None:
        for index, matrix in enumerate(self._matrices[:-1]):
            matrix[:-1] = weights[f"net.{2 * index}.weight"].T
            matrix[-1] = weights[f"net.{2 * index}.bias"]
        for start, head in ((0, "mu"), (self._bounds.size, "log_std")):
            stop = start + self._bounds.size
            self._matrices[-1][:-1, start:stop] = weights[f"{head}.weight"].T
            self._matrices[-1][-1, start:stop] = weights[f"{head}.bias"]

    def to_bytes(self) -> bytes:
        """The weights as the content of a safetensors file, which the torch policy reads."""
        weights: dict[str, np.ndarray] = {}
        for index, matrix in enumerate(self._matrices[:-1]):
            weights[f"net.{2 * index}.weight"] = matrix[:-1].T
            weights[f"net.{2 * index}.bias"] = matrix[-1]
        for start, head in ((0, "mu"), (self._bounds.size, "log_std")):
            stop = start + self._bounds.size
            weights[f"{head}.weight"] = self._matrices[-1][:-1, start:stop].T
            weights[f"{head}.bias"] = self._matrices[-1][-1, start:stop]
        return encode_arrays(weights, {"activation": self._activation})

    def from_bytes(self, data: bytes, device: Any = "cpu") -> NumpySquashedGaussianMLPActor:
        """Take the weights over, in place, and return self. After an error nothing has changed.

        Raises:
            WeightsError: names what does not fit.
        """
        arrays, metadata = decode_arrays(data)
        owner = "SquashedGaussianMLPActor"
        check_shapes(owner, self._shapes, {name: array.shape for name, array in arrays.items()}, ADVICE)
        activation = metadata.get("activation", self._activation)
        if activation != self._activation:
            raise WeightsError(
                f"the weights are not for {owner}: their activation is {activation}, not {self._activation}. {ADVICE}"
            )
        self._take_over(arrays)
        return self

    def save(self, path: str | Path) -> None:
        """Write the weights to a safetensors file."""
        Path(path).write_bytes(self.to_bytes())

    def load(self, path: str | Path, device: Any = "cpu") -> NumpySquashedGaussianMLPActor:
        """Take the weights of a safetensors file over, in place, and return self.

        Raises:
            WeightsError: names what does not fit.
        """
        return self.from_bytes(Path(path).read_bytes(), device)

    def _make_act(self) -> Callable[..., np.ndarray]:
        """The function that `act` is: everything that it touches in local variables."""
        dot, add_noise = np.dot, self._noise
        layout, vector, heads = self._layout, self._vector, self._heads
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
        zeros = {id(output): np.zeros_like(output) for output in (first_output, *(layer[2] for layer in layers))}
        first_zeros = zeros[id(first_output)]
        rows = [(*layer, zeros[id(layer[2])]) for layer in layers]
        direct = len(layout) == 1 and layout[0].kind == "values" and not layout[0].path
        direct_shape = layout[0].shape
        flat = direct and len(direct_shape) == 1

        def forward(obs: Any) -> None:
            if flat and getattr(obs, "shape", None) == direct_shape:
                vector[:] = obs
            else:
                flatten_into(layout, obs, vector)
            dot(first_input, first_matrix, out=first_output)
            if not hidden:
                return
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

        size, shape, dtype = self._bounds.size, self._bounds.shape, self._bounds.dtype
        low, span = self._bounds.low, self._bounds.high - self._bounds.low
        empty = np.empty

        def draw() -> float:
            add_noise.extend(self._rng.standard_normal(_NOISE_BLOCK).tolist())
            return add_noise.pop()

        if size <= _SCALAR_ACTIONS:
            tanh, exp, pop = math.tanh, math.exp, add_noise.pop
            elements = [(index, size + index, low[index].item(), span[index].item()) for index in range(size)]

            def act_scalars(obs: Any, test: bool = False) -> np.ndarray:
                forward(obs)
                values = heads.tolist()
                action = empty(size, dtype)
                for mu_at, log_std_at, lowest, width in elements:
                    u = values[mu_at]
                    if not test:
                        log_std = values[log_std_at]
                        if log_std < LOG_STD_MIN:
                            log_std = LOG_STD_MIN
                        elif log_std > LOG_STD_MAX:
                            log_std = LOG_STD_MAX
                        u += exp(log_std) * (pop() if add_noise else draw())
                    action[mu_at] = lowest + (tanh(u) + 1.0) * 0.5 * width
                return action if len(shape) == 1 else action.reshape(shape)

            return act_scalars

        def act_vector(obs: Any, test: bool = False) -> np.ndarray:
            forward(obs)
            u = heads[:size].astype(np.float64)
            if not test:
                u += np.exp(np.clip(heads[size:], LOG_STD_MIN, LOG_STD_MAX)) * self._rng.standard_normal(size)
            action: np.ndarray = low + (np.tanh(u) + 1.0) * 0.5 * span
            return action.astype(dtype).reshape(shape)

        return act_vector
