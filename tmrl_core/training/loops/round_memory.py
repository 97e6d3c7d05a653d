"""Samples of one lockstep round, and their batch: each transition once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.contracts import Refusals, TrainingMemory
from tmrl_core.training.loops.lockstep_round import LastRows, Round, RoundSegment
from tmrl_core.training.memories.finite_samples import check_finite_samples
from tmrl_core.training.memories.key_order import KeyOrders
from tmrl_core.training.memories.layout import Array, stored_dtype
from tmrl_core.training.memories.sample_schema import DeclaredSamples
from tmrl_core.training.memories.trees import flatten, template
from tmrl_core.training.value_types import State, Tree

Layout = tuple[tuple[str, "np.dtype | None", tuple[int, ...]], ...]
"""(path, dtype, shape of a row) of each leaf of a column."""


class RoundMemory(TrainingMemory):
    """Hold the samples of one round and the last row of each stream.

    Args:
        device: where batches go.
        clock: seconds.
    """

    type_id = "round"
    type_version = 1

    transient = frozenset({"device", "round", "last_rows", "_clock", "_layouts", "_orders", "episodes", "declared"})
    """Attributes that are not in checkpoints: an unfinished round is collected again after a restart."""
    declared: DeclaredSamples | None = None
    """Expected structure of samples; None: unknown, the first samples define it."""

    def __init__(self, device: torch.device | str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.device = device
        self.round: Round | None = None
        self.last_rows = LastRows()
        self.episodes: list[tuple[float, int]] = []
        """(return, length) of the training episodes that have ended in this round."""
        self._clock = clock
        self._layouts: dict[str, Layout] = {}
        """Description of the first samples of this process, which later ones must match."""
        self._orders = KeyOrders()

    def begin(self, round_: Round) -> None:
        """Begin another round."""
        self.round = round_
        self.episodes = []

    def expect(self, schema: DeclaredSamples) -> None:
        """Reject samples that differ from the declaration of environment and policy."""
        self.declared = schema

    def append(self, buffer: Buffer) -> Refusals:
        """Insert the rows of a buffer that the round wants; it counts and discards the others.

        Returns:
            Rejected chunks, which differ from earlier ones, with the reason.

        Raises:
            SampleRefusedError: the first samples of this process are not numeric arrays, and no format is declared.
        """
        self.note_statistics(buffer)
        now = self._clock()
        refusals: Refusals = []
        for chunk in buffer.chunks:
            try:
                self._check(chunk)
            except SampleRefusedError as exc:
                if not self._layouts and self.declared is None:
                    raise  # training on this environment is impossible
                refusals.append((chunk, exc))
                continue
            segment = self.last_rows.join(chunk)
            if self.round is not None:
                self.round.take(segment, now)
        if self.round is not None:
            self.episodes += [
                (record.episode_return, record.length)
                for record in buffer.episodes
                if record.mode == "train" and record.end != "aborted" and record.version == self.round.version
            ]
        return refusals

    def _check(self, chunk: Chunk) -> None:
        """Check that samples match earlier ones, because all samples of a round form one batch.

        Raises:
            SampleRefusedError: the samples differ from earlier ones.
        """
        if self.declared is not None:
            self.declared.check(chunk)
            check_finite_samples(chunk)
        trees = _trees(chunk)
        found = _layouts(chunk, trees)
        for name, layout in found.items():
            known = self._layouts.get(name, layout)
            if layout != known:
                raise SampleRefusedError(
                    f"the {name} of a sample is {_described(layout)}, and others' is {_described(known)}. Lockstep "
                    "needs the same shapes and dtypes from all workers; see that they use the same environment."
                )
        self._layouts = {**found, **self._layouts}
        for name, tree in trees.items():
            self._orders.note(name, tree)

    def __len__(self) -> int:
        """Return the number of transitions in the round."""
        return sum(sum(segment.follows) for segment in self.round.segments) if self.round is not None else 0

    def batch(self) -> tuple[Any, ...]:
        """Return all transitions of the round, stream by stream, in the order of collection.

        Returns:
            (prev_obs, new_act, rew, new_obs, terminated, truncated, extras) with tensors [T, ...]; rewards and flags
            are float32, and float64 becomes float32. `extras` holds the samples' extras, `ends` and `places`.

        Raises:
            SampleRefusedError: the samples are not arrays of one structure, shape and dtype.
            ValueError: there is no transition.
        """
        segments = (
            [segment for segment in self.round.segments if any(segment.follows)] if self.round is not None else []
        )
        if not segments:
            raise ValueError("the round holds no transition")
        rows = [np.flatnonzero(segment.follows) for segment in segments]
        observations = [_flat_tree(segment.chunk.observation, "observation") for segment in segments]
        before = [
            _flat_tree((segment.before or segment.chunk.slice(0, 1)).observation, "observation") for segment in segments
        ]
        _check_alike([*observations, *before])
        prev_obs = self._tensors(
            [
                [
                    (path, np.concatenate([first, rest[:-1]]))
                    for (path, first), (_, rest) in zip(left, right, strict=True)
                ]
                for left, right in zip(before, observations, strict=True)
            ],
            rows,
        )
        shape = template(segments[0].chunk.observation)
        extras = {
            name: self._tree(rows, f"extra {name}", [segment.chunk.extras.get(name, []) for segment in segments])
            for name in segments[0].chunk.extras
        }
        places = _places(segments, rows)
        extras[PLACES] = torch.from_numpy(places).to(self.device or "cpu")
        extras[ENDS] = torch.from_numpy(_ends(places, segments, rows)).to(self.device or "cpu")
        return (
            self._orders.arranged("observation", shape, prev_obs),
            self._tree(rows, "action", [segment.chunk.action for segment in segments]),
            self._numbers(rows, "reward", [segment.chunk.reward for segment in segments]),
            self._orders.arranged("observation", shape, self._tensors(observations, rows)),
            self._numbers(rows, "terminated", [segment.chunk.terminated for segment in segments]),
            self._numbers(rows, "truncated", [segment.chunk.truncated for segment in segments]),
            extras,
        )

    def versions(self) -> Array:
        """Policy version of each transition of the batch: [T, 2]."""
        segments = self.round.segments if self.round is not None else []
        parts = [segment.chunk.version[np.asarray(segment.follows, bool)] for segment in segments]
        return np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)

    def _tree(self, rows: Sequence[Array], name: str, trees: Sequence[Tree]) -> Any:
        leaves = self._tensors([_flat_tree(tree, name) for tree in trees], rows)
        return self._orders.arranged(name, template(trees[0]), leaves)

    def _numbers(self, rows: Sequence[Array], name: str, columns: Sequence[Array]) -> torch.Tensor:
        parts = [np.asarray(column)[at] for column, at in zip(columns, rows, strict=True)]
        for part in parts:
            if part.ndim != 1 or part.dtype.kind not in "biuf":
                raise SampleRefusedError(
                    f"the {name} of a sample is {part.dtype}{list(part.shape[1:])}, not one number"
                )
        return torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(self.device or "cpu")

    def _tensors(self, flat: Sequence[list[tuple[str, Array]]], rows: Sequence[Array]) -> list[torch.Tensor]:
        """Return one tensor per leaf, of the wanted rows of all segments."""
        tensors = []
        for index, (_, dtype, _) in enumerate(_check_alike(flat)):
            joined = np.concatenate([columns[index][1][at] for columns, at in zip(flat, rows, strict=True)])
            tensors.append(torch.from_numpy(joined.astype(stored_dtype(dtype, True))).to(self.device or "cpu"))
        return tensors


def _trees(chunk: Chunk) -> State:
    """Return a chunk's columns by name; without actions, the columns of actions and extras have no type."""
    if not chunk.action_present.any():
        return {"observation": chunk.observation}
    extras = {f"extra {name}": tree for name, tree in chunk.extras.items()}
    return {"observation": chunk.observation, "action": chunk.action, **extras}


