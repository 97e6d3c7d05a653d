"""Waits of a rank for the others."""

from __future__ import annotations

import datetime

import pytest
import torch.distributed as dist

from tmrl_core.ranks.process_group import ended

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
