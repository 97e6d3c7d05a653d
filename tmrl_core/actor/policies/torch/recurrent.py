"""Policies with a recurrent layer, made with torch; `numpy/recurrent.py` acts on the same weights without it.

They have the last layers of the policies with a multi-layer perceptron. Shape suffixes: B batch, T ticks, D elements of
a flattened observation, H features, A action elements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import ALLOWED
from tmrl_core.actor.policies.recurrent import (
    CategoricalChoice,
    EpsilonGreedyChoice,
    GaussianChoice,
    RecurrentPolicy,
    SquashedGaussianChoice,
)
from tmrl_core.actor.policies.torch.mlp import TorchMLPActor, flatten_batch
from tmrl_core.actor.policies.torch.off_policy import QValueHead
from tmrl_core.actor.policies.torch.on_policy import CategoricalHead, GaussianHead
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianHead
from tmrl_core.samples.columns import map_leaves

_LAYERS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}


def make_layer(cell: str, inputs: int, units: int) -> nn.GRU | nn.LSTM:
    """Return a recurrent layer, for `unroll_layer`."""
    return _LAYERS[cell](inputs, units, batch_first=True)


def unroll_layer(
    layer: nn.GRU | nn.LSTM, x_BTH: Tensor, state_B: Mapping[str, Tensor | np.ndarray]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run a recurrent layer over sequences.

    Args:
        layer: result of `make_layer`.
        x_BTH: inputs.
        state_B: `h`, and `c` for an LSTM, [B, units] before the first tick.

    Returns:
        [B, T, units] outputs, and the state after the last tick.
    """
    # Contiguous, which cuDNN needs.
    before = {name: torch.as_tensor(state, device=x_BTH.device)[None].contiguous() for name, state in state_B.items()}
    if isinstance(layer, nn.GRU):
        outputs_BTH, h = layer(x_BTH, before["h"])
        return outputs_BTH, {"h": h[0]}
    outputs_BTH, (h, c) = layer(x_BTH, (before["h"], before["c"]))
    return outputs_BTH, {"h": h[0], "c": c[0]}


