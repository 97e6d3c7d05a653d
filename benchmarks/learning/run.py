"""One learning curve of ours: Server, RolloutWorkers and Trainer as processes over TLS on this machine.

    python benchmarks/learning/run.py cartpole --seed 0
    python benchmarks/learning/run.py cartpole --seed 0 --set agent.kwargs.lr=1e-3 --out /tmp/curve.csv

The task is the name of a configuration in this folder; its `trainer.lockstep.min_workers` says how many workers there
are. The curve is what one of the workers plays with the newest policy, deterministically and with fixed seeds; it goes
to `benchmarks/results/<results>/<task>_ours_<seed>.csv`. The environments need the extras `mujoco` and `box2d`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import curves

from tmrl_core.config import load
from tmrl_core.metrics import read_records

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "learning_epyc2core_202611"


def learn(task: str, seed: int, changes: list[str], folder: Path) -> list[curves.Point]:
    """Run all roles in `folder`, and return the curve."""
    path = HERE / f"{task}.yaml"
    changes = [f"run.seed={seed}", "metrics.tensorboard=false", *changes]
    config = load(path, changes, {})
    lockstep = config.worker.collection == "lockstep"
    command = [sys.executable, "-m", "tmrl_core", "--local", "--quickstart", "-c", str(path)]
    command += ["--workers", str(config.trainer.lockstep.min_workers)]
    command += [word for change in changes for word in ("--set", change)]
    environment = {**os.environ, "TMRL_CORE_HOME": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = list(folder.glob("runs/*/metrics.jsonl"))
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return curves.points_of(read_records(found[0]), config.trainer.lockstep.steps_per_round if lockstep else None)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """What both sides are asked: the task, the seed, changes to its settings, and where the curve goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "task", nargs="?", default="cartpole", choices=sorted(path.stem for path in HERE.glob("*.yaml"))
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    return parser


def arguments_of(description: str | None) -> argparse.Namespace:
    """The answers on the command line."""
    return parser_of(description).parse_args()


def keep(curve: curves.Curve, side: str, arguments: argparse.Namespace) -> None:
    """Write a side's curve where `table.py` looks for it, or where `--out` says, and print it."""
    curves.write(arguments.out or RESULTS / f"{arguments.task}_{side}_{arguments.seed}.csv", curve)
    for point in curve:
        print(
            f"{arguments.task} seed {arguments.seed}: {point.steps:7d} steps {point.mean:9.2f} {point.seconds:6.0f} s"
        )


def main() -> int:
    arguments = arguments_of(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        curve = learn(arguments.task, arguments.seed, arguments.changes, Path(folder))
    keep(curve, "ours", arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
