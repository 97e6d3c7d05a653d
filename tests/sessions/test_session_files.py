from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import ConfigError, FolderLockedError, StorageError, StorageFullError
from tmrl_core.samples import Buffer, EpisodeRecord
from tmrl_core.sessions import Session, SessionWriter, read_sessions, read_spaces
from tmrl_core.sessions import session_files as files
from tmrl_core.sessions.session_files import SPACES_FILE
from tmrl_core.storage import SegmentReader

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32)


def session(number: int, ticks: int = 5, **values: Any) -> Session:
    rng = np.random.default_rng(number)
    return Session(
        observations=rng.random((ticks + 1, 3), np.float32),
        actions=rng.random((ticks, 1), np.float32),
        rewards=rng.random(ticks),
        **{"terminated": True, **values},
    )


def record(folder: Path, *sessions: Session) -> Path:
    with SessionWriter(folder, OBSERVATIONS, ACTIONS) as writer:
        for each in sessions:
            writer.write(each)
    return folder


def same(one: Session, two: Session) -> bool:
    trees: list[tuple[Any, Any]] = [
        (one.observations, two.observations),
        (one.actions, two.actions),
        (one.rewards, two.rewards),
    ]
    return all(np.array_equal(mine, theirs) for mine, theirs in trees) and (
        one.terminated,
        one.truncated,
        one.seed,
        one.source,
        one.version,
        one.first_step,
    ) == (two.terminated, two.truncated, two.seed, two.source, two.version, two.first_step)


def log_file(folder: Path) -> Path:
    (file,) = folder.glob("*.seg")
    return file


def test_sessions_come_back_as_they_were_written(tmp_path: Path) -> None:
    written = [
        session(0, seed=3, source="robot", version=(2, 9)),
        session(1, terminated=False, truncated=True),
        session(2, terminated=False, first_step=40),
    ]
    record(tmp_path / "a", *written)
    found = list(read_sessions(tmp_path / "a"))
    assert len(found) == 3
    assert all(map(same, found, written))
    assert read_spaces(tmp_path / "a") == (OBSERVATIONS, ACTIONS)


def test_a_folder_is_continued(tmp_path: Path) -> None:
    written = [session(number) for number in range(4)]
    record(tmp_path, *written[:2])
    record(tmp_path, *written[2:])
    assert all(map(same, read_sessions(tmp_path), written))


def test_messages_of_a_worker_become_sessions(tmp_path: Path) -> None:
    buffer = Buffer()
    with SessionWriter(tmp_path, OBSERVATIONS, ACTIONS) as writer:
        for number in range(3):
            buffer.start_episode(number)
            buffer.append_sample((None, np.zeros(3, np.float32), 0.0, False, False, {}))
            for step in range(1, 9):
                action, observation = np.ones(1, np.float32), np.full(3, step, np.float32)
                buffer.append_sample((action, observation, 1.0, step == 8, False, {}))
                if step == 8:
                    buffer.end_episode(EpisodeRecord("", 8.0, 8, "train", "terminated", number, seed=number))
                if step % 3 == 0 or step == 8:
                    writer.append(*buffer.take())
    found = list(read_sessions(tmp_path))
    assert [(len(each), each.seed, each.terminated) for each in found] == [(8, n, True) for n in range(3)]


def test_two_openings_of_a_folder_are_not_joined(tmp_path: Path) -> None:
    # Each process numbers its episodes from 0.
    for _ in range(2):
        with SessionWriter(tmp_path, OBSERVATIONS, ACTIONS) as writer:
            writer.append([session(0, terminated=False).chunk(0)])
    assert [len(each) for each in read_sessions(tmp_path)] == [5, 5]


def test_a_folder_of_folders_is_read_in_order(tmp_path: Path) -> None:
    for name, number in (("b", 1), ("a", 0)):
        record(tmp_path / name, session(number))
    assert all(map(same, read_sessions(tmp_path), [session(0), session(1)]))
    with SessionWriter(tmp_path / "c", ACTIONS, ACTIONS):
        pass
    with pytest.raises(
        StorageError, match=r"different environments: its observations are Box.*\(1,\).*expected Box.*move one away"
    ):
        read_spaces(tmp_path)


def test_an_interrupted_record_is_left_out_and_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = [session(number) for number in range(3)]
    record(tmp_path, *written[:2])
    size = log_file(tmp_path).stat().st_size
    record(tmp_path, written[2])
    os.truncate(log_file(tmp_path), size + 50)
    with caplog.at_level(logging.WARNING):
        assert all(map(same, read_sessions(tmp_path), written[:2]))
    assert f"last 50 bytes, after byte {size}" in caplog.text
    record(tmp_path, written[2])
    assert all(map(same, read_sessions(tmp_path), written))


def test_a_file_cut_anywhere_gives_whole_sessions(tmp_path: Path) -> None:
    written = [session(number) for number in range(3)]
    file = log_file(record(tmp_path, *written))
    whole = file.read_bytes()
    with contextlib.closing(SegmentReader(file)) as reader:
        head = reader.head_bytes
    counts = []
    for length in range(head, len(whole), 5):
        file.write_bytes(whole[:length])
        found = list(read_sessions(tmp_path))
        assert all(map(same, found, written))
        counts.append(len(found))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_a_file_cut_within_its_head_is_named(tmp_path: Path) -> None:
    os.truncate(log_file(record(tmp_path, session(0))), 20)
    with pytest.raises(StorageError, match=r"000000000001.seg is cut short within its head"):
        read_sessions(tmp_path)


