"""Files of finished episodes: complete, bounded, and drawn."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tmrl_core.gateway.contracts import FinishedEpisode
from tmrl_core.gateway.episodes import HEADER, EpisodeFiles, curve_records, learning_curve
from tmrl_core.metrics.names import SAMPLES_PER_S


def episode(number: int, agent: str = "a") -> FinishedEpisode:
    return FinishedEpisode(
        ended_at=1000.0 + number,
        agent=agent,
        session_id=f"s{number % 2}",
        key_id="key-1",
        steps=10,
        episode_return=number / 3,
    )


def written(folder: Path, *episodes: FinishedEpisode, max_episodes: int = 1000) -> EpisodeFiles:
    files = EpisodeFiles(folder, max_episodes=max_episodes)
    for one in episodes:
        files.add(one)
    files.close()
    return files


def test_episodes_are_read_as_they_were_added(tmp_path: Path) -> None:
    episodes = [episode(number) for number in range(5)]
    files = written(tmp_path, *episodes, episode(9, agent="b"))
    assert files.read("a") == episodes
    assert files.read("b") == [episode(9, agent="b")]
    assert files.read("c") == []
    assert files.path("a").read_text().startswith(HEADER)


def test_a_second_gateway_appends(tmp_path: Path) -> None:
    written(tmp_path, episode(0))
    assert written(tmp_path, episode(1)).read("a") == [episode(0), episode(1)]


def test_a_row_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, episode(0), episode(1)).path("a")
    path.write_bytes(path.read_bytes()[:-30])
    assert written(tmp_path, episode(2)).read("a") == [episode(0), episode(2)]


def test_a_full_file_loses_its_oldest_quarter(tmp_path: Path) -> None:
    written(tmp_path, *map(episode, range(8)), max_episodes=8)
    files = written(tmp_path, episode(8), max_episodes=8)
    assert files.read("a") == [episode(number) for number in range(3, 9)]


def test_what_cannot_be_written_is_dropped_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").write_text("a file in place of the folder")
    with caplog.at_level(logging.WARNING):
        before = set(threading.enumerate())
        files = EpisodeFiles(tmp_path)
        for number in range(20):
            files.add(episode(number))
        files.add(episode(0, agent="b"))
        files.close()
    assert files.read("b") == [episode(0, agent="b")]
    assert "cannot be written" in caplog.records[0].getMessage()
    assert set(threading.enumerate()) <= before


def test_the_curve_has_no_jump_where_the_clock_was_set_back() -> None:
    earlier = [replace(episode(number), ended_at=float(number)) for number in range(100)]
    records = curve_records([*map(episode, range(100)), *earlier])
    elapsed = [record.elapsed_s for record in records if record.kind == "episode"]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] == 198.0
    rates = [record.values[SAMPLES_PER_S] for record in records if record.kind == "network"]
    assert rates == pytest.approx([10.0] * len(rates), rel=0.5)


@pytest.mark.parametrize("count", [0, 1, 200])
def test_the_curve_is_a_picture(count: int) -> None:
    assert learning_curve("a", [episode(number) for number in range(count)]).startswith(b"\x89PNG")
