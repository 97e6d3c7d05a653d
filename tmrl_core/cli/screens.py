"""Display of a role: a panel on a terminal, otherwise a line in the log every half minute."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tmrl_core.config import Config
from tmrl_core.config.ratios import count
from tmrl_core.long_calls import trouble
from tmrl_core.metrics.text import bytes_text, clock_text, milliseconds_text, number_text, return_text

if TYPE_CHECKING:
    from tmrl_core.networking.links import WorkerCounts, WorkerLink
    from tmrl_core.roles.kinds_of_run import RunWorker
    from tmrl_core.roles.server import Server

logger = logging.getLogger(__name__)

LINE_S = 30.0
"""Seconds between two lines without a terminal."""
SERVER_LINE_S = 60.0
"""Seconds between two lines of a Server without joining or leaving peers."""
CHANGE_LINE_S = 5.0
"""Minimum time between two lines of a Server with joining or leaving peers."""
_REFRESH_S = 1.0
_RATE_WINDOW_S = 10.0


class Display(Protocol):
    """Content of a screen. Only one thread uses it."""

    def refresh(self) -> None:
        """Update the display's data."""

    def line(self) -> str:
        """Return everything as one plain line."""

    def panel(self) -> Any:
        """Return the display as a renderable of rich."""


class Screen:
    """Show a role's state on standard error in a separate thread. Log messages appear above the panel.

    Args:
        display: the display to show.
        line_every_s: seconds between two lines in the log if standard error is not a terminal.
        refresh_s: seconds between two updates.
    """

    def __init__(self, display: Display, *, line_every_s: float = LINE_S, refresh_s: float = _REFRESH_S) -> None:
        self._display = display
        self._line_every_s = line_every_s
        self._refresh_s = refresh_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tmrl-screen", daemon=True)

    def __enter__(self) -> Screen:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Show the last state and release the terminal."""
        self._ended.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        try:
            with _drawn(self._display) if terminal else contextlib.nullcontext(self._say_line) as show:
                if terminal:
                    show()
                next_s = time.monotonic() + (0.0 if terminal else self._line_every_s)
                while not self._ended.wait(self._refresh_s):
                    self._display.refresh()
                    if terminal or time.monotonic() >= next_s:
                        next_s = time.monotonic() + self._line_every_s
                        show()
                self._display.refresh()
                show()
        except Exception:  # a failure of the screen must not end the run
            logger.exception("the display has failed; the role continues without it")

    def _say_line(self) -> None:
        logger.info("%s", self._display.line())


@contextlib.contextmanager
def _drawn(display: Display) -> Iterator[Callable[[], None]]:
    """Render on the terminal of standard error, with log messages printed above."""
    from rich.console import Console
    from rich.live import Live

    live = Live(get_renderable=display.panel, console=Console(stderr=True), auto_refresh=False)
    before = sys.stderr
    with live:
        handlers = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream is before
        ]
        for handler in handlers:
            handler.setStream(sys.stderr)  # sys.stderr is the panel's stream now
        try:
            yield live.refresh
        finally:
            for handler in handlers:
                handler.setStream(before)


class TrainerDisplay:
    """Display of a trainer: the records that it writes, and its link.

    Args:
        config: configuration of the run.
        connected: returns False while the link to the Server is down, None before there is one.
        clock: seconds.
    """

    def __init__(
        self,
        config: Config,
        connected: Callable[[], bool | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from tmrl_core.metrics import ProgressDisplay, follow

        evaluation = config.trainer.evaluation
        self._progress = ProgressDisplay(
            config.run.name, return_target=evaluation.target_return, time_limit_s=evaluation.time_limit_s
        )
        self._reader = follow(config.metrics_path)
        with contextlib.suppress(OSError):  # the trainer writes the file and reports its problems
            self._reader.skip()  # records of an earlier process are not displayed as news
        self._where = f"{config.server.host} port {config.server.tcp_port}"
        self._connected = connected
        self._clock = clock
        self._down_since: float | None = None

    def refresh(self) -> None:
        """Take new records."""
        with contextlib.suppress(OSError):
            self._progress.update(self._reader.read())
        if self._connected() is not False:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = self._clock()
        lost = (
            ""
            if self._down_since is None
            else f"no link to the Server at {self._where} for {clock_text(self._clock() - self._down_since)}"
        )
        self._progress.trouble = "; ".join(filter(None, (trouble(), lost)))

    def line(self) -> str:
        """Return everything as one plain line."""
        return self._progress.line()

    def panel(self) -> Any:
        """Return the display as a renderable of rich."""
        return self._progress


class WorkerDisplay:
    """Display of a worker, from its counters.

    Args:
        worker: the worker.
        where: address of the Server.
        run_name: name of the run.
        clock: seconds.
    """

    def __init__(
        self,
        worker: RunWorker,
        where: str,
        run_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._where = where
        self._run_name = run_name
        self._clock = clock
        self._started = self._policy_since = self._link_since = clock()
        self._version = (0, 0)
        self._connected = False
        self._window: deque[tuple[float, int]] = deque([(self._started, worker.recorder.steps_collected)])

    def refresh(self) -> None:
        """Record the changes since the last update."""
        now = self._clock()
        if self._worker.recorder.version != self._version:
            self._version, self._policy_since = self._worker.recorder.version, now
        connected = self._link is not None and self._link.connected
        if connected != self._connected:
            self._connected, self._link_since = connected, now
        self._window.append((now, self._worker.recorder.steps_collected))
        while now - self._window[0][0] > _RATE_WINDOW_S and len(self._window) > 2:
            self._window.popleft()

    def line(self) -> str:
        """Return everything as one plain line."""
        return " | ".join(
            [clock_text(self._clock() - self._started), *(f"{name} {text}" for name, text in self._rows())]
        )

    def panel(self) -> Any:
        """Return the display as a renderable of rich."""
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True, min_width=12)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for name, text in self._rows():
            troubled = name in ("lost", "waits", "trouble") or (name == "link" and not self._connected)
            table.add_row(Text(name), Text(text, style="bold yellow" if troubled else ""))
        return Panel(
            table,
            title=Text(f" {self._worker.recorder.name}, run {self._run_name} ", style="bold"),
            title_align="left",
            subtitle=Text(f" {clock_text(self._clock() - self._started)} ", style="dim"),
            subtitle_align="right",
            border_style="cyan" if self._connected else "yellow",
            padding=(0, 2),
        )

    @property
    def _link(self) -> WorkerLink | None:
        # imported here, because it needs NumPy, which a Server must not import
        from tmrl_core.networking.links import WorkerLink

        link = self._worker.uplink.link
        return link if isinstance(link, WorkerLink) else None

    def _rows(self) -> list[tuple[str, str]]:
        worker, link = self._worker, self._link
        (first_s, first), (last_s, last) = self._window[0], self._window[-1]
        rate = (last - first) / (last_s - first_s) if last_s > first_s else 0.0
        rows = [("link", self._link_text(link)), ("episodes", f"{worker.recorder.episodes:,}")]
        rows.append(("steps", f"{worker.recorder.steps_collected:,} ({rate:,.0f}/s)"))
        played = worker.recorder.buffer
        if played.stat_train_steps:
            rows.append(("return", f"{return_text(played.stat_train_return)} in {played.stat_train_steps:,} steps"))
        if played.stat_test_steps:
            rows.append(("test return", return_text(played.stat_test_return)))
        age = clock_text(self._clock() - self._policy_since)
        version = f"{self._version[0]}.{self._version[1]}, {age} old"
        rows.append(("policy", version if any(self._version) else "none from the trainer yet"))
        if text := trouble():
            rows.append(("trouble", text))
        return rows + ([] if link is None else _link_rows(link, link.counts))

    def _link_text(self, link: WorkerLink | None) -> str:
        if link is None:
            return "none: this worker is on its own"
        since = clock_text(self._clock() - self._link_since)
        if not self._connected:
            return f"none for {since}, trying {self._where} again and again"
        again = link.counts.reconnects
        return f"{self._where} for {since}" + (f", reconnected {count(again, 'time')}" if again else "")


def _link_rows(link: WorkerLink, counts: WorkerCounts) -> list[tuple[str, str]]:
    progress = link.progress
    queued = f"{counts.queued_samples:,} samples, {bytes_text(counts.queued_bytes)}"
    rows = [("queued", queued), ("acknowledged", f"{counts.samples_acked:,} samples")]
    if counts.samples_dropped or counts.samples_refused:
        rows.append(("lost", f"{counts.samples_dropped:,} dropped, {counts.samples_refused:,} refused"))
    if counts.forged:
        rows.append(("forged", f"{counts.forged:,} messages ignored; see the log"))
    if counts.outdated:
        rows.append(("outdated", f"{counts.outdated:,} messages ignored"))
    if link.lateness is not None:
        steps, late_steps, p999_us = link.lateness()
        rows.append(
            ("late", f"{late_steps:,} of {steps:,} steps, 99.9th percentile {milliseconds_text(p999_us / 1e6)}")
        )
    rows.append(("trainer", f"{progress.updates:,} updates, {progress.samples:,} samples"))
    if link.waits:
        rows.append(("waits", link.waits))
    elif progress.lack:
        rows.append(("trainer waits", progress.lack))
    return rows


class ServerLines:
    """Log a line about a Server every minute, and earlier when a peer joins or leaves.

    Args:
        server: the Server.
        clock: seconds.
    """

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._said_s = clock()
        self._said = (0, False, 0)
        """Return workers, trainer and relayed samples as one line."""

    def refresh(self) -> None:
        """Log a line if one is due."""
        relay, now = self._server.relay, self._clock()
        workers, trainer, samples = len(relay.workers), relay.trainer is not None, relay.flow.relayed_samples
        span_s = now - self._said_s
        if span_s < (SERVER_LINE_S if (workers, trainer) == self._said[:2] else CHANGE_LINE_S):
            return
        logger.info(
            "%s, %s trainer; %s samples relayed (%s/s)",
            count(workers, "worker"),
            "a" if trainer else "no",
            number_text(samples),
            number_text(round((samples - self._said[2]) / span_s)),
        )
        self._said_s, self._said = now, (workers, trainer, samples)
