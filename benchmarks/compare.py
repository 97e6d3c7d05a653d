"""Quick figures of two commits, in turn on one machine, to find what has become slower or larger.

    python benchmarks/compare.py OLD NEW
    python benchmarks/compare.py v0.1.0 . --only worker_loop relay

A side is a commit, or the folder of a checkout as it is ("." for the current one, changes included). Commits are
checked out into a temporary folder. Each side runs its own `benchmarks/compare.py --serve` with its own measuring code
and its own `tmrl_core`, so that both can be measured after code has moved; a figure has the same name on both sides.
The Python and its packages are the same. Each side is prepared once in a process of its own; then the two measure in
turn, A B A B, so that a machine that becomes slower does so for both. Where a commit has changed the amount of work in
a measurement, ratios say nothing: give the work another name then.

All figures are costs (seconds, bytes, calls, lines); a ratio is OLD / NEW and above 1 where NEW is better. For rates
that is the ratio NEW / OLD. The ratio is the median over pairs of neighbouring measurements; the spread is that of all
pairs but the lowest and the highest quarter.

The exit status is 1 when the whole spread of a ratio is below 0.95, or when a figure that both sides have could not be
measured. A figure, or a row of one, that only one side has is printed as such and changes nothing about the exit
status: there is nothing to compare it with. It is 2 when a name after `--only` is a figure of neither side, or when a
side is no checkout with a `benchmarks/compare.py` that serves. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from processes import Cost, timed

LEAST = 0.95
MAIN = Path(__file__).resolve()
HERE = Path("benchmarks") / MAIN.name
"""In a side's folder."""
Costs = dict[str, tuple[float, str]]
"""By its name, a cost and its unit."""
Measure = Callable[[], Costs]


# --- the figures, in a side's process ---


def both(name: str, cost: Cost, count: float, unit: str) -> Costs:
    """Return wall and processor time of one of `count` operations, in `ms` or another unit of `SECONDS`."""
    scale = SECONDS[unit] / count
    return {f"{name}, wall": (cost.wall_s * scale, unit), f"{name}, processor": (cost.processor_s * scale, unit)}


SECONDS = {"us": 1e6, "ms": 1e3, "s": 1.0}


@contextlib.contextmanager
def credentials_folder() -> Iterator[str]:
    from tmrl_core.networking.security import credentials

    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "credentials")
        credentials.ensure(keys)
        yield keys


@contextlib.contextmanager
def worker_loop() -> Iterator[Measure]:
    from worker_loop import Loop

    with credentials_folder() as keys:
        loop = Loop(keys, episodes=60)

        def measure() -> Costs:
            found: Costs = {}
            for side, name in (("bare", "policy and environment alone, a step"), ("sending", "worker loop, a step")):
                found |= both(name, loop.measure(side), loop.steps, "us")
            return found

        yield measure
        loop.close()


@contextlib.contextmanager
def relay() -> Iterator[Measure]:
    from relay_throughput import measure_ours

    with credentials_folder() as keys:

        def measure() -> Costs:
            found: Costs = {}
            for name, payload, total in (
                ("1 kB", 1_000, 20_000_000),
                ("100 kB", 100_000, 300_000_000),
                ("1 MB", 1_000_000, 300_000_000),
            ):
                found |= both(f"relay of {name}, a GB", measure_ours(keys, payload, total)[0], total / 1e9, "s")
            return found

        yield measure


@contextlib.contextmanager
def codec() -> Iterator[Measure]:
    from samples_codec import SAMPLES, append_and_encode, fastest
    from wire_bytes import pendulum_episodes

    from tmrl_core.samples import Buffer, decode_message

    samples = [sample for episode in pendulum_episodes(0) for sample in episode][:SAMPLES]
    buffer = Buffer(maxlen=None)
    message = append_and_encode(samples, buffer, "auto")

    def measure() -> Costs:
        works: dict[str, Callable[[], object]] = {
            "append and encode, a sample": lambda: append_and_encode(samples, buffer, "auto"),
            "decode, a sample": lambda: decode_message(message, max_bytes=1 << 24),
        }
        return {name: (fastest(work, 200) * 1e6 / SAMPLES, "us") for name, work in works.items()}

    yield measure


@contextlib.contextmanager
def memory_sampling() -> Iterator[Measure]:
    from memory_sampling import ours

    batches = 10_000
    read = ours(100_000, batches)
    read()
    yield lambda: both("memory sampling, a batch", timed(read), batches, "us")


