"""Watch of the environment's calls: a call that does not return is reported, and does not hold up the end of a role."""

# Theory of operation
#
# The thread `tmrl-calls` looks at the stacks of all threads twice a second and finds the functions marked by
# `long_calls.watched`, so a step costs nothing more. Rejected: a clock around each call of the environment, which costs
# two calls a step and knows no place.
#
# A call that lasts 30 s is logged with its place, and shown on the role's panel and, through `logs/<role>.remarks`, on
# that of `--local`. Nothing is ended for that alone. Two cases end the process, in which nothing can come any more:
# after a request to end, a call that does not return within `worker.drain_timeout_s`; and a call that has lasted 30 s
# where an exception has ended another thread at most 5 s before it began, as rtgym's `step` waits for its thread for
# ever. An episode whose samples have waited for its end for 30 s is shown alike; as a wait reason on the trainer's
# display it is no sign of starvation.

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_core.long_calls import LongCall, LongCalls, remarks, trouble
from tmrl_core.roles.shutdown import print_error

logger = logging.getLogger(__name__)

LONG_S = 30.0
"""Seconds after which a call is reported."""
ENDING_S = 1.0
"""Seconds after which a call is reported that a requested end waits for."""
POLL_S = 0.5
DIED_BEFORE_S = 5.0
"""Maximum seconds between the end of a thread by an exception and the beginning of a call that waits for it."""
ENDED = 1
"""Exit status of a process that ended without waiting longer for a call."""


class CallWatch:
    """Report calls that last, in a thread of its own. A context manager.

    A call that lasts after a thread has ended by an exception waits for it in vain, as rtgym's `step` does. It ends the
    process, so that a supervisor starts it again.

    Args:
        end_s: seconds that a call may take after a request to end; then the process ends without it.
        limit_s: seconds that a call may take anyway.
        main_only: True: a call in another thread does not end the process, whose main thread goes on without it.
        file: receives the role's remarks, for the display of a supervisor; None: no file.
        clock: seconds.
        end: ends the process; for tests.
    """

    def __init__(
        self,
        end_s: float,
        *,
        limit_s: float = math.inf,
        main_only: bool = False,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        self._calls = LongCalls(clock)
        self._end_s = end_s
        self._limit_s = limit_s
        self._main_only = main_only
        self._file = file
        self._clock = clock
        self._end = end
        self._ending_since = math.inf
        self._next_s = LONG_S
        self._written = ""
        self._died = (-math.inf, "")
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tmrl-calls", daemon=True)

    def __enter__(self) -> CallWatch:
        self._hook, threading.excepthook = threading.excepthook, self._note_death
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        threading.excepthook = self._hook
        self._left.set()
        self._thread.join(10.0)

    def ending(self) -> None:
        """Note a request to end. Safe from any thread."""
        self._ending_since = self._clock()
        self._next_s = ENDING_S

    def _note_death(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "a thread"
        said = " ".join(str(args.exc_value).split())[:200]  # an error of a log ends with its line
        self._died = self._clock(), f"; {name} has ended by {args.exc_type.__name__}: {said}"
        self._hook(args)

    def look(self) -> None:
        """Look for a call that lasts, and report it when it is due."""
        call = self._calls.look()
        if call is None or call.seconds < ENDING_S:
            remarks.pop("call", None)
            self._next_s = LONG_S if self._ending_since == math.inf else ENDING_S
        else:
            self._report(call)
        self._write()

    def _report(self, call: LongCall) -> None:
        waited = self._clock() - self._ending_since
        ending = waited >= 0
        ends = call.in_main or not self._main_only
        if call.seconds >= LONG_S or ending:
            remarks["call"] = str(call)
        if call.seconds >= self._next_s:
            self._next_s = max(LONG_S, 2 * call.seconds)
            if ending:
                logger.warning("the end waits: %s%s", call, f"; at most {self._end_s:g} s" if ends else "")
            else:
                logger.warning(
                    "%s. It holds up its role: see what it waits for there. Ctrl-C ends the role, in %g s if the call "
                    "does not return.",
                    call,
                    self._end_s,
                )
        died_at, died = self._died
        if call.seconds < LONG_S or self._clock() - died_at > call.seconds + DIED_BEFORE_S:
            died = ""
        late = call.seconds >= self._limit_s or died
        if ends and (late or (ending and min(call.seconds, waited) >= self._end_s)):
            # As the command line prints errors: a supervisor shows the last one.
            print_error(f"EnvironmentFailedError: {call}{died}, and the process ends without it")
            self._end(ENDED)

    def _write(self) -> None:
        text = trouble()
        if self._file is None or text == self._written:
            return
        self._written = text
        with contextlib.suppress(OSError):  # without a display, the log has it
            self._file.write_text(text, encoding="utf-8")

    def _run(self) -> None:
        while not self._left.wait(POLL_S):
            try:
                self.look()
            except Exception:  # the role is worth more than its watch
                logger.exception("the watch of calls has failed; the role continues without it")
                return
