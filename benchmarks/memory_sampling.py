"""Batches a second out of a replay memory: ours, six plain NumPy columns, and stable-baselines3's where installed.

    python benchmarks/memory_sampling.py [--transitions N] [--batches N] [--repetitions N] [--threads N]

All memories hold the same Pendulum-sized transitions, which came from five workers whose messages are interleaved. Ours
is filled message by message, with all rules of validity on, and read through `for batch in memory`; the others are
filled with ready transitions, which they take for valid. Each makes tensors. They take turns, five times each.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory

BATCH = 256
WORKERS = 5
EPISODE = 200
MESSAGE = 67
"""Rows in a message: it divides no episode."""
REACH = 60_000


def messages(transitions: int) -> Iterator[Chunk]:
    """Messages of five workers, one after the other in turn; an episode's rows are spread over several of them."""
    generator = np.random.default_rng(0)
    rows = EPISODE + 1
    step = 0
    while transitions > 0:
        episode, first = divmod(step, rows)
        count = min(MESSAGE, rows - first)
        steps = np.arange(first, first + count)
        for worker in range(WORKERS):
            truncated = steps == EPISODE
            yield Chunk(
                rows=count,
                action=generator.uniform(-2, 2, (count, 1)).astype(np.float32),
                action_present=steps > 0,
                observation=generator.standard_normal((count, 3)).astype(np.float32),
                reward=generator.standard_normal(count),
                terminated=np.zeros(count, bool),
                truncated=truncated,
                segments=(Segment(count, episode, first, 1, 1),),
                stream=bytes([worker]) * 16,
            )
            transitions -= count - (first == 0)
        step += count


def ours(transitions: int, batches: int) -> Callable[[], int]:
    """Fill a ReplayMemory; returns what reads it once."""
    memory = ReplayMemory("cpu", batches, memory_size=transitions, batch_size=BATCH, seed=0)
    for chunk in messages(transitions):
        memory.append_chunk(chunk)
    assert len(memory) == transitions

    def read() -> int:
        count = 0
        for batch in memory:
            count += len(batch[2])
        shapes = [tuple(column.shape[1:]) for column in batch]
        assert shapes == [(3,), (1,), (), (3,), (), ()]
        return count

    return read


def six_columns(transitions: int, batches: int) -> Callable[[], int]:
    """Six arrays and one draw of indices for each batch: what one writes first."""
    generator = np.random.default_rng(0)
    columns = [
        generator.standard_normal((transitions, 3)).astype(np.float32),
        generator.standard_normal((transitions, 1)).astype(np.float32),
        generator.standard_normal(transitions).astype(np.float32),
        generator.standard_normal((transitions, 3)).astype(np.float32),
        np.zeros(transitions, np.float32),
        np.zeros(transitions, np.float32),
    ]

    def read() -> int:
        count = 0
        for _ in range(batches):
            rows = generator.integers(0, transitions, BATCH)
            batch = tuple(torch.from_numpy(column[rows]) for column in columns)
            count += len(batch[2])
        return count

    return read


def stable_baselines3(transitions: int, batches: int) -> Callable[[], int] | None:
    """Its ReplayBuffer; None where the package is missing."""
    try:
        from stable_baselines3.common.buffers import ReplayBuffer
    except ModuleNotFoundError:
        return None
    from gymnasium import spaces

    box = spaces.Box(-8, 8, (3,), np.float32)
    memory: Any = ReplayBuffer(transitions, box, spaces.Box(-2, 2, (1,), np.float32), device="cpu")
    generator = np.random.default_rng(0)
    for _ in range(transitions):
        obs = generator.standard_normal((2, 1, 3)).astype(np.float32)
        memory.add(obs[0], obs[1], np.zeros((1, 1), np.float32), np.zeros(1), np.zeros(1), [{}])

    def read() -> int:
        return sum(len(memory.sample(BATCH).rewards) for _ in range(batches))

    return read


def main() -> None:
    """Run all, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    candidates: dict[str, Callable[[], int] | None] = {
        "tmrl_core.training.ReplayMemory": ours(options.transitions, options.batches),
        "six NumPy columns": six_columns(options.transitions, options.batches),
        "stable-baselines3 ReplayBuffer": stable_baselines3(options.transitions, options.batches),
    }
    rates: dict[str, list[float]] = {name: [] for name, read in candidates.items() if read is not None}
    for _ in range(options.repetitions):
        for name in rates:
            read = candidates[name]
            assert read is not None
            started = time.perf_counter()
            count = read()
            rates[name].append(options.batches / (time.perf_counter() - started))
            assert count == options.batches * BATCH

    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, "
        f"torch {torch.__version__}, {options.threads} thread(s)"
    )
    print(f"{options.transitions:,} transitions, batches of {BATCH}, {options.batches:,} batches per repetition")
    for name in candidates:
        if name not in rates:
            print(f"{name:34} not installed")
            continue
        found = rates[name]
        print(
            f"{name:34} {statistics.median(found):10,.0f} batches/s (median of {len(found)}; "
            f"{min(found):,.0f} to {max(found):,.0f})"
        )
    mine = statistics.median(rates["tmrl_core.training.ReplayMemory"])
    for name in list(rates)[1:]:
        print(f"ratio to {name}: {mine / statistics.median(rates[name]):.2f}")
    print(f"reach: {REACH:,} batches/s: {'reached' if mine >= REACH else 'NOT reached'}")


if __name__ == "__main__":
    main()
