"""SAC updates a second with batches prepared by a thread beside training, and without, in turn in one process.

    python benchmarks/prefetch.py [--updates N] [--repetitions N] [--depths N ...] [--device cpu] [--threads N]

Two cases: Pendulum's columns (11 float32 a transition, of 200,000), where drawing is a small part of an update, and
stacks of images (4x64x64 uint8, of 5,000), where a batch is 8 MB that are gathered, made float32 on the device and
averaged to what the same agent learns from. Every 100 updates a message of 100 samples is appended.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory, SacAgent

ACTIONS = spaces.Box(-2, 2, (1,), np.float32)
BATCH = 256


def message(rows: int, first: int, image: bool) -> Chunk:
    """The next rows of one long episode."""
    generator = np.random.default_rng(first)
    observation: Any = generator.standard_normal((rows, 3)).astype(np.float32)
    if image:
        observation = generator.integers(0, 256, (rows, 4, 64, 64), np.uint8)
    return Chunk(
        rows=rows,
        action=generator.uniform(-2, 2, (rows, 1)).astype(np.float32),
        action_present=np.arange(first, first + rows) > 0,
        observation=observation,
        reward=generator.standard_normal(rows),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        segments=(Segment(rows, 0, first, 1, 1),),
        stream=bytes(16),
    )


def features(batch: Any) -> Any:
    """Images as a few numbers each: what stands for a network's first layers."""

    def few(images: torch.Tensor) -> torch.Tensor:
        return images.float().div_(255).flatten(2).mean(2)

    return few(batch[0]), batch[1], batch[2], few(batch[3]), *batch[4:]


def case(image: bool, depth: int, device: str) -> Callable[[int], None]:
    """What makes so many updates."""
    torch.manual_seed(0)
    capacity, width = (5_000, 4) if image else (200_000, 3)
    memory = ReplayMemory(device, 1, memory_size=capacity, batch_size=BATCH, seed=0, prefetch=depth)
    agent = SacAgent(spaces.Box(-8, 8, (width,), np.float32), ACTIONS, device)
    written = 0
    while len(memory) < capacity:
        memory.append_chunk(message(1000, written, image))
        written += 1000

    def run(updates: int) -> None:
        nonlocal written
        for update in range(updates):
            batch = memory.sample()
            agent.train(features(batch) if image else batch)
            if update % 100 == 99:
                memory.append_chunk(message(100, written, image))
                written += 100
        if device != "cpu":
            torch.cuda.synchronize()

    return run


def main() -> None:
    """Run all in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, device {options.device}")
    for image in (False, True):
        runs = {depth: case(image, depth, options.device) for depth in options.depths}
        for threads in options.threads:
            torch.set_num_threads(threads)
            rates: dict[int, list[float]] = {depth: [] for depth in runs}
            updates = options.updates // 4 if image else options.updates
            for run in runs.values():
                run(20)
            for _ in range(options.repetitions):
                for depth, run in runs.items():
                    started = time.perf_counter()
                    run(updates)
                    rates[depth].append(updates / (time.perf_counter() - started))
            what = "image stacks" if image else "Pendulum"
            for depth, found in rates.items():
                spread = f"{min(found):.0f} to {max(found):.0f}"
                print(f"{what:13} threads {threads} prefetch {depth}: {statistics.median(found):7.1f}/s ({spread})")


if __name__ == "__main__":
    main()
