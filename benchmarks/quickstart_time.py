"""Seconds from the command, after installation, until the policy has learned Pendulum and the picture is there.

    python benchmarks/quickstart_time.py [--repetitions N] [--against COMMIT]

Runs what `scripts/quickstart.py` runs once its environment stands: Server, two RolloutWorkers and a Trainer as
processes over TLS on this machine, until ten deterministic evaluation episodes average -200 or better, twice. Each
repetition is a run of its own in a new folder, with credentials of its own, and with another seed. With `--against` the
same is run in turn with another commit's code and configuration, by this Python and its packages.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare import checked_out
from wire_bytes import versions

ROOT = Path(__file__).resolve().parent.parent
REACH_S = 240.0
REACH_SHARE = 0.65
"""Of the other commit's time."""


def run(root: Path, seed: int) -> tuple[float, int, str, str]:
    """Seconds, exit status, final mean return and environment steps of one run with a checkout's code."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tmrl_core", "--local", "--quickstart"]
        command += ["-c", str(root / "config" / "pendulum_sac.yaml"), "--set", f"run.seed={seed}"]
        start = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"TMRL_CORE_HOME": folder, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        picture = list(Path(folder).glob("runs/*/learning_curve.png"))
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
        found = re.search(r"mean return of (-?[\d.]+).*?([\d,]+) environment steps", last)
        final, steps = found.groups() if found and picture else ("-", "-")
        return seconds, done.returncode, final, steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--against", metavar="COMMIT", help="run this one too, in turn")
    arguments = parser.parse_args()
    print(versions(), "cores:", os.cpu_count())
    print("| side | seed | seconds | exit status | final mean return of ten episodes | environment steps |")
    print("| --- | --- | --- | --- | --- | --- |")
    seconds: dict[str, list[float]] = {}
    learned = True
    with contextlib.ExitStack() as closing:
        sides = {"this": ROOT}
        if arguments.against:
            folder = Path(closing.enter_context(tempfile.TemporaryDirectory())) / "other"
            sides[arguments.against] = closing.enter_context(checked_out(arguments.against, folder))
        for seed in range(arguments.repetitions):
            for side, root in sides.items():
                took, status, final, steps = run(root, seed)
                seconds.setdefault(side, []).append(took)
                learned = learned and status == 0
                print(f"| {side} | {seed} | {took:.0f} | {status} | {final} | {steps} |", flush=True)
    middle = {side: statistics.median(found) for side, found in seconds.items()}
    for side, found in seconds.items():
        print(f"{side}: median {middle[side]:.0f} s, {min(found):.0f} to {max(found):.0f}")
    reached = learned and max(seconds["this"]) <= REACH_S
    if arguments.against:
        share = middle["this"] / middle[arguments.against]
        print(f"share of the time of {arguments.against}: {share:.2f} (to reach: {REACH_SHARE:.2f})")
        return 0 if reached and share <= REACH_SHARE else 1
    print(f"to reach: {REACH_S:.0f} s")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