class TorchRecurrentActor(RecurrentPolicy, TorchMLPActor):
    """A policy with one recurrent layer between its hidden layers and its last layers.

    `step` samples with NumPy, as `act_batch` does: its actions have no gradients, its states do.
    """

    def make_recurrent(self, cell: str, cell_size: int, state_interval: int) -> None:
        """Make the recurrent layer, on the features of the hidden layers.

        Raises:
            ConfigError: a setting is not possible.
        """
        self.set_cell(cell, cell_size, state_interval)
        self.rnn = make_layer(cell, self.features, self.cell_size)
        self.features = self.cell_size

    @abstractmethod
    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return the [..., N] parameters of the action distributions, by name, of [..., H] features."""

    def unroll(
        self, obs_BT: Any, state_B: Mapping[str, Tensor | np.ndarray]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the parameters of the action distributions of whole sequences, as `RecurrentActor.unroll`.

        Raises:
            ValueError: the state has other names or shapes.
        """
        batch = self.check_state(state_B)
        flat_ND = flatten_batch(self.layout, obs_BT)
        return self.unroll_flat(flat_ND.reshape(batch, -1, flat_ND.shape[-1]), state_B)

    def unroll_flat(
        self, flat_BTD: Tensor, state_B: Mapping[str, Tensor | np.ndarray]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """As `unroll`, of flattened observations."""
        features_BTH, after_B = unroll_layer(self.rnn, self.encode(flat_BTD), state_B)
        return self.limited(self.outputs_of(features_BTH), flat_BTD), after_B

    def unroll_states(
        self, obs_BT: Any, state_B: Mapping[str, Tensor | np.ndarray]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs of `unroll`, and the states [B, T, units] before each tick.

        Raises:
            ValueError: as `unroll`.
        """
        batch = self.check_state(state_B)
        flat_ND = flatten_batch(self.layout, obs_BT)
        flat_BTD = flat_ND.reshape(batch, -1, flat_ND.shape[-1])
        x_BTH = self.encode(flat_BTD)
        states_T = [{name: torch.as_tensor(value).to(x_BTH) for name, value in state_B.items()}]
        if self.cell == "gru":  # its outputs are its states
            seen_BTH, _ = unroll_layer(self.rnn, x_BTH, states_T[0])
            states = {"h": torch.cat([states_T[0]["h"][:, None], seen_BTH[:, :-1]], dim=1)}
        else:
            seen_T = []
            for x_B1H in torch.split(x_BTH, 1, dim=1):
                seen_B1H, after_B = unroll_layer(self.rnn, x_B1H, states_T[-1])
                seen_T.append(seen_B1H)
                states_T.append(after_B)
            seen_BTH = torch.cat(seen_T, dim=1)
            states = {name: torch.stack([each[name] for each in states_T[:-1]], dim=1) for name in state_B}
        return self.limited(self.outputs_of(seen_BTH), flat_BTD), states

    def step(
        self, obs_B: Any, state_B: Mapping[str, Tensor | np.ndarray], deterministic: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Act on one tick, as `RecurrentActor.step`."""
        outputs_BT, after_B = self.unroll(obs_B, state_B)
        action_B, _ = self.choose(_arrays(outputs_BT), self._rng, deterministic)
        return torch.from_numpy(action_B).to(self._own_device), after_B

    def infer(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """Return the parameters of the action distributions of NumPy observations, and the next state."""
        with torch.no_grad():
            # A copy: an observation may be read-only, or its strides negative.
            tensors_B = map_leaves(
                lambda value: torch.tensor(np.ascontiguousarray(value), device=self._own_device), obs_B
            )
            outputs_BT, after_B = self.unroll(tensors_B, state_B)
        return _arrays(outputs_BT), {name: value.cpu().numpy() for name, value in after_B.items()}


def _arrays(outputs_BT: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return the outputs of the only tick."""
    of_tick = {name: value.detach()[:, 0].cpu() for name, value in outputs_BT.items()}
    return {name: (value if name == ALLOWED else value.float()).numpy() for name, value in of_tick.items()}


class SquashedGaussianRNNActor(SquashedGaussianChoice, SquashedGaussianHead, TorchRecurrentActor):
    """`SquashedGaussianMLPActor` with a recurrent layer.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer before the recurrent one.
        activation: class of the hidden layers' activation, or its name.
        cell: `gru` or `lstm`.
        cell_size: units of the recurrent layer.
        state_interval: number of ticks between two stored states.
        random: as for `SquashedGaussianMLPActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.

    Source: Ni et al., arXiv:2110.05038.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        random: float | None = 0.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, convolutions=convolutions)
        self.begin_exploration(random)
        self.make_recurrent(cell, cell_size, state_interval)
        self.make_head("SquashedGaussianRNNActor")


class QValueRNNActor(EpsilonGreedyChoice, QValueHead, TorchRecurrentActor):
    """`QValueMLPActor` with a recurrent layer.

    The other arguments are those of `SquashedGaussianRNNActor`.

    Args:
        action_space: Discrete.
        dueling: as for `QValueMLPActor`.
        epsilon: likewise.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.

    Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        dueling: bool = False,
        epsilon: float = 1.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, convolutions=convolutions)
        self.make_recurrent(cell, cell_size, state_interval)
        self.make_head("QValueRNNActor", dueling, epsilon)


class CategoricalRNNActor(CategoricalChoice, CategoricalHead, TorchRecurrentActor):
    """`CategoricalMLPActor` with a recurrent layer.

    The other arguments are those of `SquashedGaussianRNNActor`.

    Args:
        action_space: Discrete, MultiDiscrete or MultiBinary.
        normalize_observations: as for `CategoricalMLPActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64,),
        activation: str | Callable[[], nn.Module] = "tanh",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes, activation, normalize_observations, convolutions=convolutions
        )
        self.make_recurrent(cell, cell_size, state_interval)
        self.make_head("CategoricalRNNActor")


class GaussianRNNActor(GaussianChoice, GaussianHead, TorchRecurrentActor):
    """`GaussianMLPActor` with a recurrent layer.

    The other arguments are those of `SquashedGaussianRNNActor`.

    Args:
        action_space: a Box of floats; infinite bounds clip nothing.
        log_std: as for `GaussianMLPActor`.
        normalize_observations: likewise.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64,),
        activation: str | Callable[[], nn.Module] = "tanh",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        log_std: float = 0.0,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes, activation, normalize_observations, convolutions=convolutions
        )
        self.make_recurrent(cell, cell_size, state_interval)
        self.make_head("GaussianRNNActor", log_std)
