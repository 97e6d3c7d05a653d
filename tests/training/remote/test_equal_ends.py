from __future__ import annotations

import logging
from typing import Any

import pytest

from tmrl_core.samples import EpisodeRecord
from tmrl_core.training.remote.equal_ends import EPISODES, EqualEnds


def ended(length: int = 400, end: Any = "terminated", agent: str = "") -> EpisodeRecord:
    return EpisodeRecord(agent, 1.0, length, "train", end)


def said(caplog: pytest.LogCaptureFixture, *records: EpisodeRecord) -> list[str]:
    ends = EqualEnds()
    with caplog.at_level(logging.WARNING):
        for record in records:
            ends.take(record)
    return [record.getMessage() for record in caplog.records]


def test_ends_at_one_length_are_said_once_with_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    (text,) = said(caplog, *[ended()] * EPISODES * 3)
    assert "after exactly 400 steps" in text
    assert "environment.time_limit: 400" in text


def test_episodes_that_the_worker_ended_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    assert len(said(caplog, ended(7, "aborted"), *[ended()] * (EPISODES - 1), ended(9, "aborted"), ended())) == 1


@pytest.mark.parametrize(
    "records",
    [
        [ended()] * (EPISODES - 1),
        [ended(399), *[ended()] * EPISODES],
        [*[ended()] * (EPISODES - 1), ended(399), *[ended()] * EPISODES],
        [ended(400, "truncated"), *[ended()] * EPISODES],
        [ended(1)] * EPISODES * 2,
        [ended(agent="north")] * EPISODES,
    ],
)
def test_other_ends_say_nothing(records: list[EpisodeRecord], caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, *records) == []
