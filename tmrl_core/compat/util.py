"""The helpers of `tmrl.util`, over the project's own formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod as prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tmrl_core import functional
from tmrl_core.errors import CodecError, StorageError
from tmrl_core.functional import partial as partial
from tmrl_core.storage import write_whole

if TYPE_CHECKING:
    from tmrl_core.training.value_types import Device, Tree

__all__ = [
    "cached_property",
    "collate_torch",
    "dump",
    "load",
    "load_json",
    "partial",
    "prod",
    "save_json",
]

T = TypeVar("T")


class cached_property(functional.cached_property[T]):
    """The project's `cached_property`, with tmrl's argument.

    Args:
        init: computes the value; None: the attribute is missing until it is assigned.
    """

    def __init__(self, init: Callable[[Any], T] | None = None) -> None:
        super().__init__(init)


def collate_torch(batch: Sequence[Tree], device: Device = None) -> Tree:
    """Stack nested structures of arrays and numbers into one of tensors with a batch dimension."""
    from tmrl_core.training.memories.memory import collate_to_torch

    return collate_to_torch(batch, device)


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
