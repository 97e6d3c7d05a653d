"""Latest values of a run's records, for people that look at it from afar."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from tmrl_core.metrics import names
from tmrl_core.metrics.curves import MOST_POINTS, Curves, Point
from tmrl_core.metrics.reading import records_of
from tmrl_core.metrics.records import MetricRecord
from tmrl_core.metrics.sinks import MetricSink
from tmrl_core.metrics.text import number_text
from tmrl_core.storage import open_now

KEPT = 20
"""Number of the latest events, checkpoints and evaluations that are kept."""
MOST_VALUES = 96
"""Maximum number of metrics whose latest values are kept; those that were written longest ago go first."""
MOST_CHARACTERS = 200
"""Maximum length of an event's text."""
_BLOCK_BYTES = 1 << 20
_UNSHOWN_EVENTS = (names.EVENT_CHECKPOINT, names.EVENT_PHASE)
"""Events that are shown otherwise."""


class Event(NamedTuple):
    """An event: seconds since 1970, its name, and a text."""

    time_s: float
    name: str
    message: str


class Checkpoint(NamedTuple):
    """A checkpoint: seconds since 1970, updates, and the name of its folder (empty: unknown)."""

    time_s: float
    updates: int
    name: str


class Evaluated(NamedTuple):
    """An evaluated policy: its version as text, seconds since 1970, and its mean return; None: not finite."""

    version: str
    time_s: float
    mean_return: float | None


class Latest(NamedTuple):
    """State of a run's records."""

    values: dict[str, float]
    events: tuple[Event, ...]
    checkpoints: tuple[Checkpoint, ...]
    policies: tuple[Evaluated, ...]
    target_return: float | None
    phase: str
    """Value of the latest phase event; empty: none yet."""


class LatestSink(MetricSink):
    """Sink that keeps the latest values of a run's records, and its curves, in constant memory.

    Other threads may read it at any time.

    Args:
        path: `metrics.jsonl` of the run; what it holds now is taken in at the first record, in the sink's thread, so
            that a resumed run shows its whole curves. None: there is no earlier part.
    """

    def __init__(self, path: Path | None = None) -> None:
        # Its size is taken now, because the file grows with the records that this sink gets too.
        self._earlier = (path, _size(path)) if path is not None else None
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._checkpoints: deque[Checkpoint] = deque(maxlen=KEPT)
        self._policies: deque[Evaluated] = deque(maxlen=KEPT)
        self._target: float | None = None
        self._phase = ""
        self._curves = Curves()
        self._closed = False

    @property
    def name(self) -> str:
        """Name of this sink in messages."""
        return "live page"

    def write(self, record: MetricRecord) -> None:
        """Take the record in."""
        if self._closed:
            raise ValueError("the sink is closed")
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self._read(*earlier)
        with self._lock:
            self._take(record)

    def _read(self, path: Path, size: int) -> None:
        try:
            with open(path, "rb", opener=open_now) as file:
                rest = b""
                while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
                    size -= len(block)
                    lines, newline, rest = (rest + block).rpartition(b"\n")
                    records = records_of(lines) if newline else []
                    with self._lock:
                        for record in records:
                            self._take(record)
        except OSError:  # curves that begin late are worth more than none
            return

    def _take(self, record: MetricRecord) -> None:
        self._curves.add(record)
        if (target := record.number(names.RETURN_TARGET)) is not None:
            self._target = target
        if record.kind == "event":
            self._take_event(record)
            return
        if record.kind == "evaluation":
            version = record.text(names.VERSION)
            self._policies.append(Evaluated(version, record.time_s, record.number(names.RETURN_EVALUATION)))
        values = self._values
        for name in record.values:
            # Values of single workers are shown with the workers. Those of single episodes have means.
            if "/" not in name or (name.startswith("worker/") and name.count("/") > 1):
                continue
            value = record.number(name)
            values.pop(name, None)
            if value is not None:
                values[name] = value
        while len(values) > MOST_VALUES:
            del values[next(iter(values))]

    def _take_event(self, record: MetricRecord) -> None:
        event, message = record.text(names.EVENT), record.text(names.MESSAGE)
        if event == names.EVENT_PHASE:
            self._phase = record.text(names.PHASE)
        elif event == names.EVENT_CHECKPOINT:
            self._checkpoints.append(Checkpoint(record.time_s, record.step, record.text(names.CHECKPOINT)))
        if event == names.EVENT_END:
            self._phase = "done"
        elif event == names.EVENT_START:
            self._phase = ""
        if event not in _UNSHOWN_EVENTS:
            text = message or ", ".join(
                f"{name} {number_text(value)}" for name, value in record.values.items() if name != names.EVENT
            )
            self._events.append(Event(record.time_s, event, text[:MOST_CHARACTERS]))

    def latest(self) -> Latest:
        """Return the latest values."""
        with self._lock:
            return Latest(
                dict(self._values),
                tuple(self._events),
                tuple(self._checkpoints),
                tuple(self._policies),
                self._target,
                self._phase,
            )

    def curves(self, most: int = MOST_POINTS) -> dict[str, list[Point]]:
        """Return at most `most` points of each curve, by the names of the metrics."""
        with self._lock:
            return self._curves.points(most)

    def flush(self) -> None:
        """Do nothing: no record waits."""

    def close(self) -> None:
        """Accept no more records; what is kept stays readable."""
        self._closed = True


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
