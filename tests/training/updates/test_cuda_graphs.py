"""Replaying updates, with recordings of what a CPU does: these tests know all of it but the calls of CUDA."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.updates.test_compiled import CHEAP, assert_alike, batch, interpreted, is_discrete, make, train
from tmrl_core.training.updates import compiled
from tmrl_core.training.updates.cuda_graphs import CudaGraph, Work
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.updates.skipped_updates import SKIPPED


def capture_here(work: Work, device: torch.device) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """What a CUDA graph does, by doing the work again: results lie where they lay when it was recorded."""
    results = [result.clone() for result in work()]

    def replay() -> None:
        for result, now in zip(results, work(), strict=True):
            result.copy_(now)

    return replay, results


def make_replayed(name: str, capture: Any = capture_here) -> Any:
    agent = make(name, True)
    agent.compiler = compiled.Compiler(agent, interpreted, capture=capture)
    return agent


def captures(agent: Any) -> list[CudaGraph | None]:
    return [graph.cuda_graph for graph, _ in agent.compiler._graphs.values()]


@pytest.mark.parametrize(
    "name", ["noisy dqn", *(pytest.param(name, marks=pytest.mark.full) for name in ("sac", "redq", "td3", "dqn"))]
)
def test_a_replayed_update_equals_a_normal_one(name: str) -> None:
    plain, fast = make(name, False), make_replayed(name)
    expected = train(plain, is_discrete(name), 7, extras=True)
    drawn = torch.get_rng_state()
    found = train(fast, is_discrete(name), 7, extras=True)
    assert captures(fast)
    assert all(captures(fast))
    assert torch.equal(torch.get_rng_state(), drawn), "the same random numbers were drawn"
    assert_alike(fast, plain)
    # Looked at only now: a later replay has not written over what an earlier one returned.
    for a, b in zip(found, expected, strict=True):
        assert {key: float(a[key]) for key in a} == pytest.approx({key: float(b[key]) for key in b}, rel=1e-3, abs=1e-4)
    torch.testing.assert_close(fast.td_error_B, plain.td_error_B, rtol=1e-3, atol=1e-4)
    before = [tensor.clone() for tensor in agent_tensors(fast)]
    bad = list(batch(torch.Generator().manual_seed(0), is_discrete(name), extras=True))
    bad[2] = bad[2] * torch.inf
    assert fast.train(tuple(bad))[SKIPPED], "a replayed update with NaN changes no tensor"
    assert all(torch.equal(a, b) for a, b in zip(before, agent_tensors(fast), strict=True))


def test_capturing_changes_nothing() -> None:
    kept = [torch.arange(3.0), torch.zeros(())]
    leaves = [torch.ones(3)]
    random = torch.get_rng_state()

    def run(leaf: Tensor, total: Tensor, count: Tensor) -> list[Tensor]:
        total += leaf * torch.rand(3)
        count += 1
        return [total.sum(), count.clone(), total * 2]

    cuda_graph = CudaGraph(run, leaves, kept, capture_here)
    assert kept[0].tolist() == [0.0, 1.0, 2.0]
    assert kept[1] == 0
    assert torch.equal(torch.get_rng_state(), random)
    first, second = cuda_graph([torch.ones(3)]), cuda_graph([torch.zeros(3)])
    assert [first[1].item(), second[1].item()] == [1.0, 2.0]
    assert torch.equal(first[2], second[2])
    assert torch.equal(kept[0] * 2, second[2])


def stale(work: Work, device: torch.device) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Takes numbers for constants that are none: its results are those of when it was recorded."""
    results = [result.clone() for result in work()]
    return lambda: None, results


def other_numbers(work: Work, device: torch.device) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Draws the right random numbers, and then some more."""
    replay, results = capture_here(work, device)

    def replay_and_draw() -> None:
        replay()
        torch.rand(1)

    return replay_and_draw, results


def impossible(work: Work, device: torch.device) -> tuple[Callable[[], None], Sequence[Tensor]]:
    work()
    raise RuntimeError("operation not permitted when stream is capturing\nand so on")


@pytest.mark.parametrize(
    ("capture", "why"),
    [
        pytest.param(stale, "other results", marks=pytest.mark.full),
        (other_numbers, "uses other random numbers"),
        pytest.param(impossible, "operation not permitted when stream is capturing", marks=pytest.mark.full),
    ],
)
def test_an_invalid_capture_is_not_used(capture: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    plain, agent = make(CHEAP, False), make_replayed(CHEAP, capture)
    with caplog.at_level(logging.WARNING):
        train(agent, True, 5)
    train(plain, True, 5)
    assert [why in line and "\n" not in line for line in caplog.messages] == [True]
    assert not agent.compiler.gave_up
    assert captures(agent) == [None]
    assert_alike(agent, plain)


def test_nothing_is_captured_on_a_cpu() -> None:
    agent = make(CHEAP, True)
    train(agent, True, 3)
    assert captures(agent) == [None]


def test_a_capture_reads_batches_with_strided_columns() -> None:
    rows = torch.arange(12.0).view(3, 4)
    leaves = [rows[:, 1:3], rows[:, 3]]
    strides = []

    def run(pair: Tensor, single: Tensor, total: Tensor) -> list[Tensor]:
        strides.append((pair.stride(), single.stride()))
        total += pair.sum() + single.sum()
        return [total.clone()]

    cuda_graph = CudaGraph(run, leaves, [torch.zeros(())], capture_here)
    assert set(strides) == {((4, 1), (4,))}  # what compiled code was made for
    assert cuda_graph([2 * leaf for leaf in leaves])[0] == 2 * (66 - 12)


def test_a_capture_is_accepted_if_adam_steps_differ_by_rounding() -> None:
    """Beside steps of 1e-3 that mean something, one parameter of ten thousand goes the other way."""
    moved = torch.full((10_000,), 1e-3)
    runs: list[int] = []

    def run(leaf: Tensor, kept: Tensor) -> list[Tensor]:
        runs.append(1)
        step = moved.clone()
        step[len(runs)] *= -1.0
        kept += step * leaf
        return [leaf.sum()]

    assert CudaGraph(run, [torch.ones(1)], [torch.zeros(10_000)], capture_here)

    def other(leaf: Tensor, kept: Tensor) -> list[Tensor]:
        runs.append(1)
        kept += moved * leaf * (1.0 if len(runs) % 2 else 1.2)
        return [leaf.sum()]

    with pytest.raises(RuntimeError, match="other results"):
        CudaGraph(other, [torch.ones(1)], [torch.zeros(10_000)], capture_here)
