"""Check of keyword arguments against the types in a signature.

Configurations hold numbers, text, lists and tables. A class may name any type; unknown types accept every value, so
that only definite errors are refused.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def misfits(found: Callable[..., Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each value that does not match its type in a callable's signature.

    Args:
        found: the callable; its annotations are resolved, nothing is called.
        kwargs: values by name.
    """
    maker = found.__init__ if inspect.isclass(found) else found
    try:
        hints = typing.get_type_hints(maker)
        parameters = inspect.signature(found).parameters
    except (NameError, TypeError, ValueError, AttributeError):
        return
    for name, value in kwargs.items():
        if name in hints and name in parameters and not fits(value, hints[name]):
            yield f"{name}: found {value!r:.100}, allowed: {parameters[name].annotation}"


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value matches a type. A type that this module does not know accepts every value.

    Integers may be written as 1e6. NaN is not accepted as a number.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if hint in (int, float, bool, str, None, types.NoneType):
        return _is_plain(value, hint)
    kind = origin or hint
    if kind is tuple and arguments and Ellipsis not in arguments:
        same_length = isinstance(value, list | tuple) and len(value) == len(arguments)
        return same_length and all(map(fits, value, arguments))
    if kind in (list, tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(one, arg) for one in value for arg in arguments[:1])
    if kind in (dict, Mapping):
        return isinstance(value, Mapping)
    if kind is Callable:
        return callable(value) or (isinstance(value, str) and ":" in value)  # a reference names a callable
    if inspect.isclass(kind) and isinstance(value, bool | int | float | str | list):
        try:
            return isinstance(value, kind)
        except TypeError:  # a protocol, whose members are not checked
            return True
    return True


def _is_plain(value: Any, kind: Any) -> bool:
    if kind in (None, types.NoneType):
        return value is None
    if kind in (bool, str):
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, int) or (isinstance(value, float) and not math.isnan(value))
