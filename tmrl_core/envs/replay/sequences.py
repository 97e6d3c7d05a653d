"""Declared sequences: the shape and dtype of each observation, action and agent memory, and checks of given arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples.columns import Array

_KINDS = "biuf"


@dataclass(frozen=True, slots=True)
class ItemFormat:
    """Shape and dtype of one item: an observation, an action or an agent memory of one session at one tick.

    Attributes:
        shape: of an item; None: one axis, whose size the first sessions set.
        dtype: of an item.
    """

    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]


def item_formats(
    declared: object, name: str, *, shape: tuple[int, ...] | None, dtype: object, least: int
) -> tuple[ItemFormat, ...]:
    """Return the formats that an argument of a pool declares.

    Args:
        declared: a number of items, one Gymnasium space, or a list of spaces.
        name: of the argument, in messages.
        shape: of an item if a number is declared.
        dtype: of an item whose declaration states none.
        least: minimum number of items.

    Raises:
        ConfigError: it declares none.
    """
    default = _dtype(dtype, f"the dtype of {name}")
    allowed = f"allowed are a number of at least {least}, a Gymnasium space and a list of such spaces"
    if isinstance(declared, gymnasium.Space):
        declared = [declared]
    if isinstance(declared, (list, tuple)):
        if len(declared) < least:
            raise ConfigError(f"{name} is an empty list; {allowed}")
        return tuple(_format_of(space, f"{name}[{index}]", default) for index, space in enumerate(declared))
    if isinstance(declared, bool) or not isinstance(declared, (int, np.integer)) or declared < least:
        raise ConfigError(f"{name} is {declared!r}; {allowed}")
    return (ItemFormat(shape, default),) * int(declared)


def _format_of(space: object, name: str, default: np.dtype[Any]) -> ItemFormat:
    if not isinstance(space, gymnasium.Space):
        raise ConfigError(f"{name} is {space!r}; allowed is a Gymnasium space")
    if space.shape is None:
        raise ConfigError(
            f"{name} is {space}, which has no shape; allowed are spaces of one array (Box, Discrete, MultiDiscrete, "
            "MultiBinary). Declare each part of a Dict or Tuple space as a space of its own"
        )
    return ItemFormat(tuple(space.shape), default if space.dtype is None else _dtype(space.dtype, name))


def _dtype(value: object, name: str) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(value)  # type: ignore[call-overload]
    except TypeError as exc:
        raise ConfigError(f"{name} is {value!r}, which is no dtype: {exc}") from exc
    if dtype.kind not in _KINDS:
        raise ConfigError(f"{name} is {dtype}; allowed are the dtypes of booleans, integers and real numbers")
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


def listed(given: object, count: int, name: str, items: str) -> list[tuple[str, Any]]:
    """Return the arrays of an argument, each with its name.

    Args:
        given: one array, or a list in declared order.
        count: number of arrays that are declared.
        name: of the argument.
        items: plural of what is declared, in messages.

    Raises:
        SampleRefusedError: there are more or fewer.
    """
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(parts) != count:
        found = f"a list of {len(parts)}" if isinstance(given, (list, tuple)) else "one array"
        raise SampleRefusedError(
            f"{name} is {found}; the pool declares {count} {items}, so pass a list of {count} arrays in that order"
        )
    return [(name if count == 1 else f"{name}[{index}]", part) for index, part in enumerate(parts)]


def array_of(value: object, name: str) -> Array:
    """Return an argument as an array of numbers, without copying an array.

    Raises:
        SampleRefusedError: it is none.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as exc:  # torch raises the latter two for tensors on a GPU
        raise SampleRefusedError(f"{name} cannot be read as an array: {exc}") from exc
    if array.dtype.kind not in _KINDS:
        raise SampleRefusedError(
            f"{name} has the dtype {array.dtype}; allowed are booleans, integers and real numbers (arrays of one shape)"
        )
    return array


def checked(array: Array, format_: ItemFormat, name: str, lead: Sequence[int], *, cast: bool) -> Array:
    """Return an array of items of the declared shape, with finite numbers.

    Args:
        array: the items of sessions.
        format_: declared.
        name: of the argument, in messages.
        lead: numbers of sessions and, in sequences, of ticks.
        cast: convert it to the declared dtype. Otherwise its dtype is kept.

    Raises:
        SampleRefusedError: another shape, a number that is not finite, or one that the declared dtype cannot hold.
    """
    axes = ("batch", "tick")[: len(lead)]
    wanted = ["unit"] if format_.shape is None else list(map(str, format_.shape))
    if array.ndim != len(lead) + len(wanted) or (
        format_.shape is not None and array.shape[len(lead) :] != format_.shape
    ):
        raise SampleRefusedError(
            f"{name} has the shape {list(array.shape)}; expected is [{', '.join([*axes, *wanted])}]"
            + (". Declare a Gymnasium space for items of another shape" if format_.shape is None else "")
        )
    if array.shape[: len(lead)] != tuple(lead):
        expected = " and ".join(f"{n} {what}" for n, what in zip(lead, ("sessions", "ticks"), strict=False))
        found = " and ".join(
            f"{n} {what}" for n, what in zip(array.shape, ("sessions", "ticks")[: len(lead)], strict=False)
        )
        raise SampleRefusedError(f"{name} has {found}; the arguments before it have {expected}")
    # The search for the place is made only if the sum says that there is one.
    if array.dtype.kind == "f" and not _is_finite(array):
        _refuse(name, array, ~np.isfinite(array), len(lead), "only finite numbers can be stored")
    return _cast(array, format_.dtype, name, len(lead)) if cast else array


def _is_finite(array: Array) -> bool:
    """Return False if a number may not be finite: one sum instead of a flag for each."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum(dtype=np.float64)))


def _cast(array: Array, dtype: np.dtype[Any], name: str, lead: int) -> Array:
    """Round real numbers to those of the dtype; integers must keep their value."""
    if array.dtype == dtype:
        return array
    # Rounding is meant (float64 to float32); a changed integer, or a number that became infinite, is not.
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
        bad = ~np.isfinite(cast) if dtype.kind == "f" else cast != array
    _refuse(name, array, bad, lead, f"{dtype} cannot hold it; declare another dtype (a Gymnasium space fixes it)")
    return cast


def _refuse(name: str, array: Array, bad: Any, lead: int, reason: str) -> None:
    """Name the first of the bad items."""
    if np.any(bad):
        at = tuple(int(index[0]) for index in np.nonzero(bad))
        place = ", ".join(f"{what} {index}" for what, index in zip(("session", "tick")[:lead], at, strict=False))
        raise SampleRefusedError(f"{name}, {place}: found {array[at]}; {reason}")


def check_alive(alive_BT: Array) -> None:
    """Refuse a mask that does not say for each session how many of its ticks are alive.

    Raises:
        SampleRefusedError: a value is neither 0 nor 1, or a 1 follows a 0; the message names the first.
    """
    for bad, problem in (
        ((alive_BT != 0) & (alive_BT != 1), "allowed are 0 and 1"),
        (np.diff(alive_BT.astype(np.int8), axis=1, prepend=1) > 0, "it follows a 0; sessions end once"),
    ):
        if bad.any():
            session, tick = (int(index[0]) for index in np.nonzero(bad))
            raise SampleRefusedError(
                f"is_alive, session {session}, tick {tick}: found {float(alive_BT[session, tick]):g}; {problem}"
            )
