"""Partials that complete each other, and properties that are computed once."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tmrl_core.functional import cached_property, partial, prod


class Model:
    def __init__(self, width: int = 256, activation: str = "relu") -> None:
        self.width, self.activation = width, activation


class Agent:
    def __init__(self, model_cls: Any = Model, lr: float = 1e-3) -> None:
        self.model, self.lr = model_cls(), lr


class Training:
    def __init__(self, agent_cls: Any = Agent, steps: int = 1, name: str = "x") -> None:
        self.agent, self.steps = agent_cls(), steps


def test_it_is_functools_partial() -> None:
    made = partial(Model, 32, activation="tanh")
    assert isinstance(made, functools.partial)
    assert (made().width, made().activation) == (32, "tanh")


def test_a_nested_partial_takes_the_default_of_its_parameter() -> None:
    training = partial(Training, agent_cls=partial(model_cls=partial(width=8), lr=0.5), steps=2)()
    assert isinstance(training.agent, Agent)
    assert (training.agent.model.width, training.agent.lr, training.steps) == (8, 0.5, 2)


def test_a_nested_partial_with_a_callable_is_passed_on_uncalled() -> None:
    made = partial(Agent, model_cls=partial(Model, width=8))
    assert isinstance(made.keywords["model_cls"], functools.partial)
    assert made().model.width == 8


@pytest.mark.parametrize("keyword", ["name", "unknown"])
def test_a_nested_partial_needs_a_callable_default(keyword: str) -> None:
    with pytest.raises(TypeError, match=keyword):
        partial(Training, **{keyword: partial(width=8)})


def test_a_partial_without_a_callable_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="names no callable"):
        partial(width=8)()


def test_cached_property_is_computed_once_per_object() -> None:
    calls: list[object] = []

    class Holder:
        @cached_property
        def value(self) -> int:
            calls.append(self)
            return len(calls)

        later: cached_property[int] = cached_property()

    first, second = Holder(), Holder()
    assert (first.value, first.value, second.value) == (1, 1, 2)
    assert isinstance(Holder.__dict__["value"], functools.cached_property)  # by which checkpoints know it
    with pytest.raises(AttributeError, match="'later'"):
        _ = first.later
    vars(first)["later"] = 3
    assert first.later == 3


def test_prod() -> None:
    assert prod(()) == 1
    assert prod((3, 4)) == 12
    assert prod([2**40, 2**40]) == 2**80
