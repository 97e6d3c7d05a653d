"""Layout of a transition's columns in the rows of a replay memory.

All leaves of one dtype are adjacent in one row of one two-dimensional array. A batch therefore costs one gather per
dtype, however many leaves an observation has:

    float32 group:  | prev_obs ... | act ... | rew | new_obs ... | terminated | truncated | extras ... |
    uint8 group:    | prev_obs/image ... | new_obs/image ... |

In a row with a sequence, all columns but `prev_obs` and the extras have a first axis of its ticks. A column is a slice
of its group's row, and a batch's columns are views of the gathered rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.training.memories.trees import flatten, numbers_of, rebuild, template
from tmrl_core.training.value_types import Batch, State, Tree

Array: TypeAlias = npt.NDArray[Any]

FLOAT32 = np.dtype(np.float32)
FLAG_DTYPE = FLOAT32
"""Dtype of stored flags and rewards, as in batches."""
NARROW = 4
"""Maximum row length, in elements, of copies element by element. NumPy's loop over such short rows is slow."""


def stored_dtype(dtype: np.dtype, downcast_float64: bool) -> np.dtype:
    """Return the stored dtype of values of `dtype`: float64 becomes float32 if `downcast_float64`."""
    if downcast_float64 and dtype == np.float64:
        return FLOAT32
    # Use the type's description: NumPy has two 64-bit integer types, and torch accepts only one of the unsigned ones.
    native: np.dtype = np.dtype(dtype.newbyteorder("=").str)
    return native


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or an action: its position, and the layout of one row."""

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Elements in one row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return f"{self.path or 'value'}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class TreeSpec:
    """Structure, dtypes and shapes of an observation or an action."""

    shape: Tree
    leaves: tuple[Leaf, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(str(leaf) for leaf in self.leaves) + ")"


ADVICE = (
    "a columnar memory holds numeric arrays only. Use a memory derived from tmrl_core.training.TorchMemory for such "
    "samples, or a sample_compressor"
)


def tree_spec(tree: Tree, what: str, downcast_float64: bool, advice: str = ADVICE) -> TreeSpec:
    """The `TreeSpec` of columns: leaves are [rows, *shape].

    Raises:
        SampleRefusedError: a leaf is not a numeric array.
    """
    leaves = []
    for path, leaf in flatten(tree):
        if not isinstance(leaf, np.ndarray) or leaf.dtype.kind not in "biuf":
            found = f"dtype {leaf.dtype}" if isinstance(leaf, np.ndarray) else "values that are no numeric array"
            raise SampleRefusedError(f"{what}{path} holds {found}; {advice}.")
        leaves.append(Leaf(path, stored_dtype(leaf.dtype, downcast_float64), leaf.shape[1:]))
    return TreeSpec(template(tree), tuple(leaves))


def fill(target: Array, values: Array) -> None:
    """Assign `values` to `target`, both [rows, width]. Copy narrow columns by element, which is twice as fast."""
    width = target.shape[1]
    if 1 < width <= NARROW:
        for i in range(width):
            target[:, i] = values[:, i]
    else:
        target[:] = values


@dataclass(frozen=True)
class Column:
    """A column of a group: slice `number` of the group's rows."""

    group: int
    number: int
    start: int
    stop: int
    shape: tuple[int, ...]


