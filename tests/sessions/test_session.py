from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Segment
from tmrl_core.sessions.session import LEAST_OPEN_BYTES, Session, SessionJoiner, open_bytes, sessions_of


def play(buffer: Buffer, episode: int, steps: int, end: str = "terminated", extras: bool = False) -> list[Any]:
    """Play an episode into a buffer; return its observations."""
    buffer.start_episode(episode, (1, episode))
    observations = [np.full(2, 100 * episode + step, np.float32) for step in range(steps + 1)]
    buffer.append_sample((None, observations[0], 0.0, False, False, {"begin": episode}), {"v": 0.0} if extras else None)
    for step in range(1, steps + 1):
        last = step == steps
        flags = (last and end == "terminated", last and end == "truncated")
        buffer.append_sample(
            (np.array([step], np.float32), observations[step], float(step), *flags, {}),
            {"v": float(step)} if extras else None,
        )
    ended: Any = "aborted" if end == "open" else end
    buffer.end_episode(
        EpisodeRecord("", steps * (steps + 1) / 2, steps, "train", ended, episode, seed=7, worker="robot")
    )
    return observations


def test_an_episode_becomes_a_session() -> None:
    buffer = Buffer()
    observations = play(buffer, 3, 4, extras=True)
    chunks, records = buffer.take()
    (session,) = sessions_of(chunks, records)
    np.testing.assert_array_equal(session.observations, observations)
    np.testing.assert_array_equal(session.actions, np.arange(1, 5, dtype=np.float32)[:, None])
    assert session.rewards.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(session.extras["v"], [1, 2, 3, 4])
    assert (session.terminated, session.truncated, session.seed, session.source) == (True, False, 7, "robot")
    assert (session.version, session.infos, len(session)) == ((1, 3), {0: {"begin": 3}}, 4)
    assert session.episode_return == 10


