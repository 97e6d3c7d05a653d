"""From a bare Python to a policy that learns Pendulum over TLS, on this machine.

    python scripts/quickstart.py

Makes `.venv` with everything in it, then runs a Server, two RolloutWorkers and a Trainer as separate processes, shows
how they are doing, and leaves the learning curve and all other files in `runs/`. The exit status is 0 when the policy
learned. Works from any directory; a second run starts at once.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from _environment import ROOT, SetupError, ensure, run_here

SMALL_RUN = ROOT / "runs" / "small" / "quickstart"
SMALL = ["--quickstart", "--small"]
FILES = ["learning_curve.png", "metrics.jsonl", "tensorboard", "checkpoint", "policy.tmod", "config.yaml"]


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description="Install an environment and learn Pendulum over TLS.")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="number of RolloutWorkers (default: 2)")
    parser.add_argument("--gpu", action="store_true", help="install pip's default build of torch, not the CPU build")
    parser.add_argument(
        "--small", action="store_true", help="a short run that tests the installation, not the learning"
    )
    arguments = parser.parse_args()
    if arguments.workers < 1:
        parser.error(f"--workers {arguments.workers}: at least one RolloutWorker is needed")
    try:
        python = ensure(["all"], gpu=arguments.gpu)
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    command = [str(python), "-m", "tmrl_core", "--local", "-c", str(ROOT / "config" / "pendulum_sac.yaml")]
    command += ["--workers", str(arguments.workers)]
    if not arguments.small:
        return run_here([*command, "--quickstart"])
    shutil.rmtree(SMALL_RUN, ignore_errors=True)
    command += [*SMALL, "--set", f"run.folder={SMALL_RUN.parent}", "--set", f"run.name={SMALL_RUN.name}"]
    if (status := run_here(command)) != 0:
        return status
    errors = small_run_errors(SMALL_RUN)
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


def small_run_errors(folder: Path) -> list[str]:
    """Return what the files of a small run lack, if samples went one way and weights the other."""
    if missing := [name for name in FILES if not (folder / name).exists()]:
        return [f"{folder} lacks {', '.join(missing)}"]
    # An evaluation takes a policy to a worker, and its returns back to the trainer.
    if '"evaluation"' not in (folder / "metrics.jsonl").read_text(encoding="utf-8"):
        return [f"{folder / 'metrics.jsonl'} has no evaluation: no policy came back as returns"]
    return []


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
