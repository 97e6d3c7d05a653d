"""Restore a captured state into a training object that was made with the same arguments."""

# Theory of operation
#
# Modules, optimizers, tensors, arrays, lists and dicts are filled in place, so that objects that refer to them (an
# optimizer to a parameter) still do. Two passes: `check` walks both trees, looks for differences (types, shapes,
# numbers of parameters, layouts of observations) and refuses them before anything is changed; `put` fills. What `put`
# still refuses is a part's own `load_state_dict`, so a training object that failed to load is thrown away, never used.
#
# A constructor sets some values that training may change later (constructor_settings.py). If the constructor's setting
# differs from the saved run's, the new setting counts; otherwise the checkpoint's value counts.
#
# A checkpoint belongs to no device: tensors go to the device of the object that they fill, new ones to the agent's, and
# those that were on a CPU beside an agent on another device (a generator's state) stay there. The state of a module or
# an optimizer is made on the CPU, since a second copy on the device might not fit its memory.

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from tmrl_core.errors import CheckpointError
from tmrl_core.training.checkpointable import (
    Checkpointable,
    attributes_of,
    place_of,
    transient_attributes,
    type_name,
    type_version,
)
from tmrl_core.training.checkpoints.capture import GAP, Node, class_name, weights_metadata
from tmrl_core.training.checkpoints.random_state import Generator, set_generator_state, set_global_random_state
from tmrl_core.training.constructor_settings import PLAIN, constructor_parameters
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.row_memory import RowMemory, SavedRows
from tmrl_core.training.value_types import Tree

logger = logging.getLogger(__name__)


def restore(
    training: object,
    tree: Node,
    arrays: Mapping[str, Array],
    rows: Mapping[str, Sequence[Array]] = MappingProxyType({}),
) -> None:
    """Fill `training` with a captured state, and set the global random generators.

    Args:
        training: made with the same arguments as the one that was captured.
        tree: `Captured.tree`.
        arrays: `Captured.arrays`.
        rows: rows of memories that store them in separate files, by the memories' paths.

    Raises:
        CheckpointError: the state does not fit `training`. The message names the first difference, and nothing was
            changed.
    """
    constructed = _Restore(arrays).decoded(tree["constructed"])
    device = attributes_of(attributes_of(training).get("agent", training)).get("device")
    walk = _Restore(
        arrays, rows, torch.device(device if isinstance(device, (str, torch.device)) else "cpu"), constructed
    )
    walk.check(training, tree["training"], "")
    random_state: Tree = walk.put(None, tree["random"], "random")
    walk.put(training, tree["training"], "")
    set_global_random_state(random_state)


def restore_part(
    part: object, path: str, node: Node, arrays: Mapping[str, Array], constructed: Mapping[str, object]
) -> None:
    """Fill an agent with the state that `capture_part` returned.

    Args:
        part: made with the same arguments as the one that was captured.
        path: path that was passed to `capture_part`.
        node: `Captured.tree`.
        arrays: `Captured.arrays`.
        constructed: settings after construction; see `constructed_settings`.

    Raises:
        CheckpointError: the state does not fit `part`. The message names the first difference, and nothing was changed.
    """
    walk = _Restore(arrays, constructed=constructed)
    walk.check(part, node, path)
    walk.put(part, node, path)


def decoded(node: Node, arrays: Mapping[str, Array]) -> Tree:
    """Return a tree of values that `capture_part` captured."""
    return _Restore(arrays).decoded(node)