@pytest.mark.parametrize("end", ["terminated", "truncated", "open"])
def test_a_session_as_a_chunk_has_the_samples_of_the_worker(end: str) -> None:
    buffer = Buffer()
    play(buffer, 0, 5, end)
    (sent,) = buffer.chunks
    (session,) = sessions_of([sent])
    made = session.chunk()
    mine: Any
    theirs: Any
    for mine, theirs in zip(made.fields, sent.fields, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    for name in ("action_present", "terminated", "truncated", "episode", "step"):
        np.testing.assert_array_equal(getattr(made, name), getattr(sent, name))
    assert made.segments[0].version == (1, 0)
    assert made.info == sent.info


def parts(buffer: Buffer, rows: int) -> Iterator[Chunk]:
    for chunk in buffer.chunks:
        for start in range(0, chunk.rows, rows):
            yield chunk.slice(start, min(start + rows, chunk.rows))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_messages_of_any_length_give_the_same_sessions(rows: int) -> None:
    buffer = Buffer()
    played = [play(buffer, episode, steps) for episode, steps in enumerate((1, 6, 3))]
    found = list(sessions_of(parts(buffer, rows)))
    assert len(found) == 3
    for session, observations in zip(found, played, strict=True):
        np.testing.assert_array_equal(session.observations, observations)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_rewards_of_several_types_are_one_session(rows: int) -> None:
    buffer = Buffer()
    buffer.start_episode(0, (1, 0))
    given = [0.0, 1, np.float32(0.5), np.int64(2), np.float16(3), True, -1]
    for step, reward in enumerate(given):
        buffer.append_sample((step or None, np.full(2, step), reward, step == len(given) - 1, False, {}), None)
    (session,) = sessions_of(parts(buffer, rows))
    assert session.rewards.dtype == np.float64
    assert session.rewards.tolist() == given[1:]
    assert session.terminated


def test_nothing_is_joined_across_a_missing_message() -> None:
    buffer = Buffer()
    play(buffer, 0, 9)
    (chunk,) = buffer.chunks
    before, after = sessions_of([chunk.slice(0, 4), chunk.slice(6, 10)])
    assert (len(before), before.terminated, before.truncated) == (3, False, False)
    assert (len(after), after.first_step, after.terminated) == (3, 6, True)
    np.testing.assert_array_equal(after.observations[0], [6, 6])
    assert after.chunk().step.tolist() == [6, 7, 8, 9]


def test_streams_are_kept_apart() -> None:
    one, two = Buffer(), Buffer()
    play(one, 0, 5)
    play(two, 0, 5)
    mixed = [
        replace(part, stream=stream)
        for pair in zip(parts(one, 2), parts(two, 2), strict=True)
        for stream, part in zip((b"one", b"two"), pair, strict=True)
    ]
    assert [len(session) for session in sessions_of(mixed)] == [5, 5]


def test_a_repeated_last_row_counts_once() -> None:
    buffer = Buffer()
    observations = play(buffer, 0, 6)
    (chunk,) = buffer.chunks
    (session,) = sessions_of([chunk.slice(0, 4), chunk.slice(3, 7)])
    np.testing.assert_array_equal(session.observations, observations)


def test_a_change_of_structure_begins_another_session() -> None:
    one, two = Buffer(), Buffer()
    play(one, 0, 6)
    play(two, 0, 6)
    (chunk,), (other,) = one.chunks, two.chunks
    doubles: Any = other.observation
    later = replace(other.slice(4, 7), observation=doubles[4:].astype(np.float64))
    assert [len(session) for session in sessions_of([chunk.slice(0, 4), later])] == [3, 2]


def test_an_aborted_episode_ends_with_its_record() -> None:
    buffer = Buffer()
    play(buffer, 0, 3, "open")
    joiner = SessionJoiner()
    assert joiner.add(buffer.chunks[0]) == []
    (session,) = joiner.end(b"", buffer.episodes)
    assert (session.terminated, session.truncated, session.seed) == (False, False, 7)
    assert joiner.finish() == []


def told(chunks: Any, records: Any, **settings: Any) -> tuple[int, str]:
    """Return the number of episodes that differ from their records, and the first."""
    joiner = SessionJoiner(**settings)
    for number, chunk in enumerate(chunks, 1):
        joiner.add(chunk, records if number == len(chunks) else ())
    joiner.end(b"", records)
    return joiner.different, joiner.first_difference


@pytest.mark.parametrize("end", ["terminated", "truncated", "open"])
@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, ""),
        ({"episode_return": 21 + 2e-5}, ""),
        ({"episode_return": 21 + 3e-5}, "episode 4 has 6 steps and the return 21, its record 6 steps and 21.00003"),
        ({"length": 5}, "episode 4 has 6 steps and the return 21, its record 5 steps and 21"),
        ({"episode": 5}, ""),
    ],
)
def test_an_episode_is_compared_with_its_record(end: str, changed: dict[str, Any], found: str) -> None:
    buffer = Buffer()
    play(buffer, 4, 6, end)
    records = [msgspec.structs.replace(buffer.episodes[0], **changed)]
    for rows in (1, 3, 7):
        assert told(list(parts(buffer, rows)), records) == (bool(found), found)


def test_a_missing_message_explains_a_difference() -> None:
    buffer, aborted = Buffer(), Buffer()
    play(buffer, 0, 9)
    play(aborted, 0, 9, "open")
    (chunk,) = buffer.chunks
    for kept in ([chunk.slice(0, 4), chunk.slice(6, 10)], [chunk.slice(3, 10)]):
        assert told(kept, buffer.episodes) == (0, "")
    assert told([aborted.chunks[0].slice(0, 8)], aborted.episodes) == (0, "")
    shorter = buffer.chunks[0].slice(0, 8)
    shorter.terminated[-1] = True
    assert told([shorter], buffer.episodes)[0] == 1


def test_a_cut_for_memory_is_no_difference_and_a_change_of_layout_is_one() -> None:
    buffer = Buffer()
    play(buffer, 0, 500)
    assert told(list(parts(buffer, 10)), buffer.episodes, max_bytes=1000) == (0, "")
    buffer.clear()
    play(buffer, 0, 6)
    (chunk,) = buffer.chunks
    doubles: Any = chunk.observation
    for at in (4, 6):  # before the last row, the episode has no session with an end
        later = replace(chunk.slice(at, 7), observation=doubles[at:].astype(np.float64))
        assert told([chunk.slice(0, at), later], buffer.episodes)[1].startswith("episode 0 has 5 steps")


