"""Handler of log lines for a terminal or pipe that may take nothing for a while.

A paused Windows console, Ctrl-S, or a pipe that nobody reads blocks each write. If a link's thread blocked in the log,
its heartbeats would stop, and the link would die.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

WAIT_S = 1.0
"""Maximum time for which a line is waited for."""
MAX_LINES = 10_000
"""Maximum number of lines that wait to be written."""


class TerminalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes lines in order, in a thread of its own.

    The caller waits until its line is written, so that the last lines before a crash are there. After `WAIT_S` it goes
    on, and further lines are not waited for until the thread has written all of them. Beyond `MAX_LINES`, the oldest
    lines are left out and counted. The end of the process waits for the remaining lines.

    Args:
        stream: as of `logging.StreamHandler`.
    """

    _writer: _Writer | None = None
    _closed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Give the line to the thread, and wait for it as described above."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        writer = self._running_writer()
        if writer is not None:
            writer.put(line)
        else:
            self._write(line)

    def _running_writer(self) -> _Writer | None:
        """Return the thread, which is started for the first line and in a forked process; None: it is too late."""
        if self._closed or (self._writer is not None and self._writer.is_alive()):
            return self._writer
        made = _Writer(self._write)
        try:
            made.start()
        except RuntimeError:  # the interpreter ends
            return None
        self._writer = made
        return made

    def flush(self) -> None:
        """Do nothing: each line is flushed, and waiting here would hold the lock of all callers."""

    def close(self) -> None:
        """Wait until all lines are written, and end the thread."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None and writer.is_alive():
            writer.end()
        super().close()

    def _write(self, line: str) -> None:
        try:
            self.stream.write(line + self.terminator)
            self.stream.flush()
        except Exception:
            self.handleError(logging.makeLogRecord({"msg": line}))


class _Writer(threading.Thread):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(name="tmrl-log", daemon=True)
        self._write = write
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._idle = True
        """True: all lines are written."""
        self._late = False
        """True: a line was waited for in vain, and not all are written since then."""
        self._ended = False

    def put(self, line: str) -> None:
        with self._changed:
            self._lines.append(line)
            self._idle = False
            if len(self._lines) > MAX_LINES:
                self._lines.popleft()
                self._left_out += 1
            self._changed.notify_all()
            if not self._late and threading.current_thread() is not self:
                self._late = not self._changed.wait_for(lambda: self._idle, WAIT_S)

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self.join()

    def run(self) -> None:
        while True:
            with self._changed:
                if not self._lines:
                    self._idle, self._late = True, False
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._ended)
                if not self._lines:
                    return
                line = self._lines.popleft()
                left_out, self._left_out = self._left_out, 0
            if left_out:
                line = f"({left_out:,} lines are left out here, because the output was not read)\n{line}"
            self._write(line)
