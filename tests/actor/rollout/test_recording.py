from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord
from tmrl_core.sessions import SessionWriter, read_sessions

SPACES = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32)


def episode(recorder: StepRecorder, steps: int = 5) -> tuple[list[Chunk], list[EpisodeRecord]]:
    recorder.begin(np.zeros(3, np.float32), {})
    for step in range(1, steps + 1):
        recorder.step(np.zeros(1, np.float32), np.full(3, step, np.float32), 1.0, step == steps, False, {})
    return recorder.take()


@pytest.fixture
def recorder() -> StepRecorder:
    return StepRecorder(Buffer(), name="robot")


def test_what_is_put_is_in_the_folder_after_close(tmp_path: Path, recorder: StepRecorder) -> None:
    recording = Recording(SessionWriter(tmp_path, *SPACES))
    for steps in (3, 5, 7):
        recording.put(*episode(recorder, steps))
    recording.close()
    recording.close()
    assert [(len(session), session.source) for session in read_sessions(tmp_path)] == [
        (3, "robot"),
        (5, "robot"),
        (7, "robot"),
    ]
    assert recording.left_out == 0


def test_a_full_folder_is_told_once_and_stops_nothing(
    tmp_path: Path, recorder: StepRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording(SessionWriter(tmp_path, *SPACES, max_bytes=1000))
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            recording.put(*episode(recorder))
        recording.close()
    told = [message for message in caplog.messages if "the worker goes on without" in message]
    assert "has reached its maximum size of 1000 bytes" in told[0]
    # Some later hand-overs may fit the rest, if the first one that did not was a little larger.
    assert len(told) <= 1 + sum("are recorded again" in message for message in caplog.messages) <= 5
    found = len(list(read_sessions(tmp_path)))
    assert 1 <= found < 1000
    assert recording.left_out == 6 * (1000 - found)


def test_a_removed_folder_is_told_once_and_stops_nothing(
    tmp_path: Path, recorder: StepRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    class Told(SessionWriter):
        """Says when it has written."""

        written = threading.Event()

        def append(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord] = ()) -> None:
            super().append(chunks, records)
            self.written.set()

    recording = Recording(Told(tmp_path / "a", *SPACES))
    recording.put(*episode(recorder))
    assert Told.written.wait(10)
    shutil.rmtree(tmp_path / "a")
    for _ in range(5):
        recording.put(*episode(recorder))
    recording.close()
    assert [("was removed" in message, "Restart the worker" in message) for message in caplog.messages] == [
        (True, True)
    ]
    assert recording.left_out == 30


def test_a_defect_leaves_samples_out_and_later_ones_are_recorded(
    tmp_path: Path, recorder: StepRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SessionWriter):
        """Fails once."""

        failed = threading.Event()

        def append(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord] = ()) -> None:
            if not self.failed.is_set():
                self.failed.set()
                raise RuntimeError("a defect")
            super().append(chunks, records)

    recording = Recording(Broken(tmp_path, *SPACES))
    recording.put(*episode(recorder))
    assert Broken.failed.wait(10)
    recording.put(*episode(recorder))
    recording.close()
    assert recording.left_out == 6
    assert len(list(read_sessions(tmp_path))) == 1
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]
    assert "please report it" in caplog.messages[1]


def test_a_slow_disk_delays_no_step(tmp_path: Path, recorder: StepRecorder, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(SessionWriter):
        """Writes when it is told to."""

        go = threading.Event()

        def append(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord] = ()) -> None:
            assert self.go.wait(10)
            super().append(chunks, records)

    handed: list[Any] = [episode(recorder) for _ in range(10)]
    recording = Recording(Slow(tmp_path, *SPACES), queue_bytes=4 * handed[0][0][0].nbytes)
    for one in handed:
        recording.put(*one)
    assert recording.left_out == 6 * 6
    Slow.go.set()
    recording.close()
    assert len(list(read_sessions(tmp_path))) == 4
    assert "too slow" in caplog.messages[0]
    assert "recorded again; 36 samples are missing" in caplog.messages[1]
    assert len(caplog.messages) == 2


def test_hand_overs_that_wait_become_few_records(tmp_path: Path, recorder: StepRecorder) -> None:
    class Slow(SessionWriter):
        """Writes when it is told to, and counts."""

        go = threading.Event()
        calls = 0

        def append(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord] = ()) -> None:
            assert self.go.wait(10)
            self.calls += 1
            super().append(chunks, records)

    writer = Slow(tmp_path, *SPACES)
    recording = Recording(writer)
    recorder.begin(np.zeros(3, np.float32), {})
    for step in range(1, 1001):
        recorder.step(np.zeros(1, np.float32), np.full(3, step, np.float32), 1.0, step % 300 == 0, False, {})
        if step % 300 == 0:
            recorder.begin(np.zeros(3, np.float32), {})
        if step == 600:
            recorder.end()
            recording.put(*recorder.take())
            recording.put([], [])
            recorder.begin(np.zeros(3, np.float64), {})  # another structure
            recorder.end()
            recorder.begin(np.zeros(3, np.float32), {})
        recording.put(*recorder.take())
    Slow.go.set()
    recording.close()
    assert writer.calls < 20
    assert [(len(session), session.terminated) for session in read_sessions(tmp_path)] == [
        (300, True),
        (300, True),
        (300, True),
        (100, False),
    ]
    assert recording.left_out == 0