class RowLayout:
    """Position of each column of a transition.

    Args:
        observation: spec of one observation.
        action: spec of one action.
        extras: names of further columns that the memory computes, one float32 each.
        sample_extras: specs of the samples' own extras, by name.
        sequence: length and stride of the sequences in rows; None: rows hold transitions.
    """

    def __init__(
        self,
        observation: TreeSpec,
        action: TreeSpec,
        extras: Sequence[str] = (),
        sample_extras: Mapping[str, TreeSpec] = MappingProxyType({}),
        sequence: tuple[int, int] | None = None,
    ) -> None:
        self.observation = observation
        self.action = action
        self.sample_extras = dict(sample_extras)
        self.sequence = sequence
        self.dtypes: list[np.dtype] = []
        self.sizes: list[list[int]] = []
        """Return the number of elements in a row of each group."""
        self._widths: list[int] = []
        self.prev_obs = [self._add(leaf) for leaf in observation.leaves]
        self.act = [self._add_ticks(leaf) for leaf in action.leaves]
        scalar = Leaf("", FLAG_DTYPE, ())
        self.rew = self._add_ticks(scalar)
        self.new_obs = [self._add_ticks(leaf) for leaf in observation.leaves]
        self.terminated = self._add_ticks(scalar)
        self.truncated = self._add_ticks(scalar)
        self.extras = {name: self._add(scalar) for name in extras}
        self.sample_extra_columns = {
            name: [self._add(leaf) for leaf in spec.leaves] for name, spec in self.sample_extras.items()
        }
        self.has_extras = bool(self.extras or self.sample_extras)
        sizes = [dtype.itemsize * width for dtype, width in zip(self.dtypes, self._widths, strict=True)]
        self.row_bytes = sum(sizes)
        """Size of one transition in bytes."""

    def _add_ticks(self, leaf: Leaf) -> Column:
        return self._add(leaf if self.sequence is None else replace(leaf, shape=(self.sequence[0], *leaf.shape)))

    def _add(self, leaf: Leaf) -> Column:
        if leaf.dtype not in self.dtypes:
            self.dtypes.append(leaf.dtype)
            self._widths.append(0)
            self.sizes.append([])
        group = self.dtypes.index(leaf.dtype)
        start = self._widths[group]
        self._widths[group] += leaf.width
        self.sizes[group].append(leaf.width)
        return Column(group, len(self.sizes[group]) - 1, start, self._widths[group], leaf.shape)

    @property
    def widths(self) -> list[int]:
        """Number of elements in a row of each group."""
        return self._widths

    def batch(self, column: Callable[[Column], Tree]) -> Batch:
        """Return (prev_obs, new_act, rew, new_obs, terminated, truncated) with `column(c)` as each leaf."""
        return (
            rebuild(self.observation.shape, [column(c) for c in self.prev_obs]),
            rebuild(self.action.shape, [column(c) for c in self.act]),
            column(self.rew),
            rebuild(self.observation.shape, [column(c) for c in self.new_obs]),
            column(self.terminated),
            column(self.truncated),
        )

    def batch_extras(self, column: Callable[[Column], Tree]) -> State:
        """Return the extras by name, with `column(c)` as each leaf."""
        found = {name: column(c) for name, c in self.extras.items()}
        for name, columns in self.sample_extra_columns.items():
            found[name] = rebuild(self.sample_extras[name].shape, [column(c) for c in columns])
        return found

    def describe(self) -> State:
        """Return this layout as JSON-able values; `from_description` undoes it."""
        described: State = {
            "observation": describe_spec(self.observation),
            "action": describe_spec(self.action),
        }
        if self.extras:
            described["extras"] = list(self.extras)
        if self.sample_extras:
            described["sample_extras"] = {name: describe_spec(spec) for name, spec in self.sample_extras.items()}
        if self.sequence:
            described["sequence"] = list(self.sequence)
        return described

    @classmethod
    def from_description(cls, description: State) -> RowLayout:
        """Undo `describe`.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the value is not a description.
        """
        extras = description.get("extras", [])
        if not isinstance(extras, list) or not all(isinstance(name, str) for name in extras):
            raise ValueError("extras that are not names")
        observation, action = spec_of(description["observation"]), spec_of(description["action"])
        sample_extras = {name: spec_of(value) for name, value in description.get("sample_extras", {}).items()}
        return cls(observation, action, extras, sample_extras, _sequence_of(description.get("sequence")))


def _sequence_of(description: Tree) -> tuple[int, int] | None:
    if description is None:
        return None
    length, stride = (operator.index(number) for number in description)
    if not 1 <= stride <= length:
        raise ValueError("a sequence of impossible length and stride")
    return length, stride


def describe_spec(spec: TreeSpec) -> State:
    """Return a spec as JSON-able values; `spec_of` undoes it."""
    return {
        "shape": spec.shape,
        "leaves": [[leaf.path, leaf.dtype.str, list(leaf.shape)] for leaf in spec.leaves],
    }


def spec_of(description: State) -> TreeSpec:
    """Return the spec that `describe_spec` described.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the value does not describe a spec.
    """
    # Look up a table: `np.dtype(name)` would parse any text in the file.
    leaves = tuple(
        Leaf(path, DTYPES[dtype], tuple(operator.index(size) for size in shape))
        for path, dtype, shape in description["leaves"]
    )
    if any(size < 0 for leaf in leaves for size in leaf.shape):
        raise ValueError("a shape with a negative size")
    try:
        numbers = numbers_of(description["shape"])
    except RecursionError as exc:
        raise ValueError("a structure that is nested too deeply") from exc
    if sorted(numbers) != list(range(len(leaves))):
        raise ValueError(f"a structure that is not one of {len(leaves)} leaves")
    return TreeSpec(description["shape"], leaves)


def index_batches(tree: Tree, count: int) -> list[Tree]:
    """Return one tree per batch, given a tree whose leaves are lists of `count` values."""
    if isinstance(tree, dict):
        parts = {key: index_batches(item, count) for key, item in tree.items()}
        return [{key: items[i] for key, items in parts.items()} for i in range(count)]
    if isinstance(tree, tuple):
        rows = [index_batches(item, count) for item in tree]
        return [tuple([items[i] for items in rows]) for i in range(count)]
    return list(tree)
