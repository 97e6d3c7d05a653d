"""Values of keyword arguments, held against what signatures name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest

from tmrl_core.config.annotations import fits, misfits
from tmrl_core.config.references import check_kwargs
from tmrl_core.errors import ConfigError


class Shape(Protocol):
    width: int


FITTING: list[tuple[Any, Any]] = [
    (1, int), (1e6, int), (1, float), (0.5, float), (math.inf, float), (True, bool), ("a", str), (None, None),
    (None, int | None), (3, int | None), ([64, 64], Sequence[int]), ((0.9, 0.999), tuple[float, float]),
    ([0.9, 0.999], tuple[float, float] | None), ([], list[int]), ({"a": 1}, Mapping[str, Any]), ({}, dict[str, int]),
    (len, Callable[..., Any]), ("relu", str | Callable[..., Any]), ("mine:Net", Callable[..., Any]),
    ("ram", Literal["ram", "disk"]), (object(), Any),
    ("x", Any), ("a/b", str | Path), (Path(), Path), (1, Shape), (int, type[int]), ((1, 2, 3), tuple[int, ...]),
]  # fmt: skip
MISFITTING: list[tuple[Any, Any]] = [
    (0.5, int), (True, int), (math.nan, int), (math.inf, int), ("1", int), (None, int), (math.nan, float),
    (False, float), ("1e-3", float), ([], float), (1, bool), (1, str), (64, Sequence[int]), ("64", Sequence[int]),
    ([0.5], Sequence[int]),
    ([0.9], tuple[float, float]), ({"a": 1}, Sequence[int]), ([1], Mapping[str, Any]), (0.0, Callable[..., Any]),
    ("mine", Callable[..., Any]),
    (1, str | Callable[..., Any]), ("tape", Literal["ram", "disk"]), (0, Path | None), ("x", tuple[int, ...]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "hint"), FITTING)
def test_values_of_compatible_types_are_accepted(value: Any, hint: Any) -> None:
    assert fits(value, hint)


@pytest.mark.parametrize(("value", "hint"), MISFITTING)
def test_values_of_other_types_are_refused(value: Any, hint: Any) -> None:
    assert not fits(value, hint)


class Agent:
    def __init__(self, lr: float = 1e-3, sizes: Sequence[int] = (), other: unknown = None, **more: Any) -> None:  # type: ignore[name-defined] # noqa: F821
        raise AssertionError("nothing is called")


class Plain:
    def __init__(self, lr: float = 1e-3, sizes: Sequence[int] = (), **more: Any) -> None:
        raise AssertionError("nothing is called")


def test_each_type_error_is_named_with_the_allowed_values() -> None:
    assert list(misfits(Plain, {"lr": "fast", "sizes": 64, "else": math.nan})) == [
        "lr: found 'fast', allowed: float",
        "sizes: found 64, allowed: Sequence[int]",
    ]
    assert list(misfits(Agent, {"lr": "fast"})) == [], "of what names unknown types nothing is known"
    assert list(misfits(len, {"obj": 1})) == []


def test_only_built_in_callables_are_checked() -> None:
    check_kwargs(Plain, {"lr": "fast"}, "agent.kwargs")
    from tmrl_core.training import ReplayMemory

    with pytest.raises(
        ConfigError, match=r"^memory\.kwargs\.n_step: found 'x', allowed: float\nmemory\.kwargs\.prefetch"
    ):
        check_kwargs(ReplayMemory, {"n_step": "x", "prefetch": [1], "seed": 3}, "memory.kwargs")
