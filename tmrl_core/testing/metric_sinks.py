"""Conformance suite for metric sinks, as tests for pytest to collect; apply it to custom sinks.

class TestMySink(SinkSuite):
    def make_sink(self, folder):
        return MySink(folder / "my.csv")

    def read_back(self, folder):    # optional
        return [...]
"""

from __future__ import annotations

import copy
import math
from pathlib import Path

from tmrl_core.metrics import names
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.records import Kind, MetricRecord, Value
from tmrl_core.metrics.sinks import MetricSink

_KINDS: tuple[Kind, ...] = ("event", "network", "episode", "round", "evaluation")

Written = tuple[int, dict[str, float]]
"""Environment steps and the metrics by name: the part of a record that a sink must store."""


class SinkSuite:
    """Base class of a sink's tests, which creates the sink; pytest passes each test an empty folder, `tmp_path`."""

    def make_sink(self, folder: Path) -> MetricSink:
        """Create the sink; its files belong into this folder."""
        raise NotImplementedError("a suite says how its sink is made")

    def read_back(self, folder: Path) -> list[Written] | None:
        """Return the stored records, in order; None: this sink's output cannot be read back."""
        return None

    def keeps(self, record: MetricRecord) -> bool:
        """Return whether the sink stores a record of this kind with these values."""
        return True

    def test_takes_records_of_every_kind(self, tmp_path: Path) -> None:
        """Each kind is written, and its numbers can be read back."""
        records = [_record(kind, step=step) for step, kind in enumerate(_KINDS)]
        with self.make_sink(tmp_path) as sink:
            for record in records:
                sink.write(record)
        self._check_kept(tmp_path, records)

    def test_takes_every_kind_of_value(self, tmp_path: Path) -> None:
        """A sink accepts numbers that are not finite, labels, None and records without values."""
        awkward: dict[str, Value] = {
            "train/not_a_number": math.nan,
            "train/infinite": -math.inf,
            "none": None,
            "label": "näme \n with a break",
            "train/whole": 2**53,
            "wire/yes": True,
        }
        with self.make_sink(tmp_path) as sink:
            sink.write(_record("round", step=1, values=awkward))
            sink.write(_record("round", step=2, values={}))
            sink.write(_record("round", step=3, values={"only": "text"}))
            last = _record("round", step=4)
            sink.write(last)
        kept = self.read_back(tmp_path)
        if kept is not None and self.keeps(last):
            assert kept[-1] == _expected(last)

    def test_flushed_records_are_readable_before_the_close(self, tmp_path: Path) -> None:
        """A flush is enough for another process to see the records."""
        records = [_record("round", step=step) for step in range(3)]
        sink = self.make_sink(tmp_path)
        try:
            for record in records:
                sink.write(record)
            sink.flush()
            if self.reads_unclosed:
                self._check_kept(tmp_path, records)
        finally:
            sink.close()

    reads_unclosed = True
    """True: `read_back` works before the close."""

    def test_close_flushes_records(self, tmp_path: Path) -> None:
        """A close flushes written records."""
        record = _record("round", step=7)
        sink = self.make_sink(tmp_path)
        sink.write(record)
        sink.close()
        self._check_kept(tmp_path, [record])

    def test_a_second_close_does_nothing(self, tmp_path: Path) -> None:
        """Closing twice, and closing without a record, are fine."""
        sink = self.make_sink(tmp_path)
        sink.flush()
        sink.close()
        sink.close()

    def test_a_write_after_the_close_is_an_error(self, tmp_path: Path) -> None:
        """A closed sink raises ValueError instead of losing records silently."""
        sink = self.make_sink(tmp_path)
        sink.close()
        try:
            sink.write(_record("round", step=1))
        except ValueError:
            return
        raise AssertionError("a write after the close raised no ValueError")

    def test_a_record_is_left_as_it_was(self, tmp_path: Path) -> None:
        """A sink must not change a record, because other sinks get the same record."""
        record = _record("round", step=3)
        before = copy.deepcopy(record)
        with self.make_sink(tmp_path) as sink:
            sink.write(record)
        assert record == before

    def test_a_second_sink_continues_after_the_first(self, tmp_path: Path) -> None:
        """A resumed run loses no earlier records."""
        first, second = _record("round", step=1), _record("round", step=2)
        with self.make_sink(tmp_path) as sink:
            sink.write(first)
        with self.make_sink(tmp_path) as sink:
            sink.write(second)
        self._check_kept(tmp_path, [first, second])

    def test_a_recorder_gets_everything_through(self, tmp_path: Path) -> None:
        """A sink in a recorder's thread writes many records and closes in time."""
        records = [_record("round", step=step) for step in range(200)]
        sink = self.make_sink(tmp_path)
        recorder = Recorder([sink])
        for record in records:
            recorder.write(record)
        assert recorder.close(timeout_s=60.0)
        (state,) = recorder.states
        assert (state.written, state.dropped, state.failed, state.error) == (200, 0, 0, "")
        self._check_kept(tmp_path, records)

    def _check_kept(self, folder: Path, records: list[MetricRecord]) -> None:
        kept = self.read_back(folder)
        if kept is not None:
            assert kept == [_expected(record) for record in records if self.keeps(record)]


def _record(kind: Kind, *, step: int, values: dict[str, Value] | None = None) -> MetricRecord:
    # Halves and quarters are exact in the 32 bits that some sinks store for a number.
    own: dict[str, Value] = {names.UPDATES: 2 * step, names.RETURN_TRAIN: -1.25 * step, "worker": "robot7"}
    return MetricRecord(
        time_s=1_700_000_000.0 + step,
        elapsed_s=float(step),
        step=2 * step,
        env_steps=step,
        kind=kind,
        values=own if values is None else values,
    )


def _expected(record: MetricRecord) -> Written:
    return record.env_steps or 0, record.numbers()
