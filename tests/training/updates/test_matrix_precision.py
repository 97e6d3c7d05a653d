"""TF32 is on for the updates of an agent that asks for it, on CUDA, and for nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.training import SacAgent
from tmrl_core.training.updates.matrix_precision import matrix_products
from tmrl_core.training.updates.rollback import agent_tensors

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32)


@pytest.mark.parametrize(
    ("precision", "device", "on"), [("tf32", "cuda", True), ("tf32", "cpu", False), ("float32", "cuda", False)]
)
def test_the_switch_of_the_process_is_put_back(precision: str, device: str, on: bool) -> None:
    def switched() -> bool:
        return bool(torch.backends.cuda.matmul.allow_tf32)

    def fail() -> None:
        with matrix_products(precision, torch.device(device)):
            assert switched() is on
            raise RuntimeError("of the update")

    assert not switched()
    with pytest.raises(RuntimeError, match="of the update"):
        fail()
    assert not switched()


def test_on_a_cpu_tf32_is_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randn(8, size, generator=generator) for size in (3, 1, 1, 3)]
    obs, act, rew, next_obs = columns
    batch = (obs, act, rew[:, 0], next_obs, torch.zeros(8), torch.zeros(8))
    trained = []
    for precision in ("float32", "tf32"):
        torch.manual_seed(0)
        agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", hidden_sizes=(8,), precision=precision)
        agent.train(batch)
        trained.append(agent_tensors(agent))
    assert all(map(torch.equal, *trained))


def test_another_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="float32, tf32, bfloat16"):
        SacAgent(OBSERVATIONS, ACTIONS, "cpu", precision="float64")


def test_automatic_compilation_begins_at_once_on_cuda() -> None:
    agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", hidden_sizes=(8,))
    assert not agent._compiles
    agent.device = torch.device("cuda")
    assert agent._compiles
