"""Recorder of training: it never blocks and never raises because of a sink."""

# Theory of operation
#
# For: training that is measured without waiting for whoever stores the measurements. The recorder knows records and the
# interface of sinks. It does not know what a record means.
#
# Each sink has a lane: a bounded queue and a thread. One thread for all of them would be less, and a sink that hangs
# would take the others with it: wandb's start takes up to 10 s and its `finish` waits for an upload, while the file
# beside it must have each record at once, since displays follow it.
#
# State: `record` gives a record its time and its environment steps, and puts it into every queue; any thread may call
# it. After that, the lanes share nothing. A lane's numbers are guarded by the lock of its condition; the sink itself is
# touched by the lane's thread alone, and never with the lock held, because its call may last for seconds.
#
# A lane, by what it finds:
#
# - a record: write it. After an exception, wait 1 s, 2 s, ... up to a minute and write it again, `attempts` times in
#   all. A disk may become free, a network come back. Then the record is given up and counted.
# - an empty queue after a record: flush, once for a burst of records instead of once for each.
# - a request to flush: the number of requests is compared, so that three requests are served by one flush.
# - `close`: what is queued is still written; pauses end at once. A sink that does not return is left in its thread,
#   which is a daemon's, so that the process can end without it.
#
# A full queue drops its oldest record: the latest ones say how the run does now. In numbers: at ten records a second,
# 4,096 of them are seven minutes of a sink that hangs.
#
# What is lost is counted and shown (`dropped`); failures are logged once, then at 10, 100 and every 1,000 in a row,
# since a full disk fails with each record for hours.

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tmrl_core.metrics.branch import position_in
from tmrl_core.metrics.records import Kind, MetricRecord, record
from tmrl_core.metrics.sinks import JsonLinesSink, MetricSink

