"""SessionPool: batches of sequences a second, and the memory of a stored tick.

    python benchmarks/session_pool.py [--repetitions N] [--batches N] [--sessions N]

Sampling: 64 sequences of 80 ticks (observations of 17 float32, actions of 6) from 10,000 sessions, drawn without
replacement, as tensors. Three candidates take turns:

- plain NumPy: the arrays [10000, 80, ...] of observations, actions and rewards, indexed by the drawn indices. It has no
  mask of alive ticks and checks nothing;
- `SessionPool.sample`: the same, and the mask and the flags of termination;
- `SessionPool.sample_session_batch`: the environment that replays them.

Counted is the processor time of this process, with one thread.

Memory: growth of this process (resident set) while a pool is filled, less the bytes of the ticks themselves, per tick.
The C library gives its free memory back before each reading (`malloc_trim`, with glibc), because it keeps some tens of
megabytes of what was freed. The sessions are loaded at once, or appended one by one to a full pool, which then has
replaced all sessions twice.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import psutil
import torch
from gymnasium.spaces import Box

from tmrl_core.sessions import SessionPool

BATCH, TICKS, OBSERVATION, ACTION = 64, 80, 17, 6
TICK_BYTES = 4 * (OBSERVATION + ACTION + 1)
REACH_RATIO = 0.5
REACH_BYTES = 12 + 0.02 * TICK_BYTES

Floats = npt.NDArray[np.float32]


def sessions(count: int, ticks: int = TICKS, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Observations, actions and rewards."""
    draw = np.random.default_rng(seed)
    shapes = (count, ticks, OBSERVATION), (count, ticks, ACTION), (count, ticks)
    observations, actions, rewards = (draw.random(shape, np.float32) + 1 for shape in shapes)
    return observations, actions, rewards


def empty_pool() -> SessionPool:
    return SessionPool(1, Box(-1, 1, (ACTION,), np.float32), 0)


def sampling(count: int, batches: int, repetitions: int) -> float:
    """Print a table; return the ratio of the batch rates, pool / NumPy."""
    arrays = sessions(count)
    pool = empty_pool()
    pool.load_sessions(*arrays)
    generator = np.random.default_rng(0)

    def plain() -> list[torch.Tensor]:
        chosen = generator.choice(count, BATCH, replace=False)
        return [torch.from_numpy(array[chosen]) for array in arrays]

    def ours() -> list[torch.Tensor]:
        batch = pool.sample(BATCH)
        arrays = (*batch.observations, *batch.actions, batch.rewards, batch.is_alive, batch.terminated)
        return [torch.from_numpy(array) for array in arrays]

    def environment() -> object:
        return pool.sample_session_batch(BATCH).rewards

    for tensor, whole in zip(ours(), arrays, strict=False):
        assert tensor.shape == (BATCH, TICKS, *whole.shape[2:])
    candidates: dict[str, Callable[[], object]] = {
        "plain NumPy": plain,
        "SessionPool.sample": ours,
        "SessionPool.sample_session_batch": environment,
    }
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repetitions):
        for name, draw in candidates.items():
            draw()
            started = time.process_time()
            for _ in range(batches):
                draw()
            rates[name].append(batches / (time.process_time() - started))
    baseline = statistics.median(rates["plain NumPy"])
    for name, found in rates.items():
        print(
            f"{name:34} {statistics.median(found):8,.0f} batches/s (median of {len(found)}; {min(found):,.0f} to "
            f"{max(found):,.0f}), ratio {statistics.median(found) / baseline:.2f}"
        )
    return statistics.median(rates["SessionPool.sample"]) / baseline


def resident() -> int:
    gc.collect()
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def at_once(count: int) -> tuple[SessionPool, int]:
    """Sessions of one length."""
    pool, arrays = empty_pool(), sessions(count)
    before = resident()
    pool.load_sessions(*arrays)
    return pool, resident() - before


def of_different_lengths(count: int) -> tuple[SessionPool, int]:
    """Sessions of 1 to 160 ticks, padded with zeros."""
    pool, arrays = empty_pool(), sessions(count, 2 * TICKS)
    lengths = np.random.default_rng(1).integers(1, 2 * TICKS + 1, count)
    alive = np.arange(2 * TICKS) < lengths[:, None]
    for array in arrays:
        array[~alive] = 0
    before = resident()
    pool.load_sessions(*arrays, alive)
    return pool, resident() - before


def one_by_one(count: int) -> tuple[SessionPool, int]:
    """A full pool that has replaced its sessions twice."""
    pool = empty_pool()
    observations, actions, rewards = sessions(100)
    before = resident()
    for number in range(3 * count):
        one = slice(number % 100, number % 100 + 1)
        pool.append_sessions(observations[one], actions[one], rewards[one], max_pool_size=count)
    return pool, resident() - before


def memory(count: int) -> float:
    """Print a table; return the largest overhead of a tick in bytes."""
    overheads = []
    for fill in (at_once, of_different_lengths, one_by_one):
        pool, growth = fill(count)
        assert len(pool) == count
        ticks = int(pool.is_alive.sum())
        overheads.append(growth / ticks - TICK_BYTES)
        print(f"{fill.__doc__}")
        print(f"    {ticks:9,} ticks of {TICK_BYTES} bytes: {overheads[-1]:.1f} more bytes a tick")
        del pool
    return max(overheads)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, "
        f"torch {torch.__version__}, 1 thread"
    )
    overhead = memory(options.sessions)
    ratio = sampling(options.sessions, options.batches, options.repetitions)
    good = ratio >= REACH_RATIO and overhead <= REACH_BYTES
    print(
        f"reach: ratio {REACH_RATIO} and {REACH_BYTES:.1f} bytes a tick; found {ratio:.2f} and {overhead:.1f}: "
        f"{'reached' if good else 'NOT reached'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
