"""Microseconds a sample to append and encode 1000 Pendulum samples, against a pickled list and stacking a list.

    python benchmarks/samples_codec.py

Each side starts with the samples as the environment gave them and ends with one message, both counted. Stacking a list
into columns, and encoding columns that are there, are given for comparison: each is a part of the work only. Five
repetitions, all sides in turn; in each the fastest of some passes, since the machine does other things too.
"""

from __future__ import annotations

import argparse
import pickle  # the baseline: nothing here is unpickled
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from wire_bytes import check, pendulum_episodes, versions

from tmrl_core.samples import Buffer, Chunk, decode_message, encode_message

SAMPLES = 1000


def append_and_encode(samples: list[tuple[Any, ...]], buffer: Buffer, compression: Any) -> bytes:
    append = buffer.append_sample
    for sample in samples:
        append(sample)
    (chunk,), records = buffer.take()
    return encode_message(chunk, records, compression=compression)


def append_and_pickle(samples: list[tuple[Any, ...]], protocol: int | None = None) -> bytes:
    memory: list[tuple[Any, ...]] = []
    append = memory.append
    for sample in samples:
        append(sample)
    return pickle.dumps(memory, protocol)


def stack(samples: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    nothing = np.zeros(1, np.float32)
    return (
        np.stack([nothing if sample[0] is None else sample[0] for sample in samples]),
        np.stack([sample[1] for sample in samples]),
        np.array([sample[2] for sample in samples]),
        np.array([sample[3] for sample in samples]),
        np.array([sample[4] for sample in samples]),
    )


def fastest(work: Callable[[], object], passes: int) -> float:
    """Seconds of the fastest of some passes."""
    best = float("inf")
    for _ in range(passes):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--passes", type=int, default=100, help="per repetition and side")
    parser.add_argument("--reach", type=float, default=1.5, help="us a sample above which the exit status is 1")
    arguments = parser.parse_args()

    samples = [sample for episode in pendulum_episodes(0) for sample in episode][:SAMPLES]
    buffer = Buffer(maxlen=None)
    for sample in samples:
        buffer.append_sample(sample)
    ready: Chunk = buffer.take()[0][0]
    for compression in ("none", "auto"):
        check([append_and_encode(samples, buffer, compression)], [samples])
    message = encode_message(ready, [])
    plain = encode_message(ready, [], compression="none")

    ours = "append to the Buffer and encode (auto: zstd)"
    baseline = "append to a list and pickle it"
    sides: dict[str, Callable[[], object]] = {
        baseline: lambda: append_and_pickle(samples),
        "append to a list and pickle it, newest protocol": lambda: append_and_pickle(samples, -1),
        ours: lambda: append_and_encode(samples, buffer, "auto"),
        "append to the Buffer and encode (none)": lambda: append_and_encode(samples, buffer, "none"),
        "stack a list into columns, no encoding": lambda: stack(samples),
        "encode ready columns (auto: zstd)": lambda: encode_message(ready, []),
        "encode ready columns (none)": lambda: encode_message(ready, [], compression="none"),
        "decode (zstd)": lambda: decode_message(message, max_bytes=1 << 24),
        "decode (none)": lambda: decode_message(plain, max_bytes=1 << 24),
    }
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.repetitions):
        for name, work in sides.items():
            figures[name].append(fastest(work, arguments.passes) * 1e6 / SAMPLES)

    print("# Append and encode 1000 Pendulum samples\n")
    print(f"`python benchmarks/samples_codec.py`; {versions()}; {arguments.repetitions} repetitions in turn\n")
    print("| what | us a sample, median | range | pickle / this |\n| --- | --- | --- | --- |")
    pickled = statistics.median(figures[baseline])
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.3f} | {min(values):.3f} to {max(values):.3f} | {pickled / median:.1f} |")
    print(f"\nTo reach: {arguments.reach:g} us a sample for {ours}.")
    return 0 if statistics.median(figures[ours]) <= arguments.reach else 1


if __name__ == "__main__":
    sys.exit(main())
