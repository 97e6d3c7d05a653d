from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.policy import CELLS
from tmrl_core.actor.policies.torch.categorical import CategoricalRNNActor
from tmrl_core.actor.policies.torch.gaussian import GaussianRNNActor
from tmrl_core.actor.policies.torch.q_value import QValueRNNActor
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianRNNActor

OBSERVATION = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (3,), np.float32), "n": spaces.Discrete(4, start=2)})
BOX = spaces.Box(np.float32(-1.0), np.float32(2.0), (2,), np.float32)
FEW = spaces.Discrete(3, start=1)
POLICIES = {
    SquashedGaussianRNNActor: BOX,
    GaussianRNNActor: BOX,
    CategoricalRNNActor: FEW,
    QValueRNNActor: FEW,
}
each_policy = pytest.mark.parametrize("cls", POLICIES)
each_cell = pytest.mark.parametrize("cell", CELLS)


def make(cls: Any, cell: str, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    policy = cls(OBSERVATION, POLICIES[cls], hidden_sizes=(6,), cell=cell, cell_size=5, **kwargs)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return policy


def sequences(batch: int, ticks: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, ticks, 3), "n": torch.randint(2, 6, (batch, ticks))}


def part(obs: dict[str, torch.Tensor], ticks: Any) -> dict[str, torch.Tensor]:
    return {name: leaf[:, ticks] for name, leaf in obs.items()}


@each_policy
@each_cell
def test_a_slice_of_the_whole_unroll_needs_the_state_before_it(cls: Any, cell: str) -> None:
    policy, obs = make(cls, cell), sequences(4, 9)
    whole, last = policy.unroll(obs, policy.initial_state(4))
    _, before = policy.unroll(part(obs, slice(3)), policy.initial_state(4))
    rest, end = policy.unroll(part(obs, slice(3, None)), before)
    blank, _ = policy.unroll(part(obs, slice(3, None)), policy.initial_state(4))
    for name, values in rest.items():
        torch.testing.assert_close(values, whole[name][:, 3:])
        if values.requires_grad and name != "log_std":
            assert not torch.allclose(blank[name], whole[name][:, 3:], atol=1e-3)
    for name in CELLS[cell]:
        torch.testing.assert_close(end[name], last[name])


@each_policy
@each_cell
def test_steps_lead_to_the_state_of_the_unroll(cls: Any, cell: str) -> None:
    policy, obs = make(cls, cell), sequences(4, 5)
    state = policy.initial_state(4)
    for tick in range(5):
        action, state = policy.step(part(obs, tick), state)
        assert all(POLICIES[cls].contains(one.numpy() if one.ndim else np.int64(one)) for one in action)
    _, last = policy.unroll(obs, policy.initial_state(4))
    for name in CELLS[cell]:
        torch.testing.assert_close(state[name], last[name])
        assert state[name].requires_grad


@each_policy
def test_gradients_reach_all_weights_and_the_first_state(cls: Any) -> None:
    policy = make(cls, "lstm")
    state = {name: torch.zeros(2, 5, requires_grad=True) for name in ("h", "c")}
    outputs, _ = policy.unroll(sequences(2, 4), state)
    torch.stack([values.square().sum() for values in outputs.values()]).sum().backward()  # type: ignore[no-untyped-call]
    for tensor in (*policy.parameters(), *state.values()):
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0
