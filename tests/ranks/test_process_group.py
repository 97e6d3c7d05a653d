"""Waits of a rank for the others."""

from __future__ import annotations

import datetime
import threading

import pytest
import torch.distributed as dist

from tmrl_core.ranks import process_group
from tmrl_core.ranks.process_group import StoppedWhileFormingError, ended, in_time

LIMIT = datetime.timedelta(seconds=0.5)


class Call(dist.Work):
    """A collective call that is slower than a limit, and ends before anybody looks again.

    Args:
        completed: it has ended when it is looked at.
        failure: with this error.
    """

    def __init__(self, completed: bool, failure: str = "") -> None:
        super().__init__()
        self._completed, self._failure = completed, failure

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        if timeout is not None:
            raise RuntimeError("Operation timed out!")
        if self._failure:
            raise RuntimeError(self._failure)
        return True

    def is_completed(self) -> bool:
        return self._completed


def test_a_call_that_ends_just_after_a_limit_is_no_failure() -> None:
    assert ended(Call(completed=True), LIMIT)
    assert not ended(Call(completed=False), LIMIT)


def test_the_error_of_a_call_is_raised() -> None:
    with pytest.raises(RuntimeError, match="Connection timed out"):
        ended(Call(completed=True, failure="Connection timed out"), LIMIT)


def test_a_group_that_does_not_form_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "SLICE_S", 0.01)
    with pytest.raises(TimeoutError, match="not all of them have come"):
        in_time(threading.Event().wait, 0.02, lambda: False)


def test_a_request_to_end_leaves_the_others_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "SLICE_S", 0.01)
    asked = threading.Event()

    def stopping() -> bool:
        asked.set()
        return True

    assert in_time(lambda: asked.wait(60), 60, stopping)  # they come after it
    monkeypatch.setattr(process_group, "STOP_S", 0.02)
    with pytest.raises(StoppedWhileFormingError):
        in_time(threading.Event().wait, 60, lambda: True)


def test_the_reason_why_no_group_forms_is_raised() -> None:
    def refused() -> None:
        raise RuntimeError("connection refused")

    with pytest.raises(RuntimeError, match="connection refused"):
        in_time(refused, 60.0, lambda: False)
