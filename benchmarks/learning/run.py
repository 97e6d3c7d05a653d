"""One learning curve of ours: Server, RolloutWorkers and Trainer as processes over TLS on this machine.

    python benchmarks/learning/run.py cartpole
    python benchmarks/learning/run.py cartpole --seed 1 --set agent.kwargs.lr=1e-3 --out /tmp/curve.csv

The task is the name of a configuration in this folder; its `trainer.lockstep.min_workers` says how many workers there
are. The curve is what one of the workers plays with the newest policy, deterministically and with fixed seeds. Curves
that are published come from `learning_queue.py`, which has their seeds in its plan. The environments need the extras
`mujoco` and `box2d`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import curves

from tmrl_core.config import load
from tmrl_core.metrics import read_records

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_ALWAYS = ("metrics.tensorboard=false", "server.port=0")


def tasks() -> list[str]:
    """Return the names of the configurations in this folder."""
    return sorted(path.stem for path in HERE.glob("*.yaml") if path.stem != "plan")


def local_command(task: str, seed: int, changes: Sequence[str]) -> list[str]:
    """Return the command that runs all roles of a task; begun again in its folder, it goes on from its checkpoint."""
    path = HERE / f"{task}.yaml"
    changes = [*_ALWAYS, f"run.seed={seed}", *changes]
    workers = load(path, changes, {}).trainer.lockstep.min_workers
    command = [sys.executable, "-m", "tmrl_core", "--local", "-c", str(path), "--workers", str(workers)]
    return [*command, *(word for change in changes for word in ("--set", change))]


def curve_of(folder: Path, task: str, changes: Sequence[str]) -> list[curves.Point]:
    """Return the curve of a run in `folder`."""
    config = load(HERE / f"{task}.yaml", [*_ALWAYS, *changes], {})
    lockstep = config.worker.collection == "lockstep"
    (found,) = folder.glob("runs/*/metrics.jsonl")
    return curves.points_of(read_records(found), config.trainer.lockstep.steps_per_round if lockstep else None)


def learn(task: str, seed: int, changes: Sequence[str], folder: Path) -> list[curves.Point]:
    """Run all roles in `folder`, and return the curve."""
    command = local_command(task, seed, changes)
    environment = {**os.environ, "TMRL_CORE_HOME": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return curve_of(folder, task, changes)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the options of both sides: the task, the seed, changes to its settings, and where the curve goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="cartpole", choices=tasks())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="file of the curve; left out: it is printed alone")
    return parser


def run_seed(arguments: argparse.Namespace, learned: Callable[[int], curves.Curve]) -> None:
    """Run the seed that is asked for, print its curve and write it to `--out`."""
    curve = learned(arguments.seed)
    if arguments.out is not None:
        curves.write(arguments.out, curve)
    for point in curve:
        print(
            f"{arguments.task} seed {arguments.seed}: {point.steps:7d} steps {point.mean:9.2f} {point.seconds:6.0f} s"
        )


def main() -> int:
    arguments = parser_of(__doc__).parse_args()

    def learned(seed: int) -> curves.Curve:
        with tempfile.TemporaryDirectory() as folder:
            return learn(arguments.task, seed, arguments.changes, Path(folder))

    run_seed(arguments, learned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
