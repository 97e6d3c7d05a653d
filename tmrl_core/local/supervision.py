"""Supervision of the roles of one machine, as processes or as threads: start, restart, end in order."""

# Theory of operation
#
# A group starts the roles of one machine, restarts those that crash, and ends them. It knows nothing of learning: it
# sees exit statuses, logs and files of remarks. What a person sees is the affair of the `Watcher`; a `Group` never
# prints.
#
# A child process has three channels. Its standard input takes the lines `stop` and `checkpoint`, and its end means
# `stop` too, so a child never outlives a parent that was killed. Its log takes all output; the parent reads its last
# lines for messages only. Its file of remarks says what hinders it now, such as "the environment's step has taken 40
# s"; that it exists at all says that a worker has stepped its environment. Signals are not used: Ctrl-C of a terminal
# goes to the whole process group, and would end all roles at once in no order, so each child has a group of its own.
#
# Order of the start: Server, whose port the others need; it prints the port as a line of JSON. Then trainer, roles
# beside them and workers together. Exception: if the environment had no trial before (a machine that must not be
# started twice), the first worker starts alone and the others wait until it is `proven`, so that a breach of contract
# is found before anything else runs.
#
# Order of the end: workers and roles beside them first, because the trainer must still acknowledge what they deliver;
# then the trainer, which writes its checkpoint; at last the Server. If the environment holds the trainer up, it
# acknowledges nothing, and is asked at once with the first ones. Each wait has a limit, after which the child is
# killed: the drain timeout and 10 s for workers, `TRAINER_END_S` for a checkpoint.
#
# Restarts. A role that ended with an error is started again after a pause of 1, 2 and 4 s, at most `RESTARTS` times in
# a row. Example: a worker crashes at 0:10, starts at 0:11, crashes at 0:15, starts at 0:17, runs for 20 minutes and
# crashes: longer than `STEADY_S`, so it counts as the first crash again. Exit status 2 is a wrong configuration and
# never restarted. The trainer is not restarted either: its end is the end of the run, and its error is shown. Roles
# that only watch the run are restarted likewise, and left out when they have failed for good.
#
# Failures. A `Pipeline` ends when a role has failed for good; a `Fleet` goes on with its other workers. `Threads`
# restart nothing: they are for debugging, where the first failure shall be seen.

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tmrl_core.blas_threads import THREAD_VARIABLES
from tmrl_core.config import Config, use, with_changes
from tmrl_core.config.endpoints import Endpoint, chosen_endpoint
from tmrl_core.config.server_port import FILE as PORT_FILE
from tmrl_core.errors import ConfigError, NetworkError, TmrlError
from tmrl_core.long_calls import trouble
from tmrl_core.networking.transports.port_holder import port_holder
from tmrl_core.roles import from_config as roles
from tmrl_core.roles.environment_probe import is_probed
from tmrl_core.roles.shutdown import CHECKPOINT, DROPPED_SAMPLES, STOP, ShutdownSignal
from tmrl_core.storage import open_now, open_own
from tmrl_core.storage.port_record import PortRecord

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Seconds between two checks of the children and the records."""
SERVER_START_S = 60.0
DISK_S = 30.0
"""Seconds between two checks of the free space on the disk."""
MIN_FREE_BYTES = 1 << 20
FIRST_STEP_S = 10.0
"""Seconds that the first worker has for its first step, if its environment had no trial, before other roles start."""
RESTARTS = 3
"""Maximum number of restarts of one worker, of a role beside them or of the Server that follow each other."""
STEADY_S = 600.0
"""Time in seconds after which earlier restarts of a role do not count: a run of weeks has more than a few failures."""
RESTART_PAUSE_S = 1.0
"""Pause before the first restart; it doubles before each further one."""
TRAINER_END_S = 120.0
"""Maximum wait for the trainer's end, during which it writes a checkpoint."""
SERVER_END_S = 10.0
LOG_BYTES = 16 << 20
"""Size at which a role's log is moved to a second file, whose former content is dropped."""
TELL_S = 1.5
"""Seconds after which a wait for the end of a role says what holds it up."""
LAST_LINES = 15
ERROR_LINES = 200
"""Number of last lines in which a role's error is searched; the environment may print more after it."""
MOST_OF_ERROR = 5
"""Maximum number of lines of a role's error, which may list much."""
_TAIL_BYTES = 1 << 16
CAUSE_LENGTH = 300
"""Maximum characters of the reason shown when a role is restarted."""
WRONG_CONFIGURATION = 2
"""Exit status of a role whose command line or configuration is wrong: starting it again would not help."""