class _Restore:
    """Walk the tree and the object together.

    Args:
        arrays: saved arrays, by their names in the tree.
        rows: saved rows, by the memories' paths.
        device: device for tensors that were on a device and that no object holds yet. Their former device may not exist
            on this machine.
        constructed: settings after construction in the saved run, by their paths.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        rows: Mapping[str, Sequence[Array]] = MappingProxyType({}),
        device: torch.device | None = None,
        constructed: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._arrays = arrays
        self._rows = rows
        self._device = device or torch.device("cpu")
        self._constructed = constructed
        self._done: dict[str, object] = {}

    def decoded(self, node: Node) -> Tree:
        """Return the value of a node as a new object."""
        return _Restore(self._arrays).put(None, node, "")

    def check(self, existing: object, node: Node, path: str) -> None:
        """Reject a state that does not fit.

        Raises:
            CheckpointError: the state does not fit; the message names the first difference.
        """
        misfits = list(self.misfits(existing, node, path))
        if misfits:
            more = f", and {len(misfits) - 1} more differences" if len(misfits) > 1 else ""
            raise CheckpointError(f"the checkpoint belongs to another configuration: {misfits[0]}{more}")

    # --- differences, without a change --------------------------------------------------------------------------------

    def misfits(self, existing: object, node: Node, path: str) -> Iterator[str]:
        """Yield the differences that make a restore impossible."""
        kind = node.get("t") if isinstance(node, dict) else None
        if kind in ("owner", "stateful", "generator") and (misfit := _type_misfit(existing, node, path)):
            yield misfit
        elif kind == "owner":
            attributes = vars(existing)
            for name, item in node["v"].items():
                yield from self.misfits(attributes.get(name), item, f"{path}.{name}" if path else name)
        elif kind == "stateful":
            yield from self._state_misfits(existing, node, path)
        elif kind == "tensor" and isinstance(existing, torch.Tensor) and existing.requires_grad:
            shape = self._arrays[node["a"]].shape
            if tuple(existing.shape) != shape:
                yield f"{path} was {list(shape)} and is {list(existing.shape)}"
        elif kind in ("list", "tuple", "deque"):
            for i, (before, item) in enumerate(_paired(existing, node["v"])):
                yield from self.misfits(before, item, f"{path}[{i}]")
        elif kind == "dict":
            for key, item in node["v"]:
                key = self.decoded(key)
                before = existing.get(key) if isinstance(existing, Mapping) else None
                yield from self.misfits(before, item, f"{path}[{key!r}]")
        elif node is None and isinstance(existing, (torch.nn.Module, torch.optim.Optimizer)):
            yield f"{path} was not there and is a {class_name(existing)}"

    def _state_misfits(self, existing: object, node: Node, path: str) -> Iterator[str]:
        if isinstance(existing, torch.nn.Module):
            saved = {k: self._shape(v) for k, v in node["v"]["v"]}
            present = {k: tuple(v.shape) for k, v in existing.state_dict().items() if isinstance(v, torch.Tensor)}
            for name in saved | present:
                if saved.get(name) != present.get(name):
                    yield f"{path}.{name} was {_shown(saved.get(name))} and is {_shown(present.get(name))}"
            yield from _metadata_misfits(node.get("metadata", {}), weights_metadata(existing), path)
        elif isinstance(existing, torch.optim.Optimizer):
            state = self.decoded(node["v"])
            saved_sizes = [len(group["params"]) for group in state["param_groups"]]
            sizes = [len(group["params"]) for group in existing.param_groups]
            if saved_sizes != sizes:
                yield f"{path} had {saved_sizes} parameters in its groups and has {sizes}"
        elif isinstance(existing, RowMemory):
            # A memory whose state has no size takes rows of any other.
            capacity = self.decoded(node["v"]).get("memory_size", existing.memory_size)
            if capacity != existing.memory_size:
                yield f"memory.capacity was {capacity} and is {existing.memory_size}"

    def _shape(self, node: Node) -> tuple[int, ...] | None:
        return self._arrays[node["a"]].shape if isinstance(node, dict) and "a" in node else None

    # --- values into their places -------------------------------------------------------------------------------------

    def put(self, existing: object, node: Node, path: str) -> object:
        """Return the value of a node: `existing`, filled in place, where that is possible."""
        if not isinstance(node, dict):
            return node
        if node["t"] == "ref":
            return self._done.get(node["p"], existing)
        value = self._put(existing, node, path)
        self._done.setdefault(path, value)
        return value

    def _put(self, existing: object, node: Node, path: str) -> object:
        match node["t"]:
            case "constant":
                return existing
            case "bytes":
                return base64.b64decode(node["v"])
            case "scalar":
                return self._arrays[node["a"]][()]
            case "array":
                return _filled(existing, self._arrays[node["a"]])
            case "tensor":
                return self._put_tensor(existing, node)
            case "numbers":
                return _refilled(existing, self._arrays[node["a"]].tolist())
            case "packed":
                rows = self._arrays[node["a"]]
                return _refilled(existing, [row.copy() for row in rows] if node["kind"] == "arrays" else list(rows))
            case "list":
                filled: list[object] = existing if type(existing) is list else []
                self._done.setdefault(path, filled)  # the list may contain itself
                filled[:] = self._items(existing, node, path)
                return filled
            case "tuple":
                return tuple(self._items(existing, node, path))
            case "set":
                return set(self._items(None, node, path))
            case "frozenset":
                return frozenset(self._items(None, node, path))
            case "deque":
                items = deque(self._items(existing, node, path), node["maxlen"])
                if not isinstance(existing, deque) or existing.maxlen != items.maxlen:
                    return items
                existing.clear()
                existing.extend(items)
                return existing
            case "dict":
                return self._put_dict(existing, node, path)
            case "generator":
                if isinstance(existing, Generator):
                    set_generator_state(existing, self.put(None, node["v"], f"{path} state"))
                return existing
            case "stateful":
                return self._put_state(existing, node, path)
            case "owner":
                return self._put_attributes(existing, node, path)
            case unknown:
                raise ValueError(f"{path} is of the unknown kind {unknown!r}")

    def _items(self, existing: object, node: Node, path: str) -> list[object]:
        return [self.put(before, item, f"{path}[{i}]") for i, (before, item) in enumerate(_paired(existing, node["v"]))]

    def _put_tensor(self, existing: object, node: Node) -> torch.Tensor:
        tensor = torch.from_numpy(self._arrays[node["a"]].copy())
        if node["dtype"] == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        if isinstance(existing, torch.Tensor):
            if (existing.shape, existing.dtype) == (tensor.shape, tensor.dtype):
                with torch.no_grad():
                    existing.copy_(tensor)
                return existing
            device = existing.device
        else:
            kept_on_cpu = torch.device(node["device"]).type == "cpu"
            device = torch.device("cpu") if kept_on_cpu else self._device
        return tensor.to(device).requires_grad_(node["grad"])

    def _put_dict(self, existing: object, node: Node, path: str) -> dict[object, object]:
        filled: dict[object, object] = existing if isinstance(existing, dict) else {}
        self._done.setdefault(path, filled)  # the dict may contain itself
        pairs = []
        for key_node, item in node["v"]:
            key = self.put(None, key_node, f"{path} key")
            if item != GAP or key in filled:
                pairs.append((key, self.put(filled.get(key), item, f"{path}[{key!r}]")))
        filled.clear()
        filled.update(pairs)
        return filled

    def _put_state(self, existing: object, node: Node, path: str) -> object:
        device = self._device
        if isinstance(existing, (torch.nn.Module, torch.optim.Optimizer)):
            # Modules and optimizers move the state to their device. A second copy on the device might not fit its
            # memory.
            self._device = torch.device("cpu")
        state: Tree = self.put(None, node["v"], f"{path} state")
        self._device = device
        if existing is None and path in self._rows:
            return SavedRows(state, self._rows[path])  # for the owner of the state that holds it
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
        elif isinstance(existing, Checkpointable):
            existing.load_state_dict(state)
        return existing

    def _put_attributes(self, existing: object, node: Node, path: str) -> object:
        self._done.setdefault(path, existing)
        kind, attributes = type(existing), vars(existing)
        arguments, transient = constructor_parameters(kind), transient_attributes(kind)
        for name, item in node["v"].items():
            # A user may declare an attribute `transient` although there are checkpoints that hold it.
            if name in transient or (item == GAP and name not in attributes):
                continue
            place = f"{path}.{name}" if path else name
            before = attributes.get(name)
            if item is None and isinstance(before, RowMemory):
                continue  # the configuration has added a memory since then, which begins empty
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

    def _is_changed(self, place: str, saved: object, today: object) -> bool:
        """Return True, and log the change, if the constructor's setting differs from the saved run's.

        Otherwise the checkpoint's value counts, because training may have changed it.
        """
        if place in self._constructed:
            then = self._constructed[place]
            if then != today:
                logger.info("%s: %r in the checkpoint, %r from now on", place, then, today)
            return bool(then != today)
        # The constructor's setting is unknown, such as that of a group that an optimizer was given later.
        if isinstance(today, PLAIN) and saved is not None and saved != today:
            logger.warning("%s is %r in the checkpoint and %r now: %r counts", place, saved, today, today)
            return True
        return False


def _metadata_misfits(
    saved: Mapping[str, Mapping[str, str]], present: Mapping[str, Mapping[str, str]], path: str
) -> Iterator[str]:
    """Yield the differences of metadata that a policy's weights had and have: an observation means something else."""
    for name in saved.keys() | present.keys():
        before, now = saved.get(name, {}), present.get(name, {})
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                at = f"{path}.{name}" if name else path
                yield f"the {key} of {at} was {before.get(key, 'none')} and is {now.get(key, 'none')}"


