"""State-action values as one batched ensemble, and models that hold a policy and its critics."""

# Theory of operation
#
# This file makes the networks of agents: critics, and models of a policy with its critics. Policies themselves are in
# `actor/policies`, since workers need them too; nothing here reaches a worker.
#
# K critics are one module with weights [K, in, out]. Each layer is one batched product instead of K small ones: The
# first axis of every result is K. A model of one's own may have separate critics (`q1` and `q2`, or `qs`); `CriticList`
# gives them the same interface, and `critics_of` finds them.
#
# Order of a critic's input: values of the observation, features of its images, then the action. Actions are scaled from
# their bounds to [-1, 1] on the way in, so one learning rate serves degrees and newton metres; log-densities of the
# policy are those of scaled actions for the same reason. Bounds that float32 cannot scale (a width of 3e38, which
# stands for no bounds) leave an element as it is, instead of making it NaN.
#
# What is not learned is a buffer that is not persistent: it comes from the environment's spaces, and a checkpoint that
# held it could contradict them.
#
# The last layer of a critic is always computed in float32. In bfloat16, eight bits would round a value of 300 to a
# multiple of 2, which is more than most rewards.

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import layout_of
from tmrl_core.actor.policies.spaces import discrete_actions, in_float32
from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor
from tmrl_core.actor.policies.torch.deterministic import DeterministicMLPActor
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.mlp import TorchPolicy, flatten_batch, hidden_layers
from tmrl_core.actor.policies.torch.q_value import QValueMLPActor
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor
from tmrl_core.training.value_types import Space, Tree

# Shape suffixes: K critics, B batch, I inputs, A action elements, N discrete actions.


class EnsembleLinear(nn.Module):
    """`count` independent affine layers, computed as one batched product.

    Args:
        count: K, number of layers.
        inputs: features in.
        outputs: features out.
        last: True: a last layer, computed in float32 also where other products are in bfloat16.
    """

    def __init__(self, count: int, inputs: int, outputs: int, last: bool = False) -> None:
        super().__init__()
        self._last = last
        # Initialised like torch.nn.Linear.
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, x_KBI: Tensor) -> Tensor:
        """[K, B, outputs] of [K, B, inputs]."""
        device = x_KBI.device.type
        in_less = torch.is_autocast_enabled(device)
        if self.weight.shape[-1] == 1 and (device == "cpu" or in_less):
            # Batched products of a matrix and one column are slow on a CPU: 180 us instead of 50 for two of 256 x 256.
            # Also, a product in less than float32 would round a value of some hundreds to a whole number.
            return (x_KBI * self.weight.transpose(1, 2)).sum(dim=-1, keepdim=True) + self.bias
        if self._last and in_less:
            with torch.autocast(device, enabled=False):
                return torch.baddbmm(self.bias, x_KBI.to(self.weight.dtype), self.weight)
        return torch.baddbmm(self.bias, x_KBI, self.weight)


