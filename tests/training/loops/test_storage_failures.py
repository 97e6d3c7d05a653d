"""What is said of a disk that does not take samples."""

from __future__ import annotations

import logging

import pytest

from tmrl_core.errors import StorageError
from tmrl_core.training.loops.storage_failures import LOG_INTERVAL_S, Unwritten


def test_a_storage_failure_is_logged_at_intervals_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now = [100.0]
    unwritten = Unwritten(lambda: now[0])
    unwritten.over()
    assert unwritten.why == ""
    for wait, lines in ((0.0, 1), (LOG_INTERVAL_S - 1.0, 1), (1.0, 2)):
        now[0] += wait
        unwritten.note(StorageError("the disk is full."))
        assert [record.levelname for record in caplog.records] == ["ERROR"] * lines
    assert unwritten.why == "the disk is full."
    assert caplog.messages[0].startswith("samples cannot be stored: the disk is full. They are not acknowledged")
    unwritten.over()
    unwritten.over()
    assert unwritten.why == ""
    assert caplog.messages[2:] == ["the replay memory can be written again"]
