"""The helpers of `tmrl.util`, over the project's own formats."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod as prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tmrl_core import functional
from tmrl_core.config import resolve
from tmrl_core.errors import CodecError, StorageError
from tmrl_core.functional import partial as partial
from tmrl_core.storage import write_whole

if TYPE_CHECKING:
    from tmrl_core.training.value_types import Device, Tree

__all__ = [
    "DelayInterrupt",
    "cached_property",
    "collate_torch",
    "dump",
    "get_class_or_function",
    "load",
    "load_json",
    "pandas_dict",
    "partial",
    "partial_from_args",
    "partial_to_dict",
    "prod",
    "save_json",
    "shallow_copy",
]

T = TypeVar("T")

FKEY = "+"
"""Key of the callable in the result of `partial_to_dict`."""


class cached_property(functional.cached_property[T]):
    """The project's `cached_property`, with tmrl's argument.

    Args:
        init: computes the value; None: the attribute is missing until it is assigned.
    """

    def __init__(self, init: Callable[[Any], T] | None = None) -> None:
        super().__init__(init)


def shallow_copy(obj: T) -> T:
    """Return a new object of the same class with the same attributes."""
    return copy.copy(obj)


def collate_torch(batch: Sequence[Tree], device: Device = None) -> Tree:
    """Stack nested structures of arrays and numbers into one of tensors with a batch dimension."""
    from tmrl_core.training.memories.memory import collate_to_torch

    return collate_to_torch(batch, device)


def pandas_dict(*args: Any, **kwargs: Any) -> Any:
    """Return a `pandas.Series` of the arguments of `dict`.

    Raises:
        ImportError: pandas, on which nothing else here depends, is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ModuleNotFoundError as exc:
        raise ImportError("pandas_dict needs pandas: install it with `pip install pandas`, or use a dict") from exc
    return pandas.Series(dict(*args, **kwargs), dtype=object)


def partial_to_dict(p: functools.partial[Any], version: str = "3") -> dict[str, Any]:
    """Return the settings of a partial, those of nested callables included, as plain values for a log."""
    if p.args:
        raise ValueError(f"found the positional arguments {p.args}, allowed: keyword arguments")
    try:
        parameters = inspect.signature(p.func).parameters
    except ValueError:  # functions of C without a signature
        parameters = inspect.signature(lambda: None).parameters
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    settings = {
        name: partial_to_dict(partial(value), version="") if callable(value) else value
        for name, value in {**defaults, **p.keywords}.items()
    }
    settings = {FKEY: f"{p.func.__module__}:{p.func.__qualname__}", **settings}
    return {**settings, "__format_version__": version} if version else settings


def get_class_or_function(func: str) -> Any:
    """Return the object that `package.module:Name` names.

    Raises:
        ConfigError: it names nothing.
    """
    return resolve(func)


def partial_from_args(func: str | Callable[..., Any], kwargs: Mapping[str, str]) -> functools.partial[Any]:
    """Return a partial of keyword arguments that are given as text, such as `{"agent_cls.lr": "0.1"}`.

    Values are JSON; a value that is not JSON stays text. Settings of a nested callable have its name before a dot.

    Raises:
        ValueError: the callable has no such parameter.
    """
    made = get_class_or_function(func) if isinstance(func, str) else func
    parameters = inspect.signature(made).parameters
    keywords: dict[str, Any] = {}
    for key in dict.fromkeys(name.partition(".")[0] for name in kwargs):
        if key not in parameters:
            raise ValueError(f"{key} is no parameter of {made}, which has {', '.join(parameters)}")
        nested = {name.partition(".")[2]: text for name, text in kwargs.items() if name.startswith(f"{key}.")}
        value = kwargs.get(key, parameters[key].default)
        keywords[key] = partial_from_args(value, nested) if nested else _value(value)
    return partial(made, **keywords)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text == "True" if text in ("True", "False") else text


def save_json(d: Any, path: str | Path) -> None:
    """Write plain values as JSON."""
    Path(path).write_text(json.dumps(d, ensure_ascii=False, indent=2), encoding="utf-8")


def load_json(path: str | Path) -> Any:
    """Return the values of a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


PICKLE = b"\x80"
"""First byte of a pickle of protocol 2 or later."""


def dump(obj: Any, path: str | Path) -> None:
    """Write nested numbers, strings, bytes, lists, tuples, dicts and arrays to a file, in the project's format.

    Tensors become arrays. The file is replaced as a whole.

    Raises:
        CodecError: something else is among the values, such as an object of a class; the message names the place.
    """
    from tmrl_core.samples import encode_value

    write_whole(Path(path), encode_value(_as_arrays(obj)), 0o600)


def load(path: str | Path) -> Any:
    """Return the values that `dump` wrote.

    Raises:
        StorageError: the file is a pickle, or not in this format.
    """
    from tmrl_core.samples import decode_value
    from tmrl_core.samples.values import own

    data = Path(path).read_bytes()
    try:
        return own(decode_value(data, max_bytes=len(data)), "value")
    except CodecError as exc:
        if data.startswith(PICKLE):
            raise StorageError(
                f"{path} is a pickle, which can run code when it is read, so it is refused. Write it again with "
                "tmrl_core.compat.util.dump, or as JSON with save_json; convert policies with --import-weights."
            ) from exc
        raise StorageError(f"{path} was not written by tmrl_core.compat.util.dump: {exc}") from exc


def _as_arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_as_arrays(item) for item in value)
    if type(value).__module__ == "torch" and type(value).__name__ in ("Tensor", "Parameter"):
        return value.detach().cpu().numpy()
    return value


class DelayInterrupt:
    """Delay SIGINT and SIGTERM to the end of a `with` block, which then raises KeyboardInterrupt.

    Only the main thread receives signals; in another one, the block runs as usual.
    """

    signals = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> None:
        self.signal_received = False
        self._handlers: list[tuple[signal.Signals, Any]] = []
        if threading.current_thread() is threading.main_thread():
            self._handlers = [(number, signal.signal(number, self.on_signal)) for number in self.signals]

    def on_signal(self, *args: object) -> None:
        """Remember a signal."""
        self.signal_received = True

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)
        if self.signal_received:
            raise KeyboardInterrupt