class Watcher(Protocol):
    """Observer of a run: it receives events, and is updated during waits."""

    @property
    def starving(self) -> bool:
        """True: the trainer waits for samples."""

    def refresh(self) -> None:
        """Read the run's new records."""

    def say(self, text: str) -> None:
        """Show a message to the user."""

    def hinder(self, text: str) -> None:
        """Show what hinders the roles now; empty: nothing."""


class Group(ABC):
    """Roles of one machine, as processes or threads.

    Attributes:
        failed: reason why the trainer failed to end in order, known after `end`; None: it ended in order.
    """

    failed: BaseException | None = None

    @abstractmethod
    def start(self, view: Watcher) -> None:
        """Start all roles.

        Raises:
            TmrlError: a role cannot start.
        """

    @abstractmethod
    def poll(self, view: Watcher) -> bool:
        """Handle ended roles; False: training, or the last worker, has ended.

        Raises:
            TmrlError: a role failed permanently.
        """

    @abstractmethod
    def end(self, view: Watcher) -> None:
        """End the running roles in order: workers, trainer, Server."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Request a checkpoint from the trainer. Safe from another thread."""

    def kill(self) -> None:  # noqa: B027 - threads end with their process
        """End immediately; safe from a signal handler."""


def watch(group: Group, view: Watcher, shutdown: ShutdownSignal) -> None:
    """Wait until the group has ended or a stop is requested."""
    while not shutdown.wait(POLL_S):
        view.refresh()
        if not group.poll(view):
            return


# --- processes --------------------------------------------------------------------------------------------------------


