"""The state of a training object as a tree of JSON values and named arrays, without pickle.

`capture` walks the attributes of the training object, its agent and its memory (the *owners*). What it meets becomes a
node: plain values as they are, everything else as a dict with its kind under "t". Arrays and tensors are copied, so
that the result may be written beside training. Objects that are met again become references.

`restore` goes the other way, into an object that was made with the same arguments: modules, optimizers, tensors,
arrays, lists and dicts are filled in place, so that who refers to them (an optimizer to a parameter) still does. It
looks for everything that does not fit before it changes anything.

What a constructor makes and training never changes is not saved: functions, classes, devices, dtypes, spaces, paths.
Settings that a constructor was given and training may change since (`constructor_settings.py`) are today's where they
differ from those of the run that was saved, and the checkpoint's otherwise.
`functools.cached_property` values are not either, nor attributes that an owner names in its class attribute
`transient`.
"""

from __future__ import annotations

import base64
import enum
import logging
import pathlib
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch

from tmrl_core.errors import CheckpointError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.checkpointable import (
    Checkpointable,
    renamed_attributes,
    saved_attributes,
    transient_attributes,
    type_name,
    type_version,
)
from tmrl_core.training.checkpoints.rows import MemoryRows
from tmrl_core.training.checkpoints.type_ids import is_named, saved_name
from tmrl_core.training.constructor_settings import PLAIN, constructor_parameters
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.memory import EpisodeStatistics
from tmrl_core.training.memories.rows import RowMemory

logger = logging.getLogger(__name__)

Node = Any

_SHORT = 16
"""Shorter lists of arrays or numbers are not worth an array of their own."""

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

_GAP: Node = {"t": "constant"}
"""Marks a value that is not saved; on resume it comes from the constructor."""

_NEEDED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)

_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _is_owner(value: Any, owners: set[int]) -> bool:
    return id(value) in owners or isinstance(value, (TrainingAgent, EpisodeStatistics))


def _typed(value: Any) -> dict[str, Any]:
    kind = type(value)
    return {"class": type_name(kind), "version": type_version(kind)}


def _owners_of(training: Any) -> set[int]:
    attributes = _attributes(training)
    return {id(training), *(id(attributes[name]) for name in ("agent", "memory") if name in attributes)}


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a user's object, of which there need be none."""
    return getattr(value, "__dict__", {})


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# --- out --------------------------------------------------------------------------------------------------------------


class Captured:
    """What `capture` found.

    Attributes:
        tree: JSON values.
        arrays: copies, by the names that the tree uses.
        skipped: what a checkpoint cannot hold, by its path, in words.
        rows: of memories whose rows are kept apart, by the memory's path.
    """

    def __init__(
        self, tree: Node, arrays: dict[str, Array], skipped: dict[str, str], rows: dict[str, MemoryRows]
    ) -> None:
        self.tree = tree
        self.arrays = arrays
        self.skipped = skipped
        self.rows = rows

    def warn(self, told: set[str]) -> None:
        """Log a warning of what is skipped, but for paths that are in `told`, which these join."""
        new = [f"{path} ({what})" for path, what in self.skipped.items() if path not in told]
        told.update(self.skipped)
        if new:
            logger.warning(
                "checkpoints cannot hold %s: on resume, that comes from the constructor. Give it state_dict() and "
                "load_state_dict(), or name the attribute in the class attribute `transient` if this is right.",
                ", ".join(new),
            )


class _Unsaveable(Exception):
    """A checkpoint cannot hold this; in words."""


