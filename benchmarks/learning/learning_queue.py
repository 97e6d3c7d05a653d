"""The queue of planned learning curves: lists those that are missing, runs them, and prints the table of those there.

    python benchmarks/learning/learning_queue.py                     # lists
    nice -n 19 python benchmarks/learning/learning_queue.py --run [--hours 2]
    python benchmarks/learning/learning_queue.py --table

`plan.yaml` says what is run, `results/` holds the outcomes. Each run is a process of its own, one after another, with
one thread: ours is `python -m tmrl_core --local` (Server, worker and Trainer over TLS), the other side `peer.py`. The
environment that runs the queue needs `gymnasium[mujoco]`, stable-baselines3 and sb3-contrib. With several cores, start
the command several times: each takes the first run that no other one has.

Interrupted (Ctrl-C, SIGTERM, the end of `--hours`), the queue ends the run that is open. The next time, a run of ours
goes on from its last checkpoint in the work folder; one without a checkpoint, as each of the other side, begins anew.
"""

# Theory of operation
#
# A result is written when a run has ended in order with all its evaluations, and never again. The order of runs and
# their settings come from the committed plan alone, so what a table shows does not depend on when the queue stopped.
# A run belongs to the process that holds the lock on its folder; whether it has a result is asked after that, since
# another process may have ended it meanwhile. What the run itself writes is one folder below, cleared without the lock.
#
# This file is not named queue.py: Python puts the folder of a script first, and the standard library's module of that
# name is imported by nearly everything.
#
# Processor time is that of a process and of all processes that it waited for (`os.wait4`), which other work on the
# machine disturbs less than the clock. A resumed run has none, since a killed part took its count with it.

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import curves
import ratios
from plan import OURS, PLAN, RESULTS, Result, Run, missing, path_of, planned, read_plan, results, write
from run import HERE, ROOT, curve_of, local_command

from tmrl_core.config import load
from tmrl_core.errors import FolderLockedError
from tmrl_core.storage.lock import FolderLock

WORK = ROOT / "runs" / "learning"
NEEDED = ("numpy", "torch", "gymnasium", "mujoco", "stable-baselines3", "sb3-contrib")
ENDS_WITHIN_S = 120.0
"""A run of ours that is asked to end writes a checkpoint first."""
_POLL_S = 0.5


class Stopped(Exception):
    """The time of the queue is over."""


class Failed(Exception):
    """A run has ended with an error, or too early."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that runs need, and the `processor`, which core-hours are of.

    Raises:
        SystemExit: one is not installed.
    """
    found = {"processor": _processor(), "python": platform.python_version()}
    for name in NEEDED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise SystemExit(
                f'{name} is not installed in this environment: pip install "gymnasium[mujoco]" stable-baselines3 '
                "sb3-contrib"
            ) from None
    return found


def _processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")  # of Linux, where Python's own answer is often empty
    facts = [line.partition(":") for line in cpuinfo.read_text().splitlines()] if cpuinfo.exists() else []
    told = {key.strip(): value.strip() for key, _, value in reversed(facts)}
    if "model name" not in told:
        return platform.processor() or platform.machine()
    return f"{told['model name']} (family {told.get('cpu family', '-')}, model {told.get('model', '-')})"


def settings_of(run: Run) -> list[str]:
    """Return the changes to the configuration of a run's task.

    Raises:
        SystemExit: the steps are not whole epochs after the first, random ones.
    """
    trainer = load(HERE / f"{run.task}.yaml", [], {}).trainer
    epochs, rest = divmod(run.steps - int(trainer.start_training), trainer.rounds * trainer.steps)
    if rest or epochs < 1:
        raise SystemExit(f"plan.yaml: {run.steps} steps of {run.task} are not whole epochs after its random steps")
    return [f"environment.kwargs.id={run.environment}", f"trainer.epochs={epochs}"]


def learn(run: Run, folder: Path, deadline: float) -> Result:
    """Run a run in a folder of its own to its end.

    Raises:
        Stopped: the deadline came first.
        Failed: it ended with an error, or before its steps.
    """
    resumed = any(folder.glob("runs/*/checkpoint/[0-9]*"))
    if not resumed:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    changes = settings_of(run)
    curve_file = folder / "curve.csv"
    if run.side == OURS:
        command = local_command(run.task, run.seed, changes)
    else:
        command = [sys.executable, str(HERE / "peer.py"), run.task, "--seed", str(run.seed), "--out", str(curve_file)]
        command += [word for change in changes for word in ("--set", change)]
    began = time.monotonic()
    core_s = _run(command, folder, deadline)
    curve = curve_of(folder, run.task, changes) if run.side == OURS else curves.read(curve_file)
    if not curve or curve[-1].steps < run.steps * 0.98:
        raise Failed(f"{run.name} has ended before its {run.steps} steps: see {folder / 'output.txt'}")
    wall_s = round(time.monotonic() - began, 1)
    return Result(
        run=run,
        curve=curve,
        wall_s=wall_s,
        core_s=None if resumed else round(core_s, 1),
        ended=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        versions=versions(),
    )


def _run(command: list[str], folder: Path, deadline: float) -> float:
    """Run a command in a folder; return its seconds of processor time."""
    environment = {**os.environ, "TMRL_CORE_HOME": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("ab") as output:
        # A session of its own, so that Ctrl-C reaches the queue alone, and all processes of a run can be ended.
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    break
                if time.monotonic() > deadline:
                    raise Stopped
                time.sleep(_POLL_S)
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    process.wait(ENDS_WITHIN_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    if process.returncode:
        raise Failed(f"{' '.join(command)} ended with {process.returncode}: see {folder / 'output.txt'}")
    return usage.ru_utime + usage.ru_stime


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run what is missing")
    parser.add_argument("--hours", type=float, default=float("inf"), help="of --run: end after so many hours")
    parser.add_argument("--table", action="store_true", help="print ratios of what is there")
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--results", type=Path, default=RESULTS, help="of this plan alone")
    parser.add_argument("--work", type=Path, default=WORK, help="of runs that are open")
    arguments = parser.parse_args()
    rows = read_plan(arguments.plan)
    if arguments.table:
        print("\n".join(ratios.lines(rows, results(rows, arguments.results))))
        return 0
    todo = missing(rows, arguments.results)
    if not arguments.run:
        print("\n".join(run.name for run in todo))
        print(f"{len(todo)} of {len(list(planned(rows)))} runs are missing", file=sys.stderr)
        return 0
    versions()  # before days of runs
    deadline = time.monotonic() + arguments.hours * 3600.0
    signal.signal(signal.SIGTERM, _interrupted)
    status = 0
    for run in todo:
        folder = arguments.work.resolve() / run.name
        try:
            with FolderLock(folder, f"the run {run.name}"):
                if not path_of(run, arguments.results).exists():
                    print(f"{datetime.datetime.now(datetime.timezone.utc):%H:%M:%S} {run.name}", flush=True)
                    print(write(learn(run, folder / "work", deadline), arguments.results), flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        except FolderLockedError:
            continue
        except (Stopped, KeyboardInterrupt):
            print(f"{run.name} was stopped; the next --run goes on with it")
            break
        except Failed as exc:  # the other runs are worth having all the same
            print(exc, flush=True)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