def test_returns_of_compressed_samples_are_not_compared() -> None:
    buffer = Buffer()
    play(buffer, 0, 6)
    joiner = SessionJoiner()
    joiner.compare_returns = False
    records = [msgspec.structs.replace(buffer.episodes[0], episode_return=0.0)]
    joiner.add(buffer.chunks[0], records)
    assert joiner.different == 0


@pytest.mark.usefixtures("sessions_may_differ")
def test_differences_are_told_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Buffer()
    play(buffer, 0, 6)
    list(sessions_of(buffer.chunks, [msgspec.structs.replace(buffer.episodes[0], length=9)]))
    assert "the samples: 1 episodes differ from their records, and no missing message" in caplog.text


def test_a_difference_is_an_error_in_tests() -> None:
    buffer = Buffer()
    play(buffer, 0, 6)
    with pytest.raises(AssertionError, match="1 episodes differ from their records"):
        list(sessions_of(buffer.chunks, [msgspec.structs.replace(buffer.episodes[0], length=9)]))


def test_an_endless_episode_is_cut_and_loses_no_step(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Buffer()
    play(buffer, 0, 500)
    joiner, found = SessionJoiner(max_bytes=1000), []
    for part in parts(buffer, 10):
        found += joiner.add(part)
    assert len(found) > 5
    assert sum(map(len, found)) == 500
    assert [session.first_step for session in found] == [0, *np.cumsum([len(session) for session in found])[:-1]]
    assert [session.terminated for session in found] == [False] * (len(found) - 1) + [True]
    joiner.tell("the recording")
    assert "the recording: unfinished sessions had more than 0.0 GB" in caplog.text
    assert f"so {len(found) - 1} were cut" in caplog.text


def test_an_unfinished_session_keeps_its_rows_alone() -> None:
    def message(number: int) -> Chunk:
        rows = np.arange(2001)
        return Chunk(
            rows=len(rows),
            action=np.zeros((len(rows), 1)),
            action_present=(rows != 0) & (rows != 1991),
            observation=np.zeros((len(rows), 100)),  # 1.6 MB
            reward=np.zeros(len(rows)),
            terminated=rows == 1990,
            truncated=np.zeros(len(rows), np.bool_),
            segments=(Segment(1991, 2 * number, 0, 1, 1), Segment(10, 2 * number + 1, 0, 1, 1)),
        )

    joiner = SessionJoiner()
    tracemalloc.start()
    try:
        ended = [len(session) for number in range(20) for session in joiner.add(message(number))]
        assert tracemalloc.get_traced_memory()[0] < 6e6
    finally:
        tracemalloc.stop()
    assert ended == [1990] * 20
    assert [len(session) for session in joiner.finish()] == [9] * 20


def test_an_episode_of_a_camera_is_one_session() -> None:
    assert open_bytes() >= 30 * 30 * 640 * 480 * 3  # 30 s at 30 Hz


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(("limit", "found"), [("6442450944\n", 6442450944 // 4), ("1000\n", LEAST_OPEN_BYTES)])
def test_a_container_has_the_memory_of_its_group(tmp_path: Path, name: str, limit: str, found: int) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(limit)
    assert open_bytes(tmp_path) == min(found, open_bytes(tmp_path / "none"))
    (tmp_path / name).write_text("max\n")
    assert open_bytes(tmp_path) == open_bytes(tmp_path / "none")


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ({"observations": np.zeros((3, 2))}, "observations .* 4 rows, found 3"),
        ({"actions": {"a": np.zeros(3), "b": np.zeros(2)}}, "actions .* 3 rows, found 2"),
        ({"extras": {"v": np.zeros(4)}}, r"extras\['v'\] .* 3 rows, found 4"),
        ({"rewards": np.zeros(0)}, "no rewards"),
    ],
)
def test_lengths_that_differ_are_named(field: dict[str, Any], found: str) -> None:
    values = {"observations": np.zeros((4, 2)), "actions": np.zeros(3), "rewards": np.zeros(3)}
    with pytest.raises(ValueError, match=found):
        Session(**{**values, **field})
