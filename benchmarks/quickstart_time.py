"""Seconds from the command, after installation, until the policy has learned Pendulum and the picture is there.

    python benchmarks/quickstart_time.py

Runs what `scripts/quickstart.py` runs once its environment stands: Server, two RolloutWorkers and a Trainer as
processes over TLS on this machine, until ten deterministic evaluation episodes average -200 or better, twice. Each
repetition is a run of its own in a new folder, with credentials of its own, and with another seed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wire_bytes import versions

ROOT = Path(__file__).resolve().parent.parent
REACH_S = 240.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    print(versions(), "cores:", os.cpu_count())
    print("| seed | seconds | exit status | final mean return of ten episodes | environment steps |")
    print("| --- | --- | --- | --- | --- |")
    seconds: list[float] = []
    statuses: list[int] = []
    for seed in range(arguments.repetitions):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tmrl_core", "--local", "--quickstart"]
            command += ["-c", str(ROOT / "config" / "pendulum_sac.yaml"), "--set", f"run.seed={seed}"]
            start = time.perf_counter()
            done = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | {"TMRL_CORE_HOME": folder},
                capture_output=True,
                text=True,
                check=False,
            )
            seconds.append(time.perf_counter() - start)
            statuses.append(done.returncode)
            picture = list(Path(folder).glob("runs/*/learning_curve.png"))
            last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
            found = re.search(r"mean return of (-?[\d.]+).*?([\d,]+) environment steps", last)
            final, steps = found.groups() if found and picture else ("-", "-")
        print(f"| {seed} | {seconds[-1]:.0f} | {done.returncode} | {final} | {steps} |", flush=True)
    middle, best, worst = statistics.median(seconds), min(seconds), max(seconds)
    print(f"median {middle:.0f} s, {best:.0f} to {worst:.0f} (to reach: {REACH_S:.0f})")
    return 0 if worst <= REACH_S and not any(statuses) else 1


if __name__ == "__main__":
    sys.exit(main())
