"""Requests to a role: to end, by Ctrl-C, SIGTERM, SIGHUP or the control pipe; or to write a checkpoint.

A second request to end ends the role immediately, except for SIGHUP, which a lost terminal may send more than once. If
SIGHUP is ignored when the role starts, as under `nohup`, it stays ignored. SIGUSR1 requests a trainer's checkpoint.
`tmrl_core.signal_handlers` keeps the handlers in force when environments install their own.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, TextIO, cast

from tmrl_core.signal_handlers import SignalHandlers, take_back
from tmrl_core.terminal_log import WAIT_S

logger = logging.getLogger(__name__)

STOP = b"stop"
"""Line that a supervisor writes to the control pipe to request the end. The end of the pipe means the same, because
then the supervisor has died."""

CHECKPOINT = b"checkpoint"
"""Line on the control pipe that requests a checkpoint."""

HANDLER_FAILED = 0
"""Byte in the pipe of signals for a failed handler of an environment; no signal has this number."""

WRONG_USE = 2
"""Exit status of a process that asks for input that nobody can give: starting it again would not help."""
DROPPED_SAMPLES = 3
"""Exit status of a worker that ended in order and has dropped samples on the way."""

AT_ONCE = 130
"""Exit status after a second request, the same as shells use for Ctrl-C."""


class _NoInput(io.TextIOBase):
    """Standard input of a supervised process: a request for a line ends the thread that asks, with the reason.

    In the main thread, SystemExit ends the role, and its supervisor shows the reason. A thread that an environment
    starts for commands from the keyboard ends alone.
    """

    def __init__(self, role: str) -> None:
        self._role = role

    def _refuse(self) -> NoReturn:
        logger.error(
            "this process waits for input, from `input()` or a debugger, and nobody can answer: it was started by "
            "another one and has no terminal. Start the roles one by one, this one in a terminal: "
            "`python -m tmrl_core --%s`",
            self._role,
        )
        raise SystemExit(WRONG_USE)

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Refuse to wait for a line."""
        self._refuse()

    def read(self, size: int | None = -1, /) -> str:
        """Refuse to wait for text."""
        self._refuse()


