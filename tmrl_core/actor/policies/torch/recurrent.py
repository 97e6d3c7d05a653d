"""The recurrent layer of policies made with torch.

Shape suffixes: B batch, T ticks, D elements of a flattened observation, H features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.policy import RecurrentPolicy
from tmrl_core.actor.policies.torch.mlp import TorchPolicy, flatten_batch

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


class TorchRecurrentPolicy(RecurrentPolicy, TorchPolicy):
    """A policy with one recurrent layer between its hidden layers and its heads.

    `step` samples with NumPy, as `act_batch` does: its actions have no gradients, its states do.

    The arguments are those of `TorchPolicy` and `RecurrentPolicy`.
    """

    rnn: nn.GRU | nn.LSTM

    def _add_layer(self, width: int) -> int:
        self.rnn = make_layer(self.cell, width, self.cell_size)
        return self.cell_size

    def tick(self, obs_B: Any, state_B: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs [B, ...] of one tick, with gradients, and the state after it."""
        outputs_BT, after_B = self.unroll(obs_B, state_B)
        return {name: value[:, 0] for name, value in outputs_BT.items()}, after_B

    def unroll(
        self, obs_BT: Any, state_B: Mapping[str, Tensor | np.ndarray]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the parameters of the action distributions of whole sequences, as `RecurrentActor.unroll`.

        Raises:
            ValueError: the state has other names or shapes.
        """
        flat_BTD, x_BTH = self._encoded(obs_BT, state_B)
        features_BTH, after_B = unroll_layer(self.rnn, x_BTH, state_B)
        return self.limited(self.outputs_of(features_BTH), flat_BTD), after_B

    def _encoded(self, obs_BT: Any, state_B: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return flattened observations [B, T, D] and features [B, T, H], the inputs of the recurrent layer."""
        batch = self.check_state(state_B)
        flat_ND = flatten_batch(self.layout, obs_BT)
        flat_BTD = flat_ND.reshape(batch, -1, flat_ND.shape[-1])
        return flat_BTD, self.encode(flat_BTD)

    def unroll_states(
        self, obs_BT: Any, state_B: Mapping[str, Tensor | np.ndarray]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs of `unroll`, and the states [B, T, units] before each tick.

        Raises:
            ValueError: as `unroll`.
        """
        flat_BTD, x_BTH = self._encoded(obs_BT, state_B)
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
