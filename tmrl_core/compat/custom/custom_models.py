"""The models of `tmrl.custom.custom_models`, with its attributes, on the project's policy and critics.

The policy's weights have the names of the project's, so that both kinds of scripts, and workers without torch, exchange
them. `load` also reads files of tmrl.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.flattening import layout_of, vector_size
from tmrl_core.actor.policies.numpy.squashed_gaussian import LOG_STD_MAX, LOG_STD_MIN
from tmrl_core.actor.policies.torch import squashed_gaussian
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.compat.policy_files import ZIP, policy_weights, read_torch_format
from tmrl_core.errors import WeightsError
from tmrl_core.training.agents.networks import ActionCritic, EnsembleCritic
from tmrl_core.training.value_types import Space, Tree

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "LOG_STD_MAX",
    "LOG_STD_MIN",
    "MLPActorCritic",
    "MLPQFunction",
    "REDQMLPActorCritic",
    "SquashedGaussianMLPActor",
    "SquashedGaussianVanillaCNNActor",
    "SquashedGaussianVanillaColorCNNActor",
    "VanillaCNNActorCritic",
    "VanillaCNNQFunction",
    "VanillaColorCNNActorCritic",
    "VanillaColorCNNQFunction",
    "combined_shape",
    "count_vars",
    "mlp",
]

Activation = Callable[[], nn.Module]

IMAGE_LAYERS = "large"
"""Convolutions of the models of images: about 0.6 million parameters for four images of 64x64."""


def combined_shape(length: int, shape: int | Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the shape of an array of `length` elements of a shape."""
    rest: Sequence[int] = () if shape is None else (shape,) if isinstance(shape, int) else shape
    return (length, *rest)


def mlp(sizes: Sequence[int], activation: Activation, output_activation: Activation = nn.Identity) -> nn.Sequential:
    """Return affine layers of these sizes, each followed by its activation."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes), 2):
        layers += [nn.Linear(inputs, outputs), activation() if number < len(sizes) else output_activation()]
    return nn.Sequential(*layers)


def count_vars(module: nn.Module) -> int:
    """Return the number of elements of all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


