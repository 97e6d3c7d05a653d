"""Environments of rtgym, as far as a worker knows them. rtgym is not imported.

In rtgym, a time step with the action of `step` begins when `step` returns, and runs in a thread of the environment. The
action of a step that ends the episode is never sent: the action of the reset takes its place in the action buffer.
"""

# Theory of operation
#
# rtgym runs a time step in a thread: `step(a)` waits for the end of the running step, sends `a`, begins the next step,
# and returns the observation made at that boundary. So the action of a step acts *after* `step` has returned, and each
# observation contains the latest actions (`act_buf`), or the process would not be Markov. With a buffer of 2:
#
#     call        sends   act_buf after it   observation holds
#     reset()     d       [d, d]             [d, d]            d: default action
#     step(a)     a       [d, a]             [d, a]
#     step(b)     b       [a, b]             [a, b]
#     step(c)     none, if this step ends the episode; rtgym removes c from act_buf at the next reset
#
# Three things follow, which are all that a worker does for rtgym:
#
# 1. The reset *sends* an action, so it is recorded with one (`CheckedEnvironment.default_action`); a learner that
#    builds histories of actions needs it.
# 2. If the worker cuts an episode, rtgym has sent the last action and does not know that the episode is over. Its reset
#    would remove an action that did act. `keep_sent_action` adds a copy that may be removed.
# 3. A safe action at the end of a run must be sent even after an episode has ended, when rtgym would drop it:
#    `accept_action` says that an episode is running.
#
# Between two calls of `step`, policy, recorder and polling have one time step together. `wait` at the end pauses the
# machine: nothing is sent until the next reset.
#
# rtgym is not imported: the protocols below name the attributes that are used, and any environment with them is treated
# alike. They are looked at once for each environment, because `isinstance` with a protocol takes as long as a step.

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class ActsAtReset(Protocol):
    """An environment that executes an action at each reset."""

    default_action: Any


@runtime_checkable
class Benchmarked(Protocol):
    """An environment with a benchmark of its own.

    Attributes:
        benchmark: True: durations are measured.
    """

    benchmark: bool

    def benchmarks(self) -> dict[str, Any]:
        """Return the measured durations."""


@runtime_checkable
class RealTimeEnv(Benchmarked, Protocol):
    """Public attributes of rtgym's environments.

    Attributes:
        act_buf: actions of the latest time steps, as in observations.
        running: True: an episode goes on, and the latest action was sent.
        current_step: number of steps since the reset.
        time_step_duration: seconds.
        time_step_timeout: elasticity in seconds. A time step that begins later than this times out.
    """

    act_buf: deque[Any]
    running: bool
    current_step: int
    time_step_duration: float
    time_step_timeout: float

    def wait(self) -> None:
        """Wait for the end of the time step, then call the interface's `wait`."""


def keep_sent_action(env: RealTimeEnv) -> None:
    """Make room in the action buffer for the action of the next reset, if the latest action was sent.

    rtgym's `reset` assumes that it was not, which is true of episodes that the environment has ended. A worker also
    cuts episodes, with `worker.max_samples_per_episode` and for evaluations.
    """
    if env.running:
        env.act_buf.append(env.act_buf[-1])


def accept_action(env: RealTimeEnv) -> None:
    """Make the next `step` send its action, also after an episode that was truncated."""
    env.running = True
    env.current_step = -1


MEANINGS = {
    "time_step_duration": "one time step",
    "step_duration": "one call of step",
    "join_duration": "of it: waiting for the end of the time step",
    "inference_duration": "between two calls of step: policy, recording and sending of samples",
    "send_control_duration": "send_control of the interface",
    "get_obs_duration": "get_obs_rew_terminated_info of the interface",
}
"""Durations that rtgym measures."""


def benchmark_rows(benchmarks: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return the name, mean and mean deviation of each measured duration, in seconds.

    Args:
        benchmarks: result of `RealTimeEnv.benchmarks`, for either `benchmark_type`.
    """
    deltas = benchmarks.get("deltas", benchmarks)
    rows = []
    for name, value in deltas.items():
        if isinstance(value, np.ndarray) and value.size:
            mean = float(value.mean())
            rows.append((name, mean, float(np.abs(value - mean).mean())))
        elif isinstance(value, tuple) and value[0] is not None:
            rows.append((name, float(value[0]), float(value[1])))
    return rows


def benchmark_lines(benchmarks: Mapping[str, Any]) -> list[str]:
    """Return the measured durations as lines of a table."""
    return [
        f"{name:<22} {mean * 1e3:8.3f} ms +- {deviation * 1e3:.3f}   {MEANINGS.get(name, '')}".rstrip()
        for name, mean, deviation in benchmark_rows(benchmarks)
    ]