class _Capture:
    def __init__(self, owners: set[int]) -> None:
        self.arrays: dict[str, Array] = {}
        self.skipped: dict[str, str] = {}
        self.rows: dict[str, MemoryRows] = {}
        self._owners = owners
        self._seen: dict[int, str] = {}
        self._inside: set[int] = set()
        """Ids of what a module holds that was captured already: its parts need no saving of their own."""
        self._alive: list[Any] = []
        """Keeps what was seen alive, so that no id is used twice."""

    def node(self, value: Any, path: str) -> Node:
        if value is None or type(value) in (bool, int, float, str):
            return value
        try:
            return self._node(value, path)
        except _Unsaveable as exc:
            return self._skip(path, str(exc))
        except Exception as exc:
            # What belongs to training must not be missing; whatever else a user's object does is no reason to end it.
            needed = isinstance(value, _NEEDED) or _is_owner(value, self._owners)
            if needed or isinstance(exc, (CheckpointError, MemoryError)):
                raise
            return self._skip(path, f"{_class_name(value)}: {type(exc).__name__}: {exc}")

    def _node(self, value: Any, path: str) -> Node:
        if isinstance(value, bytes):
            return {"t": "bytes", "v": base64.b64encode(value).decode()}
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return {"t": "scalar", "a": self._array(np.asarray(value), path)}
        if id(value) in self._inside:
            return _GAP
        known = self._seen.get(id(value))
        if known is not None:
            return {"t": "ref", "p": known}
        if isinstance(value, (tuple, frozenset)):
            return self._sequence(value, path)
        self._seen[id(value)] = path
        self._alive.append(value)
        return self._object(value, path)

    def _skip(self, path: str, what: str) -> Node:
        self.skipped[path] = what
        return _GAP

    def _object(self, value: Any, path: str) -> Node:
        if isinstance(value, _CONSTANTS):
            return _GAP
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biufc":
                raise _Unsaveable(f"an array of {value.dtype}")
            return {"t": "array", "a": self._array(value, path)}
        if isinstance(value, (list, set)):
            return self._sequence(value, path)
        if isinstance(value, deque):
            return {"t": "deque", "maxlen": value.maxlen, "v": self._items(value, path)}
        if isinstance(value, Mapping):
            pairs = [[self.node(k, f"{path} key"), self.node(v, f"{path}[{k!r}]")] for k, v in value.items()]
            if any(_has_gap(key) for key, _ in pairs):
                raise _Unsaveable(f"{_class_name(value)} with keys that are no values")
            return {"t": "dict", "v": pairs}
        generator = _generator_state(value)
        if generator is not None:
            return {"t": "generator", "class": type_name(type(value)), "v": self.node(generator, f"{path} state")}
        if isinstance(value, torch.nn.Module):
            self._inside.update(map(id, [*value.modules(), *value.parameters(), *value.buffers()]))
        if isinstance(value, RowMemory) and value.row_arrays:
            self.rows[path] = MemoryRows.of(value)
        if isinstance(value, Checkpointable):
            return {"t": "stateful", **_typed(value), "v": self.node(value.state_dict(), f"{path} state")}
        if _is_owner(value, self._owners) and hasattr(value, "__dict__"):
            attributes = {
                name: self.node(item, f"{path}.{name}" if path else name)
                for name, item in saved_attributes(value).items()
            }
            return {"t": "owner", **_typed(value), "v": attributes}
        if callable(value):
            return _GAP
        raise _Unsaveable(_class_name(value))

    def _sequence(self, value: Any, path: str) -> Node:
        kind = next((name for name, cls in _SEQUENCES.items() if isinstance(value, cls)), "list")
        if kind == "list" and len(value) >= _SHORT:
            packed = self._packed(value, path)
            if packed is not None:
                return packed
        items = self._items(value, path)
        if kind in ("set", "frozenset") and any(map(_has_gap, items)):
            raise _Unsaveable(f"{_class_name(value)} of what are no values")
        return {"t": kind, "v": items}

    def _items(self, value: Any, path: str) -> list[Node]:
        return [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]

    def _packed(self, value: list[Any], path: str) -> Node:
        """A long list of numbers, or of arrays of one dtype and shape, as one array; None if it is no such list."""
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
        while name in self.arrays:
            name += "'"
        if value.dtype.kind == "c":
            raise _Unsaveable(f"an array of {value.dtype}")
        # ascontiguousarray would make a scalar one-dimensional.
        native = value.astype(value.dtype.newbyteorder("="), order="C", copy=copy)
        self.arrays[name] = native
        return name


def capture(training: Any) -> Captured:
    """The state of a training object, with the random states of this process."""
    walk = _Capture(_owners_of(training))
    tree = {
        "training": walk.node(training, ""),
        "random": walk.node(global_random_state(), "random"),
        "constructed": walk.node(dict(_attributes(training).get("constructed", {})), "constructed"),
    }
    return Captured(tree, walk.arrays, walk.skipped, walk.rows)


def _has_gap(node: Node) -> bool:
    """Return True when a node leaves something out that no constructor can supply."""
    return isinstance(node, dict) and (
        node == _GAP or (isinstance(node.get("v"), list) and any(map(_has_gap, node["v"])))
    )


# --- random generators ------------------------------------------------------------------------------------------------


