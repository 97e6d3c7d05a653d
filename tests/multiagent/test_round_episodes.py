"""A round holds whole episodes of its version, and refuses the others with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.counted_segments import KINDS, MANY, one_row_segments
from tests.multiagent.remote_scenario import Weights
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.experiences import EpisodeReader, PlayedEpisode, chunks_of
from tmrl_core.multiagent.round_episodes import MAX_REFUSALS, RoundEpisodes
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.samples import Buffer, Chunk, Segment
from tmrl_core.training.loops.lockstep_round import Round

FIRST, SECOND = b"1" * 16, b"2" * 16
VERSION = (1, 3)


def columns(rows: int, **other: Any) -> dict[str, Any]:
    return {
        "state": np.arange(rows, dtype=np.float32)[:, None],
        "action": np.zeros(rows, np.int64),
        "reward": np.ones(rows, np.float32),
        **other,
    }


def score(performance: Any) -> float:
    return float(performance["score"])


def chunks(
    stream: bytes,
    number: int,
    *,
    version: tuple[int, int] = VERSION,
    performance: Any = None,
    length: int = 0,
    **agents: dict[str, Any],
) -> list[Chunk]:
    episode = PlayedEpisode(
        experiences=agents, performance=performance or {"score": number}, number=number, version=version, length=length
    )
    made = chunks_of(episode, max_head_bytes=1 << 20)
    for chunk in made:
        chunk.stream = stream
    return made


def agents_of(pool: SimpleStore, **parameters: Any) -> dict[str, Agent]:
    own = AgentParameters(capacity=9, **parameters)
    return {name: Agent(name, Weights(), pool, own) for name in ("a", "b")}


def memory_of(amount: int, *, agents: dict[str, Agent] | None = None, **kwargs: Any) -> RoundEpisodes:
    memory = RoundEpisodes(agents or agents_of(SimpleStore(9)), score, clock=lambda: 0.0, **kwargs)
    begin(memory, amount)
    return memory


def begin(memory: RoundEpisodes, amount: int) -> Round:
    round_ = Round(1, VERSION, amount=amount, episodes=True, grace_s=10.0)
    memory.begin(round_)
    round_.poll([(SECOND, "anna"), (FIRST, "berta")], 0.0, lambda stream, what: False)
    return round_


def put(memory: RoundEpisodes, *arrived: list[Chunk]) -> list[str]:
    """Insert chunks; return the reasons of refusals."""
    reasons = []
    for chunk in [chunk for chunks in arrived for chunk in chunks]:
        buffer = Buffer(maxlen=None)
        buffer.extend([chunk], [])
        reasons += [str(reason) for _, reason in memory.append(buffer)]
    return reasons


def complete(memory: RoundEpisodes) -> bool:
    assert memory.round is not None
    return memory.round.complete


def test_experiences_are_joined_in_the_order_of_the_workers_names() -> None:
    memory = memory_of(3)  # two episodes of anna, one of berta
    own = columns(2, reward=np.full(2, 5, np.float32))
    assert not put(memory, chunks(FIRST, 0, a=own, b=columns(1)), chunks(SECOND, 1, a=columns(1)))
    assert not complete(memory)
    assert not put(memory, chunks(SECOND, 2, a=columns(3), b=columns(1)))
    assert complete(memory)
    performances, joined = memory.joined()
    experiences: dict[str, Any] = joined
    assert performances == {"anna": [{"score": 1}, {"score": 2}], "berta": {"score": 0}}
    assert list(performances) == ["anna", "berta"]
    assert experiences["a"]["reward"].tolist() == [1, 1, 1, 1, 5, 5]
    assert experiences["a"]["state"][:, 0].tolist() == [0, 0, 1, 2, 0, 1]
    assert memory.experiences_by_agent() == {"a": 6, "b": 2}
    assert len(memory) == 8


def test_the_episodes_of_a_round_are_those_whose_rows_count() -> None:
    memory = memory_of(3)
    put(memory, chunks(FIRST, 4, length=9, a=columns(1)), chunks(SECOND, 1, length=2, a=columns(3)))
    put(memory, chunks(SECOND, 2, length=5, version=(1, 2), a=columns(1)), chunks(SECOND, 3, length=7, a=columns(2)))
    put(memory, chunks(SECOND, 6, length=8, a=columns(2)))  # beyond the assignment
    assert complete(memory)
    assert memory.episodes == [(1.0, 2), (3.0, 7), (4.0, 9)]
    begin(memory, 3)
    assert memory.episodes == []


def test_a_list_of_metrics_is_one_performance() -> None:
    memory = RoundEpisodes(agents_of(SimpleStore(9)), score=sum)
    begin(memory, 1)
    put(memory, chunks(SECOND, 0, performance=[1.0, 2.0], a=columns(1)))
    assert memory.joined()[0] == {"anna": [[1.0, 2.0]]}


def test_states_with_other_keys_of_the_same_name_are_refused() -> None:
    """They cannot be joined with those of the other workers."""

    def states(key: Any) -> dict[str, Any]:
        return columns(2, state={key: np.zeros((2, 3), np.float32)})

    memory = memory_of(2)
    assert not put(memory, chunks(FIRST, 0, a=states("1")))
    (reason,) = put(memory, chunks(SECOND, 0, a=states(1)))
    assert "the experiences of agent 'a' are (/action: int64[], /reward: float32[], /state/1: float32[3])" in reason
    assert not put(memory, chunks(SECOND, 1, a=states("1")))
    assert memory.joined()[1]["a"]["reward"].shape == (4,)  # type: ignore[union-attr]


def test_states_with_empty_dicts_are_taken_also_when_the_pool_holds_some() -> None:
    state = {"speed": np.zeros((2, 3), np.float32), "cameras": {}}
    agents = agents_of(SimpleStore(9))
    memory = memory_of(2, agents=agents)
    for _ in range(2):
        assert not put(
            memory, chunks(FIRST, 0, a=columns(2, state=state)), chunks(SECOND, 0, a=columns(2, state=state))
        )
        agents["a"].store_experiences(memory.joined()[1]["a"])
        begin(memory, 2)
    other = columns(2, state={"speed": state["speed"]})
    assert not put(memory, chunks(FIRST, 1, a=columns(2, state=state)))
    assert len(put(memory, chunks(SECOND, 1, a=other))) == 1, "they cannot be joined"


def test_late_and_surplus_rows_are_counted_and_not_held() -> None:
    memory = memory_of(1)
    round_ = memory.round
    assert round_ is not None
    put(memory, chunks(SECOND, 0, version=(1, 2), a=columns(4)))
    assert round_.late == 6  # head and end included
    put(memory, chunks(FIRST, 0, a=columns(1)))  # no assignment
    assert round_.surplus == 3
    put(memory, chunks(SECOND, 1, a=columns(1)), chunks(SECOND, 2, a=columns(1)))
    assert round_.surplus == 6
    assert round_.complete
    assert memory.joined()[0] == {"anna": {"score": 1}}


def test_an_episode_without_one_of_its_messages_does_not_count() -> None:
    memory = memory_of(1)
    head, rows, end = chunks(SECOND, 0, a=columns(2))
    assert put(memory, [head, end])
    assert not put(memory, [rows])[1:]
    assert memory.round is not None
    assert not memory.round.collected
    assert not put(memory, chunks(SECOND, 1, a=columns(1)))
    assert memory.round.complete


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"c": columns(1)}, "name the agent 'c'"),
        ({"a": columns(1, reward=np.ones(1, np.float64))}, "its pool holds"),
        ({"a": columns(1, state=np.ones((1, 3), np.float32))}, "its pool holds"),
        ({"a": columns(1, logp=np.ones(1, np.float32))}, "its pool holds"),
        ({"a": columns(1, state=["text"])}, "of numbers"),
    ],
)
def test_experiences_that_a_pool_cannot_store_are_refused(bad: dict[str, Any], reason: str) -> None:
    pool = SimpleStore(9)
    pool.put(columns(1))
    memory = memory_of(2, agents=agents_of(pool))
    (found,) = put(memory, chunks(SECOND, 0, **bad))
    assert reason in found
    assert not put(memory, chunks(FIRST, 0, a=columns(1)), chunks(SECOND, 1, b=columns(1)))
    assert memory.round is not None
    assert memory.round.complete


def test_the_first_experiences_of_an_empty_pool_define_its_layout() -> None:
    pool = SimpleStore(9)
    memory_agents = agents_of(pool)
    memory = memory_of(2, agents=memory_agents)
    empty = columns(0, state=np.zeros((0, 7)))  # of no rows, dtypes and shapes mean nothing
    assert not put(memory, chunks(FIRST, 0, a=empty, b=columns(1)))
    assert put(memory, chunks(SECOND, 0, a=columns(1, state=np.ones((1, 2), np.float32))))
    assert not put(memory, chunks(SECOND, 1, a=columns(2)))
    for agent, joined in memory.joined()[1].items():
        memory_agents[agent].store_experiences(joined)
    assert len(pool) == 3


def test_weights_to_sample_by_may_be_missing_but_not_negative() -> None:
    agents = agents_of(SimpleStore(9), sample_by="priority")
    agents["a"].store_experiences(columns(2))
    memory = memory_of(2, agents=agents)
    assert not put(memory, chunks(FIRST, 0, a=columns(1)))
    (reason,) = put(memory, chunks(SECOND, 0, a=columns(1, priority=np.array([-1.0]))))
    assert "negative weights" in reason


@pytest.mark.parametrize("performance", [{}, {"score": "high"}, {"score": np.inf}, "text"])
def test_a_performance_without_a_score_is_refused(performance: Any) -> None:
    memory = memory_of(1)
    (reason,) = put(memory, chunks(SECOND, 0, performance=performance or {"x": 1}, a=columns(1)))
    assert "performance" in reason
    assert memory.round is not None
    assert not memory.round.collected


def test_an_endless_episode_is_refused_at_its_limit() -> None:
    memory = memory_of(1, max_episode_bytes=4000)
    parts = chunks(SECOND, 0, a=columns(1000))
    assert any("max_episode_bytes" in reason for reason in put(memory, parts))
    assert not put(memory, chunks(SECOND, 1, a=columns(10)))


def test_a_new_round_begins_with_empty_hands() -> None:
    memory = memory_of(1)
    put(memory, chunks(SECOND, 0, a=columns(1)))
    begin(memory, 1)
    assert memory.joined() == ({}, {})
    assert len(memory) == 0


@pytest.mark.parametrize("stream", [FIRST, SECOND])
@pytest.mark.parametrize("kind", KINDS)
def test_the_work_for_segments_of_one_row_grows_with_their_number(kind: str, stream: bytes) -> None:
    memory = memory_of(1)  # an assignment for SECOND
    (_, rows, _) = chunks(stream, 0, a=columns(MANY))
    rows.segments = one_row_segments(kind, MANY, VERSION)
    put(memory, [rows])
    assert memory.round is not None
    late = MANY // 2 if kind == "alternating" else 0
    assert (memory.round.late, memory.round.surplus) == (late, MANY - late if stream == FIRST else 0)
    assert not put(memory, chunks(SECOND, 1, a=columns(1)))
    assert memory.round.complete


def test_segments_that_continue_each_other_are_one_run() -> None:
    memory = memory_of(1)
    head, rows, end = chunks(SECOND, 0, a=columns(100))
    rows.segments = tuple(Segment(1, 0, 1 + index, *VERSION) for index in range(100))
    assert not put(memory, [head, rows, end])
    assert complete(memory)
    joined: dict[str, Any] = memory.joined()[1]
    assert joined["a"]["state"][:, 0].tolist() == list(range(100))


def test_a_message_of_refused_runs_is_read_up_to_a_limit() -> None:
    memory = memory_of(1)
    (_, rows, _) = chunks(SECOND, 0, a=columns(4 * MAX_REFUSALS))
    rows.segments = tuple(Segment(1, index, 3, *VERSION) for index in range(4 * MAX_REFUSALS))
    reader = memory._readers[SECOND] = Reader()
    assert len(put(memory, [rows])) == 1
    assert reader.taken == MAX_REFUSALS


class Reader(EpisodeReader):
    taken = 0

    def take(self, chunk: Chunk) -> tuple[list[PlayedEpisode], str]:
        self.taken += 1
        return super().take(chunk)


def test_a_few_rows_of_a_long_message_do_not_keep_the_rest_of_it() -> None:
    memory = memory_of(1)
    head, rows, _ = chunks(SECOND, 0, a=columns(1_000))
    rows.segments = (Segment(100, 0, 1, *VERSION), Segment(900, 9, 0, 1, 2))
    assert not put(memory, [head, rows])
    opened = memory._readers[SECOND]._open
    assert opened is not None
    (piece,) = opened.pieces
    assert piece.rows == 100
    assert not np.shares_memory(piece.reward, rows.reward)
