"""Layers and flattened observations of the policies that run with torch.

Shape suffixes: B batch, T ticks, D elements of a flattened observation, H features, N outputs.
"""

# Theory of operation
#
# `TorchPolicy` is the torch half of every policy: encoder, hidden layers, one linear layer for each head. The
# distribution it is combined with (`Gaussian`, `Categorical`, ...) says which heads there are. It knows neither, except
# by the dict `heads`.
#
# One observation takes this way, with the sizes of a policy over a Box(3) with two hidden layers of 256 and one action
# element:
#
#     obs -> flatten_batch [B, 3] -> normalized -> encoder -> net [B, 256] -> mu, log_std [B, 1] -> outputs_of -> choose
#
# `encode` and `outputs_of` have gradients; learners call them. Everything that acts goes through `outputs_at` and
# `choose`, which is NumPy's: both backends explore with the same random numbers.
#
# An action mask is the end of the flat vector, behind the inputs of the network, so that rows and sequences carry it
# along through every function that slices or stacks vectors. `normalized` cuts it off before the network.
#
# Names of parameters are those of the NumPy backend, which reads the same file: net.0, net.2, ... (activations have the
# odd numbers), then the heads' names. Renaming an attribute changes the format of weights.
#
# Statistics of observations are buffers and not parameters. They are published with the weights they belong to, so a
# worker never mixes new layers with old statistics.
#
# Nothing that an update calls may copy from the host to a device or read from it: both wait, and a CUDA graph cannot
# hold them.

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import Leaf, vector_size
from tmrl_core.actor.policies.masks import ACTION_MASK, ALLOWED, FORBIDDEN
from tmrl_core.actor.policies.policy import OBSERVATION_LIMIT, Policy
from tmrl_core.actor.policies.spaces import BoxBounds, choice_counts
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.module import TorchActorModule, collate_one
from tmrl_core.errors import ConfigError
from tmrl_core.samples.columns import map_leaves

if TYPE_CHECKING:
    from typing_extensions import Self


