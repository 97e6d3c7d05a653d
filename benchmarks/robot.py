"""Success of gym-hil's arm: a person who takes over, beside cloning and SAC, over TLS and a bad network.

    python benchmarks/robot.py --worker-python ~/gym-hil/bin/python takeovers --seeds 0 1 2 3 4
    python benchmarks/robot.py --worker-python ~/gym-hil/bin/python cloning sac_demonstrations sac --seeds 0 1 2
    python benchmarks/robot.py --worker-python ~/gym-hil/bin/python pictures
    python benchmarks/robot.py --table

The files are those of examples/robot. The worker has a Python of its own, with gym-hil==0.1.14 and this package
without torch; between it and the Server is `tmrl_core.testing.proxy`. All seeds share 20 demonstrations. Each run
becomes a JSON file in the folder of the results; one that is there is not run again. A run that `--minutes` ends counts
with the steps that it reached.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.actor.interventions import IS_INTERVENTION
from tmrl_core.metrics import read_records
from tmrl_core.sessions import read_sessions

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "robot"
RESULTS = ROOT / "benchmarks" / "results" / "robot_epyc2core_202611"
ALONE = ("worker.interventions=null", "agent.kwargs.imitation_coef=0")
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "takeovers": ("takeover", ()),
    "hg_dagger": ("hg_dagger", ()),
    "cloning": ("cloning", ()),
    "sac_demonstrations": (
        "takeover",
        ("worker.interventions=null", "memory.shares={online: 0.5, demonstrations: 0.5}"),
    ),
    "sac": ("takeover", (*ALONE, "memory.recorded=null", "memory.shares=null")),
    "pictures": ("pictures", ()),
}
"""File and changes of each row of the table."""
SHOWN = {"pictures": ("pictures", "environment.kwargs.person=shows")}
"""Of rows with demonstrations of their own: the file that records them, and its change."""
AWAY = {"pictures": "environment.kwargs.person=away"}
"""Of rows whose person acts in the environment: the change with which nobody does."""
NETWORK = ("--latency-ms", "80", "--jitter-ms", "40", "--black-hole-every", "120", "--black-hole-for", "15")
EPISODES = 50


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Run:
    """One row with one seed, in a folder of its own."""

    def __init__(self, row: str, seed: int, arguments: argparse.Namespace, folder: Path) -> None:
        file, changes = ROWS[row]
        self.offline = file == "cloning"
        self.folder, self.minutes = folder, arguments.minutes
        self.worker_python, self.demonstrations = str(arguments.worker_python), demonstrations(row, arguments, folder)
        port = free_port()
        self.name, self.row = f"{row}_{seed}", row
        settings = (f"run.seed={seed}", f"run.name={self.name}", f"server.port={port}", *changes, *arguments.changes)
        self.words = ["-c", str(EXAMPLE / f"{file}.yaml"), *(word for one in settings for word in ("--set", one))]
        self.port, self.running = port, list[subprocess.Popen[bytes]]()
        self.environ = os.environ | {"TMRL_CORE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}

    def start(self, python: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            started = subprocess.Popen([python, *words], cwd=self.folder, env=self.environ, stdout=log, stderr=log)
        self.running.append(started)
        return started

    def call(self, python: str, name: str, *words: str) -> str:
        if self.start(python, name, *words).wait():
            raise SystemExit(f"{name} failed: {self.log(name)[-3000:]}")
        return self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def learn(self) -> None:
        if not (self.folder / self.demonstrations.name).exists():
            os.symlink(self.demonstrations, self.folder / self.demonstrations.name)
        core = ("-m", "tmrl_core")
        if self.offline:
            self.call(sys.executable, "trainer", *core, "--trainer", *self.words)
            return
        self.call(sys.executable, "credentials", *core, "--credentials", "create", "--host", "localhost")
        self.start(sys.executable, "server", *core, "--server", *self.words)
        through = free_port()
        proxy = (
            "-m",
            "tmrl_core.testing.proxy",
            "--listen",
            str(through),
            "--to",
            f"127.0.0.1:{self.port}",
            "--seed",
            "0",
        )
        self.start(sys.executable, "proxy", *proxy, *NETWORK)
        worker = ("--set", f"server.port={through}", "--set", "worker.record=recorded")
        trainer = self.start(sys.executable, "trainer", *core, "--trainer", *self.words)
        self.start(self.worker_python, "worker", *core, "--worker", *self.words, *worker)
        end = time.monotonic() + self.minutes * 60
        while trainer.poll() is None and time.monotonic() < end:
            if any(one.poll() for one in self.running):
                raise SystemExit(f"a process of {self.name} failed: see the logs in {self.folder}")
            time.sleep(1)
        trainer.terminate()
        if trainer.wait():
            raise SystemExit(f"the trainer of {self.name} failed: {self.log('trainer')[-3000:]}")

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait()

    def result(self) -> dict[str, Any]:
        """Play the last policy without a person, and count who acted."""
        alone = ("--set", AWAY.get(self.row, "worker.interventions=null"), "--set", "memory.shares=null")
        tested = self.call(
            self.worker_python, "test", "-m", "tmrl_core", "--test", "--episodes", f"{EPISODES}", *self.words, *alone
        )
        found: dict[str, Any] = {"success": float(re.findall(rf"of {EPISODES} episodes: (\S+)", tested)[-1])}
        found["updates"] = read_records(self.folder / "runs" / self.name / "metrics.jsonl")[-1].step
        if not self.offline:
            acted = [
                np.asarray(one.extras.get(IS_INTERVENTION, np.zeros(len(one.rewards))), bool)
                for one in read_sessions(self.folder / "recorded")
            ]
            flags = np.concatenate(acted) if acted else np.zeros(0, bool)
            found["steps"] = len(flags)
            found["interventions"] = [float(part.mean()) for part in np.array_split(flags, 4)] if len(flags) > 3 else []
        return found


def table() -> None:
    print(
        "| row | seed | environment steps | success | person's share, by quarters of the steps |\n" + "| --- " * 5 + "|"
    )
    for row in ROWS:
        for path in sorted(RESULTS.glob(f"{row}_[0-9]*.json")):
            found = json.loads(path.read_text("utf-8"))
            parts = " ".join(f"{part:.3f}" for part in found.get("interventions", []))
            seed, steps = path.stem.rpartition("_")[2], found.get("steps", 0)
            print(f"| {row} | {seed} | {steps:,} | {found['success']:.2f} | {parts} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--worker-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--demonstrations", type=Path, help="recorded before; without: record them")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of one run")
    parser.add_argument("--folder", type=Path, help="keep the files of the runs here")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--table", action="store_true", help="print the results that are there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        kept = (arguments.folder or Path(temporary)).absolute()
        for row in arguments.rows:
            for seed in arguments.seeds:
                path = RESULTS / f"{row}_{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(one(row, seed, arguments, kept / f"{row}_{seed}")) + "\n", "utf-8")
                    print(path.read_text("utf-8"), flush=True)
    if arguments.table:
        table()
    return 0


def demonstrations(row: str, arguments: argparse.Namespace, folder: Path) -> Path:
    """Return the folder of a row's 20 demonstrations, which are recorded unless they are there."""
    if arguments.demonstrations is not None and row not in SHOWN:
        return Path(arguments.demonstrations).absolute()
    file, *changes = SHOWN.get(row, ("expert",))
    recorded = folder.parent / ("seen_demonstrations" if row in SHOWN else "demonstrations")
    if not recorded.exists():
        words = ["-c", str(EXAMPLE / f"{file}.yaml"), *(word for one in changes for word in ("--set", one))]
        expert = [arguments.worker_python, "-m", "tmrl_core", "--expert", "--record", str(recorded), "--episodes", "20"]
        subprocess.run([*expert, *words], cwd=folder, check=True)
    return recorded


def one(row: str, seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a row with a seed, and return its result."""
    folder.mkdir(parents=True)
    run, began = Run(row, seed, arguments, folder), time.monotonic()
    try:
        run.learn()
        seconds = time.monotonic() - began
    finally:
        run.end()
    return run.result() | {"seconds": round(seconds)}


if __name__ == "__main__":
    sys.exit(main())