def ensemble_mlp(
    count: int,
    inputs: int,
    hidden_sizes: Sequence[int],
    outputs: int,
    activation: str | Callable[[], nn.Module],
    norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """`count` independent multi-layer perceptrons, [K, B, inputs] to [K, B, outputs].

    Args:
        count: K, number of layers.
        inputs: features in.
        hidden_sizes: width of each hidden layer.
        outputs: features out.
        activation: class of the hidden layers' activation, or its name.
        norm: makes a normalization of so many features, before each affine layer; None: none.
    """
    layers, width = hidden_layers(inputs, hidden_sizes, activation, partial(EnsembleLinear, count), norm)
    return nn.Sequential(*layers, EnsembleLinear(count, width, outputs, last=True))


def _to_unit(action_space: spaces.Box) -> tuple[Tensor, Tensor]:
    """Return [A] gain and [A] shift that scale each bounded element of an action from its bounds to [-1, 1]."""
    bounds = [np.asarray(bound, np.float64).ravel() for bound in (action_space.low, action_space.high)]
    low, high = map(torch.as_tensor, bounds)
    # An element with equal bounds has no width to divide by, and one number to say: it stays as it is.
    bounded = torch.as_tensor(in_float32(*bounds)) & (low < high)
    span = torch.where(bounded, high - low, 2.0)
    middle = torch.where(bounded, (high + low) / 2.0, 0.0)
    return (2.0 / span).float(), (-2.0 * middle / span).float()


class ActionCritic(nn.Module):
    """Base of critics whose input is the action with each element scaled to [-1, 1].

    So learning does not depend on the actuators' units. Elements without finite bounds are not scaled.

    Args:
        action_space: a Box of floats; of a Discrete one, no action is an input.

    Attributes:
        action_size: A, elements of an action.
    """

    gain: Tensor
    shift: Tensor

    def __init__(self, action_space: Space) -> None:
        super().__init__()
        no_scale = torch.ones(0), torch.zeros(0)
        gain, shift = _to_unit(action_space) if isinstance(action_space, spaces.Box) else no_scale
        # They come from the environment and are not learned, so checkpoints do not hold them.
        self.register_buffer("gain", gain, persistent=False)
        self.register_buffer("shift", shift, persistent=False)
        # Known when the module is made: a decision by the content of a tensor would make each pass wait for its device.
        self._scales = not (bool((gain == 1.0).all()) and bool((shift == 0.0).all()))
        self.action_size = len(gain)

    def scaled(self, act: Tensor) -> Tensor:
        """Return [B, A] elements of actions [B, *action shape]."""
        act_BA = act.reshape(act.shape[0], -1).float()
        return torch.addcmul(self.shift, act_BA, self.gain) if self._scales else act_BA


class EnsembleCritic(ActionCritic):
    """Several independent multi-layer perceptrons that estimate the value of an action, or of each discrete action.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: a Box of floats, or Discrete.
        hidden_sizes: width of each hidden layer.
        activation: class of the hidden layers' activation, or its name.
        count: K, number of critics.
        convolutions: layers for images, common to all critics; None: the default ones.
        outputs: numbers that each critic puts out for an action of a Box, such as the quantiles of its value.
        norm: as for `ensemble_mlp`.
        image_norm: of each convolution, as for `ObservationEncoder`.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        count: int = 2,
        convolutions: Convolutions | None = None,
        outputs: int = 1,
        norm: Callable[[int], nn.Module] | None = None,
        image_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__(action_space)
        self._layout = layout_of(observation_space, action_space, convolutions)
        self.encoder = ObservationEncoder(self._layout, convolutions, image_norm)
        self.count = count
        self._is_scalar = outputs == 1 and self.action_size > 0
        if not self.action_size:
            outputs = discrete_actions("EnsembleCritic", action_space).count
        inputs = self.encoder.features + self.action_size
        self.net = ensemble_mlp(count, inputs, hidden_sizes, outputs, activation, norm)

    def forward(self, obs: Tree, act: Tensor | None = None) -> Tensor:
        """[K, B] values; [K, B, outputs] for several outputs, [K, B, N] of all discrete actions.

        Args:
            obs: nested like the observation space, with [B, *shape] tensors as leaves.
            act: [B, *action shape]; None for Discrete actions.
        """
        x_BI = self.encoder(flatten_batch(self._layout, obs))
        # Encoded once for all critics: convolutions are the larger part of a network that sees images.
        if act is not None:
            x_BI = torch.cat([x_BI, self.scaled(act)], dim=-1)
        # `expand` copies nothing; the first product reads the same rows for each critic.
        q_KBO: Tensor = self.net(x_BI.expand(self.count, -1, -1))
        return (q_KBO.squeeze(-1) if self._is_scalar else q_KBO).float()


class CriticList(nn.Module):
    """Separate critic modules, each `(obs, act) -> [B]`, behind the interface of `EnsembleCritic`."""

    def __init__(self, critics: Sequence[nn.Module]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)
        self.count = len(critics)

    def forward(self, obs: Tree, act: Tensor) -> Tensor:
        """[K, B] values."""
        return torch.stack([critic(obs, act).reshape(-1) for critic in self.critics])


class MLPActorCritic(nn.Module):
    """A squashed-Gaussian policy and its critics.

    A custom model needs `actor(obs, test=False, compute_logprob=True) -> (action, logp_B)`, which must be an
    ActorModule, and `critics(obs, act) -> q_KB`. Instead of `critics` it may have modules `q1` and `q2`, or a list
    `qs`.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer, of the policy and of the critics.
        activation: class of the hidden layers' activation, or its name.
        n: number of critics.
        convolutions: layers for images, of the policy and of the critics; None: the default ones.
        outputs: numbers that each critic puts out, see `EnsembleCritic`.
    """

    actor_cls: ClassVar[type[TorchPolicy]] = SquashedGaussianMLPActor

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        n: int = 2,
        convolutions: Convolutions | None = None,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.actor = self.actor_cls(
            observation_space, action_space, hidden_sizes, activation, convolutions=convolutions
        )
        self.critics = EnsembleCritic(
            observation_space, action_space, hidden_sizes, activation, n, convolutions, outputs
        )


class REDQMLPActorCritic(MLPActorCritic):
    """An `MLPActorCritic` with the ten critics of REDQ."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        n: int = 10,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, n, convolutions)


class DeterministicActorCritic(MLPActorCritic):
    """A deterministic policy and its critics, for TD3.

    A custom model needs `actor(obs) -> action`, which must be an ActorModule with the buffers `low` and `high` of the
    action's shape, and critics as described in `MLPActorCritic`.

    The arguments are those of `MLPActorCritic`.
    """

    actor_cls = DeterministicMLPActor


class CategoricalActorCritic(MLPActorCritic):
    """A policy over discrete actions and critics of the value of each action.

    A custom model needs `actor`, an ActorModule with `log_probs(flat_BD) -> [B, N]` and `layout` like
    `CategoricalMLPActor`, and `critics(obs) -> [K, B, N]`.

    The other arguments are those of `MLPActorCritic`.

    Args:
        action_space: Discrete.
    """

    actor_cls = CategoricalMLPActor

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str | Callable[[], nn.Module] = "tanh",
        n: int = 2,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, n, convolutions)


class QNetwork(nn.Module):
    """Q-network of DQN, which is also its policy.

    A custom model needs `actor(obs) -> q_BN`, which must be an ActorModule with `index(action_B)`.

    The other arguments are those of `MLPActorCritic`.

    Args:
        action_space: Discrete.
        dueling: dueling network: the last layer outputs the state's value and each action's advantage.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        dueling: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        self.actor = QValueMLPActor(
            observation_space, action_space, hidden_sizes, activation, dueling, convolutions=convolutions
        )


def critics_of(model: Any) -> nn.Module:
    """Return a model's critics as one module `(obs, act) -> q_KB`.

    Raises:
        TypeError: the model has none of the supported attributes.
    """
    if hasattr(model, "critics"):
        critics: nn.Module = model.critics
        return critics
    if hasattr(model, "qs"):
        return CriticList(list(model.qs))
    if hasattr(model, "q1") and hasattr(model, "q2"):
        return CriticList([model.q1, model.q2])
    raise TypeError(
        f"{type(model).__name__} has no critics. Add an attribute `critics` (a module, (obs, act) -> [K, B]), "
        "or `q1` and `q2`, or a list `qs`."
    )
