"""Functions of the package on the way of a sample and of a policy: those that each published policy enters.

    python benchmarks/entered_functions.py [--list]

A Server, a Trainer with SAC and one worker with Pendulum run as a user starts them, `python -m tmrl_core`, in three
processes over TLS on this machine. A profile function (`sys.setprofile`, `threading.setprofile`) counts the calls of
Python functions in all of their threads, those of links and of the Server included. After `--warm-up` policies, the
calls are counted until `--policies` more are published.

A function counts if the package's own file defines it (below `tmrl_core/`) and if all roles together have entered it at
least once per published policy; a resumed coroutine or generator is entered again. One in twenty entries may lack,
because the windows of three processes do not begin and end at the same moment. A function is a file and a qualified
name; all comprehensions of one kind in one function are one. Compare counts of one version of Python alone: 3.10 has no
qualified names, so that each line with a function counts, and since 3.12 comprehensions are no functions.

Between two policies are 10 updates, 40 samples and two episodes of 20 steps, so that whatever a sample, a message, an
episode, an update or a policy needs is entered, and that about ten policies a second pass. What timers and displays
enter once or twice a second does not count then. On a machine so busy that fewer than `LEAST_RATE` pass, it might: the
exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from peak_memory import free_port
from processes import Process

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = str(ROOT / "tmrl_core") + os.sep
CONFIG = ROOT / "config" / "pendulum_sac.yaml"
CHANGES = (
    "environment.kwargs.gym_kwargs={max_episode_steps: 20}",
    "trainer.update_model_interval=10", "trainer.update_buffer_interval=10", "trainer.epochs=100000",
    "trainer.evaluation.every_updates=0", "trainer.evaluation.target_return=null",
    "trainer.evaluation.time_limit_s=null",
)  # fmt: skip
PUBLISHES = "broadcast_model"
"""Public name of the method that publishes a policy."""
SHARE = 0.95
LEAST_RATE = 3.0
"""Policies a second."""
START_S = 120.0
Entries = Counter[tuple[str, str]]
"""Calls by file, below the package, and qualified name."""


def name_of(code: CodeType) -> str:
    """Return the qualified name of a function; its line and its name where Python does not know that."""
    if sys.version_info >= (3, 11):
        return code.co_qualname
    return f"{code.co_firstlineno}.{code.co_name}"


class Calls:
    """Counts the calls of functions in each thread that begins with `watch` as its profile function."""

    def __init__(self) -> None:
        # A dict for each thread: an addition in a shared one is not atomic. Keys are ids, because code objects of equal
        # functions in two files are equal; `_codes` keeps them alive.
        self._threads: list[dict[int, int]] = []
        self._codes: dict[int, CodeType] = {}
        self._before: Counter[int] = Counter()

    def watch(self, frame: FrameType, event: str, argument: Any) -> None:
        """Begin to count in this thread."""
        counts: dict[int, int] = {}
        codes = self._codes
        self._threads.append(counts)

        def count(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                key = id(frame.f_code)
                if key in counts:
                    counts[key] += 1
                else:
                    codes[key] = frame.f_code
                    counts[key] = 1

        sys.setprofile(count)
        count(frame, event, argument)

    def _all(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for counts in list(self._threads):
            found.update(dict(counts))  # one step of C, so that the thread cannot add a key meanwhile
        return found

    def begin(self) -> None:
        """Begin the window."""
        self._before = self._all()

    def entries(self) -> Entries:
        """Return the calls of the package's functions in the window until now."""
        found: Entries = Counter()
        for key, number in (self._all() - self._before).items():
            code = self._codes[key]
            if code.co_filename.startswith(PACKAGE):
                found[code.co_filename[len(PACKAGE) :].replace(os.sep, "/"), name_of(code)] += number
        return found


