"""Hidden layers and flattened observations of the policies that run with torch. Shape suffix: B batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.activations import activation_name
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import Leaf, layout_metadata, layout_of, vector_size
from tmrl_core.actor.policies.masks import ACTION_MASK, ALLOWED, FORBIDDEN, is_masked
from tmrl_core.actor.policies.spaces import choice_counts
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.module import TorchActorModule
from tmrl_core.errors import ConfigError

_MODULES: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def make_activation(activation: str | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return the class of an activation that is given as a class or by its name.

    Raises:
        ConfigError: a name that neither this module nor torch.nn knows.
    """
    if not isinstance(activation, str):
        return activation
    known = _MODULES.get(activation.lower())
    found = known if known is not None else vars(torch.nn).get(activation)
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
            parts.append(_scaled_by_bounds(leaf, value.reshape(-1, leaf.size).to(torch.float32)))
            continue
        integers = value.reshape(-1, len(leaf.counts)).to(torch.int64)
        parts += [
            functional.one_hot(integers[:, column] - first, count).to(torch.float32)
            for column, (count, first) in enumerate(zip(leaf.counts, leaf.first, strict=True))
        ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _scaled_by_bounds(leaf: Leaf, elements_BN: Tensor) -> Tensor:
    """Return elements [B, size] of a leaf, scaled as `Leaf.scale_by_bounds`."""
    if leaf.low is None or leaf.width is None:
        return elements_BN
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
) -> tuple[nn.Sequential, int]:
    """Return hidden layers and the width of their output.

    Args:
        width: of the input.
        hidden_sizes: width of each hidden layer.
        activation: class of the layers' activation, or its name.
        linear: makes an affine layer of so many inputs and outputs.
    """
    make = make_activation(activation)
    layers: list[nn.Module] = []
    for hidden in map(int, hidden_sizes):
        layers += [linear(width, hidden), make()]
        width = hidden
    return nn.Sequential(*layers), width


class TorchMLPActor(TorchActorModule):
    """A policy with hidden layers, their activation in the metadata of its weights, and a generator.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: of the environment.
        hidden_sizes: width of each hidden layer.
        activation: class of the hidden layers' activation, or its name.
        linear: makes an affine layer of so many inputs and outputs.
        convolutions: layers for images, see `tmrl_core.actor.policies.convolutions`; None: the default ones.

    Attributes:
        layout: of a flattened observation; an action mask comes last.
        inputs: number of elements of a flattened observation without the mask.
        masked: True: the environment has an action mask.
        encoder: makes the inputs of the hidden layers.
        net: the hidden layers.
        features: width of their output.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int],
        activation: str | Callable[[], nn.Module],
        linear: Callable[[int, int], nn.Module] = nn.Linear,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.layout = layout_of(observation_space, action_space, convolutions)
        self.encoder = ObservationEncoder(self.layout, convolutions)
        self.inputs = vector_size(self.layout)
        self.masked = is_masked(observation_space, action_space)
        if self.masked:
            counts = choice_counts(action_space)
            self.layout += tuple(_mask_leaves(observation_space[ACTION_MASK], counts, self.inputs))
        self._activation = activation_name(activation)
        self._generator: torch.Generator | None = None
        self.net, self.features = hidden_layers(self.encoder.features, hidden_sizes, activation, linear)

    def weights_metadata(self) -> dict[str, str]:
        """Return the activation and the layout of bytes, which the shapes do not show."""
        return {"activation": self._activation, **layout_metadata(self.layout)}

    def encode(self, flat_BD: Tensor) -> Tensor:
        """Return [B, H] features of flattened observations [B, D]."""
        features_BH: Tensor = self.net(self.encoder(self.inputs_of(flat_BD)))
        return features_BH

    def inputs_of(self, flat_BD: Tensor) -> Tensor:
        """Return flattened observations [..., D] without the action mask."""
        return flat_BD[..., : self.inputs] if self.masked else flat_BD

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

    # --- whole sequences: what `tmrl_core.envs.get_sessions` needs; recurrent policies have their own ---

    def initial_state(self, batch: int) -> State:
        """Return the state at the beginning of `batch` sessions: empty, there is no recurrence."""
        return {}

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
        """Return actions [B, *action shape], with gradients where they are continuous, and the empty state."""
        return self.action_of(self.outputs_at(flatten_batch(self.layout, obs_B)), deterministic), {}

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
        """Return the outputs of the last layers by name, [..., N], of [..., H] features."""
        raise NotImplementedError(f"{type(self).__name__} has no outputs_of(features), so it cannot be unrolled.")

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape] of the outputs of `outputs_of`, explored as in `act`."""
        raise NotImplementedError(
            f"{type(self).__name__} has no action_of(outputs, deterministic); let it act instead."
        )

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Tensor) -> Tensor | None:
        """Return, with gradients, the [...] log-probabilities in nats of actions [..., *action shape].

        Uniformly sampled actions of the warm-up are left out of account. None, as by default: there is no density.
        """
        return None

    def _mixed(self, action_B: Tensor, low: Tensor, high: Tensor, share: float) -> Tensor:
        """Return actions, a share of them replaced by uniformly sampled ones."""
        if share <= 0.0:
            return action_B
        uniform_B = low + self._uniform(action_B.shape) * (high - low)
        replaced_B = self._uniform(action_B.shape[:1]) < share
        return torch.where(replaced_B.reshape(-1, *[1] * (action_B.ndim - 1)), uniform_B, action_B)

    def seed(self, seed: int) -> None:
        """Give the exploration of `act` a seeded generator; otherwise it uses torch's global one."""
        self._generator = torch.Generator(device=self._own_device).manual_seed(seed)

    @property
    def _own_device(self) -> torch.device:
        return next(self.parameters()).device

    def _uniform(self, shape: Sequence[int] = ()) -> Tensor:
        """Return random numbers from 0 to 1 to explore with."""
        return torch.rand(shape, generator=self._generator, device=self._own_device)
