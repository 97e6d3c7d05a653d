"""Updates a second of the training loop that makes several at once, beside the loop that makes one after the other.

    python benchmarks/train_steps.py [--rounds N] [--repetitions N] [--threads N] [--device cuda] [--no-compile]

Both in one process, in turn, with the same agent, compiled: `TrainingOffline` as a Trainer runs it, with a memory of
20,000 transitions, in rounds of 2000 updates, a published policy and a look for samples every 100 updates (none
arrive). What is won is what Python has to do for an update, so small networks win most. Processor time is given beside
wall time, as it says more on a machine that others use too. With `--device cuda` several updates are one CUDA graph.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.samples import Buffer, Chunk, Segment
from tmrl_core.training import DQNAgent, ReplayMemory, SacAgent, TD3Agent, TrainingOffline
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops import update_batching as at_once

OBSERVATIONS = spaces.Box(-8, 8, (4,), np.float32)
FORCE = spaces.Box(-1, 1, (1,), np.float32)
ROWS = 20_000
UPDATES = 2000
CASES: dict[str, tuple[Any, spaces.Space[Any], tuple[int, int], int]] = {
    "DQN 2x64, batch 64": (DQNAgent, spaces.Discrete(2), (64, 64), 64),
    "TD3 2x64, batch 64": (TD3Agent, FORCE, (64, 64), 64),
    "SAC 2x64, batch 64": (SacAgent, FORCE, (64, 64), 64),
    "SAC 2x256, batch 256": (SacAgent, FORCE, (256, 256), 256),
}


def samples(discrete: bool) -> Buffer:
    """One long episode."""
    generator = np.random.default_rng(0)
    rows = ROWS + 1
    buffer = Buffer(maxlen=None)
    chunk = Chunk(
        rows=rows,
        action=generator.integers(0, 2, rows) if discrete else generator.uniform(-1, 1, (rows, 1)).astype(np.float32),
        action_present=np.arange(rows) > 0,
        observation=generator.standard_normal((rows, 4)).astype(np.float32),
        reward=generator.standard_normal(rows),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        segments=(Segment(rows, 0, 0, 1, 1),),
        stream=bytes(16),
    )
    buffer.extend([chunk])
    return buffer


class Loop:
    """Training that goes on for as long as it is asked to."""

    def __init__(self, case: str, device: str, compiled: bool) -> None:
        agent, actions, hidden_sizes, batch_size = CASES[case]
        torch.manual_seed(0)
        self.training = TrainingOffline(
            (OBSERVATIONS, actions),
            lambda nb_steps, device: ReplayMemory(device, nb_steps, memory_size=ROWS, batch_size=batch_size, seed=0),
            lambda **arguments: agent(**arguments, hidden_sizes=hidden_sizes, compile=compiled),
            epochs=10**9,
            rounds=10**9,
            steps=UPDATES,
            max_training_steps_per_env_step=1e9,
            device=device,
        )
        self.interface = LocalInterface()
        self.interface.put(samples(isinstance(actions, spaces.Discrete)))

    def rounds(self, count: int, most: int) -> tuple[float, float]:
        """Seconds, and seconds of processor time, of an update."""
        at_once.MAX_AT_ONCE = most
        started, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            self.training.run_iteration(self.interface)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        updates = count * UPDATES
        return (time.perf_counter() - started) / updates, (time.process_time() - used) / updates


def main() -> None:
    """Run both in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=at_once.MAX_AT_ONCE)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"device {options.device}, {options.threads} thread(s); "
        f"load {os.getloadavg() if hasattr(os, 'getloadavg') else '?'}"
    )
    print("| updates | one by one | processor time | at once | processor time | ratio of processor time |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in options.cases:
        loop = Loop(case, options.device, not options.no_compile)
        loop.rounds(1, options.at_once)  # what is compiled is compiled now
        found: dict[int, list[tuple[float, float]]] = {1: [], options.at_once: []}
        for _ in range(options.repetitions):
            for most, times in found.items():
                times.append(loop.rounds(options.rounds, most))
        cells, used = [], []
        for times in found.values():
            rates = [1.0 / wall for wall, _ in times]
            used.append(statistics.median(processor for _, processor in times))
            cells.append(
                f"{statistics.median(rates):.0f}/s ({min(rates):.0f} to {max(rates):.0f}) | {used[-1] * 1e6:.0f} us"
            )
        print(f"| {case} | {' | '.join(cells)} | {used[0] / used[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
