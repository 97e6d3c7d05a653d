"""Time from SIGTERM, or from an exception, until a worker has executed its safe action.

    python benchmarks/safe_action.py [--repetitions 20] [--step-ms 20]

The worker of each repetition is a process of its own, which steps an environment at a fixed rate and has a link to a
Server that does not exist, so that its drain lasts as long as it may. The time includes the rest of the present step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

REACH_S = 0.1

WORKER = """
import json, sys, time
import numpy as np
from gymnasium import Env, spaces

from tmrl_core.networking import RolloutWorker
from tmrl_core.roles.shutdown import ShutdownSignal

how, step_s = sys.argv[1], float(sys.argv[2])

def note(what):
    print(json.dumps([what, time.monotonic()]), flush=True)

class Motor(Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if action.tolist() == [0.25]:
            note("safe")
        self.steps += 1
        if self.steps == 50:
            note("ready")
            if how == "exception":
                raise RuntimeError("the motor is hot")
        time.sleep(step_s)
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self):
        note("closed")

with ShutdownSignal() as shutdown:
    with RolloutWorker(
        Motor, "tmrl_core.actor:SquashedGaussianMLPActor", server_port=1, transport="local", drain_timeout_s=1.0,
        max_env_steps_per_update=None, safe_action=[0.25], max_failures=0, model_path=None,
    ) as worker:
        shutdown.calls(worker.stop)
        worker.run(verbose=False)
"""


def delay(how: str, step_s: float) -> float:
    """Return the seconds from the signal or the exception to the safe action."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", WORKER, how, str(step_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
        ) as worker,
    ):
        assert worker.stdout is not None
        notes: Iterator[list[object]] = (json.loads(line) for line in worker.stdout)
        begun = next(float(str(at)) for what, at in notes if what == "ready")
        if how == "sigterm":
            begun = time.monotonic()
            os.kill(worker.pid, signal.SIGTERM)
        return next(float(str(at)) for what, at in notes if what == "safe") - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=20.0)
    arguments = parser.parse_args()
    print(
        f"Python {platform.python_version()}; {arguments.repetitions} processes each, {arguments.step_ms:g} ms a step"
    )
    reached = True
    for how in ("sigterm", "exception"):
        found = sorted(delay(how, arguments.step_ms / 1e3) * 1e3 for _ in range(arguments.repetitions))
        reached &= found[-1] <= REACH_S * 1e3
        print(f"{how}: median {statistics.median(found):.1f} ms, {found[0]:.1f} to {found[-1]:.1f}")
    print(f"to reach: {REACH_S * 1e3:g} ms for each: {'reached' if reached else 'not reached'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