def test_damage_is_named_with_its_place_and_nothing_is_loaded(tmp_path: Path) -> None:
    record(tmp_path, *(session(number) for number in range(2)))
    size = log_file(tmp_path).stat().st_size
    record(tmp_path, session(2), session(3))
    data = bytearray(log_file(tmp_path).read_bytes())
    data[size + 200] ^= 1
    log_file(tmp_path).write_bytes(data)
    with pytest.raises(StorageError, match=rf"000000000001.seg is damaged at byte {size} of {len(data)}"):
        read_sessions(tmp_path)
    # Opening it for writing would cut off the sessions behind the damage.
    with pytest.raises(StorageError, match=f"is damaged at byte {size}"):
        SessionWriter(tmp_path, OBSERVATIONS, ACTIONS)
    assert log_file(tmp_path).read_bytes() == data


def test_sessions_of_other_spaces_are_refused(tmp_path: Path) -> None:
    record(tmp_path, session(0))
    with pytest.raises(StorageError, match=r"another environment: its actions are Box.*expected Discrete\(2\)"):
        SessionWriter(tmp_path, OBSERVATIONS, spaces.Discrete(2))
    assert len(list(read_sessions(tmp_path))) == 1


def test_one_process_records_into_a_folder(tmp_path: Path) -> None:
    with SessionWriter(tmp_path, OBSERVATIONS, ACTIONS), pytest.raises(FolderLockedError, match="recorded sessions"):
        SessionWriter(tmp_path, OBSERVATIONS, ACTIONS)


def test_a_full_folder_keeps_its_sessions(tmp_path: Path) -> None:
    with SessionWriter(tmp_path, OBSERVATIONS, ACTIONS, max_bytes=1500) as writer:
        writer.write(session(0))
        for number in (1, 2):
            with pytest.raises(StorageFullError, match="maximum size of 1500 bytes"):
                writer.write(session(number, ticks=200))
        writer.write(session(3))
    assert all(map(same, read_sessions(tmp_path), [session(0), session(3)]))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.seg")) <= 1500


def test_a_removed_folder_is_noticed(tmp_path: Path) -> None:
    with SessionWriter(tmp_path / "a", OBSERVATIONS, ACTIONS) as writer:
        writer.write(session(0))
        for path in (tmp_path / "a").iterdir():
            path.unlink()
        (tmp_path / "a").rmdir()
        with pytest.raises(StorageError, match="a was removed while"):
            writer.write(session(1))


@pytest.mark.parametrize(
    ("content", "found"),
    [("[]", "describes no spaces"), ("{", "damaged"), ('{"version": 9}', "version 9; .* reads 1")],
)
def test_a_wrong_description_is_named(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / SPACES_FILE).write_text(content)
    with pytest.raises(StorageError, match=found):
        read_spaces(tmp_path)


def test_records_of_another_version_are_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(files, "VERSION", 2)
        record(tmp_path, session(0))
    spaces_file = tmp_path / SPACES_FILE
    spaces_file.write_text(spaces_file.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(StorageError, match=r"'version': 2.*this version of tmrl_core reads 'sessions', version 1"):
        read_sessions(tmp_path)


def test_a_path_without_sessions_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing does not exist\. A recording is a folder"):
        read_sessions(tmp_path / "nothing")
    with pytest.raises(StorageError, match="holds no recorded sessions"):
        read_sessions(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file is a file"):
        read_sessions(tmp_path / "file")


def test_recordings_that_lie_deeper_are_named(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        record(tmp_path / day / "robot7")
    with pytest.raises(StorageError, match=r"lie deeper: name one of .*monday, .*tuesday$"):
        read_sessions(tmp_path)


def test_other_files_of_records_are_refused(tmp_path: Path) -> None:
    record(tmp_path, session(0))
    (tmp_path / SPACES_FILE).unlink()
    with pytest.raises(StorageError, match="other files of records"):
        SessionWriter(tmp_path, OBSERVATIONS, ACTIONS)


def test_spaces_that_cannot_be_recorded_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the observation space is Text"):
        SessionWriter(tmp_path / "a", spaces.Text(3), ACTIONS)
    assert not (tmp_path / "a").exists()


def test_an_empty_recording_has_no_sessions(tmp_path: Path) -> None:
    record(tmp_path)
    assert list(read_sessions(tmp_path)) == []


def test_bounds_that_one_folder_lacks_are_those_of_another(tmp_path: Path) -> None:
    free = spaces.Box(-np.inf, np.inf, ACTIONS.shape, ACTIONS.dtype.type)
    for name, space in (("a", free), ("b", ACTIONS)):
        with SessionWriter(tmp_path / "both" / name, OBSERVATIONS, space):
            pass
    assert read_spaces(tmp_path / "both") == (OBSERVATIONS, ACTIONS)
    with pytest.raises(StorageError, match="only one of the two has bounds"):
        SessionWriter(tmp_path / "both" / "a", OBSERVATIONS, ACTIONS)
    with SessionWriter(tmp_path / "both" / "c", OBSERVATIONS, spaces.Box(-7, 7, ACTIONS.shape, ACTIONS.dtype.type)):
        pass
    with pytest.raises(StorageError, match="hold sessions of different environments: its actions are"):
        read_spaces(tmp_path / "both")


@pytest.mark.usefixtures("sessions_may_differ")
@pytest.mark.parametrize("compressed", [False, True])
def test_sessions_that_differ_from_their_records_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, compressed: bool
) -> None:
    record = EpisodeRecord("", 9.0, 5, "train", "terminated", 0)
    with SessionWriter(tmp_path / "a", OBSERVATIONS, ACTIONS, compressed=compressed) as writer:
        writer.append([session(0).chunk(0)], [record])
    assert len(list(read_sessions(tmp_path / "a"))) == 1
    assert ("a: 1 episodes differ from their records" in caplog.text) == (not compressed)
