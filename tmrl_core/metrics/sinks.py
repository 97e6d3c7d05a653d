"""Interface of metric sinks, and the sinks that need no extra packages."""

from __future__ import annotations

import abc
import io
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tmrl_core.metrics import names
from tmrl_core.metrics.records import MetricRecord, encode_line
from tmrl_core.metrics.text import clock_text, number_text, return_text
from tmrl_core.storage import open_own

logger = logging.getLogger(__name__)

_Sink = TypeVar("_Sink", bound="MetricSink")


class MetricSink(abc.ABC):
    """Destination of records.

    A sink is a plain, blocking object that one thread uses at a time. `Recorder` gives each sink a thread and a bounded
    queue, so that a slow or failing one stops neither training nor the other sinks. `SinkSuite` is the
    conformance suite for sinks.
    """

    @property
    def name(self) -> str:
        """Name of this sink in messages."""
        return type(self).__name__

    @abc.abstractmethod
    def write(self, record: MetricRecord) -> None:
        """Write one record. May block. Records come in the order of their times.

        Raises:
            Exception: any exception: the record was not written, and the write can be repeated.
            ValueError: the sink is closed.
        """

    @abc.abstractmethod
    def flush(self) -> None:
        """Pass written records to the operating system or another store: other processes see them afterwards.

        Raises:
            Exception: any exception: the records may or may not be stored, and later writes are possible.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Flush and release everything; further calls do nothing.

        Raises:
            Exception: any exception: the sink is closed nevertheless.
        """

    def __enter__(self: _Sink) -> _Sink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class MemorySink(MetricSink):
    """Sink that stores the latest records in memory, for tests, notebooks and scripts.

    Args:
        limit: maximum number of records; the oldest are dropped.
    """

    def __init__(self, limit: int = 100_000) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.limit = limit
        self.records: list[MetricRecord] = []
        self.closed = False

    def write(self, record: MetricRecord) -> None:
        """Store the record."""
        if self.closed:
            raise ValueError("the sink is closed")
        self.records.append(record)
        del self.records[: -self.limit]

    def flush(self) -> None:
        """Do nothing: no record waits."""

    def close(self) -> None:
        """Accept no more records; stored ones stay readable."""
        self.closed = True


