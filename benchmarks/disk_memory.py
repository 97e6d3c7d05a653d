"""The replay memory on disk: appends, sampling, opening again after a kill, and RAM.

    python benchmarks/disk_memory.py [--transitions N] [--batches N] [--sync os|fsync] [--folder PATH]

Writing and reading run in processes of their own. *Appends*: messages of 1000 Pendulum samples, each one record with
its stream's mark, into a memory that holds one million. The writer is then killed with SIGKILL in the midst of its
appends. *Opening* is everything from the constructor to the first batch. *Sampling*: `for batch in memory`, from the
system's page cache, in turn with a memory in RAM that holds as many. *RAM* is what the process holds itself beyond what
it held before it opened the memory, without cached pages of files. Sizes are of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MESSAGE = 1000
BATCH = 256
STREAM = b"benchmark stream"
REACH = {"appends": 2000.0, "batches": 10_000.0, "opening": 2.0}


def messages() -> Iterator[Any]:
    """Messages of 1000 Pendulum samples of one worker, episodes of 200 steps, for ever."""
    from tmrl_core.samples import Chunk, Segment

    generator = np.random.default_rng(0)
    observation = generator.standard_normal((MESSAGE, 3)).astype(np.float32)
    action = generator.uniform(-2, 2, (MESSAGE, 1)).astype(np.float32)
    reward = generator.standard_normal(MESSAGE)
    step = 0
    while True:
        segments: list[Segment] = []
        count = 0
        while count < MESSAGE:
            episode, first = divmod(step + count, 201)
            rows = min(201 - first, MESSAGE - count)
            segments.append(Segment(rows, episode, first, 1, 1))
            count += rows
        place = (step + np.arange(MESSAGE)) % 201
        yield Chunk(
            rows=MESSAGE,
            action=action,
            action_present=place > 0,
            observation=observation,
            reward=reward,
            terminated=np.zeros(MESSAGE, bool),
            truncated=place == 200,
            segments=tuple(segments),
            stream=STREAM,
        )
        step += MESSAGE


def make(folder: Path, transitions: int, batches: int, sync: str) -> Any:
    """The memory."""
    from tmrl_core.training import ReplayMemory

    return ReplayMemory(
        "cpu", batches, memory_size=transitions, batch_size=BATCH, seed=0, storage="disk", folder=folder, sync=sync
    )


def own_bytes() -> int:
    """Bytes of RAM that this process holds itself."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def write(folder: Path, transitions: int, sync: str, repetitions: int) -> None:
    """Fill the memory, say how fast, then append until killed."""
    memory = make(folder, transitions, 1, sync)
    memory.deferred = True
    number = 0
    rates = []
    processor = []
    source = messages()

    def append(chunk: Any) -> None:
        nonlocal number
        memory.append_chunk(chunk)
        number += 1
        memory.commit({STREAM: (number, MESSAGE * number)}, samples=MESSAGE * number)

    while len(memory) < transitions:
        append(next(source))
    for _ in range(repetitions):
        chunks = [next(source) for _ in range(400)]
        started, used = time.perf_counter(), time.process_time()
        for chunk in chunks:
            append(chunk)
        rates.append(len(chunks) / (time.perf_counter() - started))
        processor.append(len(chunks) / (time.process_time() - used))
    print(json.dumps({"rates": rates, "processor": processor}), flush=True)
    for chunk in source:
        append(chunk)
        if number % 10 == 0:
            print(number, flush=True)


