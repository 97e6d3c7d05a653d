"""Promises of both agents on sequences: padding, burn-in, ends of episodes, priorities; and their shared functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.pretended_device import CUDA, pretended_cuda
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk
from tmrl_core.testing.random_samples import buffer_of, random_chunk
from tmrl_core.training.agents.recurrent import (
    n_tick_target,
    rescaled,
    sequence_priority,
    sequences_of,
    unrescaled,
    unrolled,
)
from tmrl_core.training.agents.recurrent_dqn import RecurrentDQNAgent
from tmrl_core.training.agents.recurrent_sac import RecurrentSacAgent
from tmrl_core.training.batches import transitions_of
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.sequences import SequenceMemory

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
CONTINUOUS = gym.spaces.Box(-2, 2, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3, start=5)
B, T, UNITS, GAMMA = 4, 6, 7, 0.9

Agent: TypeAlias = RecurrentSacAgent | RecurrentDQNAgent
Make: TypeAlias = Callable[..., Agent]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def make_sac(where: str = "cpu", **kwargs: Any) -> RecurrentSacAgent:
    settings = {"hidden_sizes": (5,), "cell_size": UNITS, "burn_in": 0, "gamma": GAMMA, **kwargs}
    return RecurrentSacAgent(OBSERVATIONS, CONTINUOUS, where, **settings)


def make_dqn(where: str = "cpu", **kwargs: Any) -> RecurrentDQNAgent:
    settings = {"hidden_sizes": (5,), "cell_size": UNITS, "burn_in": 0, "gamma": GAMMA, **kwargs}
    return RecurrentDQNAgent(OBSERVATIONS, DISCRETE, where, **settings)


both = pytest.mark.parametrize("make", [make_sac, make_dqn], ids=["sac", "dqn"])
both_cells = pytest.mark.parametrize("cell", ["gru", "lstm"])


def make_batch(agent: Agent, ticks: Any = (T, 4, 1, T), first: Any = (0, 0, 8, 8), cell: str = "gru") -> list[Any]:
    """A batch of sequences, whose padding is zeros."""
    generator = torch.Generator().manual_seed(1)
    alive = torch.arange(T) < torch.tensor(ticks).unsqueeze(1)

    def column(*shape: int) -> Tensor:
        values = torch.randn(B, T, *shape, generator=generator)
        return torch.where(alive.reshape(B, T, *[1] * len(shape)), values, 0.0)

    action = column(2) if isinstance(agent, RecurrentSacAgent) else (column() > 0).long() + 5
    if not isinstance(agent, RecurrentSacAgent):
        action = torch.where(alive, action, 0)
    state = {f"state.{name}": torch.randn(B, UNITS, generator=generator) for name in ("hc" if cell == "lstm" else "h")}
    extras = {
        "ticks": torch.tensor(ticks).float(),
        "first_tick": torch.tensor(first).float(),
        "weights": torch.rand(B, generator=generator),
        **state,
    }
    first_obs = torch.randn(B, 3, generator=generator)
    return [first_obs, action, column(), column(3), torch.zeros(B, T), torch.zeros(B, T), extras]


def outcome(agent: Agent, batch: list[Any]) -> list[Tensor]:
    """Return the parameters, gradients and priorities after an update with the same random numbers."""
    agent = copy.deepcopy(agent)
    torch.manual_seed(5)
    metrics = agent.train(tuple(batch))
    priorities = agent.td_error_B
    assert priorities is not None
    gradients = [p.grad for p in agent.model.parameters() if p.grad is not None]
    return [metrics["loss_critic"], priorities, *gradients, *agent.model.parameters()]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@both
@both_cells
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("odd", [1e30, float("inf"), float("nan")])
def test_padding_changes_nothing(make: Make, cell: str, burn_in: int, odd: float) -> None:
    agent = make(cell=cell, burn_in=burn_in)
    batch = make_batch(agent, cell=cell)
    padded = torch.arange(T) >= batch[6]["ticks"].unsqueeze(1)
    changed = [column.clone() if isinstance(column, Tensor) else column for column in batch]
    for column in changed[1:6]:
        column[padded] = odd if column.is_floating_point() else 10**9
    # The loop skips a batch that is not finite, so the update is called without it.
    transitions = [transitions_of(tuple(one), GAMMA) for one in (batch, changed)]
    found = []
    for one in transitions:
        copied = copy.deepcopy(agent)
        torch.manual_seed(5)
        metrics = copied.update(one)
        assert copied.td_error_B is not None
        gradients = [p.grad for p in copied.model.parameters() if p.grad is not None]
        assert len(gradients) == len(list(copied.model.parameters()))
        found.append([*metrics.values(), copied.td_error_B, *gradients])
    assert same(*found)
    assert all(bool(value.isfinite().all()) for value in found[1])


@both
def test_ticks_after_the_padding_begins_do_count_when_they_are_alive(make: Make) -> None:
    """The test before would also pass if nothing counted."""
    agent = make()
    batch = make_batch(agent)
    for column, place in ((2, (0, T - 1)), (3, (1, 3)), (2, (2, 0))):
        changed = [*batch]
        changed[column] = batch[column].clone()
        changed[column][place] += 1.0
        assert not same(outcome(agent, changed), outcome(agent, batch))


@both
def test_burn_in_renews_the_state_and_gives_no_gradient(make: Make) -> None:
    agent = make(burn_in=3)
    batch = make_batch(agent, ticks=(T, T, T, T), first=(4, 4, 4, 4))
    before = outcome(agent, batch)
    batch[2] = batch[2].clone()
    batch[2][:, :3] += 1.0
    assert same(outcome(agent, batch), before), "rewards of burnt ticks are in no loss"
    batch[0] = batch[0] + 1.0
    assert not same(outcome(agent, batch), before), "their observations are in the state"
    batch[0].requires_grad_()
    batch[3].requires_grad_()
    s = sequences_of(transitions_of(tuple(batch), GAMMA), 3)
    actor = agent.model.actor
    found = unrolled(actor.unroll, s, s.state)
    torch.cat([value[:, 3:] for value in found.values()], -1).square().sum().backward()  # type: ignore[no-untyped-call]
    assert not batch[0].grad.any()
    assert not batch[3].grad[:, :2].any()
    assert batch[3].grad[:, 2:].any()


@both
def test_the_beginning_of_an_episode_is_not_burnt(make: Make) -> None:
    agent = make()
    burnt = copy.deepcopy(agent)
    burnt.settings.burn_in = 3
    batch = make_batch(agent, first=(0, 0, 0, 0))
    for found, expected in zip(outcome(burnt, batch), outcome(agent, batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@both
def test_sequences_that_are_burnt_as_a_whole_teach_nothing(make: Make) -> None:
    agent = make(burn_in=3)
    batch = make_batch(agent, ticks=(2, 3, 1, 2), first=(4, 4, 4, 4))
    metrics = agent.train(tuple(batch))
    assert float(metrics["loss_critic"]) == 0.0
    assert agent.td_error_B is not None
    assert agent.td_error_B.tolist() == [0.0] * B


@both
def test_nothing_is_bootstrapped_over_a_termination_and_a_truncation_is(make: Make) -> None:
    agent = make()
    batch = make_batch(agent, ticks=(4, 4, 4, 4))
    after = [*batch]
    after[3] = batch[3].clone()
    after[3][:, 3] += 1.0  # the last observation
    for flag, matters in ((4, False), (5, True)):
        ended = []
        for one in (batch, after):
            columns = [*one]
            columns[flag] = one[flag].clone()
            columns[flag][:, 3] = 1.0
            # The policy's and the critics' own values of the last observation enter no loss, only the target does.
            ended.append(outcome(agent, columns))
        assert same(*ended) != matters


@both
def test_priorities_follow_the_largest_error_and_the_mean(make: Make) -> None:
    agent = make()
    batch = make_batch(agent)
    batch[2] = batch[2] + 1000.0 * (torch.arange(T) == 0)
    agent.train(tuple(batch))
    assert agent.td_error_B is not None
    ticks = batch[6]["ticks"]
    expected = 1000.0 * (0.9 + 0.1 / ticks)
    torch.testing.assert_close(agent.td_error_B, expected, rtol=0.02, atol=0.0)


@both
def test_without_weights_there_are_no_priorities(make: Make) -> None:
    agent = make()
    batch = make_batch(agent)
    del batch[6]["weights"]
    agent.train(tuple(batch))
    assert agent.td_error_B is None


@both
def test_a_memory_without_states_begins_with_those_of_an_episode(make: Make) -> None:
    agent = make()
    batch = make_batch(agent)
    zero = [*batch[:6], {**batch[6], "state.h": torch.zeros(B, UNITS)}]
    none = [*batch[:6], {name: value for name, value in batch[6].items() if name != "state.h"}]
    assert same(outcome(agent, zero), outcome(agent, none))
    assert not same(outcome(agent, zero), outcome(agent, batch))


@both
def test_it_trains_from_a_memory_and_resumes_bit_for_bit(make: Make, tmp_path: Path) -> None:
    action_space: Any = CONTINUOUS if make is make_sac else DISCRETE

    def run() -> TrainingOffline:
        def memory(**_: Any) -> SequenceMemory:
            return SequenceMemory(memory_size=100, batch_size=4, length=8, stride=4, seed=1, priority={})

        agent = partial(make, burn_in=3, state_interval=4)
        return TrainingOffline((OBSERVATIONS, action_space), memory, lambda **_: agent(), device="cpu")

    def chunk(episode: int) -> Chunk:
        made = random_chunk(OBSERVATIONS, action_space, rows=21, episode=episode)
        state = np.random.default_rng(episode).standard_normal((21, UNITS)).astype(np.float32)
        made.extras["state.h"] = state
        return made

    def train(training: TrainingOffline, updates: int) -> None:
        torch.manual_seed(3)
        for _ in range(updates):
            batch = next(iter(training.memory))
            training.agent.train(batch)
            training.memory.update_priorities(batch[6]["indices"], training.agent.td_error_B)

    whole = run()
    for episode in range(3):
        whole.memory.append(buffer_of(chunk(episode)))
    train(whole, 3)
    whole.save(tmp_path / "checkpoint")
    resumed = run()
    resumed.load(tmp_path / "checkpoint")
    for training in (whole, resumed):
        train(training, 3)
    for found, expected in zip(resumed.agent.model.parameters(), whole.agent.model.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert resumed.agent.get_actor().to_blob() == whole.agent.get_actor().to_blob()


@both
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compile": True}, r"agent\.kwargs\.compile: found True, allowed for recurrent agents: auto, false"),
        (
            {"precision": "bfloat16"},
            r"agent\.kwargs\.precision: found 'bfloat16', allowed for recurrent agents: float32",
        ),
        ({"cell": "none"}, r"actor\.kwargs\.cell: found 'none', allowed: gru, lstm"),
    ],
)
def test_impossible_settings_are_refused(make: Make, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


@both
def test_batches_that_do_not_fit_are_refused(make: Make) -> None:
    agent = make(burn_in=T)
    batch = make_batch(agent)
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.burn_in: found 6, allowed: less than the 6 ticks"):
        agent.train(tuple(batch))
    with pytest.raises(ConfigError, match="the batch holds single transitions"):
        agent.train(tuple(batch[:6]))


@both
def test_an_update_on_a_device_waits_for_nothing(make: Make) -> None:
    # Linear layers of the pretended device cannot read the transposed outputs of a GRU.
    batch = make_batch(make(cell="lstm"), cell="lstm")
    with pretended_cuda() as device, torch.backends.cudnn.flags(enabled=False):
        torch.manual_seed(0)
        here = make(cell="lstm", burn_in=2)
        torch.manual_seed(0)
        there = make(CUDA, cell="lstm", burn_in=2)
        torch.manual_seed(1)
        expected = here.train(tuple(batch))
        columns: Any = [column.to(CUDA) for column in batch[:6]]
        extras = {name: value.to(CUDA) for name, value in batch[6].items()}
        torch.manual_seed(1)
        device.waits.clear()
        found = there.train((*columns, extras))
        assert device.waits == []
        for key, value in expected.items():
            assert float(found[key]) == pytest.approx(float(value), rel=1e-3, abs=1e-4)


@both
def test_a_stride_between_stored_states_is_refused(make: Make) -> None:
    space: Any = CONTINUOUS if make is make_sac else DISCRETE

    def train(stride: int) -> None:
        memory = partial(SequenceMemory, length=8, stride=stride)
        TrainingOffline((OBSERVATIONS, space), memory, lambda **_: make(state_interval=4), device="cpu")

    train(8)
    with pytest.raises(ConfigError, match=r"memory\.kwargs\.stride: found 6, allowed: multiples of .* = 4,"):
        train(6)


# --- shared functions -------------------------------------------------------------------------------------------------


def test_an_unroll_in_two_parts_is_the_whole_one() -> None:
    agent = make_dqn()
    t = transitions_of(tuple(make_batch(agent)), GAMMA)
    actor = agent.model.actor
    parts = [unrolled(actor.unroll, s, s.state)["q"] for s in (sequences_of(t, 0), sequences_of(t, 4))]
    torch.testing.assert_close(parts[1], parts[0])


def test_n_tick_targets_are_those_of_a_slow_loop() -> None:
    batch = make_batch(make_dqn())
    batch[4][1, 3] = 1.0  # the second sequence ends with its episode
    s = sequences_of(transitions_of(tuple(batch), GAMMA), 0)
    value_BT = torch.randn(B, T)
    for n in (1, 2, 3, T + 2):
        found = n_tick_target(s, value_BT, n)
        for b, ticks in enumerate((T, 4, 1, T)):
            for t in range(ticks):
                stop = min(t + n, ticks)
                expected = sum(GAMMA ** (k - t) * batch[2][b, k] for k in range(t, stop))
                if not batch[4][b, stop - 1]:
                    expected = expected + GAMMA ** (stop - t) * value_BT[b, stop - 1]
                torch.testing.assert_close(found[b, t], torch.as_tensor(expected))


def test_priorities_are_a_mixture_of_maximum_and_mean() -> None:
    learns = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    errors = torch.tensor([[1.0, 3.0, 9.0], [5.0, 2.0, 9.0], [1.0, 1.0, 1.0]])
    torch.testing.assert_close(sequence_priority(errors, learns), torch.tensor([2.9, 2.0, 0.0]))


def test_rescaling_can_be_undone() -> None:
    values = torch.tensor([-1000.0, -1.0, -1e-3, 0.0, 0.5, 30.0, 1e4], dtype=torch.float64)
    torch.testing.assert_close(unrescaled(rescaled(values)), values)
    assert float(rescaled(torch.tensor(3.0))) == pytest.approx(1.003)
