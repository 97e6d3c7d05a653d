"""Updates a second with the measured number of threads, against each fixed number, in turn.

    python benchmarks/threads.py [--seconds N] [--local-seconds N] [--repetitions N] [--cores N] [--hidden N ...]

SAC on batches of 256 with two hidden layers, drawing included. Alone, and beside one process that computes all the
time: training loops (`TrainingOffline`) in this process, `--seconds` each in turn; the measured one keeps what it has
found, as one long run does. Beside two RolloutWorkers and a Server: runs of `--local` on Pendulum from nothing, one for
each side and repetition; what counts is the time in which the trainer did not wait for samples. The measured side pays
for its contests everywhere. On a machine with more cores than `--cores`, all processes share so many.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sac_updates import ACTIONS, OBSERVATIONS, memory

from tmrl_core.metrics import names, read_records
from tmrl_core.training import SacAgent
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.threads import available_cores
from tmrl_core.training.loops.training_loop import TrainingOffline

ROOT = Path(__file__).resolve().parent.parent
REACH = {"alone": 0.97, "beside one busy process": 0.95, "beside two workers and a Server": 0.95}
MEASURED = "measured"
ROUND = 50
"""Updates between two figures."""


class Timed(LocalInterface):
    """Ends a run after so many seconds."""

    until = 0.0

    @property
    def stopping(self) -> bool:
        """True when the time is over."""
        return time.perf_counter() >= self.until


class Side:
    """A training run with so many threads; None: measured."""

    def __init__(self, threads: int | None, hidden: list[int]) -> None:
        def agent(observation_space: Any, action_space: Any, device: Any) -> SacAgent:
            return SacAgent(observation_space, action_space, "cpu", hidden_sizes=hidden, compile=False)

        self.interface = Timed()
        self.training = TrainingOffline(
            (OBSERVATIONS, ACTIONS), lambda nb_steps, device: memory(256, "cpu"), agent, 10**9, 1, 10**9,
            update_model_interval=10**9, update_buffer_interval=10**9, max_training_steps_per_env_step=1e9,
            threads=threads,
        )  # fmt: skip
        self.training.total_samples = 10**9

    def rate(self, seconds: float) -> float:
        """Updates a second."""
        before, started = self.training.total_updates, time.perf_counter()
        self.interface.until = started + seconds
        self.training.run_epoch(self.interface)
        return (self.training.total_updates - before) / (time.perf_counter() - started)


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Beside a process that computes all the time."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def local_rate(threads: int | None, hidden: list[int], seconds: float) -> float:
    """Updates a second of a trainer beside two workers and a Server, while it does not wait for samples."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [
            f"trainer.threads={'null' if threads is None else threads}", f"actor.kwargs.hidden_sizes={hidden}",
            "trainer.rounds=100000", f"trainer.steps={ROUND}", "trainer.evaluation.every_updates=0",
            "trainer.evaluation.target_return=null", f"trainer.evaluation.time_limit_s={seconds:g}",
            "agent.kwargs.compile=false", "server.port=0", "metrics.tensorboard=false", f"run.folder={folder}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "tmrl_core", "--local", "-c", str(ROOT / "config" / "pendulum_sac.yaml")]
        subprocess.run(
            [*command, *(word for change in changes for word in ("--set", change))],
            cwd=folder, env=os.environ | {"TMRL_CORE_HOME": folder}, capture_output=True, check=False,
        )  # fmt: skip
        records = read_records(Path(folder) / "pendulum_sac" / "metrics.jsonl")
        rounds = [record for record in records if record.kind == "round"]
        active_s = sum((row.number(names.ROUND_TIME) or 0.0) - (row.number(names.IDLE_TIME) or 0.0) for row in rounds)
        return ROUND * len(rounds) / active_s if rounds else 0.0


def table(scene: str, rates: dict[str, list[float]]) -> float:
    """Print a scene's rows; the measured side's share of the best fixed number's."""
    middle = {name: statistics.median(found) for name, found in rates.items()}
    best = max(rate for name, rate in middle.items() if name != MEASURED)
    for name, found in rates.items():
        share = f"{middle[name] / best:.2f}"
        reach = f"{REACH[scene]:.2f}" if name == MEASURED else ""
        print(
            f"| {scene} | {name} | {middle[name]:.1f} | {min(found):.1f} to {max(found):.1f} | {share} | {reach} |",
            flush=True,
        )
    return middle[MEASURED] / best


def main() -> int:
    """Run all scenes and print a table; 1 where a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--local-seconds", type=float, default=40.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--scenes", nargs="+", choices=["alone", "busy", "local"], default=["alone", "busy", "local"])
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    cores = min(options.cores, available_cores())
    torch.set_num_threads(cores)
    torch.manual_seed(0)
    numbers: list[int | None] = [None]
    while (numbers[-1] or 0) < cores:
        numbers.append(min(cores, 2 * (numbers[-1] or 0) or 1))
    titles = {number: MEASURED if number is None else f"{number} thread(s)" for number in numbers}
    print(
        f"{platform.machine()}, {cores} of {os.cpu_count()} cores, Python {platform.python_version()}, torch "
        f"{torch.__version__}, hidden layers {options.hidden}"
    )
    print("| scene | threads | updates/s, median | range | share of the best fixed number | to reach |")
    print("| --- | --- | --- | --- | --- | --- |")
    missed = []
    scenes: dict[str, tuple[str, Any]] = {
        "alone": ("alone", contextlib.nullcontext()),
        "busy": ("beside one busy process", busy_process()),
    }
    for key in options.scenes:
        rates: dict[str, list[float]] = {name: [] for name in titles.values()}
        if key == "local":
            scene = "beside two workers and a Server"
            for _ in range(options.repetitions):
                for number, name in titles.items():
                    rates[name].append(local_rate(number, options.hidden, options.local_seconds))
        else:
            scene, beside = scenes[key]
            sides = {name: Side(number, options.hidden) for number, name in titles.items()}
            with beside:
                for repetition in range(1 + options.repetitions):
                    for name, side in sides.items():
                        rate = side.rate(options.seconds)
                        if repetition:  # the first is a warm-up
                            rates[name].append(rate)
        if table(scene, rates) < REACH[scene]:
            missed.append(scene)
    print(f"missed: {', '.join(missed)}" if missed else "all reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
