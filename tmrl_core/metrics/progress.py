"""Live display of a run: phase, rates, returns and network; on a terminal or as plain lines."""

# Theory of operation
#
# For: a person who wants to see whether a run learns and what it lacks. The display is made of records alone, the same
# that are in `metrics.jsonl`. It asks no part of the run for anything, so it can follow a file of another process or of
# last week, and costs training nothing.
#
# Three parts: `ProgressDisplay` takes records and keeps what it shows; `render` and `line` are two pictures of that, a
# panel and one line; `LiveProgress` puts one of them on a terminal or into a log.
#
# Memory is bounded, however long the run and whatever its workers say. Values are kept by name, only for the names of
# the vocabulary (workers invent others). Returns go into a `Curve` (curves.py) of at most 512 means, which keeps its
# shape, and adding to which is O(1) on average.
#
# Times: the records' `elapsed_s` is monotonic over resumes, and the display's clock only says how long ago the last one
# came. `_started_s` moves back only, except at a new start: a record that was read late must not set the clock back.
#
# The phase is told by events. Without any (records of a script, or the first seconds) it is guessed from the counts;
# one event ends the guessing for good.
#
# Rates are those that the trainer recorded; without them, differences over the last ten seconds of records. Of shorter
# times they would jump with each round of training, of longer ones they would show a stop too late.
#
# Nothing here is locked. rich's own refresh thread would render while records are added, so it is off, and the owner of
# the loop calls `refresh`.

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tmrl_core.metrics import names
from tmrl_core.metrics.curves import Curve, Point
from tmrl_core.metrics.reading import RecordReader
from tmrl_core.metrics.records import MetricRecord, Value
from tmrl_core.metrics.text import bytes_text, clock_text, number_text, return_text

PHASES: Final = ("waiting", "collecting", "learning", "evaluating", "done")
_PHASE_WORDS: Final = {**dict(zip(PHASES, PHASES, strict=True)), "waiting": "waiting for workers"}
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = "_.-:=+*#"
_WIDEST: Final = 100
_RATE_WINDOW_S: Final = 10.0
# Few enough that the mean follows the policy, and enough to hide a single bad episode.
_RECENT: Final = 10
_MOST_MEANS: Final = 512


