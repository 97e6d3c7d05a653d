"""Run RolloutWorkers as actors of a Ray cluster: Ray chooses their nodes, and starts lost ones again.

    python scripts/fleets/ray_workers.py --workers 8 -c my.yaml --set worker.spool_dir=/shared/spool
    ray job submit --working-dir . -- python scripts/fleets/ray_workers.py --workers 8 -c my.yaml

Every option that is not listed here goes to `python -m tmrl_core --worker`. Ray carries commands only: samples and
policies go over the run's own links, so Server and trainer may be outside the cluster. Each worker's name is that of
`--name` with a number, and stays when its actor moves to another node. SIGTERM or Ctrl-C: all workers end in order.
"""

# Theory of operation
#
# An actor is a supervisor, and the worker is its child process, as with `--worker --workers N`. So an environment has
# a process of its own, without Ray's threads and signal handlers, and a worker never waits for Ray.
#
# Deaths. If a worker ends with an error, its actor starts it again after a pause that doubles from `PAUSE_S` to
# `LONGEST_PAUSE_S`, and begins anew after a worker that ran for `STEADY_S`; it never gives up, because a cluster is
# left alone for days. Exit status 2 is a wrong configuration, and ends the fleet. If an actor is killed, or its node is
# lost, Ray starts it elsewhere and repeats its call (`max_restarts`, `max_task_retries`). Of an actor that is killed
# with SIGKILL, the worker sees its standard input end, delivers what it holds and ends; meanwhile its successor has
# started, which harms nothing, since each worker process has a stream of its own. Ray itself may kill the worker too
# (`ray.kill`, the end of a driver, of a node, or of memory): then samples that nobody acknowledged are lost, at most
# what is not in `worker.spool_dir`.
#
# The end. The driver asks each actor again every `POLL_S` until its worker has ended, because an actor that is being
# restarted forgets the request. `ray job stop` gives a driver 3 s before it kills it (`RAY_JOB_STOP_WAIT_TIME_S`).
#
# Rejected: the worker inside the actor's process (one process less; but an environment that crashes would look like a
# lost node, and Ray's handlers of signals come first), and one actor for all workers of a node (Ray could not move
# them one by one). Ray pickles the class below to its nodes: whoever reaches a Ray cluster runs code on it.

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0
POLL_S = 1.0
ENDED = (0, 3)
"""Exit statuses of a worker that has ended in order; 3: it has dropped samples."""
WRONG_CONFIGURATION = 2


class Supervisor:
    """Keep one worker running. An actor; `stop` may be called while `run` waits.

    Args:
        command: command line of the worker, which ends in order when its standard input ends.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._lock = threading.Lock()  # of the two below: a worker must not start after the request to end
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()

    def run(self) -> int:
        """Start the worker, again and again after crashes; return the exit status of its end in order, or 2."""
        crashes = 0
        while True:
            began = time.monotonic()
            with self._lock:
                if self._ending.is_set():
                    return 0
                # Its output goes to Ray's log of this actor, and from there to the driver. In a session of its own,
                # because Ray kills the process group of an actor that has died.
                self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
            with self._child:  # its pipe is closed at the end
                status = self._child.wait()
            if status in (*ENDED, WRONG_CONFIGURATION):
                return status
            crashes = 1 if time.monotonic() - began > STEADY_S else crashes + 1
            pause = min(PAUSE_S * 2.0 ** (crashes - 1), LONGEST_PAUSE_S)
            print(f"the worker ended with status {status}; it is started again in {pause:g} s", flush=True)
            self._ending.wait(pause)

    def stop(self) -> None:
        """Ask the worker to end in order. May be repeated."""
        with self._lock:
            self._ending.set()
            pipe = self._child.stdin if self._child is not None else None
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):  # the worker has just ended by itself
                    pipe.write(b"stop\n")
                    pipe.close()


def command(name: str, words: Sequence[str]) -> list[str]:
    """Return the command line of a worker."""
    return [sys.executable, "-m", "tmrl_core", "--worker", "--control", *words, "--set", f"worker.name={name}"]


def run_fleet(ray: Any, commands: Sequence[Sequence[str]], cpus: float, end: threading.Event) -> int:
    """Keep a worker for each command until all have ended in order; return 0, or 2 for a wrong configuration.

    Args:
        ray: the module, connected to a cluster.
        cpus: processors that Ray reserves for each worker.
        end: requests the end of all workers.
    """
    # Two calls at a time: `run`, and `stop` beside it. SPREAD: a lost node takes few workers with it.
    actor = ray.remote(Supervisor).options(
        num_cpus=cpus, max_restarts=-1, max_task_retries=-1, max_concurrency=2, scheduling_strategy="SPREAD"
    )
    actors = [actor.remote(list(one)) for one in commands]
    running = {actor.run.remote(): actor for actor in actors}
    outcome = 0
    while running:
        ended, _ = ray.wait(list(running), timeout=POLL_S)
        for call in ended:
            if ray.get(call) == WRONG_CONFIGURATION and not outcome:
                outcome = WRONG_CONFIGURATION
                print("a worker's configuration is wrong; its log names the key. All workers end", file=sys.stderr)
            del running[call]
        if end.is_set() or outcome:
            for actor in running.values():
                actor.stop.remote()
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="number of workers")
    parser.add_argument("--name", default="ray", help="workers are called NAME-1, NAME-2, ... (default: ray)")
    parser.add_argument("--cpus", type=float, default=1.0, help="processors of each worker, as Ray counts (default: 1)")
    options, words = parser.parse_known_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    try:
        import ray
    except ModuleNotFoundError:
        parser.error("Ray is not installed here: pip install ray")
    ray.init()  # the cluster of RAY_ADDRESS, else the one on this machine, else a new one
    end = threading.Event()

    def on_signal(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second one ends the driver at once
        end.set()

    for number in (signal.SIGTERM, signal.SIGINT):  # after `init`, which has a handler of its own
        signal.signal(number, on_signal)
    commands = [command(f"{options.name}-{number}", words) for number in range(1, options.workers + 1)]
    return run_fleet(ray, commands, options.cpus, end)


if __name__ == "__main__":
    sys.exit(main())
