"""Recurrent critics, and models that hold a recurrent policy. Shape suffixes as in recurrent.py; H features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.flattening import layout_of
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.mlp import flatten_batch, hidden_layers
from tmrl_core.actor.policies.torch.q_value import QValueRNNActor
from tmrl_core.actor.policies.torch.recurrent import make_layer, unroll_layer
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianRNNActor
from tmrl_core.training.agents.networks import ActionCritic, ensemble_mlp
from tmrl_core.training.value_types import Space, Tree


class RecurrentCritics(ActionCritic):
    """Critics with common hidden layers and one recurrent layer, and a perceptron of each critic that takes the action.

    The recurrent layer reads observations only, so one pass over a sequence serves the values of any actions.

    Args:
        observation_space: flattened by `tmrl_core.actor.policies.flattening`.
        action_space: a Box of floats.
        hidden_sizes: width of each hidden layer before the recurrent one; behind it there is one of the last width.
        activation: class of the hidden layers' activation, or its name.
        cell: `gru` or `lstm`.
        cell_size: units of the recurrent layer.
        count: K, number of critics.
        convolutions: layers for images, common to all critics; None: the default ones.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int],
        activation: str | Callable[[], nn.Module],
        cell: str,
        cell_size: int,
        count: int,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(action_space)
        self._layout = layout_of(observation_space, convolutions=convolutions)
        self.encoder = ObservationEncoder(self._layout, convolutions)
        self.count = count
        self.cell_size = cell_size
        self.net, width = hidden_layers(self.encoder.features, hidden_sizes, activation)
        self.rnn = make_layer(cell, width, cell_size)
        self.head = ensemble_mlp(count, cell_size + self.action_size, list(hidden_sizes)[-1:], 1, activation)
        self._state_names = ("h", "c") if cell == "lstm" else ("h",)

    def initial_state(self, batch: int) -> dict[str, Tensor]:
        """Return the state at the beginning of `batch` sequences: zeros [B, units]."""
        return dict.fromkeys(self._state_names, torch.zeros(batch, self.cell_size, device=self.gain.device))

    def unroll(self, obs_BT: Tree, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T, H] features of sequences of observations, and the state after the last tick."""
        features_NH: Tensor = self.net(self.encoder(flatten_batch(self._layout, obs_BT)))
        features_BTH = features_NH.reshape(state["h"].shape[0], -1, features_NH.shape[-1])
        return unroll_layer(self.rnn, features_BTH, state)

    def forward(self, features_NH: Tensor, act: Tensor) -> Tensor:
        """[K, N] values.

        Args:
            features_NH: features after some ticks, of `unroll`.
            act: [N, *action shape].
        """
        x_NI = torch.cat([features_NH, self.scaled(act)], dim=-1)
        q_KN1: Tensor = self.head(x_NI.expand(self.count, -1, -1))
        return q_KN1.squeeze(-1)


class RecurrentActorCritic(nn.Module):
    """A recurrent squashed-Gaussian policy and its recurrent critics.

    Args:
        observation_space: of the environment.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer before the recurrent one, of the policy and of the critics.
        activation: class of the hidden layers' activation, or its name.
        cell: `gru` or `lstm`.
        cell_size: units of each recurrent layer.
        state_interval: number of ticks between two stored states.
        n: number of critics.
        convolutions: layers for images, of the policy and of the critics; None: the default ones.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (128,),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        n: int = 2,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        self.actor = SquashedGaussianRNNActor(
            observation_space, action_space, hidden_sizes, activation, cell, cell_size, state_interval,
            convolutions=convolutions,
        )  # fmt: skip
        self.critics = RecurrentCritics(
            observation_space, action_space, hidden_sizes, activation, cell, cell_size, n, convolutions
        )


class RecurrentQNetwork(nn.Module):
    """Recurrent Q-network, which is also its policy.

    The other arguments are those of `RecurrentActorCritic`.

    Args:
        action_space: Discrete.
        dueling: dueling network: the last layer outputs the state's value and each action's advantage.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden_sizes: Sequence[int] = (128,),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        dueling: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__()
        self.actor = QValueRNNActor(
            observation_space, action_space, hidden_sizes, activation, cell, cell_size, state_interval, dueling,
            convolutions=convolutions,
        )  # fmt: skip
