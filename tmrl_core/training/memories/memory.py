"""Memories written row by row: base classes for samples that are not plain arrays, or that are rebuilt when sampled.

`ReplayMemory` (replay.py) is the fast one. The classes here keep the interface that scripts derive from: a list `data`
of columns, `append_buffer`, `get_transition` and `collate`.
"""

from __future__ import annotations

import inspect
import numbers
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar, get_type_hints

import numpy as np
import torch

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.checkpointable import parameters_of
from tmrl_core.training.contracts import Refusals, TrainingMemory
from tmrl_core.training.memories.layout import Array, stored_dtype
from tmrl_core.training.memories.trees import flatten
from tmrl_core.training.value_types import Batch, Device, Tree

MAX_STREAMS = 32_768
"""Maximum number of streams whose last row is kept. The stream that has been silent for longest is dropped first: of
more streams that send in turn, each has lost its row when it sends again."""

MOST = 1 << 62
"""Maximum size, so that sums of two sizes stay within int64."""

Values: TypeAlias = tuple[Tree, ...]
"""Values of a transition."""
Transition: TypeAlias = tuple[Tree, Tree, Tree, Tree, Tree, Tree, dict[Any, Any]]
"""(prev_obs, act, rew, obs, terminated, truncated, info)."""
Made = TypeVar("Made", bound=type[TrainingMemory])


def whole_number(value: float, name: str) -> int:
    """Return `value` as an int; sizes may be floats such as 1e6.

    Raises:
        ConfigError: it is not a whole positive number, or too large for an index.
    """
    given: Any = value
    numeric = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not numeric or not 1 <= given <= MOST or int(given) != given:
        raise ConfigError(f"{name} must be a whole number of at least 1 (and at most 2^62), got {value!r:.100}")
    return int(value)


def takes_keywords_of_base(cls: Made) -> Made:
    """Write the base class's arguments into the signature of a constructor that ends with `*args` and `**kwargs`.

    Configurations are checked against signatures, so that unknown keywords are refused with the known ones.
    """
    init = vars(cls)["__init__"]
    base: Any = vars(cls.__mro__[1])["__init__"]
    own = inspect.signature(init).parameters
    parameters = {
        **inspect.signature(base).parameters,
        **{name: one for name, one in own.items() if one.kind is one.KEYWORD_ONLY},
    }
    init.__signature__ = inspect.Signature(sorted(parameters.values(), key=lambda one: one.kind))
    init.__annotations__ = {**get_type_hints(base), **init.__annotations__}
    return cls


@dataclass(frozen=True)
class LastRow:
    """The parts of a stream's last row that joining needs."""

    episode: int
    step: int


def rows_that_follow(chunk: Chunk, last: LastRow | None) -> Array:
    """Return [rows] bool: True for rows that make a transition with the previous row.

    Two rows make a transition if they belong to the same episode with consecutive step indices, the first did not end
    the episode, and the second has an action. The previous row of the first one is `last`, the stream's last row, which
    must not have ended its episode.
    """
    follows: Array = chunk.action_present.copy()
    follows[1:] &= ~(chunk.terminated | chunk.truncated)[:-1]
    # Steps within a segment are consecutive, so only the first row of each segment needs a comparison.
    start = 0
    for segment in chunk.segments:
        if segment.rows:
            if last is None or (last.episode, last.step + 1) != (segment.episode, segment.first_step):
                follows[start] = False
            last = LastRow(segment.episode, segment.first_step + segment.rows - 1)
            start += segment.rows
    return follows


def last_row_of(chunk: Chunk) -> LastRow:
    """Return the last row of a chunk, which must have one."""
    segment = next(segment for segment in reversed(chunk.segments) if segment.rows)
    return LastRow(segment.episode, segment.first_step + segment.rows - 1)


def collate_to_torch(values: Sequence[Tree], device: Device) -> Tree:
    """Stack many trees of arrays and numbers into one tree of tensors [len(values), *shape]."""
    first = values[0]
    if isinstance(first, dict):
        return {key: collate_to_torch([value[key] for value in values], device) for key in first}
    if isinstance(first, (tuple, list)):
        return tuple(collate_to_torch(column, device) for column in zip(*values, strict=True))
    if isinstance(first, torch.Tensor):
        return torch.stack(list(values)).to(device or "cpu")
    column = np.stack([np.asarray(value) for value in values])
    if isinstance(first, float):
        column = column.astype(np.float32)
    return torch.from_numpy(column).to(device or "cpu")