def _generator_state(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    return None


def _set_generator_state(value: Any, state: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    elif isinstance(value, random.Random):
        value.setstate(state)
    else:
        value.set_state(state.cpu())


def global_random_state() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's global generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        # Where CUDA was not used its generators have drawn nothing, and asking for them would set it up.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
    }


def set_global_random_state(state: Mapping[str, Any]) -> None:
    """Undo `global_random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        # Another machine may have fewer devices, or more.
        for number, item in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(item.cpu(), number)


# --- back -------------------------------------------------------------------------------------------------------------


class _Restore:
    def __init__(
        self,
        arrays: Mapping[str, Array],
        rows: Mapping[str, Sequence[Array]],
        device: torch.device | None = None,
        constructed: Mapping[str, Any] | None = None,
    ) -> None:
        self._arrays = arrays
        self._rows = rows
        self._device = device or torch.device("cpu")
        """Where what was on a device goes, if it has no place already: not where it was, which need not be there."""
        self._constructed = constructed or {}
        """Settings as constructors had left them in the run that was saved."""
        self._done: dict[str, Any] = {}

    def decoded(self, node: Node) -> Any:
        """The value of a node that fills nothing."""
        return _Restore(self._arrays, {}).put(None, node, "")

    # What does not fit, without changing anything.

    def misfits(self, existing: Any, node: Node, path: str) -> Iterator[str]:
        kind = node.get("t") if isinstance(node, dict) else None
        if kind == "owner":
            if not is_named(type(existing), node["class"]):
                yield _other_type(existing, node, path or "the training object")
                return
            _check_version(existing, node, path)
            attributes, renamed = vars(existing), renamed_attributes(type(existing))
            for name, item in node["v"].items():
                yield from self.misfits(
                    attributes.get(renamed.get(name, name)), item, f"{path}.{name}" if path else name
                )
        elif kind == "stateful":
            if not isinstance(existing, Checkpointable):
                yield _other_type(existing, node, path)
            else:
                _check_version(existing, node, path)
                yield from self._state_misfits(existing, node, path)
        elif kind == "generator":
            if not is_named(type(existing), node["class"]):
                yield _other_type(existing, node, path)
        elif kind == "tensor" and isinstance(existing, torch.Tensor) and existing.requires_grad:
            shape = self._arrays[node["a"]].shape
            if tuple(existing.shape) != shape:
                yield f"{path} was {list(shape)} and is {list(existing.shape)}"
        elif kind in ("list", "tuple", "deque"):
            present = list(existing) if isinstance(existing, (list, tuple, deque)) else []
            for i, item in enumerate(node["v"]):
                yield from self.misfits(present[i] if i < len(present) else None, item, f"{path}[{i}]")
        elif kind == "dict":
            for key, item in node["v"]:
                key = self.decoded(key)
                at_key = existing.get(key) if isinstance(existing, Mapping) else None
                yield from self.misfits(at_key, item, f"{path}[{key!r}]")
        elif node is None and isinstance(existing, (torch.nn.Module, torch.optim.Optimizer)):
            yield f"{path} was not there and is a {_class_name(existing)}"

    def _state_misfits(self, existing: Any, node: Node, path: str) -> Iterator[str]:
        if isinstance(existing, torch.nn.Module):
            saved = {k: self._shape(v) for k, v in node["v"]["v"]}
            present = {k: tuple(v.shape) for k, v in existing.state_dict().items() if isinstance(v, torch.Tensor)}
            for name in saved | present:
                if saved.get(name) != present.get(name):
                    yield f"{path}.{name} was {_shown(saved.get(name))} and is {_shown(present.get(name))}"
        elif isinstance(existing, torch.optim.Optimizer):
            if not is_named(type(existing), node["class"]):
                yield _other_type(existing, node, path)
                return
            state = self.decoded(node["v"])
            saved_sizes = [len(group["params"]) for group in state["param_groups"]]
            sizes = [len(group["params"]) for group in existing.param_groups]
            if saved_sizes != sizes:
                yield f"{path} had {saved_sizes} parameters in its groups and has {sizes}"
        elif isinstance(existing, RowMemory):
            state = self.decoded(node["v"])
            if state["memory_size"] != existing.memory_size:
                yield f"memory.capacity was {state['memory_size']} and is {existing.memory_size}"

    def _shape(self, node: Node) -> tuple[int, ...] | None:
        return self._arrays[node["a"]].shape if isinstance(node, dict) and "a" in node else None

    # Into place.

    def put(self, existing: Any, node: Node, path: str) -> Any:
        """The value that `node` stands for: `existing`, filled, where it can be."""
        if not isinstance(node, dict):
            return node
        if node["t"] == "ref":
            return self._done.get(node["p"], existing)
        value = getattr(self, f"_put_{node['t']}")(existing, node, path)
        self._done.setdefault(path, value)
        return value

    def _put_bytes(self, existing: Any, node: Node, path: str) -> bytes:
        return base64.b64decode(node["v"])

    def _put_scalar(self, existing: Any, node: Node, path: str) -> Any:
        return self._arrays[node["a"]][()]

    def _put_array(self, existing: Any, node: Node, path: str) -> Array:
        array = self._arrays[node["a"]]
        if (
            isinstance(existing, np.ndarray)
            and (existing.shape, existing.dtype) == (array.shape, array.dtype)
            and existing.flags.writeable
        ):
            filled: Array = existing
            filled[...] = array
            return filled
        copied: Array = array.copy()
        return copied

    def _put_tensor(self, existing: Any, node: Node, path: str) -> torch.Tensor:
        tensor = torch.from_numpy(self._arrays[node["a"]].copy())
        if node["dtype"] == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        if isinstance(existing, torch.Tensor) and (existing.shape, existing.dtype) == (tensor.shape, tensor.dtype):
            with torch.no_grad():
                existing.copy_(tensor)
            return existing
        kept_on_cpu = torch.device(node["device"]).type == "cpu"
        device = torch.device("cpu") if kept_on_cpu else self._device
        if isinstance(existing, torch.Tensor):
            device = existing.device
        return tensor.to(device).requires_grad_(node["grad"])

    def _put_numbers(self, existing: Any, node: Node, path: str) -> list[Any]:
        return self._refill(existing, self._arrays[node["a"]].tolist())

    def _put_packed(self, existing: Any, node: Node, path: str) -> list[Any]:
        rows = self._arrays[node["a"]]
        return self._refill(existing, [row.copy() for row in rows] if node["kind"] == "arrays" else list(rows))

    def _refill(self, existing: Any, items: list[Any]) -> list[Any]:
        if type(existing) is list:
            existing[:] = items
            return existing
        return items

    def _items(self, existing: Any, node: Node, path: str) -> list[Any]:
        present = list(existing) if isinstance(existing, (list, tuple, deque)) else []
        return [
            self.put(present[i] if i < len(present) else None, item, f"{path}[{i}]") for i, item in enumerate(node["v"])
        ]

    def _put_list(self, existing: Any, node: Node, path: str) -> list[Any]:
        filled: list[Any] = existing if type(existing) is list else []
        self._done.setdefault(path, filled)  # it may hold itself
        filled[:] = self._items(existing, node, path)
        return filled

    def _put_tuple(self, existing: Any, node: Node, path: str) -> Any:
        return tuple(self._items(existing, node, path))

    def _put_set(self, existing: Any, node: Node, path: str) -> set[Any]:
        return set(self._items(None, node, path))

    def _put_frozenset(self, existing: Any, node: Node, path: str) -> frozenset[Any]:
        return frozenset(self._items(None, node, path))

    def _put_deque(self, existing: Any, node: Node, path: str) -> deque[Any]:
        items = self._items(existing, node, path)
        if isinstance(existing, deque) and existing.maxlen == node["maxlen"]:
            existing.clear()
            existing.extend(items)
            return existing
        return deque(items, node["maxlen"])

    def _put_dict(self, existing: Any, node: Node, path: str) -> Any:
        filled: dict[Any, Any] = existing if isinstance(existing, dict) else {}
        self._done.setdefault(path, filled)  # it may hold itself
        pairs = []
        for key_node, item in node["v"]:
            key = self.put(None, key_node, f"{path} key")
            if item != _GAP or key in filled:
                pairs.append((key, self.put(filled.get(key), item, f"{path}[{key!r}]")))
        filled.clear()
        filled.update(pairs)
        return filled

    def _put_constant(self, existing: Any, node: Node, path: str) -> Any:
        return existing

    def _put_generator(self, existing: Any, node: Node, path: str) -> Any:
        _set_generator_state(existing, self.put(None, node["v"], f"{path} state"))
        return existing

    def _put_stateful(self, existing: Any, node: Node, path: str) -> Any:
        device = self._device
        if isinstance(existing, (torch.nn.Module, torch.optim.Optimizer)):
            # They send it where their own tensors are; twice on a device it might not find room.
            self._device = torch.device("cpu")
        state = self.put(None, node["v"], f"{path} state")
        self._device = device
        if isinstance(existing, RowMemory):
            existing.load_state_dict(state, self._rows.get(path, ()))
        elif isinstance(existing, torch.optim.Optimizer):
            before = existing.param_groups
            existing.load_state_dict(state)
            for number, (old, group) in enumerate(zip(before, existing.param_groups, strict=True)):
                for name, value in old.items():
                    if name != "params" and self._is_changed(f"{path}[{number}].{name}", group.get(name), value):
                        group[name] = value
        elif isinstance(existing, torch.optim.lr_scheduler.LRScheduler):
            base_lrs = existing.base_lrs
            existing.load_state_dict(state)
            existing.base_lrs = base_lrs
        else:
            existing.load_state_dict(state)
        return existing

    def _is_changed(self, place: str, saved: Any, today: Any) -> bool:
        """Return True, and log it, when the constructor was given another setting than in the saved run.

        Otherwise the checkpoint's value counts, which training may have changed since.
        """
        if place in self._constructed:
            then = self._constructed[place]
            if then != today:
                logger.info("%s: %r in the checkpoint, %r from now on", place, then, today)
            return bool(then != today)
        # Written before checkpoints said what constructors were given.
        if isinstance(today, PLAIN) and saved is not None and saved != today:
            logger.warning("%s is %r in the checkpoint and %r now: %r counts", place, saved, today, today)
            return True
        return False

    def _put_owner(self, existing: Any, node: Node, path: str) -> Any:
        self._done.setdefault(path, existing)
        attributes = vars(existing)
        arguments = constructor_parameters(type(existing))
        transient, renamed = transient_attributes(type(existing)), renamed_attributes(type(existing))
        for saved_as, item in node["v"].items():
            name = renamed.get(saved_as, saved_as)
            if name in transient or (item == _GAP and name not in attributes):
                continue  # it was saved by a release in which it was not transient; or nothing of it was saved
            place = f"{path}.{saved_as}" if path else saved_as
            before = attributes.get(name)
            if name in arguments and (before is None or isinstance(before, PLAIN)):
                saved = None if isinstance(item, dict) else item
                if path and self._is_changed(place, saved, before):
                    continue
                if not path and saved is not None and saved != before:
                    logger.warning(
                        "%s is %r in the checkpoint and %r now: the checkpoint's value counts", place, saved, before
                    )
            value = self.put(before, item, place)
            if value is not before or not isinstance(item, dict):
                setattr(existing, name, value)
        return existing


def _other_type(existing: Any, node: Node, path: str) -> str:
    return f"{path} was of type {saved_name(node['class'])} and is of type {type_name(type(existing))}"


def _check_version(existing: Any, node: Node, path: str) -> None:
    saved, known = node.get("version", 1), type_version(type(existing))
    if saved > known:
        raise CheckpointError(
            f"{path or 'the training object'} was saved as version {saved} of {node['class']}; this release reads "
            f"versions up to {known}. Use the release that wrote it, or a newer one."
        )


def _shown(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else str(list(shape))


def _device_of(training: Any) -> torch.device | None:
    device = _attributes(_attributes(training).get("agent", training)).get("device")
    return torch.device(device) if isinstance(device, (str, torch.device)) else None


def restore(
    training: Any, tree: Node, arrays: Mapping[str, Array], rows: Mapping[str, Sequence[Array]] = MappingProxyType({})
) -> None:
    """Fill `training` with a captured state, and set the global random generators.

    Args:
        training: made with the same arguments as the one that was captured.
        tree: `Captured.tree`.
        arrays: `Captured.arrays`.
        rows: of memories whose rows are kept apart, by the memory's path.

    Raises:
        CheckpointError: it does not fit; the first difference is named, and nothing was changed.
    """
    constructed = _Restore(arrays, {}).decoded(tree.get("constructed"))
    walk = _Restore(arrays, rows, _device_of(training), constructed)
    misfits = list(walk.misfits(training, tree["training"], ""))
    if misfits:
        more = f", and {len(misfits) - 1} more differences" if len(misfits) > 1 else ""
        raise CheckpointError(f"the checkpoint belongs to another configuration: {misfits[0]}{more}")
    random_state = walk.put(None, tree["random"], "random")
    walk.put(training, tree["training"], "")
    set_global_random_state(random_state)
