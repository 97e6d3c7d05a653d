"""Memory that a transition of stacked frames takes: 4 frames of 64x64 uint8, each frame stored once.

    python benchmarks/frame_stacks.py [--transitions N] [--episode N] [--stack N] [--side N] [--disk FOLDER]

Fills a `FrameStackMemory` twice over with episodes of random frames, stacked as Gymnasium's FrameStackObservation does
(a reset repeats its frame), and reads what this process holds then beyond what it held before (resident, not shared),
for each transition that can be sampled. With `--disk` the memory lies in that folder, and the size of its files is what
counts. Batches of 256 are compared with the observations that were appended.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

REACH = 1.1
MESSAGE = 50


def resident() -> int:
    """Bytes of RAM that this process holds itself."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--episode", type=int, default=200)
    parser.add_argument("--stack", type=int, default=4)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--disk", type=Path)
    options = parser.parse_args()

    import torch

    from tmrl_core.samples import Chunk, Segment
    from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory

    torch.set_num_threads(1)
    k, side = options.stack, options.side
    where: dict[str, Any] = {} if options.disk is None else {"storage": "disk", "folder": options.disk}
    memory = FrameStackMemory("cpu", memory_size=options.transitions, batch_size=256, seed=0, frame_stack=k, **where)
    generator = np.random.default_rng(0)
    last: deque[Any] = deque(maxlen=8)
    before = resident()
    appended, used, episode = 0, 0.0, 0
    while appended < 2 * options.transitions:
        rows = options.episode + 1
        frames = generator.integers(0, 256, (rows, side, side), dtype=np.uint8)
        padded = np.concatenate([np.repeat(frames[:1], k - 1, axis=0), frames])
        stacks = np.lib.stride_tricks.sliding_window_view(padded, k, axis=0).transpose(0, 3, 1, 2)
        for start in range(0, rows, MESSAGE):
            steps = np.arange(start, min(start + MESSAGE, rows))
            chunk = Chunk(
                rows=len(steps),
                action=np.zeros((len(steps), 1), np.float32),
                action_present=steps > 0,
                observation=np.ascontiguousarray(stacks[steps]),
                reward=steps.astype(np.float64),
                terminated=steps == options.episode,
                truncated=np.zeros(len(steps), bool),
                segments=(Segment(len(steps), episode, start, 1, 1),),
                stream=b"one stream, only",
            )
            started = time.process_time()
            appended += memory.append_chunk(chunk)
            used += time.process_time() - started
        last.append(stacks[-1].copy())
        episode += 1
    in_process = resident() - before
    disk = memory.disk
    held = in_process if disk is None else sum(file.stat().st_size for file in disk.folder.glob("*.seg"))
    for item in range(min(len(last), len(memory) // options.episode)):
        found = memory.get_transition(len(memory) - 1 - item * options.episode)
        assert np.array_equal(found[3], last[-1 - item])
    batches = 50
    started = time.process_time()
    for _ in range(batches):
        memory.sample()
    sampling = time.process_time() - started
    frame = side * side
    ratio = held / len(memory) / frame
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}")
    what = f"transitions of {k}x{side}x{side} uint8, episodes of {options.episode}"
    print(f"{len(memory):,} of {options.transitions:,} {what}")
    what = "MB" if memory.disk is None else "MB of files"
    print(
        f"{held / 1e6:,.1f} {what}: {held / len(memory):,.0f} bytes a transition, {ratio:.3f} of one frame "
        f"(reach {REACH}: {'reached' if ratio <= REACH else 'NOT reached'}); two whole stacks: {2 * k} frames"
    )
    if memory.disk is not None:
        print(f"this process itself: {in_process / 1e6:,.1f} MB")
    rates = f"appends: {appended / used:,.0f} transitions, batches of 256: {batches / sampling:,.0f}"
    print(f"{rates}, a second of processor time")


if __name__ == "__main__":
    main()