def compare_with_original(original: Sequence[Tree], rebuilt: Sequence[Tree], downcast_float64: bool = True) -> None:
    """Compare all values of a rebuilt transition with the worker's original.

    Args:
        original: (prev_obs, act, obs, rew, terminated, truncated), as sent by the worker.
        rebuilt: (prev_obs, act, rew, obs, terminated, truncated).
        downcast_float64: compare float64 values as float32.

    Raises:
        ValueError: they differ; the message names the place.
    """
    prev_obs, act, obs, rew, terminated, truncated = original
    names = ("prev_obs", "act", "rew", "obs", "terminated", "truncated")
    for name, expected, found in zip(names, (prev_obs, act, rew, obs, terminated, truncated), rebuilt, strict=True):
        expected_leaves, found_leaves = flatten(_as_tuples(expected)), flatten(_as_tuples(found))
        same = [path for path, _ in expected_leaves] == [path for path, _ in found_leaves]
        for (path, left), (_, right) in zip(expected_leaves, found_leaves, strict=same) if same else ():
            left_array = np.asarray(left)
            left_array = left_array.astype(stored_dtype(left_array.dtype, downcast_float64))
            right_array = np.asarray(right).astype(left_array.dtype)
            if not np.array_equal(left_array, right_array, equal_nan=left_array.dtype.kind == "f"):
                raise ValueError(
                    f"crc_debug: {name}{path} of a rebuilt transition is {right_array!r}, the worker saw {left_array!r}"
                )
        if not same:
            raise ValueError(f"crc_debug: {name} of a rebuilt transition has another structure than the worker saw")


def _as_tuples(value: Tree) -> Tree:
    """Return `value` with lists as tuples, because tuples inside an info may arrive as lists."""
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_as_tuples(item) for item in value)
    return value


class Memory(TrainingMemory):
    """A replay memory that returns one transition at a time.

    Iterating yields `nb_steps` batches. Derived classes define the content of `data`, and implement `append_buffer`,
    `__len__`, `get_transition` and `collate`.

    Args:
        device: device of the batches.
        nb_steps: batches per iteration.
        sample_preprocessor: called with the six values of each sampled transition (flags unchanged); returns the six
            changed values in that order.
        memory_size: number of samples; may be a float such as 1e6.
        batch_size: transitions in a batch.
        dataset_path: for derived classes that read a data set.
        crc_debug: compare each transition with the worker's original, which is sent along.

    Raises:
        ConfigError: a size is not positive or not whole.
    """

    def __init__(
        self,
        device: torch.device | str | None,
        nb_steps: float,
        sample_preprocessor: Callable[..., Values] | None = None,
        memory_size: float = 1_000_000,
        batch_size: float = 256,
        dataset_path: str = "",
        crc_debug: bool = False,
    ) -> None:
        super().__init__()
        self.device = device
        self.nb_steps = whole_number(nb_steps, "nb_steps")
        self.sample_preprocessor = sample_preprocessor
        self.memory_size = whole_number(memory_size, "memory_size")
        self.batch_size = whole_number(batch_size, "batch_size")
        self.dataset_path = dataset_path
        self.crc_debug = crc_debug
        self.data: list[Any] = []
        self.generator = np.random.default_rng(int(torch.randint(2**62, ()).item()))

    transient: ClassVar[frozenset[str]] = parameters_of(__init__)
    """Attributes that are not in checkpoints, because they come from the configuration."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield `nb_steps` batches."""
        for _ in range(self.nb_steps):
            yield self.sample()

    def __getitem__(self, item: int) -> Values:
        """Return transition `item` after the preprocessor, without its info. The flags are float32."""
        *transition, info = self.get_transition(item)
        if self.crc_debug:
            self.check_original(info, transition)
        if self.sample_preprocessor is not None:
            transition = list(self.sample_preprocessor(*transition))
        prev_obs, act, rew, obs, terminated, truncated = transition
        return prev_obs, act, rew, obs, np.float32(terminated), np.float32(truncated)

    def check_original(self, info: dict[Any, Any], transition: Sequence[Tree]) -> None:
        """Compare a transition with the worker's original, if its info has one; for `crc_debug`.

        Raises:
            ValueError: they differ.
        """
        if "crc_sample" in info:
            compare_with_original(info["crc_sample"], transition)

    def sample_indices(self) -> Sequence[int]:
        """Return `batch_size` items, sampled uniformly."""
        items: list[int] = self.generator.integers(0, len(self), size=self.batch_size).tolist()
        return items

    def sample(self) -> Batch:
        """Return one batch.

        Raises:
            ValueError: the memory is empty.
        """
        if len(self) == 0:
            raise ValueError("the replay memory holds no transition yet")
        return self.collate([self[item] for item in self.sample_indices()], self.device)

    def append(self, buffer: Buffer) -> Refusals:
        """Record the statistics and append the buffer. Return refused chunks with the reasons.

        A whole buffer is refused when `append_buffer` raises SampleRefusedError.
        """
        self.note_statistics(buffer)
        if not len(buffer):
            return []
        try:
            self.append_buffer(buffer)
        except SampleRefusedError as exc:
            return [(chunk, exc) for chunk in buffer.chunks]
        return []

    @abstractmethod
    def append_buffer(self, buffer: Buffer) -> object:
        """Append a buffer's samples, and drop the oldest beyond `memory_size`.

        Raises:
            SampleRefusedError: the samples do not fit; nothing was appended.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Number of items that `get_transition` accepts."""

    @abstractmethod
    def get_transition(self, item: int) -> Transition:
        """Return transition `item`: (prev_obs, act, rew, obs, terminated, truncated, info)."""

    @abstractmethod
    def collate(self, batch: Sequence[Values], device: Device) -> Batch:
        """Return one batch, given a list of transitions."""


class TorchMemory(Memory):
    """A `Memory` whose batches are tensors."""

    def collate(self, batch: Sequence[Values], device: Device) -> Batch:
        """Return nested tuples of tensors [batch_size, *shape] on `device`."""
        return collate_to_torch(batch, device)
