"""Experiences of an episode reach the other side unchanged, or are refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tmrl_core.errors import CodecError
from tmrl_core.multiagent.experiences import EpisodeReader, PlayedEpisode, chunks_of
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.samples import Chunk, Segment, decode_message, encode_message, same_layout, split_chunk
from tmrl_core.training.memories.memory import LastRow, rows_that_follow

LIMIT = 16 << 20
DTYPES = ["<f4", ">f4", "<f8", "<f2", "<i8", ">i2", "|u1", "|b1", "<c8"]


def same(first: Any, second: Any) -> bool:
    """Equality of values, types, dtypes and the order of keys; NaN equals NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        alike = (first.dtype.str, first.shape) == (second.dtype.str, second.shape)
        return alike and first.tobytes() == second.tobytes()
    if isinstance(first, dict):
        return list(first) == list(second) and all(map(same, first.values(), second.values()))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second) or (first != first and second != second)


def episode(**agents: int) -> PlayedEpisode:
    """Return an episode with a number of experiences per agent."""
    rng = np.random.default_rng(0)
    experiences: Experiences = {
        name: {
            "state": {
                "stock": rng.normal(size=(rows, 3)).astype(np.float32),
                "action_mask": np.ones((rows, 2), np.int8),
            },
            "action": rng.integers(2, size=rows),
            "reward": rng.normal(size=rows).astype(np.float32),
            "discount": np.full(rows, 0.9, np.float32),
        }
        for name, rows in agents.items()
    }
    return PlayedEpisode(
        experiences=experiences,
        performance={"shortage": 3, "by_port": [1.5, 2.5]},
        epsilons=dict.fromkeys(agents, 0.25),
        seed=7,
        number=4,
        version=(2, 9),
    )


def sent(chunks: Sequence[Chunk], piece_bytes: int = LIMIT, compression: Any = "auto") -> list[Chunk]:
    """Return the chunks as the trainer gets them: joined and split as a worker's link does, encoded and decoded."""
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        if groups and same_layout(groups[-1][0], chunk):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    arrived: list[Chunk] = []
    for group in groups:
        pieces = [group] if len(group) > 1 else [[piece] for piece in split_chunk(group[0], piece_bytes)]
        for piece in pieces:
            data = encode_message(piece, [], compression=compression)
            message = decode_message(data, max_bytes=LIMIT)
            assert message.chunk is not None
            arrived.append(message.chunk)
    return arrived


def read(chunks: Sequence[Chunk], reader: EpisodeReader | None = None) -> tuple[list[PlayedEpisode], list[str]]:
    reader = reader or EpisodeReader()
    episodes: list[PlayedEpisode] = []
    reasons: list[str] = []
    for chunk in chunks:
        done, reason = reader.take(chunk)
        episodes += done
        reasons += [reason] if reason else []
    return episodes, reasons


def test_an_episode_arrives_unchanged() -> None:
    played = episode(north=5, south=2)
    episodes, reasons = read(sent(chunks_of(played, max_head_bytes=LIMIT)))
    assert not reasons
    assert same(episodes[0].experiences, played.experiences)
    assert replace(episodes[0], experiences={}) == replace(played, experiences={})


def test_the_copies_may_be_changed() -> None:
    chunks = sent(chunks_of(episode(a=3), max_head_bytes=LIMIT))
    episodes, _ = read(chunks)
    reward = episodes[0].experiences["a"]["reward"]
    assert isinstance(reward, np.ndarray)
    reward[:] = 0
    assert reward.flags.aligned


def test_an_agent_without_experiences_keeps_its_columns() -> None:
    played = episode(north=0, south=2, west=0)
    episodes, _ = read(sent(chunks_of(played, max_head_bytes=LIMIT)))
    assert same(episodes[0].experiences, played.experiences)


@pytest.mark.parametrize("agents", [{}, {"a": 0}])
def test_an_episode_without_experiences_is_an_episode(agents: dict[str, int]) -> None:
    played = episode(**agents)
    episodes, reasons = read(sent(chunks_of(played, max_head_bytes=LIMIT)))
    assert not reasons
    assert same(episodes[0].experiences, played.experiences)


def test_a_round_counts_one_episode() -> None:
    chunks = chunks_of(episode(a=2, b=3), max_head_bytes=LIMIT)
    ends = 0
    last = None
    for chunk in chunks:
        follows = rows_that_follow(chunk, last)
        ends += int((follows & chunk.truncated).sum())
        assert not chunk.terminated.any()
        run = chunk.segments[-1]
        last = LastRow(run.episode, run.first_step + run.rows - 1)
    assert ends == 1
    assert sum(chunk.rows for chunk in chunks) == 7