@contextlib.contextmanager
def sac_updates() -> Iterator[Measure]:
    import torch
    from sac_updates import ACTIONS, OBSERVATIONS, from_memory

    from tmrl_core.training import SacAgent

    torch.set_num_threads(1)
    updates = 300
    run = from_memory(SacAgent(OBSERVATIONS, ACTIONS, "cpu", compile=True).train, 256, "cpu")
    run(5)
    yield lambda: both("SAC, an update", Cost(*run(updates)), updates, "ms")


@contextlib.contextmanager
def peak_memory() -> Iterator[Measure]:
    from peak_memory import measure

    yield lambda: {f"peak memory of the {role}": (mb, "MB") for role, mb in measure(3.0).mb.items()}


def of_children(work: Callable[[], object]) -> Cost:
    """Return the cost of a call that starts processes and waits for their end."""
    import resource  # not everywhere

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = timed(work).wall_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@contextlib.contextmanager
def imports() -> Iterator[Measure]:
    from import_time import seconds

    def work() -> None:
        for _ in range(10):
            seconds("import tmrl_core")

    work()
    yield lambda: both("import, with Python's own start", of_children(work), 10, "ms")


@contextlib.contextmanager
def start() -> Iterator[Measure]:
    from role_start import measure

    yield lambda: {f"start of the {role} until ready": (seconds, "s") for role, seconds in measure().items()}


@contextlib.contextmanager
def own_calls() -> Iterator[Measure]:
    from own_calls import STEPS, Loop

    calls = Loop("sac").calls(STEPS).total() / STEPS
    loop, updates = Loop("stub"), 20_000
    name = "training loop around a stub agent, an update"
    yield lambda: {"own calls, an update": (calls, "calls"), **both(name, loop.cost(updates), updates, "us")}


@contextlib.contextmanager
def lines() -> Iterator[Measure]:
    from lines import ROOT, modules, total

    yield lambda: {"code of the package": (total(modules(ROOT).values()).code / 1000, "thousand lines")}


FIGURES = {
    figure.__name__: figure
    for figure in (
        worker_loop, relay, codec, memory_sampling, sac_updates, own_calls, peak_memory, imports, start, lines,
    )
}  # fmt: skip
FEWER = {"peak_memory": 3, "start": 3, "lines": 1}
"""Repetitions at most of figures that take long and vary little, or not at all."""


