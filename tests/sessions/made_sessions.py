"""Random sessions of any spaces, and an exact comparison."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.sessions.session import Session
from tmrl_core.sessions.session_files import Spaces


def columns(space: Any, rows: int, draw: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: columns(inner, rows, draw) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(columns(inner, rows, draw) for inner in space.spaces)
    if space.dtype.kind == "f":
        return draw.standard_normal((rows, *space.shape)).astype(space.dtype)
    return draw.integers(0, 4 if isinstance(space, spaces.Discrete) else 255, (rows, *space.shape)).astype(space.dtype)


def make_session(of: Spaces, ticks: int, number: int, **more: Any) -> Session:
    draw = np.random.default_rng(number)
    return Session(
        observations=columns(of[0], ticks + 1, draw),
        actions=columns(of[1], ticks, draw),
        rewards=draw.standard_normal(ticks),
        **more,
    )


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other) or np.isscalar(one)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    else:
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def assert_same(one: Session, other: Session) -> None:
    for field in fields(Session):
        assert_equal(getattr(one, field.name), getattr(other, field.name))
