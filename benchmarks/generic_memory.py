"""`GenericTorchMemory` with 100,000 samples of arrays: batches per second, and the pause of a checkpoint.

    python benchmarks/generic_memory.py

A sample has an observation of three float32, an action of one, and a reward, as Pendulum's. The pause is the time that
`CheckpointStore.save` takes in the training thread; a thread writes the files meanwhile. Between two checkpoints, 1,000
samples are appended.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from wire_bytes import versions

from tmrl_core.testing.random_samples import buffer_of, random_chunk
from tmrl_core.training import CheckpointStore, GenericTorchMemory, SacAgent, TrainingOffline

SPACES = (gymnasium.spaces.Box(-8.0, 8.0, (3,), np.float32), gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32))
EPISODE = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of sampling, per repetition")
    parser.add_argument("--reach", type=float, default=10_500.0, help="batches/s below which the exit is 1")
    parser.add_argument("--pause", type=float, default=20.0, help="median pause in ms above which the exit is 1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    training = TrainingOffline(
        SPACES,
        partial(GenericTorchMemory, memory_size=1_000_000, batch_size=256),
        partial(SacAgent, hidden_sizes=(64, 64)),
        device="cpu",
    )
    memory = training.memory
    episodes = 0

    def append(samples: int) -> None:
        nonlocal episodes
        for _ in range(samples // EPISODE):
            memory.append(buffer_of(random_chunk(*SPACES, rows=EPISODE, episode=episodes)))
            episodes += 1

    append(arguments.samples)
    rates, pauses = [], []
    for _ in range(arguments.repetitions):
        count, start = 0, time.process_time()
        while (elapsed := time.process_time() - start) < arguments.seconds:
            for _ in range(100):
                memory.sample()
            count += 100
        rates.append(count / elapsed)
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        for _ in range(arguments.repetitions + 1):
            start = time.perf_counter()
            store.save(training)
            pauses.append(1e3 * (time.perf_counter() - start))
            store.wait()
            append(1_000)
    first, *later = pauses
    print(f"{versions()}, torch {torch.__version__}; {arguments.repetitions} repetitions, one thread\n")
    print("| what | median | range |")
    print("| --- | --- | --- |")
    print(f"| batches of 256 per second | {statistics.median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |")
    print(f"| pause of the first checkpoint, which writes all rows, ms | {first:.1f} | |")
    print(f"| pause of later checkpoints, ms | {statistics.median(later):.1f} | {min(later):.1f} to {max(later):.1f} |")
    print(f"\nTo reach: {arguments.reach:,.0f} batches/s, at most {arguments.pause:g} ms (median).")
    return 0 if statistics.median(rates) >= arguments.reach and statistics.median(pauses) <= arguments.pause else 1


if __name__ == "__main__":
    raise SystemExit(main())