class ShutdownSignal:
    """Shutdown flag and callbacks, triggered by signals and the control pipe. A context manager.

    Entering it installs signal handlers, so it belongs to the main thread. A handler only writes into a pipe, which a
    thread reads. The handler may have interrupted the main thread while it holds a lock (of an Event, a queue or the
    log), and taking the same lock would deadlock. Lock rule: the lists are only appended to, and read as copies.
    Registered functions must be safe to call from another thread.

    Args:
        control: the role of a supervised process, which also reads standard input: the word `stop`, or its end. Other
            code gets none of it. Empty: the process is not supervised.
        last: the process ends when the context is left, so later signals are ignored. The interpreter takes up to a
            second to end, and a signal in that time would change its exit status.
        now: function that ends the process immediately; for tests.
    """

    def __init__(self, *, control: str = "", last: bool = False, now: Callable[[int], Any] = os._exit) -> None:
        self._control = control
        self._last = last
        self._now = now
        self._requested = threading.Event()
        self._first = threading.Lock()
        self._first_seen = False
        self._calls: list[Callable[[], Any]] = []
        self._last_calls: list[Callable[[], Any]] = []
        self._checkpoint_calls: list[Callable[[], Any]] = []
        self._terminals: list[int] = []
        self._handlers = SignalHandlers(self._write, self._on_failure)
        self._failures: deque[BaseException] = deque()
        self._pipe: tuple[int, int] | None = None

    @property
    def requested(self) -> bool:
        """True: a request to end this process in order has arrived."""
        return self._requested.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request; True: one has arrived. Signals interrupt short waits on every platform."""
        take_back()  # for environments in other threads, which cannot do it
        return self._requested.wait(timeout_s)

    def calls(self, stop: Callable[[], Any]) -> None:
        """Register `stop`, which is called at the first request, or immediately if there was one already."""
        self._calls.append(stop)
        if self.requested:
            stop()

    def kill_on_second(self, kill: Callable[[], Any]) -> None:
        """Register `kill`, which is called right before the process ends immediately."""
        self._last_calls.append(kill)

    def calls_for_checkpoint(self, write: Callable[[], Any]) -> None:
        """Register `write`, which is called at each request for a checkpoint."""
        self._checkpoint_calls.append(write)

    def request_checkpoint(self, why: str) -> None:
        """Call the registered checkpoint functions; the role continues."""
        if not self._checkpoint_calls:
            logger.info("%s is ignored: it requests a checkpoint, and this process writes none", why)
        for write in list(self._checkpoint_calls):
            logger.info("%s: a checkpoint is requested", why)
            write()

    def request(self, why: str) -> None:
        """End in order; at the second request, end immediately."""
        with self._first:
            again, self._first_seen = self._first_seen, True
        if again:
            for kill in list(self._last_calls):
                with contextlib.suppress(Exception):
                    kill()
            self._now(AT_ONCE)
            return
        # Printed before the request takes effect, because the process may end before the next line; and by a thread,
        # because a terminal that is paused takes nothing.
        line = f"{why}: ending in order; a second signal ends immediately"
        printing = threading.Thread(target=print_error, args=(line,), name="tmrl-ending", daemon=True)
        printing.start()
        printing.join(WAIT_S)
        self._requested.set()
        for stop in list(self._calls):
            stop()

    def __enter__(self) -> ShutdownSignal:
        self._pipe = os.pipe()
        threading.Thread(target=self._obey_signals, args=(self._pipe[0],), name="tmrl-signals", daemon=True).start()
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        named = signal.Signals.__members__
        numbers = [named[name] for name in ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP", "SIGUSR1") if name in named]
        self._handlers.install(
            number for number in numbers if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN
        )
        if self._control:
            # An environment that reads its input would take the supervisor's lines.
            descriptor = os.dup(sys.stdin.fileno())
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, sys.stdin.fileno())
            os.close(nowhere)
            sys.stdin = cast(TextIO, _NoInput(self._control))
            threading.Thread(target=self._obey_control, args=(descriptor,), name="tmrl-control", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        # The system ignores the signals, because Python removes its handlers while the interpreter ends.
        self._handlers.remove(ignore=self._last)
        if self._pipe is not None:
            os.close(self._pipe[1])  # ends the thread, which closes its end of the pipe
            self._pipe = None

    def _on_failure(self, failure: BaseException) -> None:
        self._failures.append(failure)
        self._write(HANDLER_FAILED)

    def _write(self, number: int) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe[1], bytes([number]))

    def _obey_signals(self, descriptor: int) -> None:
        while data := os.read(descriptor, 1):
            number = data[0]
            if number == HANDLER_FAILED:
                logger.error("a signal handler of the environment has failed", exc_info=self._failures.popleft())
                continue
            why = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            request = self.request_checkpoint if why == "SIGUSR1" else self.request
            if why == "SIGHUP":
                self._leave_terminal()
                if self._first_seen:
                    continue
            # The calls of the first request may take long, and a second request must not wait for them.
            threading.Thread(target=request, args=(why,), name="tmrl-ending", daemon=True).start()
        os.close(descriptor)

    def _leave_terminal(self) -> None:
        """Discard output if its terminal is closed, because each write would fail."""
        for descriptor in self._terminals:
            if not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)

    def _obey_control(self, descriptor: int) -> None:
        # Use os.read: with a file object, this thread could hold the buffer's lock when the interpreter ends, which is
        # fatal.
        line = b""
        while True:
            try:
                data = os.read(descriptor, 256)
            except OSError:
                data = b""
            *lines, line = (line + data).split(b"\n")
            line = line[-64:]
            commands = [one.strip() for one in lines]
            if CHECKPOINT in commands:
                self.request_checkpoint("the control pipe")
            if not data or STOP in commands:
                break
        if not self.requested:
            self.request("the control pipe" if data else "the supervisor is gone")


def print_error(line: str) -> None:
    """Print a line of a process that ends, if somebody still reads its standard error."""
    # Through sys.stderr, which a panel on the terminal may replace.
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
