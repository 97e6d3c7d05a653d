"""Calls of other people's code that do not return: which call, for how long, and where it stands.

A function that calls such code is marked with `watched`. That costs its calls nothing: `LongCalls` looks at the stacks
of all threads now and then, and finds the marked functions in them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import NamedTuple, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])

_names: dict[CodeType, str] = {}
"""Name of each marked function's call."""


def watched(name: str) -> Callable[[_Function], _Function]:
    """Mark a function whose calls are found by `LongCalls` under this name."""

    def mark(function: _Function) -> _Function:
        _names[function.__code__] = name
        return function

    return mark


class LongCall(NamedTuple):
    """A call in progress.

    Args:
        name: name of the marked function's call.
        seconds: its duration so far.
        place: file, line and function in which it stands.
        in_main: True: in the main thread.
    """

    name: str
    seconds: float
    place: str
    in_main: bool = True

    def __str__(self) -> str:
        return f"{self.name} has lasted {self.seconds:.0f} s ({self.place})"


class LongCalls:
    """Find the calls of marked functions that are in progress. One thread uses it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[FrameType, float]] = {}

    def look(self) -> LongCall | None:
        """Return the call in progress that was found first; None: there is none.

        Its duration counts from the first look that has found it.
        """
        now = self._clock()
        # A frame that is kept cannot be replaced by that of another call.
        before, self._seen = self._seen, {}
        longest: LongCall | None = None
        for thread, top in sys._current_frames().items():
            frame = _marked(top)
            if frame is None:
                continue
            known = before.get(thread)
            since = known[1] if known is not None and known[0] is frame else now
            self._seen[thread] = (frame, since)
            if longest is None or now - since > longest.seconds:
                in_main = thread == threading.main_thread().ident
                longest = LongCall(_names[frame.f_code], now - since, _place(top, frame), in_main)
        return longest


def _marked(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of a marked function."""
    while frame is not None and frame.f_code not in _names:
        frame = frame.f_back
    return frame


def _place(top: FrameType, marked: FrameType) -> str:
    """Return the innermost place outside the standard library; a wait for a lock there says nothing."""
    frame = top
    while frame is not marked and frame.f_back is not None and in_standard_library(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_name}"


def in_standard_library(file: str) -> bool:
    """Return True for a source file of Python itself."""
    # Packages may be installed inside the library's folder.
    return file.startswith(("<", _LIBRARY)) and "site-packages" not in file and "dist-packages" not in file


# Not from sysconfig, whose import reads all variables with which Python was built, at the start of each role.
_LIBRARY = os.path.dirname(os.__file__) + os.sep


# --- text for displays ------------------------------------------------------------------------------------------------

remarks: dict[str, str] = {}
"""Texts by subject for the display of this process's role: what hinders it. Each has one writer."""


def trouble() -> str:
    """Return the remarks as one line; empty: there are none. Safe from any thread."""
    return "; ".join(remarks.copy().values())
