"""Bytes of a stored transition of two cameras, and batches a second: each picture once, beside whole observations.

    python benchmarks/frames_alone.py [--transitions N] [--side N] [--batches N] [--disk FOLDER]
    python benchmarks/frames_alone.py --checkpoints FOLDER [--transitions N] [--side N]

Observations are a Dict of two pictures 128 x 128 x 3 and 14 numbers. A `ReplayMemory`, which stores both observations
of each transition whole, and a `FrameStackMemory` with `frame_stack: 1` are filled with the same episodes of 200 steps
until both have overwritten a part. They have the same seed, and their batches must be equal as long as neither has
dropped anything; then batches of both are timed in turn. In RAM the arrays count, on disk the files.

With `--checkpoints`, both memories are in RAM and a training object with each writes three checkpoints into an empty
folder, with an episode between two: megabytes on the disk, milliseconds for which training waits, and until all is
written.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import CheckpointStore, DDPGAgent, ReplayMemory, TrainingOffline
from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory

REACH_BYTES, REACH_RATE = 0.52, 0.9
EPISODE, MESSAGE, NUMBERS, BATCH = 200, 50, 14, 64


def chunks(transitions: int, side: int) -> Any:
    """Yield messages of one stream with random pictures."""
    generator = np.random.default_rng(0)
    for episode in range(-(-transitions // EPISODE)):
        for start in range(0, EPISODE + 1, MESSAGE):
            steps = np.arange(start, min(start + MESSAGE, EPISODE + 1))
            count = len(steps)
            yield Chunk(
                rows=count,
                action=np.zeros((count, 6), np.float32),
                action_present=steps > 0,
                observation={
                    "front": generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8),
                    "wrist": generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8),
                    "joints": generator.standard_normal((count, NUMBERS)).astype(np.float32),
                },
                reward=steps.astype(np.float64),
                terminated=np.zeros(count, bool),
                truncated=steps == EPISODE,
                segments=(Segment(count, episode, start, 1, 1),),
                stream=bytes(16),
            )


def held_bytes(memory: ReplayMemory) -> int:
    """Bytes of a memory's arrays, or of its files."""
    if memory.disk is not None:
        return sum(file.stat().st_size for file in memory.disk.folder.glob("*.seg"))
    frames: int = memory.frame_bytes if isinstance(memory, FrameStackMemory) else 0
    return frames + sum(int(ring.nbytes) for ring in memory.row_arrays)


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return all(equal(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return all(map(equal, left, right))
    return torch.equal(left, right)


def spaces_of(side: int) -> tuple[spaces.Dict, spaces.Box]:
    camera, numbers = spaces.Box(0, 255, (side, side, 3), np.uint8), spaces.Box(-8, 8, (NUMBERS,), np.float32)
    return spaces.Dict({"front": camera, "wrist": camera, "joints": numbers}), spaces.Box(-1, 1, (6,), np.float32)


def checkpoints(transitions: int, side: int, folder: Path) -> None:
    """Print what checkpoints of both kinds of memory cost."""
    print(
        "# Checkpoints of two cameras in RAM\n\n`python benchmarks/frames_alone.py --checkpoints FOLDER --transitions "
        f"{transitions} --side {side}`; wall clock\n\n"
        "| memory | checkpoint | MB more on the disk | ms training waits | ms until written |\n"
        "| --- | --- | --- | --- | --- |"
    )
    kinds: dict[str, Callable[..., ReplayMemory]] = {
        "whole observations": ReplayMemory, "each picture once": partial(FrameStackMemory, frame_stack=1)
    }  # fmt: skip
    for name, kind in kinds.items():
        training = TrainingOffline(
            spaces_of(side), partial(kind, memory_size=transitions, batch_size=BATCH, seed=0),
            partial(DDPGAgent, hidden_sizes=(8,)), device="cpu",
        )  # fmt: skip
        store, sent, before = CheckpointStore(folder / name.replace(" ", "_")), chunks(2 * transitions, side), 0.0
        for number in range(1, 4):
            for chunk in itertools.islice(sent, (transitions if number == 1 else EPISODE) // MESSAGE):
                training.memory.append_chunk(chunk)
            started = time.perf_counter()
            store.save(training)
            waits = time.perf_counter() - started
            store.wait()
            written = time.perf_counter() - started
            there = sum(file.stat().st_size for file in store.root.rglob("*") if file.is_file()) / 1e6
            print(f"| {name} | {number} | {there - before:.1f} | {1e3 * waits:.0f} | {1e3 * written:.0f} |")
            before = there


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transitions", type=int, default=2_000)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--disk", type=Path, help="an empty folder; left out: in RAM")
    parser.add_argument("--checkpoints", type=Path, help="an empty folder: measure checkpoints instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.checkpoints is not None:
        checkpoints(arguments.transitions, arguments.side, arguments.checkpoints)
        return 0

    def where(name: str) -> dict[str, Any]:
        return {} if arguments.disk is None else {"storage": "disk", "folder": arguments.disk / name}

    settings: dict[str, Any] = {"memory_size": arguments.transitions, "batch_size": BATCH, "seed": 0}
    memories = {
        "whole observations": ReplayMemory(**settings, **where("whole")),
        "each picture once": FrameStackMemory(**settings, **where("once"), frame_stack=1),
    }
    plain, once = memories.values()
    inserted = dict.fromkeys(memories, 0.0)
    compared = 0
    for number, chunk in enumerate(chunks(arguments.transitions * 5 // 4, arguments.side)):
        for name, memory in memories.items():
            started = time.process_time()
            memory.append_chunk(chunk)
            inserted[name] += time.process_time() - started
        if number % 8 == 7 and len(plain) == len(once) < arguments.transitions:
            if not equal(plain.sample(), once.sample()):
                raise RuntimeError("the batches differ")
            compared += 1
    used: dict[str, list[float]] = {name: [] for name in memories}
    for _ in range(arguments.batches):
        for name, memory in memories.items():
            started = time.process_time()
            memory.sample()
            used[name].append(time.process_time() - started)
    sizes = {name: held_bytes(memory) / len(memory) for name, memory in memories.items()}
    print(f"# A stored transition of two cameras, {'in RAM' if arguments.disk is None else 'on disk'}\n")
    print(
        f"`python benchmarks/frames_alone.py --transitions {arguments.transitions} --side {arguments.side}"
        f"{'' if arguments.disk is None else ' --disk FOLDER'}`; Python {platform.python_version()}, NumPy "
        f"{np.__version__}, torch {torch.__version__}, one thread; processor time; {compared} batches were compared, "
        "and equal\n"
    )
    print("| memory | transitions | bytes a transition | batches of 64 a second, median | ms to insert a row |")
    print("| --- | --- | --- | --- | --- |")
    for name, memory in memories.items():
        rate = 1 / statistics.median(used[name])
        insertion = 1_000 * inserted[name] / memory.written
        print(f"| {name} | {len(memory):,} | {sizes[name]:,.0f} | {rate:.1f} | {insertion:.3f} |")
    before, after = memories
    ratio = sizes[after] / sizes[before]
    pairs = [a / b for a, b in zip(used[before], used[after], strict=True)]
    rate = statistics.median(pairs)
    print(f"\nBytes {ratio:.3f} (to reach: {REACH_BYTES}), batches a second {rate:.2f} (to reach: {REACH_RATE}).")
    for memory in memories.values():
        memory.close()
    return 0 if ratio <= REACH_BYTES and rate >= REACH_RATE else 1


if __name__ == "__main__":
    raise SystemExit(main())
