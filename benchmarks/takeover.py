"""Time from a person's input to the executed action, in a control loop of a fixed rate.

    python benchmarks/takeover.py [--takeovers 500] [--hz 50] [--fifo]

A thread in place of a device presses at random moments, and notes when. The environment notes when `step` gets the
person's action: a robot's driver would send it then. The worker records all steps, with a NumPy policy of two layers.
`--fifo` gives the process SCHED_FIFO, as a robot's machine should (`chrt -f 10`).
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.actor.interventions import InterventionSource
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.takeover import Takeover
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.actor.rollout.worker import Worker, make_loop
from tmrl_core.samples import Buffer


class Pressed(InterventionSource):
    """A thread that presses and releases at random moments; each press has its own number as the action."""

    def __init__(self, presses: int, period_s: float) -> None:
        self.at: dict[int, float] = {}
        self._presses, self._period_s = presses, period_s
        self._number = 0
        self._down = False
        self.thread = threading.Thread(target=self._press, daemon=True)

    def _press(self) -> None:
        rng = random.Random(0)
        for number in range(1, self._presses + 1):
            time.sleep(rng.uniform(3, 5) * self._period_s)
            self._number, self.at[number], self._down = number, time.perf_counter(), True
            time.sleep(2 * self._period_s)
            self._down = False

    def poll(self, obs: Any) -> Any:
        return np.array([self._number / 2**16, 0.0], np.float32) if self._down else None


class Rate(gymnasium.Env[Any, Any]):
    """Waits for the end of the present time step, as rtgym does, and notes the person's actions."""

    observation_space = spaces.Box(-1, 1, (24,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, period_s: float, source: Pressed) -> None:
        self.executed: dict[int, float] = {}
        self._period_s, self._source = period_s, source
        self._due = time.perf_counter()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._due = time.perf_counter() + self._period_s
        return np.zeros(24, np.float32), {}

    def step(self, action: Any) -> Any:
        number = float(action[0]) * 2**16
        if action[1] == 0.0 and number == int(number):
            self.executed.setdefault(int(number), time.perf_counter())
        time.sleep(max(0.0, self._due - time.perf_counter()))
        self._due += self._period_s
        return np.full(24, 0.1, np.float32), 0.0, False, False, {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takeovers", type=int, default=500)
    parser.add_argument("--hz", type=float, default=50.0)
    parser.add_argument("--fifo", action="store_true", help="give the process SCHED_FIFO (needs the permission)")
    arguments = parser.parse_args()
    if arguments.fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    period_s = 1.0 / arguments.hz
    source = Pressed(arguments.takeovers, period_s)
    env = Rate(period_s, source)
    recorder = StepRecorder(Buffer(100_000), max_samples_per_episode=1_000_000)
    loop = make_loop(lambda: env, NumpySquashedGaussianMLPActor, recorder)
    loop.uplink = Uplink(None, recorder, loop.runner)
    loop.let_take_over(Takeover(source, env.action_space, recorder))
    worker = Worker(loop)
    source.thread.start()

    def stop_after_the_last() -> None:
        source.thread.join()
        worker.stop()

    threading.Thread(target=stop_after_the_last, daemon=True).start()
    worker.run()
    late_ms = np.array([(env.executed[n] - at) * 1e3 for n, at in source.at.items() if n in env.executed])
    p50, p99 = np.percentile(late_ms, [50, 99])
    print(f"{len(late_ms)} of {len(source.at)} takeovers at {arguments.hz:g} Hz, load {os.getloadavg()[0]:.0f}")
    print(f"from input to executed action: median {p50:.1f} ms, 99 % {p99:.1f} ms, max {late_ms.max():.1f} ms")


if __name__ == "__main__":
    main()
