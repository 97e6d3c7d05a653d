"""Capture the state of a training object as a tree of JSON values and named arrays, without pickle."""

# Theory of operation
#
# `capture` begins with the training object and follows attributes and items. It knows three kinds of objects:
#
# - values: numbers, strings, containers, arrays, tensors, random generators;
# - parts that write their own state (`Checkpointable`): networks, optimizers, columnar memories, objects of a user;
# - owners: the training object, agents, memories and algorithms, whose attributes are their state.
#
# Plain values stand for themselves; each other node is a dict with its kind under "t". Arrays and tensors are copied,
# so that the result may be written beside training. Example: an agent with `epsilon = 0.1`, a target network and a list
# of 20 losses becomes
#
#     {"t": "owner", "class": "my.module:Agent", "version": 1, "v": {
#         "epsilon": 0.1,
#         "target": {"t": "stateful", ..., "v": {"t": "dict", "v": [["0.weight", {"t": "tensor", ...}]]}},
#         "losses": {"t": "numbers", "kind": "float", "a": "agent.losses"}}}
#
# and the arrays under "a" lie beside it, by name. Long lists of numbers or of equal arrays become one array, since a
# memory of single transitions has lists of millions.
#
# An object that is met again becomes a reference to its path, so shared objects are shared after a resume too. The
# parts of a captured module are not saved a second time, if an attribute names one. Captured objects are kept alive
# until the end, because an id may be used again after its object is gone.
#
# All attributes of an owner are state, except those in `transient`, and this includes those of derived classes.
# Rejected: a list of names in each class, and a generic walk for derived classes. Almost all attributes of an agent are
# state, its settings included, since a schedule may change them. The list would be longer than `transient`, and the
# walk would remain.
#
# A class is written as its type id, or `module:qualname` without one, with a version. The name is only compared with
# the class of the object that the configuration has created, so reading a checkpoint imports nothing and runs no code.
#
# Functions, classes, devices, dtypes, spaces and paths are not saved: a constructor makes them and training does not
# change them. Every other object is skipped with one warning, which says what to do; a failure of a user's `state_dict`
# skips that object only. A failure of a network, an optimizer or an owner is an error: without it a checkpoint would be
# useless, and it would be better known today than on the day of the resume. `restore.py` undoes all this.

from __future__ import annotations

import base64
import enum
import logging
import pathlib
import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch

from tmrl_core.actor.policies.torch.module import TorchActorModule
from tmrl_core.errors import CheckpointError
from tmrl_core.training.checkpointable import (
    Checkpointable,
    StateOwner,
    attributes_of,
    saved_attributes,
    type_name,
    type_version,
)
from tmrl_core.training.checkpoints.random_state import Generator, generator_state, global_random_state
from tmrl_core.training.checkpoints.replay_rows import MemoryRows
from tmrl_core.training.contracts import TrainingMemory
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.row_memory import RowMemory
from tmrl_core.training.value_types import Tree

logger = logging.getLogger(__name__)

Node: TypeAlias = Any
"""A JSON value."""

GAP: Node = {"t": "constant"}
"""Mark a value that is not saved. On resume, the constructor makes the value."""

_SHORT = 16
"""Minimum length of a list of arrays or numbers that is stored as one array."""

_CONSTANTS = (
    type,
    types.ModuleType,
    torch.device,
    torch.dtype,
    gymnasium.Space,
    np.dtype,
    pathlib.PurePath,
    enum.Enum,
    logging.Logger,
)

_NEEDED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)

_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


@dataclass
class Captured:
    """The state of a training object.

    Attributes:
        tree: JSON values.
        arrays: copies of the arrays, by their names in the tree.
        skipped: reasons why values are not saved, by the values' paths.
        rows: rows of memories that store them in separate files, by the memories' paths.
    """

    tree: Node = None
    arrays: dict[str, Array] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    rows: dict[str, MemoryRows] = field(default_factory=dict)

    def warn(self, logged: set[str]) -> None:
        """Log a warning about skipped values whose paths are not in `logged` yet; add the paths to `logged`."""
        new = [f"{path} ({reason})" for path, reason in self.skipped.items() if path not in logged]
        logged.update(self.skipped)
        if new:
            logger.warning(
                "checkpoints cannot hold %s: on resume, that comes from the constructor. Give it state_dict() and "
                "load_state_dict(), or name the attribute in the class attribute `transient` if this is right.",
                ", ".join(new),
            )