logger = logging.getLogger(__name__)


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one sink.

    Attributes:
        name: the sink's name.
        written: number of records written.
        waiting: number of records in its queue.
        dropped: number of records dropped: the oldest ones of a full queue, and those left at a close.
        failed: number of records given up after the maximum number of attempts.
        error: text of the latest failure; "" once the sink works again.
    """

    name: str
    written: int
    waiting: int
    dropped: int
    failed: int
    error: str


class Recorder:
    """Pass records to sinks, each in its own thread behind a bounded queue.

    A slow sink fills its queue and then loses the oldest records, which are counted. A sink that raises gets the same
    record again, up to `attempts` times with growing pauses (space may be freed on a full disk). The failure is logged
    the first time, and again after 10, 100 and 1000 consecutive failures. Training and the other sinks are not
    affected.

    Args:
        sinks: the sinks, which the recorder owns and closes. Sinks that share state must guard it.
        queue_records: maximum number of records that wait for one sink.
        attempts: number of attempts to write a record.
        pause_s: seconds after a first failure; doubles up to `longest_pause_s` with each further one.
        longest_pause_s: see `pause_s`.
        elapsed_s: duration of the run before this process (after a resume).
        env_steps: environment steps of the run before this process.
        clock: monotonic seconds, for the elapsed time.
        wall_clock: seconds since 1970, for the time of a record.
    """

    def __init__(
        self,
        sinks: Iterable[MetricSink],
        *,
        queue_records: int = 4096,
        attempts: int = 3,
        pause_s: float = 1.0,
        longest_pause_s: float = 60.0,
        elapsed_s: float = 0.0,
        env_steps: int = 0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if queue_records < 1 or attempts < 1:
            raise ValueError(f"queue_records and attempts must be at least 1, got {queue_records} and {attempts}")
        self._clock = clock
        self._wall_clock = wall_clock
        # Monotonic: with the wall clock, NTP or a suspended machine moved the elapsed time by hours.
        self._started_s = clock() - elapsed_s
        self._env_steps = env_steps
        self._closed = False
        self._closed_in_time = False
        self._lanes = [
            _Lane(sink, queue_records, attempts=attempts, pause_s=pause_s, longest_pause_s=longest_pause_s)
            for sink in sinks
        ]

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the run began, over resumes, for a checkpoint."""
        return self._clock() - self._started_s

    @property
    def states(self) -> list[SinkState]:
        """Return the state of each sink, in the order of `sinks`."""
        return [lane.state for lane in self._lanes]

    @property
    def dropped(self) -> int:
        """Number of records that some sink did not get: dropped from a queue, or given up."""
        return sum(state.dropped + state.failed for state in self.states)

    def record(self, kind: Kind, values: Mapping[str, Any], *, step: int) -> MetricRecord:
        """Create a record with the present time, write it and return it.

        The default of its environment steps is the latest count.

        Args:
            kind: subject of the record.
            values: values by name; see `names.VOCABULARY`.
            step: number of updates so far.
        """
        made = record(kind, values, step=step, elapsed_s=self.elapsed_s, time_s=self._wall_clock())
        # Each record has all three axes, so that a sink can draw it over any of them.
        if made.env_steps is None:
            made = msgspec.structs.replace(made, env_steps=self._env_steps)
        self._env_steps = made.env_steps or 0
        self.write(made)
        return made

    def event(self, event: str, message: str = "", *, step: int, **values: Any) -> MetricRecord:
        """Write an `event` record: its name, a message, and further values."""
        named: dict[str, Any] = {"event": event}
        if message:
            named["message"] = message
        return self.record("event", {**named, **values}, step=step)

    def write(self, record: MetricRecord, *, in_file: bool = False) -> None:
        """Add a record to every sink's queue. Safe from any thread; never blocks. After `close`, do nothing.

        Args:
            record: the record.
            in_file: True: `metrics.jsonl` has it already.
        """
        if not self._closed:
            for lane in self._lanes:
                if not (in_file and isinstance(lane.sink, JsonLinesSink)):
                    lane.put(record)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until every sink has written and flushed the earlier records; return False after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        marks = [(lane, lane.ask_flush()) for lane in self._lanes]
        late = [lane for lane, mark in marks if not lane.wait_flushed(mark, deadline - time.monotonic())]
        return not late

    def position(self, timeout_s: float = 1.0) -> tuple[int, int] | None:
        """Return the position after the earlier records in `metrics.jsonl`, for a checkpoint (`branch.position_in`).

        After `timeout_s` seconds, return the position after the records that are written by then. None: there is no
        such file.
        """
        for lane in self._lanes:
            if isinstance(lane.sink, JsonLinesSink):
                lane.wait_flushed(lane.ask_flush(), timeout_s)
                # Late or not: behind an early position, a resume moves a few records more, and loses none.
                return position_in(lane.sink.path)
        return None

    def close(self, timeout_s: float = 20.0) -> bool:
        """Make every sink write the queued records, flush and close. Further calls do nothing.

        Args:
            timeout_s: seconds for all sinks together. A sink that hangs longer is abandoned in its daemon thread, and a
                warning names it.

        Returns:
            True if all sinks were closed in time.
        """
        if self._closed:
            return self._closed_in_time
        self._closed = True
        deadline = time.monotonic() + timeout_s
        # All are asked before the first is waited for: they close side by side, within one deadline.
        for lane in self._lanes:
            lane.ask_close()
        late = [lane for lane in self._lanes if not lane.join(deadline - time.monotonic())]
        self._closed_in_time = not late
        return self._closed_in_time

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Lane:
    """One sink, its queue and its thread.

    `_wake`'s lock guards every attribute below it; only the thread uses the sink.
    """

    def __init__(self, sink: MetricSink, limit: int, *, attempts: int, pause_s: float, longest_pause_s: float) -> None:
        self.sink = sink
        self._limit = limit
        self._attempts = attempts
        self._pause_s = pause_s
        self._longest_pause_s = longest_pause_s
        self._wake = threading.Condition()
        self._queue: deque[MetricRecord] = deque()
        self._flushes_asked = 0
        self._flushes_done = 0
        self._closing = False
        self._ended = False
        self._written = 0
        self._dropped = 0
        self._failed = 0
        self._failures_in_a_row = 0
        self._error = ""
        self._thread = threading.Thread(target=self._run, name=f"metrics-{sink.name}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> SinkState:
        with self._wake:
            return SinkState(
                name=self.sink.name,
                written=self._written,
                waiting=len(self._queue),
                dropped=self._dropped,
                failed=self._failed,
                error=self._error,
            )

    def put(self, record: MetricRecord) -> None:
        with self._wake:
            if self._closing:
                return
            if len(self._queue) >= self._limit:
                self._queue.popleft()
                self._dropped += 1
            self._queue.append(record)
            self._wake.notify_all()

    def ask_flush(self) -> int:
        with self._wake:
            self._flushes_asked += 1
            self._wake.notify_all()
            return self._flushes_asked

    def wait_flushed(self, mark: int, timeout_s: float) -> bool:
        with self._wake:
            return self._wake.wait_for(lambda: self._flushes_done >= mark or self._ended, max(0.0, timeout_s))

    def ask_close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(max(0.0, timeout_s))
        if not self._thread.is_alive():
            return True
        with self._wake:
            left = len(self._queue)
            self._dropped += left
            self._queue.clear()
        logger.warning("metric sink %s did not finish in time; it is left behind with %d records", self.sink.name, left)
        return False

    def _run(self) -> None:
        unflushed = False
        while True:
            with self._wake:
                while not (self._queue or self._closing or self._flushes_asked > self._flushes_done):
                    self._wake.wait()
                record = self._queue.popleft() if self._queue else None
                asked = self._flushes_asked
                closing = self._closing
            if record is not None:
                self._deliver(record)
                unflushed = True
                with self._wake:
                    more = bool(self._queue)
                if more:
                    continue
            # Taken before the write: a flush that is asked for during it waits for the next turn.
            if unflushed:
                self._try("flush", self.sink.flush)
                unflushed = False
            with self._wake:
                # Also after a flush that failed: whoever waits for it shall not wait for a sink that is broken.
                self._flushes_done = max(self._flushes_done, asked)
                self._wake.notify_all()
            if closing and record is None:
                self._try("close", self.sink.close)
                with self._wake:
                    self._ended = True
                    self._wake.notify_all()
                return

    def _deliver(self, record: MetricRecord) -> None:
        for _ in range(self._attempts):
            if self._try("write", self.sink.write, record):
                with self._wake:
                    self._written += 1
                return
            self._pause()
        with self._wake:
            self._failed += 1

    def _try(self, what: str, call: Callable[..., None], *arguments: MetricRecord) -> bool:
        try:
            call(*arguments)
        except Exception as error:
            with self._wake:
                self._failures_in_a_row += 1
                failures = self._failures_in_a_row
                self._error = f"{type(error).__name__}: {error}"
            if failures in (1, 10, 100) or failures % 1000 == 0:
                logger.warning(
                    "metric sink %s failed to %s (%d in a row): %s: %s; training continues",
                    self.sink.name,
                    what,
                    failures,
                    type(error).__name__,
                    error,
                )
            return False
        # A flush that works says nothing of writes, so it does not end their count.
        if what == "write":
            with self._wake:
                self._failures_in_a_row = 0
                self._error = ""
        return True

    def _pause(self) -> None:
        """Wait after a failure, longer each time. There is no wait while closing, and a close ends it."""
        with self._wake:
            pause_s = min(self._longest_pause_s, self._pause_s * 2.0 ** min(30, self._failures_in_a_row - 1))
            self._wake.wait_for(lambda: self._closing, pause_s)
