"""Memories of every kind, beside each other and beside a slow model, through whatever may happen to a run.

One in RAM, one that prepares blocks ahead, and two on disk (one that commits later) are given the same samples:
episodes cut anywhere, gaps, repeats, ends within a chunk, chunks that are refused. Now and then one is replaced by what
its checkpoint gives, with another number of blocks ahead. All draw the same transitions, bit for bit, and each
transition is one that the model has made.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import FrameStackMemory, ReplayMemory
from tmrl_core.training.memories.trees import flatten

GAMMA, STACK = 0.5, 3
"""Sums of these rewards, discounted by this, are exact."""


def observations(stream: int, episode: int, steps: Any, stacked: bool) -> Any:
    """What is seen at these steps: where they are, and for stacks of frames pictures that say the same."""
    place = np.stack([np.full(len(steps), stream), np.full(len(steps), episode), steps], 1)
    if not stacked:
        return {"place": place.astype(np.float64), "odd": (place[:, 2] % 2 == 1, place.astype(np.uint8)[:, :, None])}
    back = np.arange(1 - STACK, 1) * (1 + episode % 3)  # frames that are skipped: a stack is not always moved on
    frames = stream * 1009 + episode * 101 + np.maximum(steps[:, None] + back, 0)
    return {"image": np.stack([frames % 251, frames // 251, frames % 7], -1).astype(np.uint8), "place": place}


class Streams:
    """Chunks as they may come."""

    def __init__(self, seed: int, stacked: bool) -> None:
        self.random = random.Random(seed)
        self.stacked = stacked
        self.number = self.random.choice([1, 2, 6])
        self._places: dict[int, tuple[int, int]] = {}

    def chunk(self, version: int) -> Chunk:
        draw = self.random
        stream = draw.randint(1, self.number)
        parts = [self._part(stream, version) for _ in range(draw.choice([1, 1, 1, 2]))]
        columns = [np.concatenate([part[i] for part in parts]) for i in range(1, 5)]
        steps, terminated, truncated, present = columns
        trees = [observations(stream, part[0].episode, part[1], self.stacked) for part in parts]
        names = [path for path, _ in flatten(trees[0])]
        leaves = dict(zip(names, (np.concatenate(one) for one in zip(*map(_leaves, trees), strict=True)), strict=True))
        observation: Any = (
            {"image": leaves["/image"], "place": leaves["/place"]}
            if self.stacked
            else {"place": leaves["/place"], "odd": (leaves["/odd/0"], leaves["/odd/1"])}
        )
        return Chunk(
            rows=len(steps),
            action=np.where(present, steps, 0)[:, None].astype(np.float32) if present.any() else (),
            action_present=present,
            observation=observation,
            reward=steps * 0.25 + stream,
            terminated=terminated,
            truncated=truncated,
            segments=tuple(part[0] for part in parts),
            stream=bytes([stream]) * 16,
        )

    def _part(self, stream: int, version: int) -> tuple[Any, ...]:
        draw = self.random
        episode, step = self._places.get(stream, (0, 0))
        chance = draw.random()
        if chance < 0.08:
            step += draw.randint(1, 3)  # a message is missing
        elif chance < 0.12:
            episode, step = episode + 1, draw.choice([0, 3])  # given up
        elif chance < 0.16:
            episode, step = max(0, episode - draw.randint(0, 1)), max(0, step - 1)  # out of order
        rows = draw.choice([1, 1, 2, 5, draw.randint(1, 20)])
        steps = np.arange(step, step + rows)
        ends = np.zeros((2, rows), bool)
        ends[draw.randint(0, 1), -1] = draw.random() < 0.3
        ends[draw.randint(0, 1), draw.randrange(rows)] |= draw.random() < 0.05
        over = bool(ends[:, -1].any())
        self._places[stream] = (episode + 1, 0) if over else (episode, step + rows)
        of = max(0, version - draw.choice([0, 0, 0, 1, 3]))
        return Segment(rows, episode, step, 1, of), steps, ends[0], ends[1], steps > 0


def _leaves(tree: Any) -> list[Any]:
    return [leaf for _, leaf in flatten(tree)]


def made_of(transition: Any, discount: float) -> tuple[Any, ...]:
    """A transition by what says which it is."""
    before, act, rew, after, terminated, truncated, *_ = transition
    places = (tuple(np.asarray(one["place"]).tolist()) for one in (before, after))
    flags = (float(terminated), float(truncated))
    return *places, float(np.asarray(act)[0]), float(rew), *flags, discount


class Model:
    """All transitions that have been, by an obvious loop over the rows of each run."""

    def __init__(self, n_step: int) -> None:
        self.n_step = n_step
        self.made: list[tuple[Any, ...]] = []
        self._open: dict[bytes, Any] = {}

    def append(self, chunk: Chunk) -> None:
        runs: list[Any] = [self._open.pop(chunk.stream)] if chunk.stream in self._open else []
        for row in range(chunk.rows):
            episode, step = int(chunk.episode[row]), int(chunk.step[row])
            over = bool(chunk.terminated[row] or chunk.truncated[row])
            last = runs[-1]["rows"][-1] if runs else None
            if last is None or last[2:] != (episode, step - 1, False) or not chunk.action_present[row]:
                runs.append({"rows": [], "next": 0})
            runs[-1]["rows"].append((chunk, row, episode, step, over))
        for run in runs:
            goes_on = run is runs[-1] and not run["rows"][-1][4]
            self._emit(run, goes_on)
            if goes_on:
                self._open[chunk.stream] = run

    def _emit(self, run: Any, goes_on: bool) -> None:
        rows = run["rows"]
        while run["next"] < len(rows) - 1:
            start = run["next"]
            end = min(start + self.n_step, len(rows) - 1)
            if goes_on and end < start + self.n_step:
                return
            rew = sum(GAMMA**k * chunk.reward[row] for k, (chunk, row, *_) in enumerate(rows[start + 1 : end + 1]))
            (first, i, *_), (act, a, *_), (last, j, *_) = rows[start], rows[start + 1], rows[end]
            before, after = ({"place": chunk.observation["place"][row]} for chunk, row in ((first, i), (last, j)))
            flags = last.terminated[j], last.truncated[j]
            self.made.append(made_of((before, act.action[a], rew, after, *flags), GAMMA ** (end - start)))
            run["next"] += 1

    def forget(self, stream: bytes) -> None:
        self._open.pop(stream, None)


def bits(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, dict)):
        return [one for part in (tree.values() if isinstance(tree, dict) else tree) for one in bits(part)]
    return [tree.dtype, tuple(tree.shape), tree.numpy().tobytes()]


def saved(memory: ReplayMemory) -> tuple[Any, list[Any]]:
    start, stop = memory.written - len(memory), memory.written
    rows = [ring[np.arange(start, stop) % memory.memory_size].copy() for ring in memory.row_arrays]
    return copy.deepcopy(memory.state_dict()), rows


class Stores:
    """Four memories of one configuration."""

    def __init__(self, folder: Path, seed: int, stacked: bool) -> None:
        draw = random.Random(seed)
        self.random, self.stacked, self._folder = draw, stacked, folder
        self.n_step = draw.choice([1, 1, 2, 5])
        self.lag = draw.choice([None, None, 0, 2])
        self.priority = draw.choice([None, {}, {"beta_batches": 10}])
        self.settings: dict[str, Any] = {
            "memory_size": draw.choice([1, 7, 33, 64, 200]),
            "batch_size": draw.choice([1, 3, 8]),
            "nb_steps": 5,
            "seed": seed,
            "n_step": self.n_step,
            "gamma": GAMMA,
            "priority": self.priority,
            "max_drawn_lag": self.lag,
        }
        self.all = [self.make(False, 0), self.make(False, 2), self.make(True, 0, "a"), self.make(True, 0, "b")]
        self.all[3].deferred = True

    def make(self, disk: bool, ahead: int, name: str = "") -> ReplayMemory:
        kwargs = dict(self.settings)
        if self.priority is None:
            kwargs["prefetch"] = ahead
        if disk:
            kwargs |= {"storage": "disk", "folder": self._folder / name}
        return FrameStackMemory(frame_stack=STACK, **kwargs) if self.stacked else ReplayMemory(**kwargs)

    def restore(self, version: int) -> None:
        at = self.random.randrange(4)
        old = self.all[at]
        state, rows = saved(old)
        old.close()
        new = self.make(at > 1, self.random.choice([0, 1, 3]), "ab"[at % 2])
        new.load_state_dict(state, rows)
        new.note_version(version)
        new.deferred = old.deferred
        self.all[at] = new

    def append(self, chunk: Chunk) -> bool:
        """False: all have refused it."""
        refused = 0
        for memory in self.all:
            try:
                memory.append_chunk(chunk)
            except SampleRefusedError:
                refused += 1
            memory.commit()
        assert refused in (0, 4)
        return not refused


def wrong(chunk: Chunk, draw: random.Random) -> Chunk:
    rows = chunk.rows
    return draw.choice(
        [
            replace(chunk, reward=np.zeros((rows, 2))),
            replace(chunk, action=np.zeros((rows, 9), np.float32), action_present=np.ones(rows, bool)),
            replace(chunk, observation=np.zeros((rows, 77), np.float32)),
            replace(chunk, observation=["x"] * rows),
        ]
    )


def check_held(stores: Stores, model: Model, known: set[Any]) -> None:
    """A few of the transitions that are held are the model's, those pictures included."""
    lengths = {(len(memory), memory.sampleable, memory.written) for memory in stores.all}
    assert len(lengths) == 1
    length, _, written = lengths.pop()
    if not stores.stacked:
        assert (length, written) == (min(stores.settings["memory_size"], len(model.made)), len(model.made))
    for item in {0, length // 2, length - 1} if length else ():
        for memory in stores.all:
            found = memory.get_transition(item)
            key = made_of(found, float(found[6].get("discount", GAMMA)))
            assert key in known if stores.stacked else key == model.made[written - length + item]
            for seen in (found[0], found[3]):
                stream, episode, step = (int(value) for value in seen["place"])
                expected = observations(stream, episode, np.array([step]), stores.stacked)
                for (_, left), (_, right) in zip(flatten(seen), flatten(expected), strict=True):
                    assert np.array_equal(left, right[0])


def check_drawn(stores: Stores) -> None:
    """All draw the same, and learn of the same errors."""
    draw = stores.random
    for _ in range(draw.randint(1, 8)):
        batches = [memory.sample() for memory in stores.all]
        expected = bits(batches[0])
        assert all(bits(batch) == expected for batch in batches)
        assert len(batches[0][2]) == stores.settings["batch_size"]
        if stores.priority is not None and draw.random() < 0.8:
            errors = [draw.choice([0.0, -1.0, draw.random(), 1e3, math.nan, math.inf]) for _ in batches[0][2]]
            for memory in stores.all:
                memory.update_priorities(batches[0][6]["indices"].clone(), torch.tensor(errors))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_all_memories_sample_the_same_valid_transitions(
    tmp_path: Path, seed: int, stacked: bool, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MIN_SEGMENT_BYTES", "MAX_SEGMENT_BYTES"):
        monkeypatch.setattr(f"tmrl_core.training.memories.disk_rows.{name}", 2000)
    for more in range(20 if full else 1):
        one_run(tmp_path / str(more), seed + 100 * more, stacked)


def one_run(folder: Path, seed: int, stacked: bool) -> None:
    streams, stores = Streams(seed, stacked), Stores(folder, seed, stacked)
    model, draw, version = Model(stores.n_step), stores.random, 1
    known: set[Any] = set()
    for memory in stores.all:
        memory.note_version(version)
    for _ in range(40):
        chance = draw.random()
        if chance < 0.4:
            chunk = streams.chunk(version)
            bad = draw.random() < 0.12 and len(stores.all[0]) > 0
            assert stores.append(wrong(chunk, draw) if bad else chunk) != bad
            if bad:
                model.forget(chunk.stream)
            else:
                before = len(model.made)
                model.append(chunk)
                known.update(model.made[before:])
        elif chance < 0.5:
            version += draw.randint(0, 2)
            for memory in stores.all:
                memory.note_version(version)
        elif chance < 0.6:
            stores.restore(version)
        elif chance < 0.64:
            stream = bytes([draw.randint(1, streams.number)]) * 16
            for memory in stores.all:
                memory._builder.forget(stream)
                memory.commit()
            model.forget(stream)
        else:
            check_held(stores, model, known)
            if stores.all[0].sampleable:
                check_drawn(stores)
    for memory in stores.all:
        memory.close()