def make_activation(activation: str | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the class of an activation that is given as a class or by its name.

    Raises:
        ConfigError: a name that neither this module nor torch.nn knows.
    """
    if not isinstance(activation, str):
        return activation
    found = vars(torch.nn).get({"relu": "ReLU", "tanh": "Tanh"}.get(activation.lower(), activation))
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"activation is {activation!r}; allowed: relu, tanh, or the name of a class of torch.nn.")
    return found


def flatten_batch(layout: tuple[Leaf, ...], obs: Any) -> Tensor:
    """Flatten a batch of observations, nested like the space with [B, *shape] leaves, to [B, size].

    The elements are float32, or of the images' dtype where there is nothing else.
    """
    parts: list[Tensor] = []
    for leaf in layout:
        value = leaf.of(obs)
        if leaf.kind == "image" and leaf.width is None:
            # Bytes stay bytes as long as possible.
            parts.append(value.reshape(-1, leaf.size))
            continue
        if leaf.kind in ("values", "image"):
            elements_BN = value.reshape(-1, leaf.size).to(torch.float32)
            parts.append(elements_BN if leaf.width is None else _scaled_by_bounds(leaf, elements_BN))
            continue
        integers = value.reshape(-1, len(leaf.counts)).to(torch.int64)
        # From integers, which arrive in any integer dtype; one-hot vectors never travel or lie in the memory.
        parts += [
            functional.one_hot(integers[:, column] - first, count).to(torch.float32)
            for column, (count, first) in enumerate(zip(leaf.counts, leaf.first, strict=True))
        ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _scaled_by_bounds(leaf: Leaf, elements_BN: Tensor) -> Tensor:
    """Return elements [B, size] of a leaf with bounds, scaled as `Leaf.scale_by_bounds`."""
    assert leaf.low is not None
    assert leaf.width is not None
    array_B = elements_BN.reshape(-1, *leaf.shape)
    scaled_B = (array_B - constant(leaf.low, elements_BN)) / constant(leaf.width, elements_BN)
    return scaled_B.reshape(-1, leaf.size)


def constant(numbers: np.ndarray, like: Tensor) -> Tensor | float:
    """Return numbers as one if all are equal, else as a tensor with the dtype and on the device of `like`.

    The tensor is made of filled parts: an update must not wait for a copy to the device, and a graph cannot hold one.
    """
    runs = [(value, len(list(run))) for value, run in itertools.groupby(numbers.ravel().tolist())]
    if len(runs) == 1:
        number: float = runs[0][0]
        return number
    return torch.cat([like.new_full((length,), value) for value, length in runs]).reshape(numbers.shape)


def _mask_leaves(mask: Any, counts: tuple[int, ...], start: int) -> Iterator[Leaf]:
    """Yield the leaves of an action mask, one array or a tuple of them."""
    if not isinstance(mask, spaces.Tuple):
        yield Leaf((ACTION_MASK,), "values", start, sum(counts), (sum(counts),))
        return
    for index, count in enumerate(counts):
        yield Leaf((ACTION_MASK, index), "values", start, count, (count,))
        start += count


def forbid(logits_BN: Tensor, allowed_BN: Tensor | None) -> Tensor:
    """Return [..., N] logits, `FORBIDDEN` for actions that are not allowed; None: all are."""
    return logits_BN if allowed_BN is None else logits_BN.masked_fill(~allowed_BN, FORBIDDEN)


def hidden_layers(
    width: int,
    hidden_sizes: Sequence[int],
    activation: str | Callable[[], nn.Module],
    linear: Callable[[int, int], nn.Module] = nn.Linear,
    norm: Callable[[int], nn.Module] | None = None,
) -> tuple[nn.Sequential, int]:
    """Return hidden layers and the width of their output.

    Args:
        width: of the input.
        hidden_sizes: width of each hidden layer.
        activation: class of the layers' activation, or its name.
        linear: makes an affine layer of so many inputs and outputs.
        norm: makes a normalization of so many features, before each layer and after the last; None: none.
    """
    make = make_activation(activation)
    layers: list[nn.Module] = []
    for hidden in map(int, hidden_sizes):
        layers += [*([norm(width)] if norm else []), linear(width, hidden), make()]
        width = hidden
    if norm:
        layers.append(norm(width))
    return nn.Sequential(*layers), width


def in_float32(layer: nn.Linear, features_BH: Tensor) -> Tensor:
    """Return the outputs of a last layer, computed in float32 also where other products are in bfloat16.

    Eight bits would round a value of 300 to a multiple of 2, and the logits of two actions to the same number.
    """
    device = features_BH.device.type
    if not torch.is_autocast_enabled(device):
        return layer(features_BH)  # type: ignore[no-any-return]
    with torch.autocast(device, enabled=False):
        return layer(features_BH.to(layer.weight.dtype))  # type: ignore[no-any-return]


def orthogonal_linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a hidden layer with orthogonal weights and no bias.

    Source: what matters of PPO's initial weights: Andrychowicz et al., arXiv:2006.05990, section 3.2.
    """
    return orthogonal(nn.Linear(inputs, outputs), math.sqrt(2.0))


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    """Initialize a layer with orthogonal weights of this gain and no bias; return it."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class TorchPolicy(Policy, TorchActorModule):
    """A policy with hidden layers and heads, and their activation in the metadata of its weights.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: of the environment.
        hidden_sizes: width of each hidden layer.
        activation: class of the hidden layers' activation, or its name.
        convolutions: layers for images, see `tmrl_core.actor.policies.convolutions`; None: the default ones.
        normalize_observations: to mean 0 and standard deviation 1, by what training has seen of them so far, which
            travels with the weights; elements beyond 10 are cut there. Images are left as they are.
        seed: of the exploration; None: from torch's global generator.
        settings: of the distribution.

    Attributes:
        layout: of a flattened observation; an action mask comes last.
        inputs: number of elements of a flattened observation without the mask.
        encoder: makes the inputs of the hidden layers.
        net: the hidden layers.
        normalizes: True: observations are normalized.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    low: Tensor
    high: Tensor
    obs_mean: Tensor
    obs_std: Tensor

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int],
        activation: str | Callable[[], nn.Module],
        convolutions: Convolutions | None,
        normalize_observations: bool = False,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(observation_space, action_space, activation, convolutions, **settings)
        if seed is not None:
            self.seed(seed)
        self.encoder = self._make_encoder(convolutions)
        self.inputs = vector_size(self.layout)
        # After the encoder and the number of inputs are known: to them, the mask is not there.
        if self.masked:
            counts = choice_counts(action_space)
            self.layout += tuple(_mask_leaves(observation_space[ACTION_MASK], counts, self.inputs))
        hidden_layer = orthogonal_linear if self.on_policy else nn.Linear
        self.net, features = self._make_hidden_layers(hidden_sizes, activation, hidden_layer)
        self.normalizes = normalize_observations or self.behind_batch_norm
        if self.normalizes:
            self.register_buffer("obs_mean", torch.zeros(self.encoder.values))
            self.register_buffer("obs_std", torch.ones(self.encoder.values))
        features = self._add_layer(features)
        for name, size in self.heads.items():
            head = nn.Linear(features, size)
            self.add_module(name, orthogonal(head, 0.01) if self.on_policy else head)
        for name, array in self.arrays.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(array)))

    def _make_encoder(self, convolutions: Convolutions | None) -> ObservationEncoder:
        return ObservationEncoder(self.layout, convolutions)

    def _make_hidden_layers(
        self, sizes: Sequence[int], activation: str | Callable[[], nn.Module], linear: Callable[[int, int], nn.Module]
    ) -> tuple[nn.Sequential, int]:
        return hidden_layers(self.encoder.features, sizes, activation, linear)

    def _add_layer(self, width: int) -> int:
        """Add a layer between hidden layers of this width and heads; return the heads' inputs."""
        return width

    def keep_bounds(self, bounds: BoxBounds, shape: tuple[int, ...]) -> None:
        """Make buffers `low` and `high` of this shape."""
        # They come from the environment and are not learned, so weights do not hold them.
        for name, bound in (("low", bounds.low), ("high", bounds.high)):
            self.register_buffer(name, torch.as_tensor(bound, dtype=torch.float32).reshape(shape), persistent=False)

    @cached_property
    def _rng(self) -> np.random.Generator:  # type: ignore[override]  # `seed` replaces it
        """Generator of the exploration; without `seed`, torch's global one determines it."""
        return np.random.default_rng(int(torch.randint(2**62, ()).item()))

    @property
    def _own_device(self) -> torch.device:
        return next(self.parameters()).device

    def from_bytes(self, data: bytes, device: Any = None) -> Self:
        """Load the weights in place and return self, as `TorchActorModule.from_bytes`; None: on the present device."""
        return super().from_bytes(data, self._own_device if device is None else device)

    def load(self, path: str | Path, device: Any = None) -> Self:
        """Load a file in place and return self, as `TorchActorModule.load`; None: on the present device."""
        return super().load(path, self._own_device if device is None else device)

    def weights_metadata(self) -> dict[str, str]:
        """Return the activation and the layout of bytes, which the shapes do not show."""
        return self._metadata

    def normalized(self, flat_BD: Tensor) -> Tensor:
        """Return [B, D] flattened observations without the action mask, normalized if that is enabled."""
        flat_BD = flat_BD[..., : self.inputs] if self.masked else flat_BD
        if not self.normalizes:
            return flat_BD
        count = self.encoder.values
        values = (flat_BD[..., :count] - self.obs_mean) / self.obs_std
        if not self.behind_batch_norm:
            values = values.clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        return values if count == self.inputs else torch.cat([values, flat_BD[..., count:]], dim=-1)

    def encode(self, flat_BD: Tensor) -> Tensor:
        """Return [B, H] features of flattened observations [B, D]."""
        features_BH: Tensor = self.net(self.encoder(self.normalized(flat_BD)))
        return features_BH

    def allowed(self, flat_BD: Tensor) -> Tensor | None:
        """Return the action mask [..., N] of flattened observations [..., D], as bool; None: there is none."""
        return flat_BD[..., self.inputs :] > 0 if self.masked else None

    def can_act(self, flat_BD: Tensor) -> Tensor | None:
        """Return [...] True where the mask of flattened observations [..., D] allows an action; None: there is none."""
        allowed_BN = self.allowed(flat_BD)
        if allowed_BN is None:
            return None
        each = [part.any(dim=-1) for part in torch.split(allowed_BN, list(choice_counts(self.action_space)), dim=-1)]
        return torch.stack(each).all(dim=0)

    # --- whole sequences ---

    def unroll(self, obs_BT: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the outputs [B, T, ...] of the policy by name, with gradients, and the empty state.

        Args:
            obs_BT: nested as the observation space is, leaves [B, T, *shape] tensors.
            state_B: not looked at.
        """
        flat_ND = flatten_batch(self.layout, obs_BT)
        return self.outputs_at(flat_ND.reshape(*self.layout[0].of(obs_BT).shape[:2], -1)), {}

    def step(
        self, obs_B: Any, state_B: Mapping[str, Any], deterministic: bool = False
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return actions [B, *action shape] and the state after this tick.

        Actions of policies without recurrence have gradients where they are continuous; states have gradients.
        """
        outputs_B, after_B = self.tick(obs_B, state_B)
        return self.action_of(outputs_B, deterministic), after_B

    def infer(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """Return the parameters of the action distributions of NumPy observations, and the next state."""
        with torch.no_grad():
            # A copy: an observation may be read-only, or its strides negative.
            tensors_B = map_leaves(
                lambda value: torch.tensor(np.ascontiguousarray(value), device=self._own_device), obs_B
            )
            outputs_B, after_B = self.tick(tensors_B, state_B)
        return arrays_of(outputs_B), {name: value.cpu().numpy() for name, value in after_B.items()}

    def tick(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs [B, ...] of one tick, with gradients, and the state after it."""
        return self.outputs_at(flatten_batch(self.layout, obs_B)), {}

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the action for one observation.

        Args:
            obs: nested as the observation space is: arrays of one observation, as NumPy's backend takes them, or
                tensors with a batch dimension of one.
            test: True: no exploration.
        """
        collated = isinstance(self.layout[0].of(obs), Tensor)
        return self.act_on(flatten_batch(self.layout, obs if collated else collate_one(obs, self.device)), test)[0]

    def act_on(self, flat_BD: Tensor, test: bool) -> tuple[Any, dict[str, Any]]:
        """Return the action for one flattened observation, with a batch dimension of one, and its extras."""
        with torch.no_grad():
            outputs_B = arrays_of(self.outputs_at(flat_BD))
        return self.first(*self.choose_allowed(outputs_B, self._rng, test))

    def outputs_at(self, flat_BD: Tensor) -> dict[str, Tensor]:
        """Return the masked outputs by name, [..., N], of flattened observations [..., D]."""
        return self.limited(self.outputs_of(self.encode(flat_BD)), flat_BD)

    def limited(self, outputs: dict[str, Tensor], flat_BD: Tensor) -> dict[str, Tensor]:
        """Return the outputs with the action mask of flattened observations [..., D], if there is one.

        It is the output `allowed`, and logits of other actions are `FORBIDDEN`.
        """
        allowed = self.allowed(flat_BD)
        if allowed is None:
            return outputs
        logits = {name: forbid(value, allowed) for name, value in outputs.items() if name == "logits"}
        return {**outputs, **logits, ALLOWED: allowed}

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return the parameters of the action distributions by name, [..., N], of [..., H] features."""
        heads = {name: in_float32(getattr(self, name), features_BH) for name in self.heads}
        return self.outputs_of_heads(heads)

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape] of the outputs of `tick`, explored as in `act`, without gradients."""
        return torch.from_numpy(self.choose(arrays_of(outputs_B), self._rng, deterministic)[0]).to(self._own_device)

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Tensor) -> Tensor | None:
        """Return, with gradients, the [...] log-probabilities in nats of actions [..., *action shape].

        Uniformly sampled actions of the warm-up are left out of account. None, as by default: there is no density.
        """
        return None

    def noise_like(self, values: Tensor) -> Tensor:
        """Return Gaussian noise with the shape and dtype of `values`, to explore with."""
        return torch.from_numpy(self._rng.standard_normal(values.shape)).to(values)

    def mixed(self, action_B: Tensor, low: Tensor, high: Tensor, share: float) -> Tensor:
        """Return actions, a share of them replaced by uniformly sampled ones."""
        if share <= 0.0:
            return action_B
        uniform_B = low + torch.from_numpy(self._rng.random(action_B.shape)).to(action_B) * (high - low)
        replaced_B = torch.from_numpy(self._rng.random(len(action_B)) < share).to(action_B.device)
        return torch.where(replaced_B.reshape(-1, *[1] * (action_B.ndim - 1)), uniform_B, action_B)


def arrays_of(outputs: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return outputs as NumPy arrays: float32, and bool for the action mask."""
    found = {name: value.detach().cpu() for name, value in outputs.items()}
    return {name: (value if name == ALLOWED else value.float()).numpy() for name, value in found.items()}
