"""Named arrays and metadata, to and from safetensors, without torch."""

# Theory of operation
#
# The one form of weights on the wire, in files and in checkpoints' policies: named arrays in safetensors, which is data
# alone and cannot run code. This file imports no torch; torch's policies use it through `torch/module.py`.
#
# A file is 8 bytes with the length of a JSON header, the header (name, dtype, shape and place of each array, and
# metadata of texts), then the arrays. Two things are added to what the library does:
#
# - Metadata in order of their names. The library writes them in random order, so equal weights would be other bytes,
#   other hashes, and another file for each save.
# - Exploration parameters, in files alone. Messages send them beside the weights, since they may change while the
#   weights stay (an epsilon).
#
# Arrays that do not fit are refused before anything is changed, in the order in which a message helps most: sizes of
# hidden layers by their setting's name ("hidden_sizes: [256, 256] here, [64, 64] in them"), missing and unknown names,
# both shapes of the first difference; then metadata, which hold what shapes do not show (the activation, kinds and
# bounds of bytes); then numbers that are not finite. Metadata are compared where both sides have them, so that a policy
# of one's own may add an entry.
#
# The same comparison is made when a worker joins (`describe`, `difference`), before it has collected anything: the
# trainer then says in one line what differs. What the worker sends is untrusted and may be anything, so every part is
# checked to be plain before it is put into a text.
#
# Numbers of a network are recovered from names and shapes (`net.0`, `net.2`, ... are hidden layers) instead of being
# stored: a setting beside the arrays could contradict them.

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from tmrl_core.actor.module import ActorModule
from tmrl_core.errors import WeightsError
from tmrl_core.storage import read_whole

Actor = TypeVar("Actor", bound=ActorModule)

SAFETENSORS_FORMAT = "safetensors"
"""Tag of weights in this format. Names, shapes and metadata of the arrays are checked on loading."""
_EXPLORATION = "exploration"
"""Metadata entry of files."""


def encode_arrays(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """The arrays as the content of a safetensors file."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return with_sorted_metadata(safetensors.numpy.save(contiguous, dict(metadata)))


def with_sorted_metadata(data: bytes, more: Mapping[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file with its metadata, and `more` of them, in order of their names.

    The library writes several entries in random order, so that equal weights would be other bytes.
    """
    metadata = {**read_metadata(data), **(more or {})}
    if len(metadata) < 2 and not more:
        return data
    header = {**(_header(data) or {}), "__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Padded as the library does, so that the arrays begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + int.from_bytes(data[:8], "little") :]


def with_bfloat16_matrices(data: bytes) -> bytes:
    """Return weights whose float32 arrays of two or more dimensions are rounded to the nearest bfloat16, ties to even.

    Names, shapes, dtypes and size stay, so every backend reads them: the lower half of each rounded number is zero,
    which costs nothing after compression. Weights in another format than safetensors are returned as they are.
    """
    # Vectors keep all of their digits. Their bytes hardly count, and the mean of an observation needs them: 1,000 with
    # a deviation of 0.1 would be rounded by 2.
    header = _header(data)
    if header is None:
        return data
    rounded = bytearray(data)
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32" or len(entry["shape"]) < 2:
            continue
        first, last = entry["data_offsets"]
        words = np.frombuffer(rounded, "<u4", (last - first) // 4, begin + first)
        # As torch rounds. No NumPy has a dtype for it, and integers need none.
        nearest = (words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        # A number that would overflow stays; so does NaN, which the receiver refuses by name.
        np.copyto(words, nearest, where=np.isfinite(words.view("<f4")) & np.isfinite(nearest.view("<f4")))
    return bytes(rounded)


def with_exploration(data: bytes, exploration: Mapping[str, float]) -> bytes:
    """Return weights as a file keeps them: with the exploration parameters, which messages send beside the weights.

    Args:
        data: the weights; those in another format than safetensors are returned as they are.
        exploration: of the policy; may be empty.
    """
    if not exploration or _header(data) is None:
        return data
    return with_sorted_metadata(data, {_EXPLORATION: json.dumps(dict(exploration))})


def exploration_in(data: bytes) -> dict[str, float]:
    """Return the exploration parameters that `with_exploration` added; empty: there are none.

    Raises:
        WeightsError: the entry does not hold finite numbers.
    """
    text = read_metadata(data).get(_EXPLORATION)
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, float])
    except ValueError as exc:
        raise WeightsError(f"the exploration parameters beside the weights are {text!r:.100}: {exc}") from exc


def load_file(path: str | Path, read: Callable[[bytes], Actor]) -> Actor:
    """Return the actor that `read` makes of a file's weights, with the exploration parameters of the file.

    Raises:
        WeightsError: as `exploration_in` and `read`.
    """
    data = read_whole(path)
    # Read first: an entry that is wrong must leave the actor as it is.
    exploration = exploration_in(data)
    actor = read(data)
    if exploration:
        actor.set_exploration(exploration)
    return actor


def _header(data: bytes) -> dict[str, Any] | None:
    """Return the header of a safetensors file's content; None: the bytes do not begin with one."""
    # Only what lies in the file is parsed: a length from other bytes may be any 64-bit number.
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size]) if 2 <= size <= len(data) - 8 else None
    except ValueError:
        return None
    return header if isinstance(header, dict) else None


