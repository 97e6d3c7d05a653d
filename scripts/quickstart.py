"""From a bare Python to a policy that learns Pendulum over TLS, on this machine.

    python scripts/quickstart.py

Makes `.venv` with everything in it, then runs a Server, two RolloutWorkers and a Trainer as separate processes, shows
how they are doing, and leaves the learning curve and all other files in `runs/`. The exit status is 0 when the policy
learned. Works from any directory; a second run starts at once.
"""

from __future__ import annotations

import argparse
import sys

from _environment import ROOT, SetupError, ensure, run_here


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser(description="A policy that learns Pendulum over TLS, from a bare Python.")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="how many RolloutWorkers (default: 2)")
    parser.add_argument("--gpu", action="store_true", help="install the build of torch that pip takes by itself")
    parser.add_argument("--small", action="store_true", help="a short run that checks the way, not the learning")
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
    if arguments.small:
        command.append("--small")
    return run_here(command)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
