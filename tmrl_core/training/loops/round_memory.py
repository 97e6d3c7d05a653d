"""Samples of one lockstep round, and their batch: each transition once, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tmrl_core.actor.interventions import IS_INTERVENTION, TAKEOVER_EXTRAS, taken_over
from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.samples.columns import STREAM_ID_BYTES
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.contracts import Refusals, TrainingMemory
from tmrl_core.training.loops.lockstep_round import LastRows, Round, RoundSegment
from tmrl_core.training.memories.key_order import KeyOrders
from tmrl_core.training.memories.layout import FLAG_DTYPE, Array, TreeSpec, stored_dtype, tree_spec
from tmrl_core.training.memories.sample_check import check_samples
from tmrl_core.training.memories.trees import leaves_of, rebuild
from tmrl_core.training.value_types import Batch, State, Tree

ADVICE = (
    "lockstep training needs arrays of numbers with one shape; convert it in worker.obs_preprocessor or the environment"
)


class RoundMemory(TrainingMemory):
    """Hold the samples of one round and the last row of each stream.

    Args:
        device: where batches go.
        clock: seconds.
    """

    type_id = "round"
    type_version = 1

    transient = frozenset({"device", "round", "last_rows", "_clock", "_specs", "_orders"})
    """Attributes that are not in checkpoints: an unfinished round is collected again after a restart."""

    def __init__(self, device: torch.device | str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.device = device
        self.round: Round | None = None
        self.last_rows = LastRows()
        self._clock = clock
        self._specs: dict[str, TreeSpec] = {}
        """Description of the first samples of this process, which later ones must match."""
        self._orders = KeyOrders()

    def begin(self, round_: Round) -> None:
        """Begin another round."""
        self.round = round_

    @property
    def episodes(self) -> list[tuple[float, int]]:
        """Return (return, length) of the episodes that have ended in this round."""
        return self.round.episodes if self.round is not None else []

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
                if not self._specs and self.declared is None:
                    raise  # training on this environment is impossible
                refusals.append((chunk, exc))
                continue
            segment = self.last_rows.join(chunk)
            if self.round is not None:
                self.round.take(segment, now)
        return refusals

    def _check(self, chunk: Chunk) -> None:
        """Check that samples match earlier ones, because all samples of a round form one batch.

        Raises:
            SampleRefusedError: the samples differ from earlier ones.
        """
        if self.declared is not None:
            check_samples(chunk, self.declared, as_float32=True)
        trees = _trees(chunk)
        found = {name: tree_spec(tree, name, False, ADVICE) for name, tree in trees.items()}
        reward = np.asarray(chunk.reward)
        if reward.ndim != 1 or reward.dtype.kind not in "biuf":
            raise SampleRefusedError(
                f"the reward of a sample is {reward.dtype}{list(reward.shape[1:])}, not one number"
            )
        for name, spec in found.items():
            known = self._specs.get(name, spec)
            if spec != known:
                raise SampleRefusedError(
                    f"the {name} of a sample is {spec}, and others' is {known}. Lockstep needs the same shapes and "
                    "dtypes from all workers; see that they use the same environment."
                )
            self._orders.check(name, spec, known)
        self._specs = {**found, **self._specs}

    def __len__(self) -> int:
        """Return the number of transitions in the round."""
        return sum(sum(segment.follows) for segment in self.round.segments) if self.round is not None else 0

    def batch(self) -> Batch:
        """Return all transitions of the round, stream by stream, in the order of collection.

        Returns:
            (prev_obs, new_act, rew, new_obs, terminated, truncated, extras) with tensors [T, ...]; rewards and flags
            are float32, and float64 becomes float32. `extras` holds the samples' extras, `ends` and `places`;
            `is_intervention`, if persons may take over.

        Raises:
            ValueError: there is no transition.
        """
        segments = (
            [segment for segment in self.round.segments if any(segment.follows)] if self.round is not None else []
        )
        if not segments:
            raise ValueError("the round holds no transition")
        rows = [np.flatnonzero(segment.follows) for segment in segments]
        chunks = [segment.chunk for segment in segments]
        observations = [leaves_of(chunk.observation) for chunk in chunks]
        before = [leaves_of((segment.before or segment.chunk.slice(0, 1)).observation) for segment in segments]
        previous = [
            [np.concatenate([first, rest[:-1]]) for first, rest in zip(left, right, strict=True)]
            for left, right in zip(before, observations, strict=True)
        ]
        extras = self._tree("extras", [_of_policy(chunk) for chunk in chunks], rows)
        if any(IS_INTERVENTION in chunk.extras for chunk in chunks):
            extras[IS_INTERVENTION] = self._joined([taken_over(chunk) for chunk in chunks], rows, FLAG_DTYPE)
        places = _places(segments, rows)
        extras[PLACES] = torch.from_numpy(places).to(self.device or "cpu")
        extras[ENDS] = torch.from_numpy(_ends(places, segments, rows)).to(self.device or "cpu")
        return (
            self._arranged("observation", previous, rows),
            self._tree("action", [chunk.action for chunk in chunks], rows),
            self._joined([chunk.reward for chunk in chunks], rows, FLAG_DTYPE),
            self._arranged("observation", observations, rows),
            self._joined([chunk.terminated for chunk in chunks], rows, FLAG_DTYPE),
            self._joined([chunk.truncated for chunk in chunks], rows, FLAG_DTYPE),
            extras,
        )

    def versions(self) -> Array:
        """Policy version of each transition of the batch: [T, 2]."""
        segments = self.round.segments if self.round is not None else []
        parts = [segment.chunk.version[np.asarray(segment.follows, bool)] for segment in segments]
        return np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)

    def _tree(self, name: str, trees: Sequence[Tree], rows: Sequence[Array]) -> Tree:
        return self._arranged(name, [leaves_of(tree) for tree in trees], rows)

    def _arranged(self, name: str, columns: Sequence[Sequence[Array]], rows: Sequence[Array]) -> Tree:
        """Return a tree of tensors: the wanted rows of all segments' columns."""
        return rebuild(self._specs[name].shape, [self._joined(parts, rows) for parts in zip(*columns, strict=True)])

    def _joined(self, parts: Sequence[Array], rows: Sequence[Array], dtype: np.dtype | None = None) -> torch.Tensor:
        joined = np.concatenate([np.asarray(part)[at] for part, at in zip(parts, rows, strict=True)])
        return torch.from_numpy(joined.astype(dtype or stored_dtype(joined.dtype, True))).to(self.device or "cpu")


