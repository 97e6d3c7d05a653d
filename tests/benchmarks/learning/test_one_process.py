"""`benchmarks/learning/one_process.py`: products as hardware makes them, and a loop that stores what it plays."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.config import load
from tmrl_core.envs import GenericGymEnv
from tmrl_core.roles.training_object import training_from_config

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "learning"
SMALL = ["actor.kwargs.hidden_sizes=[8]", "memory.batch_size=16"]


@pytest.fixture(scope="module")
def one_process() -> Iterator[Any]:
    """The script, imported as when it is run."""
    before = dict(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("one_process")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("one_process", "run", "curves"):
            if name not in before:
                sys.modules.pop(name, None)


def test_products_are_rounded_once(one_process: Any) -> None:
    torch.manual_seed(0)
    left, right, bias = torch.randn(2, 6, 5), torch.randn(2, 5, 4), torch.randn(2, 1, 4)
    halves = [value.bfloat16() for value in (left, right, bias)]
    expected = torch.baddbmm(*(halves[at].double() for at in (2, 0, 1)))
    with one_process.HardwareProducts():
        joined = torch.baddbmm(halves[2], halves[0], halves[1])
        single = torch.mm(halves[0][0], halves[1][0])
        exact = torch.bmm(left, right)
    assert joined.dtype == single.dtype == torch.bfloat16
    assert torch.equal(joined, expected.bfloat16())
    assert torch.equal(single, (halves[0][0].double() @ halves[1][0].double()).bfloat16())
    assert torch.equal(exact, torch.bmm(left, right))  # float32 is left alone


def test_updates_are_those_of_torch_s_own_products(one_process: Any) -> None:
    config = load(FOLDER / "pendulum.yaml", SMALL, {})
    apart, rounding = one_process.check(config, 3)
    assert apart < 0.05 * rounding


def test_it_stores_each_step_once_and_joins_no_episodes(one_process: Any) -> None:
    training = training_from_config(load(FOLDER / "pendulum.yaml", SMALL, {}))()
    trained: list[float] = []
    env = GenericGymEnv("Pendulum-v1", to_float32=True)
    steps = list(islice(one_process.steps_of(env, training.agent, training.memory, 0, trained), 410))
    assert steps == list(range(1, 411))
    assert len(training.memory) == 410
    assert len(trained) == 2
    before, after = training.memory.get_transition(199), training.memory.get_transition(200)
    assert before[5]
    assert not np.allclose(before[3], after[0])


def test_a_curve_has_the_requested_steps(one_process: Any) -> None:
    changes = ["trainer.epochs=1", "trainer.steps=40", "trainer.start_training=30"]
    changes += ["trainer.evaluation.every_updates=20", "trainer.evaluation.episodes=2"]
    config = load(FOLDER / "pendulum.yaml", [*SMALL, *changes], {})
    curve = list(one_process.learn(config, 0))
    assert [point.steps for point, _ in curve] == [50, 70]
    assert all(len(returns) == 2 and np.mean(returns) == pytest.approx(point.mean) for point, returns in curve)