def capture(training: object) -> Captured:
    """Return the state of a training object and the random states of this process."""
    captured = Captured()
    attributes = attributes_of(training)
    owners = {id(training), *(id(attributes[name]) for name in ("agent", "memory") if name in attributes)}
    walk = _Capture(captured, owners)
    captured.tree = {
        "training": walk.node(training, ""),
        "random": walk.node(global_random_state(), "random"),
        "constructed": walk.node(dict(attributes.get("constructed", {})), "constructed"),
    }
    return captured


def capture_part(part: object, path: str) -> Captured:
    """Return the state of one part of training, such as an agent, without random states of the process.

    Args:
        part: an agent, or a tree of values.
        path: path of the part, for the names of arrays and for messages.
    """
    captured = Captured()
    captured.tree = _Capture(captured, {id(part)}).node(part, path)
    return captured


def class_name(value: object) -> str:
    """Return the qualified name of an object's class, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def weights_metadata(value: object) -> dict[str, dict[str, str]]:
    """Return the metadata of each policy's weights in a module, by its name there; empty for other objects.

    They say for what the weights were trained where shapes do not show it, as the layout of bytes in an observation.
    """
    if not isinstance(value, torch.nn.Module):
        return {}
    found = {
        name: module.weights_metadata()
        for name, module in value.named_modules()
        if isinstance(module, TorchActorModule)
    }
    return {name: metadata for name, metadata in found.items() if metadata}


class _UnsaveableError(Exception):
    """A checkpoint cannot hold a value. The message gives the reason."""


class _Capture:
    def __init__(self, captured: Captured, owners: set[int]) -> None:
        self._captured = captured
        self._owners = owners
        self._seen: dict[int, str] = {}
        self._inside: set[int] = set()
        """Ids of the parts of captured modules, which are not saved a second time."""
        self._alive: list[object] = []
        """Captured objects, kept alive so that no id is used twice."""

    def node(self, value: object, path: str) -> Node:
        if value is None or type(value) in (bool, int, float, str):
            return value
        try:
            return self._node(value, path)
        except _UnsaveableError as exc:
            return self._skip(path, str(exc))
        except Exception as exc:
            # Without a part of training, a checkpoint is useless. A failure of any other object must not end the run.
            needed = isinstance(value, _NEEDED) or self._is_owner(value)
            if needed or isinstance(exc, (CheckpointError, MemoryError)):
                raise
            return self._skip(path, f"{class_name(value)}: {type(exc).__name__}: {exc}")

    def _is_owner(self, value: object) -> bool:
        return id(value) in self._owners or isinstance(value, (StateOwner, TrainingMemory))

    def _skip(self, path: str, reason: str) -> Node:
        self._captured.skipped[path] = reason
        return GAP

    def _node(self, value: object, path: str) -> Node:
        if isinstance(value, bytes):
            return {"t": "bytes", "v": base64.b64encode(value).decode()}
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return {"t": "scalar", "a": self._array(np.asarray(value), path)}
        if id(value) in self._inside:
            return GAP
        known = self._seen.get(id(value))
        if known is not None:
            return {"t": "ref", "p": known}
        if isinstance(value, (tuple, frozenset)):
            return self._sequence(value, path)
        self._seen[id(value)] = path
        self._alive.append(value)
        return self._object(value, path)

    def _object(self, value: object, path: str) -> Node:
        if isinstance(value, _CONSTANTS):
            return GAP
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biufc":
                raise _UnsaveableError(f"an array of {value.dtype}")
            return {"t": "array", "a": self._array(value, path)}
        if isinstance(value, (list, set)):
            return self._sequence(value, path)
        if isinstance(value, deque):
            return {"t": "deque", "maxlen": value.maxlen, "v": self._items(value, path)}
        if isinstance(value, Mapping):
            pairs = [[self.node(k, f"{path} key"), self.node(v, f"{path}[{k!r}]")] for k, v in value.items()]
            if any(_has_gap(key) for key, _ in pairs):
                raise _UnsaveableError(f"{class_name(value)} with keys that are no values")
            return {"t": "dict", "v": pairs}
        if isinstance(value, Generator):
            state = self.node(generator_state(value), f"{path} state")
            return {"t": "generator", "class": type_name(type(value)), "v": state}
        typed = {"class": type_name(type(value)), "version": type_version(type(value))}
        if isinstance(value, Checkpointable):
            if isinstance(value, torch.nn.Module):
                self._inside.update(map(id, [*value.modules(), *value.parameters(), *value.buffers()]))
            if isinstance(value, RowMemory) and value.row_arrays:
                self._captured.rows[path] = MemoryRows.of(value)
            node = {"t": "stateful", **typed, "v": self.node(value.state_dict(), f"{path} state")}
            if metadata := weights_metadata(value):
                node["metadata"] = metadata
            return node
        if self._is_owner(value) and hasattr(value, "__dict__"):
            attributes = {
                name: self.node(item, f"{path}.{name}" if path else name)
                for name, item in saved_attributes(value).items()
            }
            return {"t": "owner", **typed, "v": attributes}
        if callable(value):
            return GAP
        raise _UnsaveableError(class_name(value))

    def _sequence(self, value: Iterable[object], path: str) -> Node:
        kind = next((name for name, cls in _SEQUENCES.items() if isinstance(value, cls)), "list")
        if isinstance(value, list) and len(value) >= _SHORT:
            packed = self._packed(value, path)
            if packed is not None:
                return packed
        items = self._items(value, path)
        if kind in ("set", "frozenset") and any(map(_has_gap, items)):
            raise _UnsaveableError(f"{class_name(value)} of what are no values")
        return {"t": kind, "v": items}

    def _items(self, value: Iterable[object], path: str) -> list[Node]:
        return [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]

    def _packed(self, value: list[Tree], path: str) -> Node:
        """Return a long list of numbers, or of arrays of one dtype and shape, as one array; None for another list."""
        first = type(value[0])
        if first in (bool, int, float) and all(type(item) is first for item in value):
            if first is int and not all(-(2**63) <= item < 2**63 for item in value):
                return None
            return {"t": "numbers", "kind": first.__name__, "a": self._array(np.array(value), path)}
        if issubclass(first, (np.ndarray, np.generic)) and value[0].dtype.kind in "biufc":
            dtype, shape = value[0].dtype, value[0].shape
            if all(type(item) is first and item.dtype == dtype and item.shape == shape for item in value):
                kind = "arrays" if first is np.ndarray else "scalars"
                return {"t": "packed", "kind": kind, "a": self._array(np.stack(value), path)}
        return None

    def _tensor(self, value: torch.Tensor, path: str) -> Node:
        flat = value.detach().to("cpu", copy=True).contiguous()
        dtype = str(flat.dtype).removeprefix("torch.")
        if flat.dtype == torch.bfloat16:
            flat = flat.view(torch.int16)
        try:
            array = flat.numpy()
        except TypeError as exc:
            raise CheckpointError(f"{path} is a tensor of {dtype}, which a checkpoint cannot hold.") from exc
        return {
            "t": "tensor",
            "a": self._array(array, path, copy=False),
            "dtype": dtype,
            "device": str(value.device),
            "grad": value.requires_grad,
        }

    def _array(self, value: Array, path: str, copy: bool = True) -> str:
        name = path or "value"
        while name in self._captured.arrays:
            name += "'"
        if value.dtype.kind == "c":
            raise _UnsaveableError(f"an array of {value.dtype}")
        # ascontiguousarray would make a scalar one-dimensional.
        self._captured.arrays[name] = value.astype(value.dtype.newbyteorder("="), order="C", copy=copy)
        return name


def _has_gap(node: Node) -> bool:
    """Return True if a node lacks a value that no constructor can supply."""
    return isinstance(node, dict) and (
        node == GAP or (isinstance(node.get("v"), list) and any(map(_has_gap, node["v"])))
    )
