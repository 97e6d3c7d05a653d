"""Named arrays and a few words about them, to and from safetensors, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from tmrl_core.errors import WeightsError

SAFETENSORS_FORMAT = "safetensors"


def encode_arrays(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """The arrays as the content of a safetensors file."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(contiguous, dict(metadata))


def decode_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays (read-only, on `data`'s memory where possible) and the metadata of a safetensors file's content.

    Raises:
        WeightsError: the bytes are not of that format, or cut short.
    """
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as exc:
        raise WeightsError(f"these {len(data)} bytes are no weights in the safetensors format: {exc}") from exc
    return arrays, read_metadata(data)


def read_metadata(data: bytes) -> dict[str, str]:
    """The metadata in the header of a safetensors file's content that has been checked already."""
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_bytes])
    metadata = header.get("__metadata__") or {}
    return {str(key): str(value) for key, value in metadata.items()}


def check_shapes(
    owner: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], advice: str
) -> None:
    """Refuse weights whose names or shapes are not those of the policy.

    Raises:
        WeightsError: names the sizes of hidden layers, what is missing or too much, or both shapes of the first that
            differs.
    """
    if (here := _hidden_sizes(expected)) != (there := _hidden_sizes(found)):
        raise WeightsError(f"the weights are not for {owner}: hidden_sizes: {here} here, {there} in them. {advice}")
    missing = [name for name in expected if name not in found]
    unknown = sorted(name for name in found if name not in expected)
    if missing or unknown:
        parts = [f"{label} {', '.join(names)}" for label, names in (("without", missing), ("with", unknown)) if names]
        raise WeightsError(f"the weights are not for {owner}: they come {' and '.join(parts)}. {advice}")
    for name, shape in expected.items():
        if tuple(found[name]) != tuple(shape):
            raise WeightsError(
                f"the weights are not for {owner}: {name} has the shape {tuple(found[name])}, "
                f"the policy's has {tuple(shape)}. {advice}"
            )


def check_finite(owner: str, bad: Iterable[str]) -> None:
    """Refuse weights of which these, by name, are not finite: their actions would not be either.

    Raises:
        WeightsError: there is one.
    """
    if first := next(iter(bad), None):
        raise WeightsError(f"the weights for {owner} are not finite: {first} holds NaN or an infinite number")


ADVICE = "Trainer and worker must use the same environment and the same actor.kwargs."


def describe(shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return a policy's architecture as plain values: what a worker tells the trainer when it joins."""
    return {"shapes": {name: list(shape) for name, shape in shapes.items()}, "metadata": dict(metadata)}


def difference(worker: Any, trainer: Mapping[str, Any]) -> str:
    """Return the first difference between two policies' architectures; empty where there is none or one is not known.

    Args:
        worker: what `describe` returned there; it came over the network and may be anything.
        trainer: what `describe` returned here, or nothing.
    """
    if not trainer or not isinstance(worker, dict):
        return ""
    for part in ("metadata", "shapes"):
        found, expected = worker.get(part), trainer[part]
        if not isinstance(found, dict) or not all(_is_plain(value) for value in found.items()):
            return ""
        if part == "shapes" and (sizes := _hidden_sizes(found)) != (ours := _hidden_sizes(expected)):
            return f"hidden_sizes: {sizes} at the worker, {ours} at the trainer"
        # As when weights are loaded, words about them count where both sides have them.
        names = found.keys() | expected.keys() if part == "shapes" else found.keys() & expected.keys()
        for name in sorted(names):
            if found.get(name) != expected.get(name):
                return f"{name}: {found.get(name, 'none')} at the worker, {expected.get(name, 'none')} at the trainer"
    return ""


def _is_plain(entry: tuple[Any, Any]) -> bool:
    name, value = entry
    return isinstance(name, str) and (
        # Python refuses to write integers of thousands of digits.
        isinstance(value, str)
        or (isinstance(value, list) and all(type(size) is int and abs(size) < 1 << 63 for size in value))
    )


def _hidden_sizes(shapes: Mapping[str, Any]) -> list[int]:
    """Outputs of the layers `net.0`, `net.2`, ... of a multi-layer perceptron."""
    sizes: list[int] = []
    while isinstance(shape := shapes.get(f"net.{2 * len(sizes)}.weight"), (list, tuple)) and len(shape) == 2:
        sizes.append(shape[0])
    return sizes
