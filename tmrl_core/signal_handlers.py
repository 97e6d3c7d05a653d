"""Signal handlers of a role, which are set again after an environment has run.

Simulators and clients of robots install signal handlers of their own, as Isaac Sim, PyRep and ROS do. Without this
module, Ctrl-C and SIGTERM would no longer reach the role, or would end it without its drain, its safe action and its
last checkpoint. `take_back` is called after each call of an environment that may have installed handlers. It does not
compare handlers first, because one that was installed from C is not visible in Python.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

_installed: list[SignalHandlers] = []
"""Handlers in force, the innermost last. They belong to the whole process, and only its main thread sets them."""


def take_back() -> None:
    """Set the handlers of this process's role again, if it has some. Only the main thread can; others do nothing."""
    if _installed and threading.current_thread() is threading.main_thread():
        _installed[-1].take_back()


class SignalHandlers:
    """One handler for several signals. Python handlers of environments are called after it.

    Args:
        handle: called with the number of each signal. It may have interrupted the main thread anywhere, so it must not
            take a lock.
        failed: called likewise, with the exception of an environment's handler.
    """

    def __init__(self, handle: Callable[[int], None], failed: Callable[[BaseException], None]) -> None:
        self._handle = handle
        self._failed = failed
        self._before: dict[int, Any] = {}
        self._theirs: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._frames: list[FrameType | None] = []
        self._told: set[int] = set()

    def install(self, numbers: Iterable[int]) -> None:
        """Set the handler of these signals."""
        for number in numbers:
            self._before[number] = signal.signal(number, self._on_signal)
        _installed.append(self)

    def remove(self, *, ignore: bool) -> None:
        """Set the former handlers again, or ignore the signals."""
        _installed.remove(self)
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_IGN if ignore else before)
        self._before.clear()

    def take_back(self) -> None:
        """Set the handler again. Log at the first time which signals an environment has taken."""
        replaced = []
        for number in self._before:
            found = signal.signal(number, self._on_signal)
            if found == self._on_signal:
                continue
            # Python's own handler of Ctrl-C only raises KeyboardInterrupt, which would end the role out of order.
            if callable(found) and found is not signal.default_int_handler:
                self._theirs[number] = found
            else:
                self._theirs.pop(number, None)
            replaced.append(number)
        new = [number for number in replaced if number not in self._told]
        if new:
            self._told.update(new)
            logger.info(
                "the environment has replaced the handlers of %s: they end this role in order again%s",
                ", ".join(signal.Signals(number).name for number in new),
                ", and the environment's handlers are called too" if self._theirs else "",
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A handler of an environment may call the one that it replaced, with its own arguments; that is no second
        # signal. A signal that interrupts such a handler has another frame, and does count.
        if self._frames and (frame is None or any(frame is one for one in self._frames)):
            return
        self._handle(number)
        theirs = self._theirs.get(number)
        if theirs is None:
            return
        self._frames.append(frame)
        try:
            theirs(number, frame)
        except BaseException as exc:  # SystemExit and KeyboardInterrupt too: the role ends in order
            self._failed(exc)
        finally:
            self._frames.pop()
            for one in self._before:  # such handlers may set the default again, for a second signal
                signal.signal(one, self._on_signal)
