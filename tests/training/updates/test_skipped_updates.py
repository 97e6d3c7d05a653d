"""Numbers that are not finite: nothing is learned from them, it is counted and said, and too many end training."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core import training
from tmrl_core.errors import BadUpdatesError
from tmrl_core.samples import Buffer
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.updates.rollback import agent_tensors, all_sums_finite, joined_sum_finite
from tmrl_core.training.updates.skipped_updates import SKIPPED, BadUpdates, bad_columns

OBSERVATIONS = gym.spaces.Box(-10, 10, (3,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (1,), np.float32)
SMALL: dict[str, Any] = {"hidden_sizes": (8, 8), "compile": False}


def sac(**settings: Any) -> Any:
    torch.manual_seed(0)
    return training.SacAgent(OBSERVATIONS, ACTIONS, "cpu", **{**SMALL, **settings})


def batch(size: int = 4) -> list[Any]:
    zeros = torch.zeros(size)
    return [torch.randn(size, 3), torch.rand(size, 1), torch.randn(size), torch.randn(size, 3), zeros, zeros.clone()]


def copies(agent: Any) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in agent_tensors(agent)]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", range(5), ids=["obs", "action", "reward", "next_obs", "terminated"])
def test_a_poisoned_batch_changes_no_bit(column: int, poison: float) -> None:
    agent = sac()
    agent.train(tuple(batch()))
    before = copies(agent)
    poisoned = batch()
    poisoned[column][2] = poison
    assert agent.train(tuple(poisoned)) == {SKIPPED: True}
    assert all(torch.equal(a, b) for a, b in zip(before, copies(agent), strict=True))
    assert SKIPPED not in agent.train(tuple(batch()))
    assert not all(torch.equal(a, b) for a, b in zip(before, copies(agent), strict=True))


def test_a_loss_that_overflows_changes_no_bit_either() -> None:
    agent = sac()
    agent.train(tuple(batch()))
    before = copies(agent)
    huge = batch()
    huge[2][:] = 1e30  # finite, but not its square
    assert agent.train(tuple(huge)) == {SKIPPED: True}
    assert all(torch.equal(a, b) for a, b in zip(before, copies(agent), strict=True))


def test_a_bad_first_update_has_no_effect() -> None:
    spoiled, clean = sac(), sac()
    poisoned = batch()
    poisoned[2][0] = math.nan
    spoiled.train(tuple(poisoned))
    good = [tuple(batch()) for _ in range(3)]
    for agent in (spoiled, clean):
        torch.manual_seed(1)
        for rows in good:
            agent.train(rows)
    assert all(torch.equal(a, b) for a, b in zip(copies(spoiled), copies(clean), strict=True))


@pytest.mark.parametrize("name", ["TD3Agent", "REDQSACAgent"])
def test_custom_agents_are_rolled_back_too(name: str) -> None:
    torch.manual_seed(0)
    agent = getattr(training, name)(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
    for _ in range(3):  # all optimizers have made a step
        agent.train(tuple(batch()))
    before = copies(agent)
    poisoned = batch()
    poisoned[3][0, 1] = math.nan
    assert agent.train(tuple(poisoned)) == {SKIPPED: True}
    assert all(torch.equal(a, b) for a, b in zip(before, copies(agent), strict=True))


def test_the_description_names_bad_columns_of_a_batch() -> None:
    rows = torch.zeros(3, 2)
    rows[1, 0] = math.nan
    nested = ({"a": rows, "b": (torch.zeros(3), rows)}, torch.tensor([1, 2, 3]), torch.tensor([0.0, 1.0, math.inf]))
    assert bad_columns(nested) == {"prev_obs.a": [1], "prev_obs.b.1": [1], "rew": [2]}


def test_skipped_updates_are_counted_logged_and_end_training(caplog: pytest.LogCaptureFixture) -> None:
    bad = BadUpdates(3)
    rows = batch()
    rows[2][1] = math.nan
    assert bad.note(5, {SKIPPED: True}, tuple(rows)) == 1
    assert "update 5 was skipped: NaN or Inf in its batch: {'rew': [1]}" in caplog.text
    assert bad.note(6, {SKIPPED: True}, tuple(batch())) == 1
    assert "update 6 was skipped: NaN or Inf in losses or gradients" in caplog.text
    assert bad.note(7, {}, tuple(rows)) == 0  # one that was made: not in a row any more
    assert bad.note(8, {SKIPPED: True}, tuple(rows)) == 1
    assert bad.note(9, {SKIPPED: True}, tuple(rows)) == 1
    with pytest.raises(BadUpdatesError, match=r"3 updates in a row.*max_bad_updates: 3"):
        bad.note(10, {SKIPPED: True}, tuple(rows))


def test_results_on_a_device_are_read_later(caplog: pytest.LogCaptureFixture) -> None:
    class Found:
        """A flag on a device."""

        device = torch.device("meta")

        def __init__(self, value: bool) -> None:
            self.value = value
            self.read = False

        def __bool__(self) -> bool:
            self.read = True
            return self.value

    bad = BadUpdates(3)
    flags = [Found(False), Found(True), Found(True)]
    for update, flag in enumerate(flags):
        assert bad.note(update, {SKIPPED: flag}, tuple(batch())) == 0
    assert not any(flag.read for flag in flags)
    assert bad.read_deferred() == 2
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [1, 2]
    for update in range(64):
        bad.note(update, {SKIPPED: Found(False)}, tuple(batch()))
    assert bad.read_deferred() == 0


def test_a_run_with_nan_samples_stops_and_names_the_column(make_rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    chunk = make_rows(1, 0, 0, 40)
    chunk.reward[:] = math.nan
    rows = Buffer(maxlen=None)
    rows.extend([chunk])
    interface = LocalInterface()
    interface.put(rows)
    loop = TrainingOffline(
        (OBSERVATIONS, ACTIONS),
        lambda nb_steps, device: training.ReplayMemory(device, nb_steps, memory_size=100, batch_size=4),
        lambda **given: training.SacAgent(**given, **SMALL),
        steps=50,
        max_training_steps_per_env_step=1e9,
        device="cpu",
        max_bad_updates=4,
    )
    before = copies(loop.agent)
    with pytest.raises(BadUpdatesError, match="4 updates in a row"):
        loop.run_epoch(interface)
    assert all(torch.equal(a, b) for a, b in zip(before, copies(loop.agent)[: len(before)], strict=True))
    assert loop.updates_skipped == 3  # the fourth ended it
    assert "update 2 was skipped: NaN or Inf in its batch: {'rew': [0, 1, 2, 3]}" in caplog.text


def test_a_run_continues_after_a_few_skipped_updates(make_rows: Any) -> None:
    chunk = make_rows(1, 0, 0, 400)
    chunk.reward[100] = math.nan
    rows = Buffer(maxlen=None)
    rows.extend([chunk])
    interface = LocalInterface()
    interface.put(rows)
    torch.manual_seed(0)
    loop = TrainingOffline(
        (OBSERVATIONS, ACTIONS),
        lambda nb_steps, device: training.ReplayMemory(device, nb_steps, memory_size=400, batch_size=16),
        lambda **given: training.SacAgent(**given, **SMALL),
        rounds=1,
        steps=60,
        max_training_steps_per_env_step=1e9,
        device="cpu",
    )
    (row,) = loop.run_epoch(interface)
    assert 0 < row["updates_skipped"] < 20
    assert row["updates"] == 60
    assert all(math.isfinite(row[name]) for name in ("loss_critic", "loss_actor"))


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_joined_sum_finds_what_a_sum_of_each_tensor_finds(value: float, dtype: torch.dtype) -> None:
    tensors = [torch.ones(3, 2), torch.tensor(value, dtype=dtype), torch.zeros(4, dtype=torch.float64)]
    assert bool(joined_sum_finite(tensors)) == bool(all_sums_finite(tensors)) == math.isfinite(value)


def test_opposite_infinities_do_not_cancel() -> None:
    assert not joined_sum_finite([torch.tensor(math.inf), torch.tensor(-math.inf)])
