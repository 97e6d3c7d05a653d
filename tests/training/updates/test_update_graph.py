"""A traced update does what the update does, and changes nothing unless all its numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tmrl_core.training.updates.update_graph import Graph


def traced(update: Callable[[Tensor, Tensor], list[Tensor]], kept: Tensor) -> Graph:
    """The update of an agent that keeps one tensor; the graph is run operation by operation."""
    agent = SimpleNamespace(kept=kept)
    batch = torch.ones_like(kept)
    return Graph(agent, lambda x: update(x, agent.kept), [batch], lambda graph, inputs: graph)


def results(graph: Graph, x: Tensor) -> Sequence[Tensor]:
    with torch.no_grad():
        return graph([x])


def add(x: Tensor, kept: Tensor) -> list[Tensor]:
    kept.add_(x)
    return [x.sum()]


def test_a_read_after_a_change_returns_the_changed_value() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        before = kept * 1.0
        kept.mul_(2.0)
        kept.detach().add_(x)
        return [before, kept * 10.0]

    kept = torch.tensor([3.0, 4.0])
    before, after, finite = results(traced(update, kept), torch.tensor([1.0, 2.0]))
    assert before.tolist() == [3.0, 4.0]
    assert after.tolist() == [70.0, 100.0]
    assert kept.tolist() == [7.0, 10.0]
    assert finite


def test_tracing_changes_nothing() -> None:
    kept = torch.tensor([3.0, 4.0])
    traced(add, kept)
    assert kept.tolist() == [3.0, 4.0]


def test_opposite_infinities_do_not_cancel() -> None:
    kept = torch.tensor([1.0, 2.0])
    *_, finite = results(traced(add, kept), torch.tensor([math.inf, -math.inf]))
    assert not finite
    assert kept.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_is_written_unless_the_batch_is_finite(poison: float) -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        kept.add_(1.0)
        return [torch.zeros(())]

    kept = torch.tensor([1.0, 2.0])
    *_, finite = results(traced(update, kept), torch.tensor([1.0, poison]))
    assert not finite
    assert kept.tolist() == [1.0, 2.0]


def test_nothing_is_written_unless_the_new_values_are_finite() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        kept.mul_(1e30).mul_(x)
        return [x.sum()]

    kept = torch.tensor([1.0, 2.0])
    *_, finite = results(traced(update, kept), torch.tensor([1.0, 1e30]))
    assert not finite
    assert kept.tolist() == [1.0, 2.0]


def test_a_gradient_that_is_a_view_may_be_scaled() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        turned = (x * 3.0).t()
        turned.mul_(2.0)
        kept.add_(turned)
        return [turned]

    kept = torch.zeros(2, 2)
    turned, finite = results(traced(update, kept), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert finite
    assert turned.tolist() == kept.tolist() == [[6.0, 18.0], [12.0, 24.0]]


def test_a_view_shows_what_has_changed_since() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        turned = kept.t()
        kept.add_(x)
        return [turned * 2.0]

    kept = torch.zeros(2, 2)
    found, _ = results(traced(update, kept), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert found.tolist() == [[2.0, 6.0], [4.0, 8.0]]


def test_a_change_through_a_view_is_kept() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        kept.t().add_(x)
        return [x.sum()]

    kept = torch.zeros(2, 2)
    results(traced(update, kept), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert kept.tolist() == [[1.0, 3.0], [2.0, 4.0]]