def test_changes_of_the_metrics_after_the_episode_are_not_sent() -> None:
    performance = {"ports": [1, 2]}
    chunks = chunks_of(PlayedEpisode(experiences={}, performance=performance), max_head_bytes=LIMIT)
    performance["ports"].clear()
    assert read(sent(chunks))[0][0].performance == {"ports": [1, 2]}


# --- any experiences --------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=6)


def arrays(rows: int) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=2)).flatmap(
        lambda pair: hnp.arrays(np.dtype(pair[0]), (rows, *pair[1]))
    )


def trees(rows: int) -> st.SearchStrategy[Any]:
    leaf = arrays(rows) | st.lists(st.none() | st.integers() | texts, min_size=rows, max_size=rows)
    return st.recursive(
        leaf,
        lambda inner: st.dictionaries(texts, inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
        max_leaves=4,
    )


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(0, 5))
    reward = hnp.arrays(np.dtype(draw(st.sampled_from(DTYPES))), (rows, *draw(st.sampled_from([(), (2,)]))))
    fields = {"state": draw(trees(rows)), "action": draw(trees(rows)), "reward": draw(reward)}
    extras = draw(st.dictionaries(texts, trees(rows), max_size=3))
    pairs = list({**extras, **fields}.items())
    return dict(draw(st.permutations(pairs)))


@st.composite
def played_episodes(draw: st.DrawFn) -> PlayedEpisode:
    kinds = draw(st.lists(columns(), min_size=1, max_size=3))  # agents with equal columns are joined on the way
    names = draw(st.lists(texts, max_size=5, unique=True))
    return PlayedEpisode(
        experiences={name: draw(st.sampled_from(kinds)) for name in names},
        performance=draw(st.none() | st.floats() | st.dictionaries(texts, st.integers() | st.floats(), max_size=3)),
        epsilons={name: draw(st.floats(0, 1)) for name in names},
        seed=draw(st.none() | st.integers(0, 2**63 - 1)),
        number=draw(st.integers(0, 2**40)),
        version=(draw(st.integers(0, 9)), draw(st.integers(0, 9))),
    )


@given(
    played=st.lists(played_episodes(), min_size=1, max_size=2), piece=st.sampled_from([64, 300, LIMIT]), how=st.data()
)
def test_any_experiences_arrive_unchanged(played: list[PlayedEpisode], piece: int, how: st.DataObject) -> None:
    chunks = [chunk for one in played for chunk in chunks_of(one, max_head_bytes=LIMIT)]
    episodes, reasons = read(sent(chunks, piece, how.draw(st.sampled_from(["none", "zstd"]))))
    assert not reasons
    assert len(episodes) == len(played)
    for found, expected in zip(episodes, played, strict=True):
        assert same(found.experiences, expected.experiences)
        assert same(found.performance, expected.performance)
        assert (found.epsilons, found.seed, found.number, found.version) == (
            expected.epsilons,
            expected.seed,
            expected.number,
            expected.version,
        )


# --- limits at the worker ---------------------------------------------------------------------------------------------


def test_a_performance_that_samples_cannot_carry_is_named() -> None:
    with pytest.raises(CodecError, match="which the codec cannot carry"):
        chunks_of(PlayedEpisode(experiences={}, performance={"env": object()}), max_head_bytes=LIMIT)


def test_sizes_are_limited_when_writing() -> None:
    with pytest.raises(CodecError, match=r"multiagent\.max_episode_bytes allows 10"):
        chunks_of(episode(a=3), max_bytes=10, max_head_bytes=LIMIT)
    with pytest.raises(CodecError, match=r"network\.max_message_bytes"):
        chunks_of(PlayedEpisode(experiences={}, performance="x" * 100), max_head_bytes=100)


# --- damaged and hostile rows -----------------------------------------------------------------------------------------


def test_a_missing_message_refuses_the_episode_and_not_the_next() -> None:
    first, second = episode(a=8), episode(a=2)
    second.number = 5
    chunks = sent(chunks_of(first, max_head_bytes=LIMIT), 64)
    del chunks[2]  # of the experiences, which 64 bytes split row by row
    episodes, reasons = read([*chunks, *sent(chunks_of(second, max_head_bytes=LIMIT))])
    assert [one.number for one in episodes] == [5]
    assert len(reasons) == 1
    assert "the rows before them did not arrive" in reasons[0]