class ProgressDisplay:
    """Progress of a run as a renderable of rich: pass it to `rich.live.Live`, or print `line()`.

    Not thread-safe: one thread must call `update` and render (use `Live(..., auto_refresh=False)`, or `LiveProgress`,
    which does).

    Args:
        run_name: name in the title; "": taken from the records.
        return_target: mean return at which an evaluation counts as learned; None: taken from the records.
        time_limit_s: shown beside the elapsed time.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        run_name: str = "",
        *,
        return_target: float | None = None,
        time_limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_name = run_name
        self.return_target = return_target
        self.time_limit_s = time_limit_s
        self.phase = "waiting"
        self.note = ""
        """Line below the display: the latest message of an event, or one that the display's owner sets."""
        self.trouble = ""
        """Highlighted line, which the display's owner sets."""
        self._clock = clock
        self._started_s = clock()
        self._ended_s: float | None = None
        self._told_phase = False
        self._has_records = False
        self._step = 0
        self._latest: dict[str, Value] = {}
        self._workers: set[str] = set()
        self._window: deque[tuple[float, float, int]] = deque()
        self._train = Curve(most=_MOST_MEANS)
        self._test = Curve(most=_MOST_MEANS)
        self._last_test: float | None = None
        self._recent_train: deque[float] = deque(maxlen=_RECENT)
        self._evaluations: deque[MetricRecord] = deque(maxlen=200)
        self._best: float | None = None
        self._confirmed = False
        self._checkpoint_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began; constant once it has ended."""
        return max(0.0, (self._clock() if self._ended_s is None else self._ended_s) - self._started_s)

    def update(self, records: Iterable[MetricRecord]) -> None:
        """Add new records, oldest first."""
        for record in records:
            self._take(record)

    def _take(self, record: MetricRecord) -> None:
        self._take_start(record)
        if record.kind == "event":
            self._take_event(record)
        if record.step > self._step:
            self._step = record.step
            # Training continues, so the trainer no longer waits, even without an event.
            self._latest.pop(names.LACK, None)
        # Workers choose further names, so keeping those would take any amount of memory.
        known = names.VOCABULARY
        self._latest.update(
            {name: value for name, value in record.values.items() if value is not None and name in known}
        )
        # A target that was given wins: the owner may ask for more than the configuration.
        if self.return_target is None:
            self.return_target = record.number(names.RETURN_TARGET)
        samples = record.number(names.SAMPLES_RECEIVED)
        if samples is not None:
            self._window.append((record.elapsed_s, self._samples(), record.step))
            while record.elapsed_s - self._window[0][0] > _RATE_WINDOW_S and len(self._window) > 2:
                self._window.popleft()
        if record.kind == "episode" and not record.is_cut:
            if (train := record.number(names.RETURN_TRAIN)) is not None:
                self._train.add(Point(record.env_steps or 0, record.elapsed_s, train))
                self._recent_train.append(train)
            if (test := record.number(names.RETURN_TEST)) is not None:
                self._test.add(Point(record.env_steps or 0, record.elapsed_s, test))
                self._last_test = test
        if record.kind == "evaluation" and (mean := record.number(names.RETURN_EVALUATION)) is not None:
            self._evaluations.append(record)
            self._best = mean if self._best is None else max(self._best, mean)
        if not self._told_phase:
            self._guess_phase(samples)

    def _take_start(self, record: MetricRecord) -> None:
        # Records are taken soon after they were made. Their own times are the wall clock's, which somebody may set.
        started_s = self._clock() - record.elapsed_s
        if record.kind == "event" and record.text(names.EVENT) == names.EVENT_START and self._has_records:
            # A new run begins at 0, a resumed one at its checkpoint.
            self._started_s = started_s
            self._window.clear()
        else:
            # For a run that is still starting, the clock continues instead of returning to 0.
            self._started_s = min(self._started_s, started_s)
        self._has_records = True

    def _take_event(self, record: MetricRecord) -> None:
        event = record.text(names.EVENT)
        if event == names.EVENT_START:
            self._ended_s = None
            # Those that left with the trainer before have no event; those that are there join again.
            self._workers.clear()
            self.run_name = record.text(names.RUN_NAME) or self.run_name
        elif event == names.EVENT_WORKER_JOINED:
            self._workers.add(record.text(names.WORKER))
        elif event == names.EVENT_CHECKPOINT:
            self._checkpoint_s = self._clock() - self._started_s
        elif event == names.EVENT_LEARNED:
            self._confirmed = True
        elif event == names.EVENT_COMPILING:
            self._latest[names.LACK] = record.text(names.MESSAGE)
        elif event == names.EVENT_COMPILED:
            self._latest.pop(names.LACK, None)
        elif event == names.EVENT_WORKER_LEFT:
            self._workers.discard(record.text(names.WORKER))
        phase = record.text(names.PHASE) or ("done" if event == names.EVENT_END else "")
        if phase in PHASES:
            self.phase, self._told_phase = phase, True
            self._ended_s = self._clock() if phase == "done" else None
        if record.text(names.MESSAGE):
            self.note = record.text(names.MESSAGE)

    def _guess_phase(self, samples: float | None) -> None:
        if self._step > 0:
            self.phase = "learning"
        elif samples:
            self.phase = "collecting"

    def rates(self) -> tuple[float, float]:
        """Return samples and updates per second: as recorded, else over the latest ten seconds of records."""
        first, last = (self._window[0], self._window[-1]) if self._window else ((0.0, 0.0, 0), (0.0, 0.0, 0))
        span_s = last[0] - first[0]
        own = ((last[1] - first[1]) / span_s, (last[2] - first[2]) / span_s) if span_s > 0 else (0.0, 0.0)
        samples = self._number(names.SAMPLES_PER_S)
        updates = self._number(names.UPDATES_PER_S)
        return own[0] if samples is None else samples, own[1] if updates is None else updates

    def line(self) -> str:
        """Return everything as one plain line without colours."""
        samples_per_s, updates_per_s = self.rates()
        parts = [
            f"{clock_text(self.elapsed_s)} {_PHASE_WORDS[self.phase]}",
            f"workers {self._worker_count()}",
            f"samples {number_text(self._samples())} ({_rate(samples_per_s)})",
            f"updates {self._step:,} ({_rate(updates_per_s)})",
        ]
        if self._recent_train:
            parts.append(f"train {return_text(self._train_mean())}")
        if self._last_test is not None:
            parts.append(f"test {return_text(self._last_test)}")
        if self._evaluations:
            last = self._evaluations[-1].number(names.RETURN_EVALUATION)
            parts.append(f"evaluation {return_text(last, self.return_target)}")
        if self.return_target is not None:
            parts.append(f"target {return_text(self.return_target)}{self._target_state()}")
        if (lag := self._number(names.POLICY_LAG_MEAN)) is not None:
            parts.append(f"lag {lag:.1f}")
        parts.extend(f"{label} {count:,}" for label, count in self._losses() if count)
        if self.trouble and self.phase != "done":
            parts.append(self.trouble)
        if lack := self._lack():
            parts.append(f"waits: {lack}")
        elif waiting := self._waiting():
            parts.append(f"workers wait: {waiting}")
        return " | ".join(parts)

    def render(self, *, width: int = _WIDEST, ascii_only: bool = False) -> RenderableType:
        """Render the display.

        Args:
            width: columns of the terminal; the display takes up to 100.
            ascii_only: True: use no block characters or other signs that old consoles lack.
        """
        width = min(width, _WIDEST)
        left, right = self._work_table(), self._return_table(ascii_only=ascii_only)
        # Below 72 columns, two tables side by side would break their numbers.
        if width >= 72:
            body = Table.grid(padding=(0, 3), expand=True)
            body.add_column(ratio=1)
            body.add_column(ratio=1)
            body.add_row(left, right)
        else:
            body = Table.grid()
            body.add_row(left)
            body.add_row(right)
        rows: list[RenderableType] = [self._phase_text(short=width < 72, ascii_only=ascii_only), Text(), body]
        traces = self._trace_table(width - 6, ascii_only=ascii_only)
        if traces.row_count:
            rows += [Text(), traces]
        if self.trouble and self.phase != "done":
            rows += [Text(), Text(self.trouble, style="bold yellow", overflow="ellipsis", no_wrap=True)]
        if lack := self._lack():
            rows += [Text(), Text(f"training waits: {lack}", style="yellow")]
        elif waiting := self._waiting():
            rows += [Text(), Text(f"workers wait: {waiting}", style="yellow", overflow="ellipsis", no_wrap=True)]
        if self.note:
            rows += [Text(), Text(self.note, style="dim", overflow="ellipsis", no_wrap=True)]
        elapsed = clock_text(self.elapsed_s)
        if self.time_limit_s is not None:
            elapsed += f" of {clock_text(self.time_limit_s)}"
        return Panel(
            Group(*rows),
            title=Text(f" {self.run_name or 'run'} ", style="bold"),
            title_align="left",
            subtitle=Text(f" {elapsed} ", style="dim"),
            subtitle_align="right",
            border_style="green" if self.phase == "done" else "cyan",
            padding=(1, 2),
            width=width,
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.render(width=options.max_width, ascii_only=options.ascii_only)

    def _phase_text(self, *, short: bool, ascii_only: bool) -> Text:
        here = PHASES.index(self.phase)
        signs = "*>-" if ascii_only else "●◉○"
        text = Text(no_wrap=True, overflow="ellipsis")
        for index, phase in enumerate(PHASES):
            if index:
                text.append("  " if short else "   ")
            if index == here:
                sign = signs[0] if phase == "done" else signs[1]
                text.append(f"{sign} {_PHASE_WORDS[phase]}", style="bold green" if phase == "done" else "bold cyan")
            elif index < here:
                text.append(signs[0] if short else f"{signs[0]} {phase}", style="cyan")
            else:
                text.append(signs[2] if short else f"{signs[2]} {phase}", style="dim")
        return text

    def _work_table(self) -> Table:
        table = _two_columns(10)
        samples_per_s, updates_per_s = self.rates()
        table.add_row("samples", _counted(number_text(self._samples()), _rate(samples_per_s)))
        table.add_row("updates", _counted(f"{self._step:,}", _rate(updates_per_s)))
        samples = self._count(names.SAMPLES_RECEIVED)
        table.add_row("ratio", Text(f"{self._step / samples:.3g} updates/sample" if samples else "-"))
        table.add_row("workers", Text(str(self._worker_count())))
        lag, highest = self._number(names.POLICY_LAG_MEAN), self._number(names.POLICY_LAG_MAX)
        lag_text = Text("-", style="dim") if lag is None else Text(f"{lag:.1f}")
        if lag is not None and highest is not None:
            lag_text.append(f"  highest {highest:.0f}", style="dim")
        table.add_row("policy lag", lag_text)
        table.add_row("queue", Text(bytes_text(self._number(names.QUEUE_BYTES) or 0.0)))
        lost = Text()
        for label, count in self._losses():
            if count:
                lost.append(f"{label} ", style="dim").append(f"{count:,}", style="bold red").append("  ")
        table.add_row("lost", lost or Text("nothing", style="dim"))
        return table

    def _return_table(self, *, ascii_only: bool) -> Table:
        table = _two_columns(15)
        none = Text("-", style="dim")
        train = none
        if self._recent_train:
            train = Text(return_text(self._train_mean()))
            train.append(f"  latest {len(self._recent_train)}", style="dim")
        table.add_row("training return", train)
        test = self._last_test
        table.add_row("test return", none if test is None else Text(return_text(test)))
        evaluation = none
        state = self._target_state()
        if self._evaluations:
            last = self._evaluations[-1]
            mean = last.number(names.RETURN_EVALUATION) or 0.0
            shown = return_text(mean, self.return_target)
            evaluation = Text().append(shown, style="bold green" if state else "bold")
            if (spread := last.number(names.RETURN_EVALUATION_STD)) is not None:
                evaluation.append(f" {'+-' if ascii_only else '±'} {return_text(spread)}", style="dim")
        table.add_row("evaluation", evaluation)
        best = none if self._best is None else Text(return_text(self._best, self.return_target))
        table.add_row("best evaluation", best)
        if self.return_target is not None:
            target = Text(return_text(self.return_target))
            if state:
                sign = "" if ascii_only or not self._confirmed else " ✓"
                target.append(f"{sign}{state}", style="bold green" if self._confirmed else "yellow")
            table.add_row("target", target)
        written = "-" if self._checkpoint_s is None else f"{clock_text(self.elapsed_s - self._checkpoint_s)} ago"
        table.add_row("checkpoint", Text(written))
        return table

    def _trace_table(self, width: int, *, ascii_only: bool) -> Table:
        """Return one row for each kind of return: name, first value, a small curve, last value; one scale for all."""
        table = Table.grid(padding=(0, 1))
        table.add_column(style="dim", min_width=11)
        table.add_column(justify="right", style="dim")
        table.add_column(no_wrap=True)
        table.add_column(justify="left", style="dim")
        room = max(10, width - 11 - 2 * 9 - 4)
        evaluations = [record.number(names.RETURN_EVALUATION) or 0.0 for record in self._evaluations]
        rows = [
            ("training", [point.value for point in self._train.points(_MOST_MEANS)], "blue"),
            ("test", [point.value for point in self._test.points(_MOST_MEANS)], "yellow"),
            ("evaluation", evaluations, "magenta"),
        ]
        shown = [(label, shrink(values, room), color) for label, values, color in rows if len(values) >= 2]
        if shown:
            # One scale: rows with scales of their own would look alike whatever their values.
            low = min(min(values) for _, values, _ in shown)
            high = max(max(values) for _, values, _ in shown)
            for label, values, color in shown:
                curve = Text(sparkline(values, low, high, ascii_only=ascii_only), style=color)
                table.add_row(label, return_text(values[0]), curve, return_text(values[-1]))
        return table

    def _target_state(self) -> str:
        """Describe that the latest evaluation has reached the target, and whether a second one confirmed it."""
        mean = self._evaluations[-1].number(names.RETURN_EVALUATION) if self._evaluations else None
        if mean is None or self.return_target is None or mean < self.return_target:
            return ""
        return " reached" if self._confirmed else " reached, confirming"

    def _number(self, name: str) -> float | None:
        value = self._latest.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _count(self, name: str) -> int:
        return int(self._number(name) or 0)

    def _samples(self) -> int:
        """Return the number of samples that have arrived, those that wait for the training thread included."""
        return max(self._count(names.SAMPLES_RECEIVED), self._count(names.SAMPLES_ARRIVED))

    def _worker_count(self) -> int:
        counted = self._number(names.WORKERS)
        return len(self._workers) if counted is None else int(counted)

    def _train_mean(self) -> float:
        return sum(self._recent_train) / len(self._recent_train)

    def _losses(self) -> Sequence[tuple[str, int]]:
        return [
            ("dropped", self._count(names.SAMPLES_DROPPED)),
            ("gaps", self._count(names.GAPS)),
            ("refused", self._count(names.REFUSED)),
            ("forged", self._count(names.FORGED)),
        ]

    def _waiting(self) -> str:
        value = self._latest.get(names.WAITING)
        return value if isinstance(value, str) and self.phase != "done" else ""

    def _lack(self) -> str:
        value = self._latest.get(names.LACK)
        return value if isinstance(value, str) and self.phase != "done" else ""


def shrink(values: Sequence[float], room: int) -> list[float]:
    """Return at most `room` means of neighbouring values, or the values themselves if they fit."""
    count = len(values)
    if count <= room:
        return list(values)
    edges = [count * index // room for index in range(room + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in itertools.pairwise(edges) if end > start]


def sparkline(values: Sequence[float], low: float, high: float, *, ascii_only: bool = False) -> str:
    """Return one character for each value, higher ones for higher values between `low` and `high`."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    span = high - low
    if not 0 < span < math.inf:  # correct for an infinite range too
        return blocks[len(blocks) // 2] * len(values)
    top = len(blocks) - 1
    return "".join(blocks[min(top, max(0, round((value - low) / span * top)))] for value in values)


class LiveProgress:
    """Show a `ProgressDisplay` while a run writes its records: in place on a terminal, else as plain lines.

    It has no thread: its owner calls `refresh` a few times a second from the loop that waits for the run.

    Args:
        display: the display to show.
        reader: source of the records; None: the owner calls `display.update`.
        console: rich console; None: standard output.
        line_every_s: seconds between two lines if the output is not a terminal.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        display: ProgressDisplay,
        reader: RecordReader | None = None,
        *,
        console: Console | None = None,
        line_every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.display = display
        self.console = console if console is not None else Console()
        self._reader = reader
        self._line_every_s = line_every_s
        self._clock = clock
        self._next_line_s = clock()
        self._line = ""
        self._live: Live | None = None

    def __enter__(self) -> LiveProgress:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            # Only refresh() renders, because rich's thread would render while update() changes the numbers.
            self._live = Live(self.display, console=self.console, auto_refresh=False, transient=False)
            self._live.start(refresh=True)
        return self

    def refresh(self) -> None:
        """Read new records and show them. Raise OSError if the records cannot be read."""
        if self._reader is not None:
            for records in self._reader.blocks():
                self.display.update(records)
        if self._live is not None:
            self._live.refresh()
        elif self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + self._line_every_s
            self._print_line()

    def __exit__(self, *exc_info: object) -> None:
        """Show the last state and release the terminal, also after an error."""
        live, self._live = self._live, None
        try:
            if self._reader is not None:
                for records in self._reader.blocks():
                    self.display.update(records)
        finally:
            if live is not None:
                live.refresh()
                live.stop()
            else:
                self._print_line()

    def _print_line(self) -> None:
        line, before = self.display.line(), self._line
        if line != before:  # a run that has ended says so once, however long its roles take to end
            self._line = line
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _two_columns(labels: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", min_width=labels, no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    return table


def _counted(count: str, rate: str) -> Text:
    return Text(f"{count:<11}").append(rate, style="bold")


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}/s"
