"""Changes in place become values, which are written at the end only, and only if they are finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tmrl_core.training.updates.functional_graph import make_functional


def functional(function: Callable[[Tensor, Tensor], Any], given: Tensor, kept: Tensor) -> torch.fx.GraphModule:
    graph = make_fx(function)(given.clone(), kept.clone())
    _, second = [node for node in graph.graph.nodes if node.op == "placeholder"]
    make_functional(graph, {second: kept})
    return graph


def test_what_is_read_after_a_change_is_the_changed_value() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        before = kept * 1.0
        kept.mul_(2.0)
        kept.detach().add_(x)
        return [before, kept * 10.0]

    x, kept = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    before, after, finite = functional(update, x, kept)(x, kept)
    assert before.tolist() == [3.0, 4.0]
    assert after.tolist() == [70.0, 100.0]
    assert kept.tolist() == [7.0, 10.0]
    assert finite


def test_only_the_end_writes() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        kept.add_(x)
        kept.mul_(2.0)
        return [x.sum()]

    graph = functional(update, torch.ones(2), torch.ones(2))
    writing = [n.name for n in graph.graph.nodes if getattr(getattr(n.target, "_schema", None), "is_mutable", False)]
    assert len(writing) == 1
    assert writing[0].startswith("copy_")


def test_opposite_infinities_do_not_cancel() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        kept.sub_(x)
        return [x.sum()]

    kept = torch.tensor([1.0, 2.0])
    graph = functional(update, torch.ones(2), kept)
    _, finite = graph(torch.tensor([1.0, math.inf]), kept)
    assert not finite
    assert kept.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_is_written_unless_all_is_finite(poison: float) -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        kept.add_(1.0)
        return [x.sum()]

    kept = torch.tensor([1.0, 2.0])
    graph = functional(update, torch.ones(2), kept)
    _, finite = graph(torch.tensor([1.0, poison]), kept)
    assert not finite
    assert kept.tolist() == [1.0, 2.0]


def test_a_gradient_that_is_a_view_may_be_scaled() -> None:
    def update(x: Tensor, kept: Tensor) -> list[Tensor]:
        turned = (x * 3.0).t()
        turned.mul_(2.0)
        kept.add_(turned)
        return [turned]

    x, kept = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2)
    turned, finite = functional(update, x, kept)(x, kept)
    assert finite
    assert turned.tolist() == kept.tolist() == [[6.0, 18.0], [12.0, 24.0]]


def read_late(x: Tensor, kept: Tensor) -> list[Tensor]:
    turned = kept.t()
    kept.add_(x)
    return [turned * 2.0]


def change_a_view(x: Tensor, kept: Tensor) -> list[Tensor]:
    kept.t().add_(x)
    return [x * 2.0]


def read_what_was_changed_through_a_view(x: Tensor, kept: Tensor) -> list[Tensor]:
    tripled = x * 3.0
    tripled.t().add_(1.0)
    kept.add_(x)
    return [tripled * 2.0]


@pytest.mark.parametrize("update", [read_late, change_a_view, read_what_was_changed_through_a_view])
def test_what_it_cannot_follow_is_refused(update: Callable[[Tensor, Tensor], list[Tensor]]) -> None:
    with pytest.raises(NotImplementedError, match="changed"):
        functional(update, torch.ones(2, 2), torch.ones(2, 2))