def test_rows_without_a_head_are_refused_once() -> None:
    chunks = sent(chunks_of(episode(a=4), max_head_bytes=LIMIT), 64)
    episodes, reasons = read(chunks[1:])
    assert not episodes
    assert len(reasons) == 1


def test_an_unfinished_episode_gives_way_to_the_next() -> None:
    first = chunks_of(episode(a=4), max_head_bytes=LIMIT)[:-1]
    second = episode(a=1)
    second.number = 5
    episodes, reasons = read([*first, *chunks_of(second, max_head_bytes=LIMIT)])
    assert [one.number for one in episodes] == [5]
    assert not reasons


def test_a_reader_holds_a_limited_number_of_bytes() -> None:
    chunks = chunks_of(episode(a=1000), max_head_bytes=LIMIT)
    episodes, reasons = read(chunks, EpisodeReader(5000))
    assert not episodes
    assert "more than 5000 bytes" in reasons[0]


def bad_head(change: dict[str, Any]) -> list[Chunk]:
    chunks = chunks_of(episode(a=2), max_head_bytes=LIMIT)
    info = {**chunks[0].info[0], **change}
    return [replace(chunks[0], info={0: info}), *chunks[1:]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"agents": [["a", 1, 0], ["a", 1, 0]]}, "names an agent twice"),
        ({"agents": [["a", -2, 0]]}, "not episodes of many agents"),
        ({"agents": [["a", 2**60, 0]]}, "not episodes of many agents"),
        ({"agents": [["a", 2, 1]]}, "does not list the columns"),
        ({"agents": [["a", 0, 0]]}, "without the empty columns"),
        ({"agents": "a"}, "not episodes of many agents"),
        ({"agents": [["a", 1, 0]]}, "more than its 1 experiences"),
        ({"agents": [["a", 3, 0]]}, "ends before its 3 experiences"),
        ({"keys": [["state", "action", "reward"]]}, "their head lists"),
        ({"keys": [["state", "state"]]}, "lists a column twice"),
        ({"empty": {"a": {"state": 1}}, "agents": [["a", 0, 0]]}, "without the empty columns"),
        ({"epsilons": {"a": "much"}}, "not episodes of many agents"),
        ({"format": 2}, "an episode in format 2, and this trainer reads format 1"),
    ],
)
def test_a_false_head_is_refused(change: dict[str, Any], reason: str) -> None:
    episodes, reasons = read(sent(bad_head(change)))
    assert not episodes
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_ordinary_samples_are_refused() -> None:
    chunk = Chunk(
        rows=2,
        action=np.zeros((2, 1), np.float32),
        action_present=np.array([False, True]),
        observation=np.zeros((2, 3), np.float32),
        reward=np.zeros(2),
        terminated=np.zeros(2, np.bool_),
        truncated=np.zeros(2, np.bool_),
        segments=(Segment(2, 0, 0, 1, 1),),
    )
    assert "not episodes of many agents" in read([chunk])[1][0]


@given(data=st.data())
def test_any_rows_give_episodes_or_reasons(data: st.DataObject) -> None:
    """Rows of several episodes in any order, cut anywhere, with any flags, steps and entries of the head."""
    pool = [chunk for rows in (0, 2, 3) for chunk in chunks_of(episode(a=rows, b=1), max_head_bytes=LIMIT)]
    values = st.recursive(
        st.none() | st.integers(-3, 5) | texts | st.just(math.nan),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    )
    reader = EpisodeReader(data.draw(st.sampled_from([200, LIMIT])))
    for chunk in data.draw(st.lists(st.sampled_from(pool), max_size=8)):
        run = chunk.segments[0]
        first = data.draw(st.integers(0, 5) | st.just(run.first_step))
        info = dict(chunk.info)
        change_head = data.draw(st.booleans())
        if info and change_head:
            info[0] = {**info[0], data.draw(st.sampled_from(sorted(info[0]))): data.draw(values)}
        change_flags = data.draw(st.booleans())
        flags = data.draw(st.lists(st.booleans(), min_size=chunk.rows, max_size=chunk.rows))
        changed = replace(
            chunk,
            info=info,
            segments=(Segment(run.rows, data.draw(st.integers(3, 4)), first, *run.version),),
            truncated=np.array(flags, np.bool_) if change_flags else chunk.truncated,
        )
        episodes, reason = reader.take(changed)
        assert isinstance(reason, str)
        for one in episodes:
            assert all({"state", "action", "reward"} <= columns.keys() for columns in one.experiences.values())
