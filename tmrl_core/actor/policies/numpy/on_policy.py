"""The on-policy policies without torch: the same weights, a fraction of the time per action."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.activations import activation_name
from tmrl_core.actor.policies.flattening import flatten_into, layout_of, vector_size
from tmrl_core.actor.policies.numpy.squashed_gaussian import SUPPORTED_ACTIVATIONS
from tmrl_core.actor.policies.spaces import box_bounds, discrete_actions
from tmrl_core.actor.policies.weights import (
    ADVICE,
    SAFETENSORS_FORMAT,
    check_finite,
    check_shapes,
    decode_arrays,
    encode_arrays,
)
from tmrl_core.errors import ConfigError, WeightsError

if TYPE_CHECKING:
    from typing_extensions import Self

_BLOCK = 1024
"""Random numbers drawn at once."""
OBSERVATION_LIMIT = 10.0
"""Normalized observations are cut here, so that what was constant so far and changes now does not drown the rest."""


class NumpyOnPolicyActor(ActorModule):
    """A multi-layer perceptron on weights that it reads from the safetensors of its twin; for one thread.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: of the environment.
        hidden_sizes: width of each hidden layer.
        activation: `relu` or `tanh`, or torch's class of that name.
        seed: of the initial weights and of exploration; None: from the operating system.
        normalize_observations: by the mean and the standard deviation that come with the weights.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    weights_format: ClassVar[str] = SAFETENSORS_FORMAT
    head: ClassVar[str]
    """Name of the last layer."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        seed: int | None = None,
        *,
        outputs: int,
        normalize_observations: bool = False,
        parameters: dict[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self._layout = layout_of(observation_space)
        self._activation = activation_name(activation)
        if self._activation not in SUPPORTED_ACTIVATIONS:
            raise ConfigError(
                f"activation is {self._activation!r}; without torch the policy knows "
                f"{' and '.join(SUPPORTED_ACTIVATIONS)}. Set worker.backend to torch for others."
            )
        self._relu = self._activation == "relu"
        self._rng = np.random.default_rng(seed)
        widths = (vector_size(self._layout), *(int(width) for width in hidden_sizes), outputs)
        names = [f"net.{2 * index}" for index in range(len(widths) - 2)] + [self.head]
        self._vector = np.zeros(widths[0], np.float32)
        self._weights: dict[str, np.ndarray] = {}
        for name, (fan_in, fan_out) in zip(names, itertools.pairwise(widths), strict=True):
            bound = 1.0 / math.sqrt(fan_in)
            self._weights[f"{name}.weight"] = self._rng.uniform(-bound, bound, (fan_out, fan_in)).astype(np.float32)
            self._weights[f"{name}.bias"] = np.zeros(fan_out, np.float32)
        self._names = names
        self._normalizes = normalize_observations
        if normalize_observations:
            self._weights["obs_mean"] = np.zeros(widths[0], np.float32)
            self._weights["obs_std"] = np.ones(widths[0], np.float32)
        self._weights.update(parameters or {})
        self._take_over()

    def _take_over(self) -> None:
        self._layers = [
            (np.ascontiguousarray(self._weights[f"{name}.weight"].T), self._weights[f"{name}.bias"])
            for name in self._names
        ]

    def seed(self, seed: int) -> None:
        """Seed the exploration."""
        self._rng = np.random.default_rng(seed)

    def outputs(self, obs: Any) -> np.ndarray:
        """[outputs] float32 of the last layer for one observation."""
        flatten_into(self._layout, obs, self._vector)
        values = self._vector
        if self._normalizes:
            values = (values - self._weights["obs_mean"]) / self._weights["obs_std"]
            values = np.clip(values, -OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        for matrix, bias in self._layers[:-1]:
            values = values @ matrix + bias
            values = np.maximum(values, 0.0) if self._relu else np.tanh(values)
        matrix, bias = self._layers[-1]
        result: np.ndarray = values @ matrix + bias
        return result

    @abstractmethod
    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """The action, with its log-density `logp`."""

    def act(self, obs: Any, test: bool = False) -> Any:
        """The action for one observation; `test`: the most likely one."""
        return self.act_with_extras(obs, test)[0]

    def reset_extras(self) -> dict[str, Any]:
        """Zeros."""
        return {"logp": np.float32(0.0)}

    def to_bytes(self) -> bytes:
        """The weights as the content of a safetensors file, which the torch policy reads."""
        return encode_arrays(self._weights, {"activation": self._activation})

    def from_bytes(self, data: bytes, device: Any = "cpu") -> Self:
        """Take the weights over, in place, and return self. After an error nothing has changed.

        Raises:
            WeightsError: names what does not fit.
        """
        arrays, metadata = decode_arrays(data)
        expected = {name: array.shape for name, array in self._weights.items()}
        check_shapes(self.owner, expected, {name: array.shape for name, array in arrays.items()}, ADVICE)
        check_finite(self.owner, (name for name, array in arrays.items() if not np.isfinite(array).all()))
        activation = metadata.get("activation", self._activation)
        if activation != self._activation:
            raise WeightsError(
                f"the weights are not for {self.owner}: their activation is {activation}, not {self._activation}. "
                f"{ADVICE}"
            )
        self._weights = {name: arrays[name].astype(np.float32) for name in self._weights}
        self._take_over()
        return self

    def save(self, path: str | Path) -> None:
        """Write the weights to a safetensors file."""
        Path(path).write_bytes(self.to_bytes())

    def load(self, path: str | Path, device: Any = "cpu") -> Self:
        """Take the weights of a safetensors file over, in place, and return self.

        Raises:
            WeightsError: names what does not fit.
        """
        return self.from_bytes(Path(path).read_bytes(), device)


class NumpyCategoricalMLPActor(NumpyOnPolicyActor):
    """Acts as `CategoricalMLPActor` does.

    The other arguments are those of `NumpyOnPolicyActor`.

    Args:
        action_space: Discrete.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner = "CategoricalMLPActor"
    head = "logits"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        seed: int | None = None,
        normalize_observations: bool = False,
    ) -> None:
        self._actions = discrete_actions(self.owner, action_space)
        self._uniform: list[float] = []
        super().__init__(
            observation_space,
            action_space,
            hidden_sizes,
            activation,
            seed,
            outputs=self._actions.count,
            normalize_observations=normalize_observations,
        )

    def seed(self, seed: int) -> None:
        """Seed the exploration; what had been drawn ahead is thrown away."""
        super().seed(seed)
        self._uniform.clear()

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """The action, with its log-probability `logp`; `test`: the most likely one."""
        logits = self.outputs(obs).tolist()
        top = max(logits)
        # A few numbers: Python's floats are faster than calls to NumPy, and have more digits.
        weights = [math.exp(logit - top) for logit in logits]
        total = sum(weights)
        if test:
            index = logits.index(top)
        else:
            if not self._uniform:
                self._uniform = self._rng.random(_BLOCK).tolist()
            left = self._uniform.pop() * total
            index = 0
            while index < len(weights) - 1 and left >= weights[index]:
                left -= weights[index]
                index += 1
        return self._actions.of(index), {"logp": np.float32(logits[index] - top - math.log(total))}