def _layouts(chunk: Chunk, trees: Mapping[str, object]) -> dict[str, Layout]:
    """Return the format of a chunk's rows, by the names of its columns.

    Raises:
        SampleRefusedError: the samples are not numeric arrays, so that training on them is impossible.
    """
    found = {name: _layout_of(_flat_tree(tree, name)) for name, tree in trees.items()}
    reward = np.asarray(chunk.reward)
    if reward.ndim != 1 or reward.dtype.kind not in "biuf":
        raise SampleRefusedError(f"the reward of a sample is {reward.dtype}{list(reward.shape[1:])}, not one number")
    if "action" in found:
        found["extras"] = tuple((name, None, ()) for name in sorted(chunk.extras))
    return found


def _layout_of(leaves: Sequence[tuple[str, Array]]) -> Layout:
    return tuple((path, column.dtype, column.shape[1:]) for path, column in leaves)


def _described(layout: Layout) -> str:
    return ", ".join(f"{path} {dtype or ''}{list(shape) if dtype else ''}".strip() for path, dtype, shape in layout)


def _check_alike(flat: Sequence[list[tuple[str, Array]]]) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    """Return the common layout of all rows: (path, dtype, shape of a row) of each leaf."""
    layout = [(path, column.dtype, column.shape[1:]) for path, column in flat[0]]
    for other in flat:
        found = [(path, column.dtype, column.shape[1:]) for path, column in other]
        if found != layout:
            raise SampleRefusedError(
                f"the samples of one round differ: {layout} and {found}. Lockstep needs the same shapes and dtypes "
                "from all workers; see that they use the same environment."
            )
    return layout


def _flat_tree(tree: Tree, name: str) -> list[tuple[str, Array]]:
    leaves = flatten(tree)
    for path, column in leaves:
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
            raise SampleRefusedError(
                f"{name}{path} is no array of numbers of one shape, which lockstep training needs; make it one in "
                "worker.obs_preprocessor or the environment."
            )
    return leaves


def _places(segments: Sequence[RoundSegment], rows: Sequence[Array]) -> Array:
    """Stream, episode and step of each transition, [T, 3] int64. Half of a stream's random id identifies it."""
    return np.concatenate(
        [
            np.stack(
                [np.full(len(at), _number(segment.chunk.stream)), segment.chunk.episode[at], segment.chunk.step[at]], 1
            )
            for segment, at in zip(segments, rows, strict=True)
        ]
    ).astype(np.int64, copy=False)


def _number(stream: bytes) -> int:
    return int.from_bytes(stream[:8], "little", signed=True)


def _ends(places: Array, segments: Sequence[RoundSegment], rows: Sequence[Array]) -> Array:
    """Flags [T] float32: 1 where the next transition of the batch is not the next step of the same episode."""
    done = np.concatenate(
        [(segment.chunk.terminated | segment.chunk.truncated)[at] for segment, at in zip(segments, rows, strict=True)]
    )
    ends = np.ones(len(places), np.float32)
    goes_on = (places[1:] == places[:-1] + np.array([0, 0, 1])).all(axis=1)
    ends[:-1] = done[:-1] | ~goes_on
    return ends
