"""Seconds of `--plot` for a run of ten million environment steps, as a process of its own, and its processor time.

    python benchmarks/plot_time.py                     five times, half a minute

The records are made: an episode of 200 steps for each 200 steps, a round of statistics for each 1,000, the network each
10 seconds and an evaluation for each 50,000, which are about 61,200 records (15 MB).
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tmrl_core.metrics.records import Kind, Value, encode_line, episode_values, record

REACH_S = 3.0
EPISODE, ROUND, EVALUATION = 200, 1_000, 50_000
STEPS_PER_S = 1_000


def lines(steps: int) -> Iterator[bytes]:
    """Yield the records of a run of so many environment steps."""
    for now in range(EPISODE, steps + 1, EPISODE):
        elapsed, learned = now / STEPS_PER_S, -1400.0 + 1200.0 * now / steps

        def line(kind: Kind, values: dict[str, Value], now: int = now, elapsed: float = elapsed) -> bytes:
            return encode_line(record(kind, values, step=now // 2, elapsed_s=elapsed, time_s=1.8e9 + elapsed))

        yield line(
            "episode",
            episode_values(
                worker="robot1",
                mode="train",
                episode_return=learned + 90 * math.sin(now),
                length=EPISODE,
                samples_received=now,
                version=(1, now // 1_000),
            ),
        )
        if now % ROUND == 0:
            values: dict[str, Value] = {"samples_received": now, "return_mean": learned, "loss_actor": 30.0}
            values |= {"samples_per_s": 1000.0, "updates_per_s": 500.0, "loss_critic": 0.9, "memory_len": 1e6}
            yield line("round", values)
        if now % (10 * STEPS_PER_S) == 0:
            yield line("network", {"samples_received": now, "workers": 1, "connected": 1})
        if now % EVALUATION == 0:
            yield line(
                "evaluation", {"return_evaluation": learned, "return_evaluation_std": 50.0, "samples_received": now}
            )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "metrics.jsonl").write_bytes(b"".join(lines(options.steps)))
        command = [sys.executable, "-m", "tmrl_core", "--plot", str(run), "--out", str(Path(folder) / "out")]
        seconds, processor = [], []
        for _ in range(options.repetitions):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(time.perf_counter() - began)
            processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        size = (run / "metrics.jsonl").stat().st_size / 1e6
    print(f"`--plot` of {options.steps:,} steps ({size:.0f} MB of records), median of {options.repetitions}:\n")
    print("| what | found | reach |\n| --- | --- | --- |")
    for what, found, reach in (("seconds", seconds, f"{REACH_S:g}"), ("processor time, s", processor, "")):
        print(f"| {what} (spread) | {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}) | {reach} |")


if __name__ == "__main__":
    main()
