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
    command += ["--quickstart", "--workers", str(arguments.workers)]
    if not arguments.small:
        return run_here(command)
    shutil.rmtree(SMALL_RUN, ignore_errors=True)
    command += ["--small", "--set", f"run.folder={SMALL_RUN.parent}", "--set", f"run.name={SMALL_RUN.name}"]
    return run_here(command) or check_small(SMALL_RUN)


def check_small(folder: Path) -> int:
    """Whether samples went one way and weights the other, as the files of a small run tell; the exit status."""
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        print(f"error: {folder} lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    # An evaluation takes a policy to a worker, and its returns back to the trainer.
    if '"evaluation"' not in (folder / "metrics.jsonl").read_text(encoding="utf-8"):
        print(f"error: {folder / 'metrics.jsonl'} has no evaluation: no policy came back as returns", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