def decode_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays (read-only views of `data` where possible) and the metadata of a safetensors file's content.

    Raises:
        WeightsError: the bytes have another format, or are truncated.
    """
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as exc:
        raise WeightsError(f"{len(data)} bytes of weights are not in the safetensors format: {exc}") from exc
    return arrays, read_metadata(data)


def read_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file's content; empty for other bytes."""
    metadata = (_header(data) or {}).get("__metadata__")
    return {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


ADVICE = "Trainer and worker must use the same environment and the same actor.kwargs."


def check_weights(
    owner: str,
    shapes: Mapping[str, tuple[int, ...]],
    found_shapes: Mapping[str, tuple[int, ...]],
    metadata: Mapping[str, str],
    found_metadata: Mapping[str, str],
    not_finite: Iterable[str],
    advice: str = ADVICE,
) -> None:
    """Reject weights that are not for a policy.

    Args:
        owner: name of the policy in messages.
        shapes, found_shapes: of the policy's arrays and of those that came, by name.
        metadata, found_metadata: settings that shapes do not show; they are compared where both sides have them.
        not_finite: names of arrays that are not finite: actions would not be finite either.
        advice: next step for weights of another shape.

    Raises:
        WeightsError: the message names the sizes of hidden layers, missing and unknown names, or both shapes of the
            first difference; the setting that differs; or an array that is not finite.
    """
    if shapes != found_shapes:
        raise WeightsError(f"the weights are not for {owner}: {_shape_difference(shapes, found_shapes)}. {advice}")
    for key, value in metadata.items():
        if found_metadata.get(key, value) != value:
            found = found_metadata[key]
            raise WeightsError(f"the weights are not for {owner}: their {key} is {found}, not {value}. {ADVICE}")
    if first := next(iter(not_finite), None):
        raise WeightsError(f"the weights for {owner} are not finite: {first} holds NaN or an infinite number")


def _shape_difference(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> str:
    for key, here, there in _other_sizes(expected, found):
        return f"{key}: {here} here, {there} in them"
    missing = [name for name in expected if name not in found]
    unknown = sorted(name for name in found if name not in expected)
    if missing or unknown:
        parts = [f"{label} {', '.join(names)}" for label, names in (("without", missing), ("with", unknown)) if names]
        return f"they come {' and '.join(parts)}"
    name = next(name for name in expected if found[name] != expected[name])
    return f"{name} has the shape {found[name]}, the policy's has {expected[name]}"


def describe(shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return a policy's architecture as plain values, which a worker sends to the trainer when it joins."""
    return {"shapes": {name: list(shape) for name, shape in shapes.items()}, "metadata": dict(metadata)}


def difference(worker: Any, trainer: Mapping[str, Any]) -> str:
    """Return the first difference between two policies' architectures; empty where there is none or one is not known.

    Args:
        worker: result of `describe` at the worker; it came over the network and may be anything.
        trainer: result of `describe` here; may be empty.
    """
    if not trainer or not isinstance(worker, dict):
        return ""
    for part in ("metadata", "shapes"):
        found, expected = worker.get(part), trainer[part]
        if not isinstance(found, dict) or not all(_is_plain(value) for value in found.items()):
            return ""
        for key, ours, theirs in _other_sizes(expected, found) if part == "shapes" else ():
            return f"{key}: {theirs} at the worker, {ours} at the trainer"
        # As on loading, metadata are compared only where both sides have them.
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


def _other_sizes(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of each setting that shapes show and in which two policies differ."""
    ours, theirs = _sizes(here), _sizes(there)
    yield from ((key, ours[key], theirs[key]) for key in ours if ours[key] != theirs[key])


def _sizes(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes of hidden layers (outputs of `net.0`, `net.2`, ...), and kind and units of a recurrent layer."""
    sizes: list[int] = []
    while isinstance(shape := shapes.get(f"net.{2 * len(sizes)}.weight"), (list, tuple)) and len(shape) == 2:
        sizes.append(shape[0])
    recurrent = shapes.get("rnn.weight_hh_l0")
    if not isinstance(recurrent, (list, tuple)) or len(recurrent) != 2 or not recurrent[1]:
        return {"hidden_sizes": sizes, "cell": "none", "cell_size": 0}
    cell = {3: "gru", 4: "lstm"}.get(recurrent[0] // recurrent[1], "unknown")
    return {"hidden_sizes": sizes, "cell": cell, "cell_size": recurrent[1]}