class JsonLinesSink(MetricSink):
    """Sink that appends each record to a file as one line of JSON.

    Each line is passed to the operating system in one write. A killed process therefore loses no line; at worst, the
    last line is incomplete (`reading.py` skips it). An existing file is continued. If somebody renames or removes it
    meanwhile, as tools that rotate logs do, the next line begins a new file.

    Args:
        path: the file; its folder is created if it is missing.
        fsync: True: also wait for the disk at `flush` and `close`, so that records survive the end of the machine.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self._file = self._open()

    def _open(self) -> io.FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: the result of a failed write is known, and a later flush does not repeat it.
        file = open(self.path, "ab", buffering=0, opener=open_own)  # noqa: SIM115
        self._about = os.stat(self.path)  # not of the descriptor: Windows may number that one otherwise
        self._torn = _ends_within_a_line(self.path)
        return file

    def _is_named(self) -> bool:
        """Return True if the file still has its name. A tool may compress and remove the one that it has renamed."""
        try:
            return os.path.samestat(os.stat(self.path), self._about)
        except FileNotFoundError:
            return False

    def write(self, record: MetricRecord) -> None:
        """Append one line.

        After an OSError (a full disk), a part of the line may remain; the next line starts after it.
        """
        if self._file.closed:
            raise ValueError("the sink is closed")
        if not self._is_named():
            renamed, self._file = self._file, self._open()
            renamed.close()
        line = encode_line(record)
        # What an earlier write has left becomes a line of its own, which readers skip; else it would spoil this one.
        if self._torn:
            line = b"\n" + line
        left = memoryview(line)
        while left:
            written = self._file.write(left)
            if written:
                left = left[written:]
                self._torn = bool(left)

    def flush(self) -> None:
        """Wait for the disk if `fsync` is set; the operating system has each line already."""
        if self.fsync and not self._file.closed:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        try:
            file.seek(-1, os.SEEK_END)
        except OSError:  # a device or a pipe has no end to read
            return False
        return file.read(1) not in (b"", b"\n")


class ConsoleSink(MetricSink):
    """Sink that logs each round's row, evaluations and events at level INFO, for scripts without another display.

    Args:
        log: writes one text; None: this package's logger, which `show_messages` (in `console.py`) makes visible if the
            application has not set up logging.
    """

    def __init__(self, log: Callable[[str], None] | None = None) -> None:
        self._log = log if log is not None else _log_info
        self._closed = False

    def write(self, record: MetricRecord) -> None:
        """Log the record, unless its kind is too frequent to read."""
        if self._closed:
            raise ValueError("the sink is closed")
        if record.kind in ("round", "evaluation", "event"):
            # Without a terminal, lines have a fixed length limit, or that of COLUMNS.
            self._log(describe(record, shutil.get_terminal_size((120, 24)).columns))

    def flush(self) -> None:
        """Do nothing: no record waits."""

    def close(self) -> None:
        """Accept no more records."""
        self._closed = True


def _log_info(text: str) -> None:
    logger.info("%s", text)


_SHOWN_FIRST = (
    names.RETURN_TEST,
    names.RETURN_TRAIN,
    names.RETURN_MEAN,
    "rollout/success_rate",
    "rollout/intervention_rate",
    names.MEMORY_LEN,
    names.SAMPLES_PER_S,
    names.UPDATES_PER_S,
    names.IDLE_TIME,
    names.LOSS_ACTOR,
    names.LOSS_CRITIC,
    names.POLICY_LAG_MEAN,
    names.ENTROPY_COEF,
    names.EPISODE_LENGTH_MEAN,
    names.ROUND_TIME,
)
"""Metrics of a round in display order. As many as fit are shown; other metrics follow."""
_TROUBLES = ("train/updates_skipped", names.SAMPLES_STALE, names.REDISTRIBUTED)
"""Metrics shown first if they are not 0."""
# In the heading already, or of use to programs only.
_UNSHOWN = (names.EPOCH, names.ROUND, names.UPDATES)
_LINES = 3
"""Maximum number of lines of a round below its heading."""


def describe(record: MetricRecord, width: int = 120) -> str:
    """Return a record as readable text: one line, and for a round a few more with its most important values.

    Args:
        width: columns of the terminal.
    """
    values = record.values
    when = f"{clock_text(record.elapsed_s)}, {record.step:,} updates"
    if record.kind == "event":
        event, message = record.text(names.EVENT) or "event", record.text(names.MESSAGE)
        if message and event in (names.EVENT_WORKER_JOINED, names.EVENT_WORKER_LEFT):
            return f"{message} ({when})"  # the label that names the event
        text = message or ", ".join(
            number_text(value) if name == event else f"{_LABELS.get(name, names.short(name))} {number_text(value)}"
            for name, value in values.items()
            if name != names.EVENT
        )
        return f"{event}: {text} ({when})"
    if record.kind == "evaluation":
        target = record.number(names.RETURN_TARGET)
        number = record.text(names.EVALUATION)
        text = (
            f"evaluation {number}".rstrip()
            + f": mean return {return_text(record.number(names.RETURN_EVALUATION), target)}"
        )
        if (spread := record.number(names.RETURN_EVALUATION_STD)) is not None:
            text += f" ± {return_text(spread)}"
        if (episodes := record.number(names.EPISODES)) is not None:
            text += f" over {episodes:.0f} episodes"
        if target is not None:
            text += f", target {return_text(target)}"
        return f"{text} ({when})"
    heading: str = record.kind
    if names.ROUND in values:
        heading = f"round {number_text(values[names.ROUND])}"
        if names.EPOCH in values:
            heading = f"epoch {number_text(values[names.EPOCH])}, {heading}"
    return "\n".join([f"{heading} ({when})", *_packed(_cells(record), width - _INDENT)])


_LABELS = {names.RUN_NAME: "run", names.RETURN_TARGET: "target"}
"""Words for an event's values on the console, where the name itself says too little."""

_INDENT = 6
"""Indentation of further lines of a message: two here, four by the command line's log."""


def _cells(record: MetricRecord) -> Iterator[str]:
    values = record.values
    first = [name for name in (*_TROUBLES, *_SHOWN_FIRST) if name in values and (name not in _TROUBLES or values[name])]
    rest = [name for name in values if name not in (*first, *_TROUBLES, *_UNSHOWN)]
    for name in (*first, *rest):
        yield f"{names.short(name)} {_text(name, record):>6}"


def _packed(cells: Iterable[str], width: int) -> list[str]:
    """Return as many cells, in order, as fit into a few lines of this width."""
    lines: list[str] = []
    for cell in cells:
        if lines and len(lines[-1]) + 3 + len(cell) <= width + 2:
            lines[-1] += f"   {cell}"
        elif len(lines) < _LINES:
            lines.append(f"  {cell}")
        else:
            break
    return lines


def _text(name: str, record: MetricRecord) -> str:
    if names.short(name).startswith("return_") and (value := record.number(name)) is not None:
        return return_text(value)
    return number_text(record.values[name])