def role_process(arguments: list[str], pipe: Pipe) -> None:
    """Run the command line; answer "begin" with None, and "entries" with those of the window."""
    calls = Calls()

    def answer() -> None:
        while True:
            if pipe.recv() == "begin":
                calls.begin()
                pipe.send(None)
            else:
                pipe.send(calls.entries())

    threading.Thread(target=answer, daemon=True).start()
    sys.argv = ["tmrl_core", *arguments]
    threading.setprofile(calls.watch)
    sys.setprofile(calls.watch)
    runpy.run_module("tmrl_core", run_name="__main__", alter_sys=True)


def published(entries: Mapping[tuple[str, str], int]) -> int:
    """Return the number of policies that a trainer has published."""
    return max((n for (_, name), n in entries.items() if name.rpartition(".")[2] == PUBLISHES), default=0)


def wait_for(trainer: Process, policies: int) -> None:
    """Wait until the trainer has published so many in its window."""
    deadline = time.monotonic() + START_S + policies / LEAST_RATE
    while published(trainer.ask("entries")) < policies:
        if time.monotonic() > deadline:
            raise SystemExit(f"the trainer has not called {PUBLISHES} {policies} times in time")
        time.sleep(0.2)


def measure(warm_up: int, policies: int) -> tuple[Entries, int, float]:
    """Return the entries of all roles in a window, the policies published in it, and its seconds."""
    from tmrl_core.networking.security import credentials

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keys = f"{folder}/keys"
        credentials.ensure(keys)
        os.environ["TMRL_CORE_HOME"] = folder
        own = (f"run.folder={folder}/runs", f"network.credentials_dir={keys}", f"server.port={free_port()}")
        options = ["-c", str(CONFIG), *(word for change in (*CHANGES, *own) for word in ("--set", change))]
        roles = {}
        for role in ("server", "trainer", "worker"):
            roles[role] = Process(role_process, [f"--{role}", *options])
            stack.callback(roles[role].process.kill)
        wait_for(roles["trainer"], warm_up)
        at_once(roles.values(), "begin")
        started = time.monotonic()
        wait_for(roles["trainer"], policies)
        found: dict[str, Entries] = dict(zip(roles, at_once(roles.values(), "entries"), strict=True))
        seconds = time.monotonic() - started
    return sum(found.values(), Counter()), published(found["trainer"]), seconds


def at_once(processes: Any, command: str) -> list[Any]:
    """Give a command to all processes before any answer is awaited."""
    for process in processes:
        process.pipe.send(command)
    return [process.recv() for process in processes]


def package_of(file: str) -> str:
    """Return the package of a file: two folders at most, or the module at the top."""
    return "/".join(file.split("/")[:-1][:2]) or file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-up", type=int, default=30, help="policies before the window")
    parser.add_argument("--policies", type=int, default=100, help="policies in the window, at least")
    parser.add_argument("--list", action="store_true", help="also print each function and its entries per policy")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    entries, policies, seconds = measure(options.warm_up, options.policies)
    entered = {function: n for function, n in entries.items() if n >= SHARE * policies}
    rate = policies / seconds
    print(f"\nPython {platform.python_version()}; {policies} policies in {seconds:.0f} s, {rate:.1f} a second\n")
    print("| package | functions entered for each policy | entries per policy |\n| --- | --- | --- |")
    packages = Counter(package_of(file) for file, _ in entered)
    calls: Counter[str] = Counter()
    for (file, _), number in entered.items():
        calls[package_of(file)] += number
    print(f"| all | {len(entered)} | {sum(entered.values()) / policies:,.0f} |")
    for package in sorted(packages):
        print(f"| {package} | {packages[package]} | {calls[package] / policies:,.0f} |")
    if options.list:
        print()
        for (file, name), number in sorted(entered.items()):
            print(f"{number / policies:10.2f}  {file}  {name}")
    if rate < LEAST_RATE:
        print(f"\nfewer than {LEAST_RATE:g} policies a second: functions that timers enter may be among these")
    return 0 if rate >= LEAST_RATE else 1


if __name__ == "__main__":
    raise SystemExit(main())