def _type_misfit(existing: object, node: Node, path: str) -> str:
    """Return the difference between a saved type and an object's type; empty if they match.

    Raises:
        CheckpointError: the state is of another version of the type.
    """
    kind, name, path = type(existing), node["class"], path or "the training object"
    if node["t"] == "stateful" and not isinstance(existing, torch.optim.Optimizer):
        # Its class may differ: a part that loads its own state checks the state itself.
        fits = isinstance(existing, Checkpointable)
    else:
        # A class may declare an id although there are checkpoints with its qualified name.
        fits = name in (type_name(kind), place_of(kind))
    if not fits:
        return f"{path} was of type {name} and is of type {type_name(kind)}"
    if node["t"] == "generator":
        return ""
    saved, readable = node["version"], type_version(kind)
    if saved != readable:
        raise CheckpointError(
            f"{path} was saved as version {saved!r} of {name}; its class reads version {readable}. Use the "
            "release that wrote it."
        )
    return ""


def _paired(existing: object, nodes: Sequence[Node]) -> Iterator[tuple[object, Node]]:
    """Yield each node with the object that it describes, or None."""
    present = list(existing) if isinstance(existing, (list, tuple, deque)) else []
    for i, node in enumerate(nodes):
        yield present[i] if i < len(present) else None, node


def _filled(existing: object, array: Array) -> Array:
    if (
        isinstance(existing, np.ndarray)
        and (existing.shape, existing.dtype) == (array.shape, array.dtype)
        and existing.flags.writeable
    ):
        existing[...] = array
        return existing
    copied: Array = array.copy()
    return copied


def _refilled(existing: object, items: list[object]) -> list[object]:
    if type(existing) is list:
        existing[:] = items
        return existing
    return items


def _shown(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else str(list(shape))
