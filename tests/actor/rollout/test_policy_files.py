from __future__ import annotations

import datetime
from functools import partial
from pathlib import Path

import pytest

from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.storage import write_whole

NOON = datetime.datetime(2026, 11, 5, 12, 30, 59)


def test_the_latest_replaces_the_one_before(tmp_path: Path) -> None:
    files = PolicyFiles(tmp_path / "deep" / "policy.tmod")
    assert files.keep(lambda: b"one") is None
    assert files.keep(lambda: b"two") is None
    assert (tmp_path / "deep" / "policy.tmod").read_bytes() == b"two"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["policy.tmod"]


def test_a_dated_copy_every_n_updates_never_over_another(tmp_path: Path) -> None:
    prefix = str(tmp_path / "history" / "mine_")
    files = PolicyFiles(None, prefix, every=2, now=lambda: NOON)
    made = [files.keep(partial(bytes, [number])) for number in range(6)]
    assert [path is not None for path in made] == [False, True] * 3
    found = {path.name: path.read_bytes() for path in (tmp_path / "history").iterdir()}
    assert found == {
        "mine_05_11_2026_12_30_59.tmod": b"\x01",
        "mine_05_11_2026_12_30_59_1.tmod": b"\x03",
        "mine_05_11_2026_12_30_59_2.tmod": b"\x05",
    }


def test_models_that_were_never_loaded_count(tmp_path: Path) -> None:
    files = PolicyFiles(None, str(tmp_path / "mine_"), every=3)
    made = [files.keep(lambda: b"x", versions) is not None for versions in (10, 1, 1, 2, 1, 6)]
    assert made == [True, False, True, False, True, True]  # after 10, 12, 15 and 21 of 21 models
    assert files.since == 0


@pytest.mark.parametrize("every", [0, -3])
def test_no_copies_are_written_when_disabled(every: int, tmp_path: Path) -> None:
    files = PolicyFiles(None, str(tmp_path / "mine_"), every=every)
    assert files.keep(lambda: b"x") is None
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]