class NumpyGaussianMLPActor(NumpyOnPolicyActor):
    """Acts as `GaussianMLPActor` does.

    The other arguments are those of `NumpyOnPolicyActor`.

    Args:
        action_space: a Box of floats; infinite bounds clip nothing.
        log_std: logarithm of the initial standard deviation of each element.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner = "GaussianMLPActor"
    head = "mu"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        log_std: float = 0.0,
        seed: int | None = None,
        normalize_observations: bool = False,
    ) -> None:
        self._bounds = box_bounds(self.owner, action_space)
        size = self._bounds.size
        super().__init__(
            observation_space,
            action_space,
            hidden_sizes,
            activation,
            seed,
            outputs=size,
            normalize_observations=normalize_observations,
            parameters={"log_std": np.full(size, log_std, np.float32)},
        )

    def _take_over(self) -> None:
        super()._take_over()
        log_std = self._weights["log_std"].astype(np.float64)
        self._std = np.exp(log_std)
        self._constant = float(log_std.sum() + 0.5 * log_std.size * math.log(2.0 * math.pi))

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """The action within the bounds, with the log-density `logp` of what was `drawn`."""
        drawn = self.outputs(obs).astype(np.float64)
        logp = -self._constant
        if not test:
            noise = self._rng.standard_normal(drawn.size)
            drawn = drawn + self._std * noise
            logp -= 0.5 * float(noise @ noise)
        return self._bounds.clipped(drawn), {"logp": np.float32(logp), "drawn": drawn.astype(np.float32)}

    def reset_extras(self) -> dict[str, Any]:
        """Zeros."""
        return {**super().reset_extras(), "drawn": np.zeros(self._bounds.size, np.float32)}