def read(folder: Path, transitions: int, batches: int, repetitions: int) -> None:
    """Open the memory that a killed process left, and sample."""
    import torch

    from tmrl_core.training import ReplayMemory

    torch.set_num_threads(1)
    make_first = torch.zeros(1)  # what torch sets up is not what the memory costs
    del make_first
    before = own_bytes()
    started = time.perf_counter()
    memory = make(folder, transitions, batches, "os")
    memory.sample()
    opening = time.perf_counter() - started
    for _ in memory:
        pass
    ram = own_bytes() - before
    baseline = ReplayMemory("cpu", batches, memory_size=transitions, batch_size=BATCH, seed=0)
    for chunk in messages():
        baseline.append_chunk(chunk)
        if len(baseline) == transitions:
            break
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions):
        for found, each in zip(rates, (memory, baseline), strict=True):
            started = time.perf_counter()
            count = sum(len(batch[2]) for batch in each)
            found.append(batches / (time.perf_counter() - started))
            assert count == batches * BATCH
    marks, values = memory.recorded
    disk = memory.disk
    print(
        json.dumps(
            {
                "opening": opening,
                "rates": rates[0],
                "baseline": rates[1],
                "ram": ram,
                "length": len(memory),
                "number": marks[STREAM][0],
                "samples": values["samples"],
                "torn": disk.torn_bytes,
                "disk": sum(file.stat().st_size for file in disk.folder.glob("*.seg")),
                "row": memory.layout.row_bytes,
            }
        )
    )


def command(*arguments: object) -> list[str]:
    """This script in another process."""
    return [sys.executable, __file__, *map(str, arguments)]


def main() -> None:
    """Run all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--sync", choices=["os", "fsync"], default="os")
    parser.add_argument("--folder", type=Path, help="an empty folder on the disk that is meant; default: a new one")
    parser.add_argument("--step", choices=["write", "read"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "write":
        write(options.folder, options.transitions, options.sync, options.repetitions)
        return
    if options.step == "read":
        read(options.folder, options.transitions, options.batches, options.repetitions)
        return

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name) / "memory"
        common = ("--folder", folder, "--transitions", options.transitions, "--repetitions", options.repetitions)
        writer = subprocess.Popen(command("--step", "write", "--sync", options.sync, *common), stdout=subprocess.PIPE)
        assert writer.stdout is not None
        written = json.loads(writer.stdout.readline())
        appends = written["rates"]
        said = 0
        for _ in range(30):
            said = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        said = max([said, *(int(number) for number in rest if number.endswith(b"0"))])
        writer.wait()
        done = subprocess.run(
            command("--step", "read", "--batches", options.batches, *common), stdout=subprocess.PIPE, check=True
        )
        found = json.loads(done.stdout)
    import torch

    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, "
        f"torch {torch.__version__}, sync: {options.sync}"
    )

    def line(what: str, value: float, unit: str, reached: bool, spread: str = "") -> None:
        print(f"{what:58} {value:12,.2f} {unit}{spread}, {'reached' if reached else 'NOT reached'}")

    for what, rates, key in (
        (f"appends of {MESSAGE} samples, one record each", appends, "appends"),
        (f"batches of {BATCH} from {found['length']:,} transitions", found["rates"], "batches"),
    ):
        middle = statistics.median(rates)
        spread = f" (median of {len(rates)}; {min(rates):,.0f} to {max(rates):,.0f}; reach {REACH[key]:,.0f})"
        line(what, middle, "/s", middle >= REACH[key], spread)
    print(f"appends for each second of processor time: {statistics.median(written['processor']):,.0f}")
    baseline = statistics.median(found["baseline"])
    print(f"the same from RAM: {baseline:,.0f}/s; ratio {statistics.median(found['rates']) / baseline:.2f}")
    opening = found["opening"]
    line("opening after SIGKILL, to the first batch", opening, "s", opening <= REACH["opening"], " (reach 2)")
    per_row = found["ram"] / found["length"]
    print(f"RAM of its own after sampling: {found['ram'] / 1e6:.1f} MB ({per_row:.1f} bytes a transition)")
    print(f"files: {found['disk'] / 1e6:.1f} MB for {found['length']:,} transitions of {found['row']} bytes")
    print(f"cut off: {found['torn']} bytes; the writer had said {said} messages, the log holds {found['number']}")
    assert found["number"] >= said
    assert found["samples"] == MESSAGE * found["number"]


if __name__ == "__main__":
    main()
