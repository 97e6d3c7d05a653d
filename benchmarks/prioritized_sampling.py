"""Prioritized sampling: batches of 256 of 1,000,000 transitions, each followed by an update of its priorities.

    python benchmarks/prioritized_sampling.py [--transitions N] [--batches N] [--repetitions N] [--tree-only] [--numpy]

Counted: the draw in proportion to priorities, importance weights, the batch as tensors (Pendulum's columns), and
`update_priorities` with 256 new errors, before the next batch is drawn. `--tree-only` leaves the tensors out; `--numpy`
leaves numba out, where it is installed. Where cpprb is, its `PrioritizedReplayBuffer` (C++) takes turns with ours; it
hands out NumPy arrays.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

BATCH = 256
REACH = 5000


def ours(transitions: int, batches: int) -> Callable[[], None]:
    """The memory, filled, as a function that draws and updates `batches` times."""
    import torch
    from memory_sampling import messages

    from tmrl_core.training import ReplayMemory

    torch.set_num_threads(1)
    memory = ReplayMemory("cpu", 1, memory_size=transitions, batch_size=BATCH, seed=0, priority={})
    for chunk in messages(transitions):
        memory.append_chunk(chunk)
    generator = np.random.default_rng(0)
    memory.update_priorities(np.arange(memory.written - len(memory), memory.written), generator.random(len(memory)))
    errors = [torch.from_numpy(generator.random(BATCH)) for _ in range(16)]

    def run() -> None:
        for i in range(batches):
            batch = memory.sample()
            memory.update_priorities(batch[6]["indices"], errors[i % 16])

    return run


def tree_only(transitions: int, batches: int) -> Callable[[], None]:
    """Priorities alone: draws, weights and updates."""
    from tmrl_core.training.memories.prioritized import Priorities, Prioritization

    priorities = Priorities(transitions, Prioritization())
    priorities.add(0, transitions)
    generator = np.random.default_rng(0)
    priorities.update(np.arange(transitions), generator.random(transitions))
    errors = [generator.random(BATCH) for _ in range(16)]

    def run() -> None:
        for i in range(batches):
            indices, _ = priorities.sample(generator, BATCH)
            priorities.update(indices, errors[i % 16])

    return run


def cpprb(transitions: int, batches: int) -> Callable[[], None] | None:
    """cpprb's buffer, or None where it is not installed."""
    try:
        from cpprb import PrioritizedReplayBuffer  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        return None
    shapes = {"obs": 3, "act": 1, "rew": 1, "next_obs": 3, "terminated": 1, "truncated": 1}
    buffer = PrioritizedReplayBuffer(transitions, {name: {"shape": width} for name, width in shapes.items()}, alpha=0.6)
    generator = np.random.default_rng(0)
    step = 10_000
    for _ in range(0, transitions, step):
        buffer.add(**{name: np.zeros((step, width), np.float32) for name, width in shapes.items()})
    for start in range(0, transitions, step):
        buffer.update_priorities(np.arange(start, start + step), generator.random(step) + 1e-6)
    errors = [generator.random(BATCH) + 1e-6 for _ in range(16)]

    def run() -> None:
        for i in range(batches):
            batch = buffer.sample(BATCH, beta=0.4)
            buffer.update_priorities(batch["indexes"], errors[i % 16])

    return run


def main() -> None:
    """Run all in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--tree-only", action="store_true")
    parser.add_argument("--numpy", action="store_true")
    options = parser.parse_args()
    if options.numpy:
        sys.modules["numba"] = None  # type: ignore[assignment]  # as if it were not installed
    found = {
        "priorities alone": tree_only(options.transitions, options.batches),
        "ReplayMemory": None if options.tree_only else ours(options.transitions, options.batches),
        "cpprb": cpprb(options.transitions, options.batches),
    }
    candidates = {name: run for name, run in found.items() if run is not None}
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    processor: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(options.repetitions):
        for name, run in candidates.items():
            started, used = time.perf_counter(), time.process_time()
            run()
            rates[name].append(options.batches / (time.perf_counter() - started))
            processor[name].append(options.batches / (time.process_time() - used))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}")
    from tmrl_core.training.memories.sum_tree_loops import compiled

    print(f"priorities are drawn by {'NumPy' if compiled() is None else 'loops that numba compiles'}")
    print(f"batches of {BATCH} of {options.transitions:,} transitions, with updates; median of {options.repetitions}")
    for name in candidates:
        middle = statistics.median(rates[name])
        spread = f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}"
        per_second = statistics.median(processor[name])
        reached = (
            f"reach {REACH:,}: {'reached' if middle >= REACH else 'NOT reached'}"
            if name.startswith("ReplayMemory")
            else ""
        )
        print(f"{name:24} {middle:10,.0f}/s ({spread}); {per_second:,.0f} a second of processor time  {reached}")


if __name__ == "__main__":
    main()