class Child:
    """One role as a process, with its control pipe and its log. It starts in `folder`."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, threads: int | None, folder: Path) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log = log
        self.remarks = log.with_suffix(".remarks")
        self.threads = threads
        self.folder = folder
        self.variables: dict[str, str] = {}
        """Environment variables of this process alone."""
        self.restarts = 0
        self.resting_until = 0.0
        self.started_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, announces: bool = False) -> None:
        """Spawn the process; the first start moves the log of an earlier command to `<log>.1`."""
        own: dict[str, Any] = {}
        # Ctrl-C in a terminal goes to its whole process group, but the children must be ended in order.
        if sys.platform == "win32":
            own["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
        else:
            own["start_new_session"] = True
        self.started_at = time.monotonic()
        self.remarks.unlink(missing_ok=True)
        # Whoever starts a run again after a night may look for the reason of its end.
        if self.process is None:
            with contextlib.suppress(OSError):
                os.replace(self.log, f"{self.log}.1")
        # Appending, so that the process goes on at the beginning after `bound_log` has emptied the file.
        with open(self.log, "ab", opener=open_own) as log:
            if self.process is None:
                log.truncate(0)
            self.process = subprocess.Popen(
                [*command(str(self.folder)), *self.arguments, "--control", "--remarks", str(self.remarks)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if announces else log,
                stderr=log,
                env=environment(self.threads) | self.variables,
                cwd=self.folder,
                **own,
            )

    @property
    def title(self) -> str:
        """Name of the process in a sentence."""
        return self.name if self.name.startswith("worker-") else f"the {self.name}"

    @property
    def running(self) -> bool:
        """True: the process has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs. 0 also for a worker that has dropped samples: it has ended in order."""
        status = None if self.process is None else self.process.poll()
        return 0 if status == DROPPED_SAMPLES else status

    def tell(self, request: bytes) -> None:
        """Send a line that requests the end or a checkpoint, if the process is running."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.write(request + b"\n")
                self.process.stdin.flush()

    def end_now(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    def release(self) -> None:
        """Wait for the ended process, and close its files."""
        if self.process is None:
            return
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(OSError):
            self.remarks.unlink(missing_ok=True)

    @property
    def trouble(self) -> str:
        """Return what hinders the running process, as it says; empty: nothing."""
        try:
            return self.remarks.read_text(encoding="utf-8", errors="replace") if self.running else ""
        except OSError:
            return ""

    @property
    def proven(self) -> bool:
        """True: the worker has stepped its environment, has had the time to do it, or has ended."""
        return not self.running or self.remarks.exists() or time.monotonic() - self.started_at > FIRST_STEP_S

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of its log; empty if it cannot be read."""
        try:
            with open(self.log, "rb", opener=open_now) as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
                return log.read().decode(errors="replace").splitlines()[-count:]
        except OSError:
            return []

    def bound_log(self) -> None:
        """Move the content of a log that has reached `LOG_BYTES` to `<log>.1`: an environment may print without end.

        The process has the file open, so it is copied and emptied, not renamed; lines in between are lost. Not on
        Windows, where a process does not append to a file that it was given.
        """
        if sys.platform == "win32":
            return
        try:
            if self.log.stat().st_size < LOG_BYTES:
                return
            with open(self.log, "r+b", opener=open_own) as log:
                try:
                    log.seek(-LOG_BYTES, os.SEEK_END)
                    with open(f"{self.log}.1", "wb", opener=open_own) as older:
                        shutil.copyfileobj(log, older)
                finally:  # a full disk needs it most
                    log.truncate(0)
        except OSError as exc:
            logger.debug("%s is not bounded: %s", self.log, exc)

    def failure(self, kind: type[TmrlError] = TmrlError) -> TmrlError:
        """Return the last lines of its log as a `kind` of error.

        A wrong configuration, as its exit status says, is a ConfigError with the role's own error only.
        """
        wrong = self.status == WRONG_CONFIGURATION
        lines = self.last_lines(LAST_LINES)
        lines = (wrong and last_error(self.last_lines(ERROR_LINES))) or lines
        said = "\n".join(f"    {line}" for line in lines) or "    (no output)"
        text = f"{self.title} ended with exit status {self.status}; the last lines of {self.log}:\n{said}"
        return ConfigError(text) if wrong else kind(text)


def last_error(lines: Sequence[str]) -> list[str]:
    """Return the last error that the command line has printed in a log, up to five lines; empty: there is none."""
    begins = [index for index, line in enumerate(lines) if _ERROR.match(line)]
    if not begins:
        return []
    first = begins[-1]
    further = itertools.takewhile(lambda line: line.startswith("    "), lines[first + 1 :])
    return [lines[first], *(line.removeprefix("    ") for line in further)][:MOST_OF_ERROR]


_ERROR = re.compile(r"[A-Z]\w*Error: ")


class Processes(Group):
    """Roles as processes.

    Args:
        config: configuration of the roles.

    Attributes:
        workers: processes that may end in order before the others.
    """

    workers: Sequence[Child] = ()

    def __init__(self, config: Config) -> None:
        self._config = config
        self._waiting: Sequence[Child] = ()
        self._logs = config.run_folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)

    def _child(self, name: str, arguments: Sequence[str], threads: int | None) -> Child:
        return Child(name, arguments, self._logs / f"{name}.log", threads, self._config.start_folder)

    def _start_all(self, children: Sequence[Child]) -> None:
        """Start roles: all of them, or the first worker alone if its environment had no trial.

        The others follow in `_start_waiting`. A breach of contract is found before they have started, and a machine is
        not started once more for it.
        """
        first = [] if is_probed(self._config) else self.workers[:1]
        self._waiting = [child for child in children if child not in first]
        for child in first:
            child.start()
        self._start_waiting()

    def _start_waiting(self) -> None:
        if self._waiting and all(worker in self._waiting or worker.proven for worker in self.workers[:1]):
            for child in self._waiting:
                child.start()
            self._waiting = ()

    def _care(self, child: Child, view: Watcher) -> None:
        child.bound_log()
        status = child.status
        # A worker with exit status 0 has reached its limit or was finished. The other roles never end by themselves.
        if status is None or (status == 0 and child in self.workers):
            return
        if child.resting_until == 0.0:
            if time.monotonic() - child.started_at > STEADY_S:
                child.restarts = 0
            if child.restarts >= RESTARTS or status == WRONG_CONFIGURATION:
                raise child.failure()
            child.resting_until = time.monotonic() + RESTART_PAUSE_S * 2.0**child.restarts
            cause = "".join(child.last_lines(1))[:CAUSE_LENGTH] or "it said nothing"
            view.say(f"{child.title} ended with exit status {status} and is restarted: {cause} (see {child.log})")
        elif time.monotonic() >= child.resting_until:
            child.release()
            child.restarts += 1
            child.resting_until = 0.0
            child.start()

    def _show_trouble(self, children: Sequence[Child], view: Watcher) -> None:
        troubles = {child.name: child.trouble for child in children}
        view.hinder("; ".join(f"{name}: {text}" for name, text in troubles.items() if text))

    def _end(self, children: Sequence[Child], wait_s: float, view: Watcher) -> None:
        for child in children:
            child.tell(STOP)
        began = time.monotonic()
        untold = list(children)
        while any(child.running for child in children) and (waited := time.monotonic() - began) < wait_s:
            self._show_trouble(children, view)
            for child in untold[:] if waited >= TELL_S else []:
                if text := child.trouble:
                    untold.remove(child)
                    view.say(f"waiting for {child.title}: {text}")
            view.refresh()
            time.sleep(POLL_S / 4)
        for child in children:
            if child.running:
                view.say(f"{child.title} did not end within {wait_s:g} s and is killed")
                child.end_now()
            child.release()


class Fleet(Processes):
    """RolloutWorkers of one machine as processes.

    Args:
        config: configuration of the workers.
        arguments: their command line.
        count: number of workers.
    """

    def __init__(self, config: Config, arguments: Sequence[str], count: int) -> None:
        super().__init__(config)
        name = config.worker.name
        self.workers = [
            self._child(
                f"worker-{number}",
                [*arguments, *(["--set", f"worker.name={name}-{number}"] if name else [])],
                threads=1,
            )
            for number in range(1, count + 1)
        ]
        self._failed: set[str] = set()

    def start(self, view: Watcher) -> None:
        """Start all workers."""
        self._start_all(self.workers)

    def poll(self, view: Watcher) -> bool:
        """Restart crashed workers a few times; False: all have ended. A worker that fails does not end the others."""
        self._show_trouble(self.workers, view)
        for worker in self.workers:
            if worker.name not in self._failed:
                try:
                    self._care(worker, view)
                except TmrlError as exc:
                    if self._waiting:
                        raise
                    self._failed.add(worker.name)
                    self.failed = exc
                    view.say(str(exc))
        self._start_waiting()
        return any(worker.name not in self._failed and worker.status != 0 for worker in self.workers)

    def end(self, view: Watcher) -> None:
        """End all workers, which deliver their samples first."""
        self._end(self.workers, self._config.worker.drain_timeout_s + 10.0, view)

    def checkpoint(self) -> None:
        """Do nothing: workers write no checkpoints."""

    def kill(self) -> None:
        """Kill all workers."""
        for worker in self.workers:
            worker.end_now()


class Pipeline(Processes):
    """All roles as processes over the configured transport."""

    def __init__(
        self,
        config: Config,
        passed: Sequence[str],
        workers: int,
        *,
        beside: Sequence[str] = (),
        watchers: Sequence[str] = (),
        ranks: int = 1,
    ) -> None:
        super().__init__(config)
        self._passed = list(passed)
        self._disk_due = 0.0
        self._port_record: PortRecord | None = None
        several = ["--set", "server.port=0", "--set", "server.endpoints=[]"] if ranks > 1 else []
        self.servers = [
            self._child(_numbered("server", rank), ["--server", "--announce", *self._passed, *several], threads=1)
            for rank in range(ranks)
        ]
        names = [f"worker-{index + 1}" for index in range(workers)]
        self.workers = [self._child(name, ["--worker"], threads=1) for name in names]
        self.beside = [self._child(name, [f"--{name}"], threads=1) for name in beside]
        self.watchers = [self._child(name, [f"--{name}"], threads=1) for name in watchers]
        threads = config.trainer.threads if ranks == 1 else config.trainer.threads or 1
        self.trainers = [
            self._child(_numbered("trainer", rank), ["--trainer"], threads=threads) for rank in range(ranks)
        ]
        if ranks > 1:
            place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            for rank, trainer in enumerate(self.trainers):
                trainer.variables = place | {"RANK": str(rank)}

    def start(self, view: Watcher) -> None:
        """Start the Servers first, because the others need their ports."""
        for server in self.servers:
            server.start(announces=True)
        ports = [self.port_of_server(view, server) for server in self.servers]
        if len(ports) == 1:
            self._record_port(ports[0], view)
            there = [*self._passed, "--set", f"server.port={ports[0]}"]
            names = [worker.name for worker in self.workers]
        else:
            endpoints = [Endpoint("127.0.0.1", port) for port in ports]
            listed = json.dumps([str(endpoint) for endpoint in endpoints])
            view.say(f"{len(ports)} Servers: --status and --worker for this run need --set 'server.endpoints={listed}'")
            there = [*self._passed, "--set", f"server.endpoints={listed}"]
            names = [spread_name(worker.name, number, endpoints) for number, worker in enumerate(self.workers)]
        for server, port in zip(self.servers, ports, strict=True):
            one = ["--set", f"server.port={port}", "--set", "server.endpoints=[]"]
            server.arguments = ["--server", "--announce", *(there if len(ports) == 1 else [*self._passed, *one])]
        for trainer in self.trainers:
            trainer.arguments = ["--trainer", *there]
        for worker, name in zip(self.workers, names, strict=True):
            worker.arguments = ["--worker", *there, "--set", f"worker.name={name}"]
        for child in (*self.beside, *self.watchers):
            child.arguments = [f"--{child.name}", *there]
        for child in self.watchers:
            child.start()
        self._start_all([*self.trainers, *self.beside, *self.workers])

    def _record_port(self, port: int, view: Watcher) -> None:
        """Say which port replaces the default one, and record the port for other commands of this run."""
        server, run = self._config.server, self._config.run
        if server.port is None and port != server.tcp_port:
            holder = port_holder(server.tcp_port)
            view.say(
                f"Port {server.tcp_port} is taken{f' by {holder}' if holder else ''}: the Server of run {run.name} "
                f"listens on port {port}. --status and --worker for this run find it in {self._config.run_folder}."
            )
        try:
            self._port_record = PortRecord(self._config.run_folder / PORT_FILE, port)
        except OSError as exc:
            view.say(
                f"The port cannot be recorded in {self._config.run_folder} ({exc.strerror or exc}): --status and "
                f"--worker for this run need --set server.port={port}"
            )

    @property
    def server(self) -> Child:
        """The Server, with several ranks the first one's."""
        return self.servers[0]

    @property
    def trainer(self) -> Child:
        """The trainer, with several ranks the first one."""
        return self.trainers[0]

    def port_of_server(self, view: Watcher, server: Child | None = None) -> int:
        """Wait for the line with a Server's port; None: the first one's.

        Raises:
            NetworkError: the Server ended, or printed nothing in time.
        """
        server = server or self.server
        process = server.process
        assert process is not None
        assert process.stdout is not None
        lines: queue.Queue[bytes] = queue.Queue()
        # Not every platform can read a pipe with a deadline. The thread ends with the line or with the process.
        threading.Thread(target=lambda pipe: lines.put(pipe.readline()), args=[process.stdout], daemon=True).start()
        deadline = time.monotonic() + SERVER_START_S
        while True:
            try:
                line = lines.get(timeout=POLL_S)
            except queue.Empty:
                view.refresh()
                if time.monotonic() > deadline:
                    raise NetworkError(f"the server printed nothing for {SERVER_START_S:g} s") from None
                continue
            if not line:
                process.wait()
                raise server.failure(NetworkError)
            return int(json.loads(line)["port"])

    def poll(self, view: Watcher) -> bool:
        """Restart crashed workers, roles beside them and the Server a few times; False: training has ended."""
        for trainer in self.trainers:
            if trainer.status:
                raise trainer.failure()
        if all(trainer.status == 0 for trainer in self.trainers):
            return False
        self._check_disk(view)
        self._show_trouble((*self.trainers, *self.beside, *self.workers), view)
        for trainer in self.trainers:
            trainer.bound_log()
        for child in (*self.servers, *self.beside, *self.workers):
            self._care(child, view)
        for child in self.watchers[:]:
            try:
                self._care(child, view)
            except TmrlError as exc:
                self.watchers.remove(child)
                child.release()
                view.say(str(exc))
        self._start_waiting()
        if not self.beside and all(worker.status == 0 for worker in self.workers) and view.starving:
            view.say("All workers have reached their limits, and the trainer waits for more samples: ending.")
            return False
        return True

    def _check_disk(self, view: Watcher) -> None:
        """Report a full disk, because the roles' own messages about it go into files on that disk."""
        now = time.monotonic()
        if now < self._disk_due:
            return
        self._disk_due = now + DISK_S
        try:
            free = shutil.disk_usage(self._logs).free
        except OSError as exc:
            view.say(f"The disk of {self._config.run_folder} cannot be checked: {exc}")
            return
        if free < MIN_FREE_BYTES:
            view.say(
                f"No space is left on the disk of {self._config.run_folder}: free some, or results from here on "
                "cannot be saved"
            )

    def end(self, view: Watcher) -> None:
        """End workers and roles beside them while the trainer acknowledges, then the trainer, at last the Server."""
        first = [*self.beside, *self.workers]
        # A trainer that the environment holds up acknowledges nothing.
        first += [trainer for trainer in self.trainers if trainer.trouble]
        self._end(first, self._config.worker.drain_timeout_s + 10.0, view)
        self._end(self.trainers, TRAINER_END_S, view)
        for trainer in self.trainers:
            if self.failed is None and (trainer.status or 0) > 0:  # the log names a killed role
                self.failed = trainer.failure()
        if self._port_record is not None:
            self._port_record.close()
        self._end([*self.watchers, *self.servers], SERVER_END_S, view)

    def checkpoint(self) -> None:
        """Request a checkpoint from the trainer's process. Of several ranks, one passes it on."""
        self.trainers[0].tell(CHECKPOINT)

    def kill(self) -> None:
        """Kill all processes."""
        for child in (*self.watchers, *self.beside, *self.workers, *self.trainers, *self.servers):
            child.end_now()


def _numbered(name: str, rank: int) -> str:
    return name if rank == 0 else f"{name}-{rank + 1}"


def free_port() -> int:
    """Return a port of this machine that nothing listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def spread_name(name: str, number: int, endpoints: Sequence[Endpoint]) -> str:
    """Return a name for a worker that belongs to the Server whose turn it is, so that none is without workers."""
    wanted = endpoints[number % len(endpoints)]
    tried = (name if attempt == 0 else f"{name}-{attempt}" for attempt in itertools.count())
    return next(one for one in tried if chosen_endpoint(one, endpoints) == wanted)


def environment(threads: int | None) -> dict[str, str]:
    """Return this process's environment variables, with `threads` threads for numerical libraries."""
    there = dict(os.environ)
    if threads is not None:
        there.update({name: str(threads) for name in THREAD_VARIABLES})
    return there


_WITH_THIS_PATH = (
    "import sys, json, runpy; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def command(folder: str) -> list[str]:
    """Return the command that runs this package in a child that imports the same modules as this process.

    A child whose own search path would differ is given this process's: a script may have changed `sys.path`, or lie in
    another folder. PYTHONPATH is left alone, because it would come before the packages of a layered environment.

    Args:
        folder: the child's working folder.
    """
    path = [entry or folder for entry in sys.path if isinstance(entry, str)]
    if path == _path_of_a_child(folder):
        return [sys.executable, "-m", "tmrl_core"]
    return [sys.executable, "-c", _WITH_THIS_PATH, json.dumps(path), "tmrl_core"]


@functools.cache
def _path_of_a_child(folder: str) -> list[str]:
    code = "import sys, json; print(json.dumps(sys.path))"
    try:
        said = subprocess.check_output([sys.executable, "-c", code], cwd=folder, stdin=subprocess.DEVNULL)
        return [entry or folder for entry in json.loads(said)]
    except (OSError, ValueError, subprocess.CalledProcessError):
        return []  # the child is given a path then, and its start shows the problem


# --- threads ----------------------------------------------------------------------------------------------------------


class Threads(Group):
    """Roles as threads of this process, over the transport `local`.

    Args:
        config: configuration with that transport.
        workers: number of RolloutWorkers.
    """

    def __init__(self, config: Config, workers: int) -> None:
        self._config = config
        self._count = workers
        self._failed: queue.Queue[tuple[str, BaseException]] = queue.Queue()
        self._server: Any = None
        self._trainer: Any = None
        self._workers: list[Any] = []
        self._threads: dict[str, threading.Thread] = {}

    def start(self, view: Watcher) -> None:
        """Start Server, trainer and workers; each is created here and runs in its own thread."""
        from tmrl_core.roles.training_object import import_torch

        # While no worker computes: an import waits for the interpreter at each of its thousands of files, and beside an
        # environment of some microseconds that takes minutes.
        import_torch()
        self._server = roles.make_server(self._config, any_port=True)
        config = with_changes(self._config, [f"server.port={self._server.port}"])
        use(config)
        self._trainer = roles.make_trainer(config)
        self._run("trainer", lambda: roles.run_trainer(self._trainer, config))
        for index in range(self._count):
            worker, collect = roles.worker_of_run(config, name=f"worker-{index + 1}")
            self._workers.append(worker)
            self._run(worker.recorder.name, functools.partial(run_and_close, worker, collect))

    def _run(self, name: str, call: Callable[[], None]) -> None:
        def body() -> None:
            try:
                call()
            except BaseException as exc:
                # `poll` raises it, and its caller reports it; an unexpected error has its traceback.
                logger.debug("the %s failed", name, exc_info=True)
                self._failed.put((name, exc))

        self._threads[name] = threading.Thread(target=body, name=name, daemon=True)
        self._threads[name].start()

    def poll(self, view: Watcher) -> bool:
        """Check for failures. No role is restarted here, so that a failure is visible."""
        view.hinder(trouble())
        trainer_has_ended = not self._threads["trainer"].is_alive()  # checked first: the queue then contains the reason
        with contextlib.suppress(queue.Empty):
            raise self._failed.get_nowait()[1]
        if trainer_has_ended:
            return False
        workers_ended = not any(self._threads[worker.name].is_alive() for worker in self._workers)
        return not (workers_ended and view.starving)

    def end(self, view: Watcher) -> None:
        """End the workers, the trainer, then the Server."""
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            self._join(worker.name, self._config.worker.drain_timeout_s + 10.0, view)
        if self._trainer is not None:
            self._trainer.stop()
            self._join("trainer", TRAINER_END_S, view)
            self._trainer.close()
        if self._server is not None:
            self._server.close()
        while not self._failed.empty():
            name, exc = self._failed.get_nowait()
            if name == "trainer":
                self.failed = exc
                continue
            unexpected = None if isinstance(exc, TmrlError) else exc
            logger.error("the %s failed: %s: %s", name, type(exc).__name__, exc, exc_info=unexpected)

    def checkpoint(self) -> None:
        """Request a checkpoint from the trainer."""
        if self._trainer is not None:
            self._trainer.checkpoint()

    def _join(self, name: str, wait_s: float, view: Watcher) -> None:
        thread = self._threads.get(name)
        deadline = time.monotonic() + wait_s
        while thread is not None and thread.is_alive() and time.monotonic() < deadline:
            view.refresh()
            thread.join(POLL_S)


def run_and_close(worker: Any, collect: Callable[[], None]) -> None:
    """Collect, then drain immediately, because the trainer waits for its workers to leave."""
    try:
        collect()
    finally:
        worker.close()
