"""Spaces of Gymnasium as JSON, without loss: shapes, dtypes, bounds and the order of keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.space_tree import space_leaves


def space_to_json(space: gymnasium.Space[Any], name: str = "space") -> dict[str, Any]:
    """Return the JSON value that `space_of_json` turns into an equal space.

    Args:
        space: of Box, Discrete, MultiBinary, MultiDiscrete, Dict and Tuple spaces.
        name: of the space, in messages.

    Raises:
        ConfigError: a space of another kind.
    """
    if isinstance(space, spaces.Dict):
        entries = [[key, space_to_json(inner, f"{name}[{key!r}]")] for key, inner in space.spaces.items()]
        return {"kind": "Dict", "spaces": entries}
    if isinstance(space, spaces.Tuple):
        inner = [space_to_json(inner, f"{name}[{index}]") for index, inner in enumerate(space.spaces)]
        return {"kind": "Tuple", "spaces": inner}
    if isinstance(space, spaces.Box):
        return {
            "kind": "Box",
            "shape": list(space.shape),
            "dtype": space.dtype.name,
            "low": bound_to_json(space.low),
            "high": bound_to_json(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": space.dtype.name}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "kind": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": np.dtype(space.dtype).name,
        }
    raise ConfigError(
        f"{name} is {space}, which cannot be recorded; allowed are Box, Discrete, MultiBinary, MultiDiscrete, Dict and "
        "Tuple spaces"
    )


def space_of_json(value: Any) -> gymnasium.Space[Any]:
    """Undo `space_to_json`.

    Raises:
        ValueError: the value describes no space.
    """
    try:
        return _READERS[value["kind"]](value)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as exc:
        raise ValueError(f"{value!r:.200} describes no space ({type(exc).__name__}: {exc})") from exc


def bounded(space: gymnasium.Space[Any]) -> bool:
    """Return True if all bounds of a space are known, see `completed`."""
    boxes = [leaf for _, leaf in space_leaves(space) if isinstance(leaf, spaces.Box)]
    return not any(bound.any() for box in boxes for bound in _unknown(box))


def completed(space: gymnasium.Space[Any], other: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return a space whose unknown bounds are those of another space of the same form.

    A bound is unknown if it is infinite, or if the space allows all numbers of its integer type, as in datasets that
    store no bounds. A uint8 picture, [height, width, channels], declares its bounds by being one.
    """
    if isinstance(space, spaces.Dict) and isinstance(other, spaces.Dict) and list(space) == list(other):
        return spaces.Dict([(key, completed(inner, other[key])) for key, inner in space.spaces.items()])
    if isinstance(space, spaces.Tuple) and isinstance(other, spaces.Tuple) and len(space) == len(other):
        return spaces.Tuple([completed(*pair) for pair in zip(space.spaces, other.spaces, strict=True)])
    if not (isinstance(space, spaces.Box) and isinstance(other, spaces.Box)):
        return space
    if (space.shape, space.dtype) != (other.shape, other.dtype):
        return space
    no_low, no_high = _unknown(space)
    low, high = np.where(no_low, other.low, space.low), np.where(no_high, other.high, space.high)
    return spaces.Box(low, high, space.shape, space.dtype.type)


def _unknown(space: spaces.Box) -> tuple[Any, Any]:
    """Return where the low and where the high bounds of a Box are unknown."""
    # Datasets without bounds state all numbers of a type, and a space that means them says the same. Taking them for
    # unknown is harmless: another recording of the same environment states the same bounds.
    dtype: Any = space.dtype
    kind = dtype.kind
    if kind == "b" or (space.dtype == np.uint8 and len(space.shape) == 3):
        return np.False_, np.False_
    limits: Any = np.finfo(dtype) if kind == "f" else np.iinfo(dtype)
    no_low, no_high = space.low <= limits.min, space.high >= limits.max
    if kind == "f":
        return no_low, no_high
    return no_low & no_high, no_low & no_high  # 0 alone is a bound that people mean


def _box(value: Any) -> gymnasium.Space[Any]:
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    low, high = (
        np.broadcast_to(np.asarray(bound_of_json(value[key]), dtype), shape).astype(dtype) for key in ("low", "high")
    )
    return spaces.Box(low, high, shape, dtype.type)


def _multi_discrete(value: Any) -> gymnasium.Space[Any]:
    dtype = np.dtype(value["dtype"]).type
    return spaces.MultiDiscrete(np.asarray(value["nvec"], dtype), dtype, start=np.asarray(value["start"], dtype))


_READERS: dict[str, Callable[[Any], gymnasium.Space[Any]]] = {
    "Dict": lambda value: spaces.Dict([(key, space_of_json(inner)) for key, inner in value["spaces"]]),
    "Tuple": lambda value: spaces.Tuple([space_of_json(inner) for inner in value["spaces"]]),
    "Box": _box,
    "Discrete": lambda value: spaces.Discrete(value["n"], start=value["start"], dtype=np.dtype(value["dtype"]).type),
    "MultiBinary": lambda value: spaces.MultiBinary(value["n"]),
    "MultiDiscrete": _multi_discrete,
}


def bound_to_json(bound: np.ndarray) -> Any:
    """Return a number where all elements are equal, else nested lists; JSON has no number for infinity."""
    # One number instead of 150,528 for a picture of 224 x 224.
    if bound.size and (bound == bound.flat[0]).all():
        return _number_to_json(bound.flat[0].item())
    return _mapped(_number_to_json, bound.tolist())


def _number_to_json(value: Any) -> Any:
    # "inf" and "-inf", which `float` reads back; NaN is no bound.
    return value if math.isfinite(value) else str(value)


def bound_of_json(value: Any) -> Any:
    """Undo `bound_to_json`, but for the shape of equal elements."""
    return _mapped(lambda number: float(number) if isinstance(number, str) else number, value)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    return [_mapped(function, inner) for inner in value] if isinstance(value, list) else function(value)
