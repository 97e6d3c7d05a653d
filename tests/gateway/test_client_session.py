from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.players import BOX, RecordingAgent, RecordingPlayer, step_message
from tmrl_core.envs.json_spaces import action_writer, observation_reader
from tmrl_core.errors import NetworkError, ObservationError, TmrlError
from tmrl_core.gateway.client_session import Session
from tmrl_core.gateway.messages import RequestError, StepMessage

READER = observation_reader(BOX, encoding="msgpack")


def make(**arguments: Any) -> tuple[Session, RecordingPlayer]:
    player = RecordingPlayer(BOX)
    return Session(player, read, action_writer(RecordingAgent.action_space), **arguments), player


def read(message: StepMessage) -> tuple[Any, dict[str, Any]]:
    return READER(message.obs), message.read_info() or {}


def message(
    obs: Any = 0.0,
    reward: float = 0.0,
    terminated: bool = False,
    truncated: bool = False,
    number: int | None = None,
    info: dict[str, Any] | None = None,
) -> StepMessage:
    return step_message([obs, obs] if isinstance(obs, float) else obs, reward, terminated, truncated, number, info)


def ask(session: Session, *messages: StepMessage) -> list[Any]:
    async def all_() -> list[Any]:
        return [await session.answer(each) for each in messages]

    return asyncio.run(all_())


def transitions(player: RecordingPlayer) -> list[tuple[Any, ...]]:
    """With observations as their first number."""
    return [(float(obs[0]), action, float(after[0]), *rest) for obs, action, after, *rest in player.transitions]


def test_an_episode() -> None:
    ended: list[tuple[int, float]] = []
    session, player = make(on_episode=lambda steps, total: ended.append((steps, total)))
    answers = ask(
        session,
        message(0.0),
        message(1.0, 0.5, info={"a": 1}),
        message(2.0, 2.0, terminated=True),
        message(3.0, 9.0),
        message(4.0, 1.0, truncated=True),
    )
    assert answers == [1, 2, None, 3, None]
    assert type(answers[0]) is int
    assert transitions(player) == [
        (0.0, 1, 1.0, 0.5, False, False),
        (1.0, 2, 2.0, 2.0, True, False),
        (3.0, 3, 4.0, 1.0, False, True),
    ]
    assert player.infos[0] == {"a": 1}
    assert player.begun == 2
    assert ended == [(2, 2.5), (1, 1.0)]
    assert (session.steps, session.episodes) == (3, 2)


def test_a_done_message_that_opens_an_episode_is_answered_null_and_makes_no_transition() -> None:
    session, player = make()
    assert ask(session, message(terminated=True), message(truncated=True), message(0.0)) == [None, None, 1]
    assert (player.transitions, player.begun, session.episodes) == ([], 1, 0)


def test_a_repeated_number_gets_the_same_answer_and_records_nothing() -> None:
    session, player = make()
    end = message(2.0, terminated=True, number=2)
    assert ask(session, *[message(0.0, number=0)] * 3, *[message(1.0, number=1)] * 2, end, end) == [
        1,
        1,
        1,
        2,
        2,
        None,
        None,
    ]
    assert len(player.transitions) == 2
    # The client may count from zero in each episode.
    assert ask(session, message(3.0, number=0), message(3.0, number=0)) == [3, 3]


def test_a_late_copy_of_an_old_request_is_refused() -> None:
    session, player = make()
    ask(session, message(number=5), message(number=6))
    with pytest.raises(RequestError, match="step 5 was answered before step 6: count on from 7") as caught:
        ask(session, message(number=5))
    assert caught.value.status == 409
    assert len(player.transitions) == 1


def test_a_second_request_at_once_is_refused_and_the_first_goes_on() -> None:
    session, player = make()

    async def two() -> Any:
        player.gate.clear()
        first = asyncio.ensure_future(session.answer(message(0.0, number=0)))
        await asyncio.sleep(0)
        for number in (0, 1):
            with pytest.raises(RequestError, match="in progress") as caught:
                await session.answer(message(1.0, number=number))
            assert caught.value.status == 409
        player.gate.set()
        return await first, await session.answer(message(0.0, number=0))

    assert asyncio.run(two()) == (1, 1)
    assert player.begun == 1


@pytest.mark.parametrize("error", [TmrlError("full"), ValueError("a bug")])
def test_a_failure_of_the_player_changes_nothing(error: Exception) -> None:
    session, player = make()
    for number, each in enumerate(
        [message(0.0, number=0), message(1.0, 1.0, number=1), message(2.0, truncated=True, number=2)]
    ):
        player.fails = error
        with pytest.raises(type(error)):
            ask(session, each)
        assert ask(session, each) == [[1, 2, None][number]]
    assert len(player.transitions) == 2


def test_a_bad_observation_changes_nothing() -> None:
    session, player = make()
    assert ask(session, message(0.0)) == [1]
    with pytest.raises(ObservationError, match=r"obs\[1\]"):
        ask(session, message([1.0, "x"], 5.0, number=7))
    assert ask(session, message(1.0, 5.0, number=7)) == [2]
    assert transitions(player) == [(0.0, 1, 1.0, 5.0, False, False)]


def test_a_missing_action_is_an_error_and_no_answer() -> None:
    class Silent(RecordingPlayer):
        def _act(self, obs: Any) -> Any:
            super()._act(obs)

    session = Session(Silent(BOX), read, int)
    with pytest.raises(RuntimeError, match="Silent returned no action"):
        ask(session, message())


def test_closing_wakes_a_request_that_waits() -> None:
    session, player = make()

    async def close() -> None:
        player.gate.clear()
        waiting = asyncio.ensure_future(session.answer(message()))
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(NetworkError, match="stopped"):
            await waiting

    asyncio.run(close())
    assert player.closed


MESSAGES = st.builds(
    message,
    obs=st.sampled_from([0.0, 1.0, 2.0, [1.0], None, ["x", 1.0]]),
    reward=st.sampled_from([0.0, 1.0, -2.5]),
    terminated=st.booleans(),
    truncated=st.booleans(),
    number=st.none() | st.integers(0, 4),
)


@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=20))
def test_any_order_of_messages_and_failures_records_each_answered_action_once(
    history: list[tuple[StepMessage, bool]],
) -> None:
    session, player = make()
    expected: list[tuple[Any, ...]] = []
    pending: tuple[float, int] | None = None
    last: tuple[int | None, Any] = None, None
    refused_repetitions = 0

    async def play() -> None:
        nonlocal pending, last, refused_repetitions
        for each, fails in history:
            player.fails = TmrlError("full") if fails else None
            done = each.terminated or each.truncated
            repeated = each.number is not None and each.number == last[0]
            try:
                answer = await session.answer(each)
            except (RequestError, ObservationError, TmrlError):
                refused_repetitions += repeated
                continue
            if repeated:
                assert answer == last[1]
                continue
            last = each.number, answer
            assert (answer is None) == done
            obs = msgspec.msgpack.decode(each.obs)[0]
            if pending is not None:
                expected.append((*pending, obs, each.reward, each.terminated, each.truncated))
            pending = None if answer is None else (obs, answer)

    asyncio.run(play())
    assert transitions(player) == expected
    assert refused_repetitions == 0
    assert session.steps == len(expected)
    assert np.isfinite([row[3] for row in expected]).all()