def serve(figure: str, folder: str) -> None:
    """Prepare a figure, then measure it for each line of the input and answer with a line."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed
    import tmrl_core

    assert Path(tmrl_core.__file__).is_relative_to(folder), f"{tmrl_core.__file__} is not in {folder}"
    with FIGURES[figure]() as measure:
        print(json.dumps({}), file=answers)
        for _ in sys.stdin:
            print(json.dumps(measure()), file=answers)


# --- both sides ---


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a side's processes: one thread each, and the side's own package first."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Both keep compiled modules: one checkout may have them already.
    return {**os.environ, **threads, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


# A side is asked by a process that finds the same modules as its measuring ones. It imports the module, because commits
# before this one have no command that says the names.
ASK = """
import json, sys
sys.path[0] = sys.argv[1]
import compare, tmrl_core
print(json.dumps([list(compare.FIGURES), [compare.__file__, tmrl_core.__file__]]))
"""


def figures_of(folder: Path) -> list[str]:
    """Return the names of a side's figures.

    Raises:
        SystemExit: the side cannot say them, or its processes would import modules of another folder; status 2.
    """
    if not (folder / HERE).is_file():
        refuse(f"{folder} has no {HERE}")
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str((folder / HERE).parent)],
        cwd=folder, env=environment(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode:
        refuse(f"{folder / HERE} does not say its figures:\n{asked.stderr.strip()}")
    names, files = json.loads(asked.stdout.splitlines()[-1])
    for file in files:
        if not Path(file).is_relative_to(folder):
            refuse(f"the side in {folder} would import {file}")
    return list(names)


def refuse(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    raise SystemExit(2)


class Side:
    """One side's process for one figure; its words go to a file."""

    def __init__(self, folder: Path, figure: str, log: Path) -> None:
        self._log = log
        with log.open("w") as words:
            self._process = subprocess.Popen(
                [sys.executable, str(folder / HERE), "--serve", figure, str(folder), "."],
                cwd=folder,
                env=environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
            )

    def answer(self) -> Costs:
        """Wait for the next line.

        Raises:
            RuntimeError: the process has ended; with its last words.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("\n".join(self._log.read_text().splitlines()[-5:]))
        return {name: (value, unit) for name, (value, unit) in json.loads(line).items()}

    def measure(self) -> Costs:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says why
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with contextlib.suppress(BrokenPipeError):
                end.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def compared(figure: str, folders: list[Path], repetitions: int, logs: Path) -> tuple[list[Costs], list[Costs]]:
    """Measure a figure of both sides in turn."""
    sides: list[Side] = []
    try:
        for number, folder in enumerate(folders):
            sides.append(Side(folder, figure, logs / f"{figure}.{number}"))
            sides[-1].answer()
        pairs = [(sides[0].measure(), sides[1].measure()) for _ in range(repetitions)]
    finally:
        for side in sides:
            side.close()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def of_one_side(name: str, *, is_old: bool) -> str:
    """Make the row of a figure, or of one of its costs, that only one side has."""
    return f"| {name} | | | | | only {'OLD' if is_old else 'NEW'} has it |"


def rows(olds: list[Costs], news: list[Costs]) -> Iterator[tuple[str, bool]]:
    """Make a row of the table for each cost, with True where it is good enough or has nothing to compare with."""
    both_have = olds[0].keys() & news[0].keys()
    for name, (_, unit) in (olds[0] | news[0]).items():
        if name not in both_have:
            yield of_one_side(name, is_old=name in olds[0]), True
            continue
        pairs = [(old[name][0], new[name][0]) for old, new in zip(olds, news, strict=True)]
        ordered = sorted(old / new for old, new in pairs)
        cut = len(ordered) // 4
        spread = ordered[cut : len(ordered) - cut]
        old_cost, new_cost = (statistics.median(side) for side in zip(*pairs, strict=True))
        good = spread[-1] >= LEAST
        yield (
            (
                f"| {name} | {old_cost:.4g} {unit} | {new_cost:.4g} {unit} | {statistics.median(ordered):.2f} "
                f"| {spread[0]:.2f} to {spread[-1]:.2f} | {'' if good else f'below {LEAST}'} |"
            ),
            good,
        )


@contextlib.contextmanager
def checked_out(side: str, folder: Path) -> Iterator[Path]:
    """Lend the folder of a side; a commit gets a worktree for as long as it is needed."""
    if (Path(side) / "tmrl_core").is_dir():
        yield Path(side).resolve()
        return
    git = ["git", "-C", str(MAIN.parent)]
    subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(folder), side], check=True)
    try:
        yield folder.resolve()
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a commit, or the folder of a checkout")
    parser.add_argument("new", metavar="NEW", help="likewise")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"figures of either side; here: {', '.join(FIGURES)}")
    parser.add_argument("--repetitions", type=int, default=5, help="pairs; peak_memory and start at most 3")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.old)
        return 0

    failed: list[str] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folders = [
            stack.enter_context(checked_out(side, Path(temporary) / name))
            for name, side in (("old", options.old), ("new", options.new))
        ]
        old, new = (figures_of(folder) for folder in folders)
        every = list(dict.fromkeys(old + new))
        for figure in options.only or ():
            if figure not in every:
                refuse(f"--only {figure} is no figure of either side; they have {', '.join(every)}")
        print(f"OLD {options.old}, NEW {options.new}; above 1 is better\n", flush=True)
        print("| what | OLD | NEW | ratio | spread | |\n| --- | --- | --- | --- | --- | --- |", flush=True)
        for figure in options.only or every:
            if figure not in old or figure not in new:
                print(of_one_side(figure, is_old=figure in old), flush=True)
                continue
            repetitions = min(options.repetitions, FEWER.get(figure, options.repetitions))
            try:
                for row, good in rows(*compared(figure, folders, repetitions, Path(temporary))):
                    print(row, flush=True)
                    if not good:
                        failed.append(row.split("|")[1].strip())
            except RuntimeError as error:
                print(f"| {figure} | | | | | not measured |", flush=True)
                failed.append(f"{figure}, not measured: {error}")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{time.monotonic() - started:.0f} s; load of the machine in the last 1, 5, 15 minutes: {load}")
    for line in failed:
        print(f"worse: {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