def _trees(chunk: Chunk) -> State:
    """Return a chunk's columns by name; without actions, the columns of actions and extras have no type."""
    if not chunk.action_present.any():
        return {"observation": chunk.observation}
    return {"observation": chunk.observation, "action": chunk.action, "extras": _of_policy(chunk)}


def _of_policy(chunk: Chunk) -> State:
    """Return the extras that the policy returned. Workers with a person beside them send more."""
    return {name: tree for name, tree in chunk.extras.items() if name not in TAKEOVER_EXTRAS}


def _places(segments: Sequence[RoundSegment], rows: Sequence[Array]) -> Array:
    """Stream, episode and step of each transition, [T, 3] int64."""
    return np.concatenate(
        [
            np.stack(
                [np.full(len(at), _number(segment.chunk.stream)), segment.chunk.episode[at], segment.chunk.step[at]], 1
            )
            for segment, at in zip(segments, rows, strict=True)
        ]
    ).astype(np.int64, copy=False)


def _number(stream: bytes) -> int:
    """Return a number that identifies a stream: half of its worker's random id, changed by the lane behind it."""
    return int.from_bytes(stream[:8], "little", signed=True) ^ int.from_bytes(stream[STREAM_ID_BYTES:], "big")


def _ends(places: Array, segments: Sequence[RoundSegment], rows: Sequence[Array]) -> Array:
    """Flags [T] float32: 1 where the next transition of the batch is not the next step of the same episode."""
    done = np.concatenate(
        [(segment.chunk.terminated | segment.chunk.truncated)[at] for segment, at in zip(segments, rows, strict=True)]
    )
    ends = np.ones(len(places), np.float32)
    goes_on = (places[1:] == places[:-1] + np.array([0, 0, 1])).all(axis=1)
    ends[:-1] = done[:-1] | ~goes_on
    return ends
