"""Rows that hold each step once, against rows that hold finished transitions: batches a second, and bytes.

    python benchmarks/steps_once.py [--repetitions N] [--batches N] [--message N]

The prototype here is not part of the package. A transition holds two observations, and the second is the first of the
next transition. The prototype writes each run of transitions as steps, with the observation before the run in front,
and reads a transition as the window of two neighbouring rows: one gather on a tensor whose rows overlap. A table leads
from a transition to its window. Both kinds of rows serve a `ReplayMemory` of the same seed, which has to return the
same batches. They take turns; counted is the processor time of `for batch in memory` with batches of 256.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch

from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories import replay
from tmrl_core.training.memories.layout import FLAG_DTYPE, Array, Column, Leaf, RowLayout, TreeSpec, fill
from tmrl_core.training.memories.rows import RamRows
from tmrl_core.training.memories.transitions import TransitionColumns

BATCH = 256
WORKERS = 5
EPISODE = 200
LAYOUTS: dict[str, tuple[tuple[int, ...], type, int]] = {
    "Pendulum, 3 floats": ((3,), np.float32, 100_000),
    "64 floats": ((64,), np.float32, 100_000),
    "84 x 84 x 4 bytes": ((84, 84, 4), np.uint8, 10_000),
}
"""Shape and dtype of observations, and the number of transitions."""


class WindowLayout(RowLayout):
    """A transition as two neighbouring steps: the columns of both, in the same order."""

    def __init__(self, observation: TreeSpec, action: TreeSpec) -> None:
        super().__init__(observation, action)
        self.dtypes, self.sizes, self._widths = [], [], []
        scalar = Leaf("", FLAG_DTYPE, ())
        for half in ("previous", "new"):
            columns = [self._add(leaf) for leaf in observation.leaves]
            act = [self._add(leaf) for leaf in action.leaves]
            rew, terminated, truncated = (self._add(scalar) for _ in range(3))
            if half == "previous":
                self.prev_obs = columns
            else:
                self.new_obs, self.act, self.rew = columns, act, rew
                self.terminated, self.truncated = terminated, truncated


class StepRows(RamRows):
    """Rings of steps. For pairs, without extras; `spare` is the share of rows for the observations before runs."""

    spare = 0.02

    def allocate(self, layout: RowLayout) -> None:
        """Make the rings and the table."""
        made = self.layout = WindowLayout(layout.observation, layout.action)
        self.steps = int(self.capacity * (1 + self.spare)) + 2
        halves = [width // 2 for width in made.widths]
        self.groups = [np.zeros((self.steps, half), dtype) for half, dtype in zip(halves, made.dtypes, strict=True)]
        self._windows = [
            torch.from_numpy(group).as_strided((self.steps - 1, 2 * half), (half, 1))
            for group, half in zip(self.groups, halves, strict=True)
        ]
        self._versions = np.empty((self.capacity, 2), np.int64)
        self._counters = self._versions[:, 1]
        self._window_of = np.zeros(self.capacity, np.int32)
        self._next = 0

    def store(self, transitions: TransitionColumns) -> None:
        """Write each run of neighbouring transitions behind the observation before it."""
        start = self.written
        ends = [*(np.flatnonzero(np.diff(transitions.rows) != 1) + 1).tolist(), transitions.count]
        for first, stop in itertools.pairwise([0, *ends]):
            self._store_run(transitions, first, stop, start)
        self.publish(start, transitions.version)

    def _store_run(self, transitions: TransitionColumns, first: int, stop: int, start: int) -> None:
        layout, count = self.layout, stop - first
        assert layout is not None
        if self._next + count + 1 > self.steps:
            self._next = 0
        at = self._next
        self._next += count + 1
        for column, parts in zip(layout.prev_obs, transitions.prev_obs, strict=True):
            number, part = first, 0
            while number >= len(parts[part]):
                number, part = number - len(parts[part]), part + 1
            self._fill(column, 0, at, parts[part][number : number + 1])
        for column, values in zip(layout.new_obs, transitions.new_obs, strict=True):
            self._fill(column, 1, at + 1, values[first:stop])
        for column, values in zip(layout.act, transitions.act, strict=True):
            self._fill(column, 1, at + 1, values[first:stop])
        for column, values in (
            (layout.rew, transitions.rew),
            (layout.terminated, transitions.terminated),
            (layout.truncated, transitions.truncated),
        ):
            self._fill(column, 1, at + 1, values[first:stop])
        places = np.arange(start + first, start + stop) % self.capacity
        self._window_of[places] = np.arange(at, at + count)

    def _fill(self, column: Column, half: int, at: int, values: Array) -> None:
        assert self.layout is not None
        begin = column.start - half * (self.layout.widths[column.group] // 2)
        target = self.groups[column.group][at : at + len(values), begin : begin + column.stop - column.start]
        fill(target, values.reshape(len(values), -1))

    def gather(self, positions: Array, looked_at: int = 0) -> tuple[list[torch.Tensor], Array]:
        """One gather per group, of windows."""
        index = torch.from_numpy(self._window_of.take(positions))
        return [windows.index_select(0, index) for windows in self._windows], self._counters[positions[:looked_at]]

    @property
    def bytes(self) -> int:
        """Bytes of everything that grows with the capacity."""
        return sum(array.nbytes for array in (*self.groups, self._versions, self._window_of))


def messages(shape: tuple[int, ...], dtype: type, transitions: int, rows_each: int) -> Iterator[Chunk]:
    """Messages of several workers in turn, as `memory_sampling.py` makes them."""
    generator = np.random.default_rng(0)
    step = 0
    while transitions > 0:
        episode, first = divmod(step, EPISODE + 1)
        count = min(rows_each, EPISODE + 1 - first)
        steps = np.arange(first, first + count)
        for worker in range(WORKERS):
            observation = (
                generator.integers(0, 256, (count, *shape), np.uint8)
                if dtype is np.uint8
                else generator.standard_normal((count, *shape), np.float32)
            )
            yield Chunk(
                rows=count,
                action=generator.uniform(-2, 2, (count, 1)).astype(np.float32),
                action_present=steps > 0,
                observation=observation,
                reward=generator.standard_normal(count),
                terminated=np.zeros(count, bool),
                truncated=steps == EPISODE,
                segments=(Segment(count, episode, first, 1, 1),),
                stream=bytes([worker]) * 16,
            )
            transitions -= count - (first == 0)
        step += count


def filled(kind: type[RamRows], name: str, batches: int, rows_each: int) -> tuple[ReplayMemory, float]:
    """Make and fill a memory on some kind of rows; return it with the seconds of processor time."""
    shape, dtype, transitions = LAYOUTS[name]
    with mock.patch.object(replay, "RamRows", kind):
        memory = ReplayMemory("cpu", batches, memory_size=transitions, batch_size=BATCH, seed=0)
    seconds = 0.0
    for chunk in messages(shape, dtype, transitions, rows_each):
        started = time.process_time()
        memory.append_chunk(chunk)
        seconds += time.process_time() - started
    return memory, seconds / transitions


def microseconds(memory: ReplayMemory) -> float:
    """Return the processor time of a batch."""
    started = time.process_time()
    count = sum(1 for _ in memory)
    return (time.process_time() - started) / count * 1e6


def main() -> None:
    """Run all, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--batches", type=int, default=4000)
    parser.add_argument("--message", type=int, default=67, help="rows in a message")
    options = parser.parse_args()
    torch.set_num_threads(1)
    StepRows.spare = 1.25 / options.message
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, "
        f"torch {torch.__version__}, 1 thread; batches of {BATCH}, messages of {options.message} rows, "
        f"{options.repetitions} pairs\n"
    )
    print("| observation | us a batch: transitions, steps | rate, steps / transitions | bytes | us to insert a row |")
    print("| --- | --- | --- | --- | --- |")
    for name in LAYOUTS:
        batches = max(options.batches // 50, 1) if "bytes" in name else options.batches
        (today, put_today), (once, put_once) = (
            filled(kind, name, batches, options.message) for kind in (RamRows, StepRows)
        )
        for left, right in itertools.islice(zip(today, once, strict=True), 50):
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True)), "the batches differ"
        pairs = [(microseconds(today), microseconds(once)) for _ in range(options.repetitions)]
        ratios = sorted(a / b for a, b in pairs)
        cut = len(ratios) // 4
        rows = once._rows
        assert isinstance(rows, StepRows)
        sizes = sum(array.nbytes for array in today.row_arrays), rows.bytes
        old, new = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(
            f"| {name} | {old:.1f}, {new:.1f} | {statistics.median(ratios):.2f} ({ratios[cut]:.2f} to "
            f"{ratios[-1 - cut]:.2f}) | {sizes[0] / 1e6:,.1f}, {sizes[1] / 1e6:,.1f} MB ({sizes[1] / sizes[0]:.2f}) "
            f"| {put_today * 1e6:.2f}, {put_once * 1e6:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