class SquashedGaussianMLPActor(squashed_gaussian.SquashedGaussianMLPActor):
    """The project's policy, with tmrl's attributes and files.

    Attributes:
        mu_layer, log_std_layer: the last layers.
        act_limit: upper bound of the first action element. Each element has its own bounds here.
    """

    @property
    def mu_layer(self) -> nn.Linear:
        """Layer of the means."""
        return self.mu

    @property
    def log_std_layer(self) -> nn.Linear:
        """Layer of the logarithms of the standard deviations."""
        return self.log_std

    @property
    def act_limit(self) -> float:
        """Upper bound of the first action element."""
        return float(self.high.reshape(-1)[0])

    def forward(  # type: ignore[override]  # the third argument has tmrl's name
        self,
        obs: Any,
        test: bool = False,
        with_logprob: bool = True,
        generator: torch.Generator | None = None,
        *,
        compute_logprob: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Return actions and their log-densities, as the project's policy does; without `with_logprob`, None."""
        return super().forward(obs, test, with_logprob and compute_logprob, generator)

    def from_bytes(self, data: bytes, device: Any = "cpu") -> Self:
        """Load weights of this project, or the content of a file of tmrl, and return self.

        Raises:
            WeightsError: the weights are not for this policy.
        """
        return super().from_bytes(policy_weights(read_torch_format(data)) if data.startswith(ZIP) else data, device)

    def from_blob(self, tag: str, data: bytes, device: Any) -> ActorModule:
        """Load weights that a trainer has published.

        Raises:
            WeightsError: the weights are not for this policy, or in torch's format, which is read from files only.
        """
        if data.startswith(ZIP):
            raise WeightsError("published weights are in torch's format, which is read from files only")
        return super().from_blob(tag, data, device)


class MLPQFunction(ActionCritic):
    """Multi-layer perceptron that estimates the value of an action.

    Args:
        obs_space: of the environment, flattened.
        act_space: a Box of floats. Each element of an action is scaled to [-1, 1].
        hidden_sizes: width of each hidden layer.
        activation: class of the hidden layers' activation.
    """

    def __init__(
        self,
        obs_space: Space,
        act_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = nn.ReLU,
    ) -> None:
        super().__init__(act_space)
        self._layout = layout_of(obs_space)
        self.q = mlp([vector_size(self._layout) + self.action_size, *hidden_sizes, 1], activation)

    def forward(self, obs: Tree, act: Tensor) -> Tensor:
        """[B] values of actions [B, *action shape]."""
        q_B1: Tensor = self.q(torch.cat([flatten_batch(self._layout, obs), self.scaled(act)], dim=-1))
        return q_B1.squeeze(-1)


class _ActorCritic(nn.Module):
    """A model whose `actor` acts."""

    def __init__(self, actor: SquashedGaussianMLPActor) -> None:
        super().__init__()
        self.actor = actor

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """Return the action for one observation, collated with a batch dimension of one."""
        action: np.ndarray = self.actor.act(obs, test)
        return action


class MLPActorCritic(_ActorCritic):
    """A policy and two critics.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer, of the policy and of the critics.
        activation: class of the hidden layers' activation.

    Attributes:
        actor: the policy.
        q1, q2: the critics.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = nn.ReLU,
    ) -> None:
        super().__init__(SquashedGaussianMLPActor(observation_space, action_space, hidden_sizes, activation))
        self.q1 = MLPQFunction(observation_space, action_space, hidden_sizes, activation)
        self.q2 = MLPQFunction(observation_space, action_space, hidden_sizes, activation)


class REDQMLPActorCritic(_ActorCritic):
    """A policy and `n` critics.

    The other arguments are those of `MLPActorCritic`.

    Args:
        n: number of critics.

    Attributes:
        actor: the policy.
        qs: the critics.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = nn.ReLU,
        n: int = 10,
    ) -> None:
        super().__init__(SquashedGaussianMLPActor(observation_space, action_space, hidden_sizes, activation))
        self.n = n
        self.qs = nn.ModuleList(
            MLPQFunction(observation_space, action_space, hidden_sizes, activation) for _ in range(n)
        )


def _as_floats(space: Space) -> Space:
    """Return a space with its images as floats, because tmrl's models take pixels as they are, scaled or not."""
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_as_floats(part) for part in space.spaces])
    if isinstance(space, spaces.Box) and space.dtype == np.uint8:
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


class SquashedGaussianVanillaCNNActor(SquashedGaussianMLPActor):
    """Policy that sees images, of any size, in gray or in colours, besides other values.

    Args:
        observation_space: a Tuple with images, such as [4, height, width] or [4, height, width, 3].
        action_space: a Box of floats with finite bounds.

    Raises:
        ConfigError: there is no image among the observations.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__(_as_floats(observation_space), action_space, convolutions=IMAGE_LAYERS)


class VanillaCNNQFunction(EnsembleCritic):
    """Critic that sees images. The arguments are those of `SquashedGaussianVanillaCNNActor`."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__(_as_floats(observation_space), action_space, count=1, convolutions=IMAGE_LAYERS)

    def forward(self, obs: Tree, act: Tensor | None = None) -> Tensor:
        """[B] values of actions [B, *action shape]."""
        return super().forward(obs, act)[0]


class VanillaCNNActorCritic(_ActorCritic):
    """A policy and two critics that see images.

    The arguments are those of `SquashedGaussianVanillaCNNActor`.

    Attributes:
        actor: the policy.
        q1, q2: the critics.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__(SquashedGaussianVanillaCNNActor(observation_space, action_space))
        self.q1 = VanillaCNNQFunction(observation_space, action_space)
        self.q2 = VanillaCNNQFunction(observation_space, action_space)


# The shape of the images tells whether they have colours.
class SquashedGaussianVanillaColorCNNActor(SquashedGaussianVanillaCNNActor):
    """Policy that sees images in colours."""


class VanillaColorCNNQFunction(VanillaCNNQFunction):
    """Critic that sees images in colours."""


class VanillaColorCNNActorCritic(VanillaCNNActorCritic):
    """A policy and two critics that see images in colours."""
