"""Three helpers for users' scripts: `partial`, `cached_property` and `prod`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from math import prod as prod
from typing import Any, TypeVar

__all__ = ["cached_property", "partial", "prod"]

T = TypeVar("T")


def _unnamed(*_: Any, **__: Any) -> Any:
    raise TypeError("this partial names no callable: use it as a keyword argument of another partial, or name one")


def partial(func: Callable[..., T] = _unnamed, /, *args: Any, **keywords: Any) -> functools.partial[T]:
    """`functools.partial` that also resolves nested ones.

    A partial without a callable, given for a keyword argument, takes the default of that parameter as its callable, so
    that settings deep inside a tree of classes can be changed without naming the classes again:

        class Agent:
            def __init__(self, model_cls=MLPActorCritic, lr=1e-3): ...

        partial(Agent, model_cls=partial(hidden_sizes=(64, 64)))

    Nested partials are passed on as callables. Neither their creation nor the call of the outer one calls them.

    Args:
        func: the callable; if omitted, the outer partial's default.
        args: its first positional arguments.
        keywords: its keyword arguments, among them nested partials.

    Raises:
        TypeError: a nested partial without a callable belongs to a parameter that `func` lacks, or that has no callable
            as its default; or such a partial is called by itself.
    """
    if func is not _unnamed:
        for name, value in keywords.items():
            if isinstance(value, functools.partial) and value.func is _unnamed:
                keywords[name] = partial(_default_of(func, name), *value.args, **value.keywords)
    return functools.partial(func, *args, **keywords)


def _default_of(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    parameter = inspect.signature(func).parameters.get(name)
    found = inspect.Parameter.empty if parameter is None else parameter.default
    if found is inspect.Parameter.empty or not callable(found):
        raise TypeError(f"{func!r} has no default for {name!r} that a partial could complete: name the callable")
    return found


class cached_property(functools.cached_property[T]):
    """A property that is computed once per object, and kept out of checkpoints: it is computed again after a load.

    Args:
        func: computes the value. If omitted, the attribute is missing until it is assigned.
    """

    def __init__(self, func: Callable[[Any], T] | None = None) -> None:
        super().__init__(self._missing if func is None else func)

    def _missing(self, instance: object) -> T:
        raise AttributeError(f"{type(instance).__name__!r} object has no attribute {self.attrname!r}")
