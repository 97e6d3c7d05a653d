from __future__ import annotations

import asyncio
import gc
import json
import logging
import tracemalloc
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from gymnasium import spaces

from tests.gateway.players import RecordingAgent, step_message
from tmrl_core.errors import ConfigError, SessionClosedError, TmrlError
from tmrl_core.gateway.api_keys import ApiKeys, make_key, revoke_key
from tmrl_core.gateway.client_sessions import MAKE_ROOM_S, WRONG_LOGINS_AT_ONCE, Sessions
from tmrl_core.gateway.contracts import FinishedEpisode
from tmrl_core.gateway.messages import MAX_INFO_BYTES, EndMessage, RequestError
from tmrl_core.gateway.settings import GatewaySection
from tmrl_core.rate_limited_log import LINES_AT_ONCE

CLIENT = "192.0.2.1:5000"
Result = TypeVar("Result")


class Gateway:
    """Sessions of one agent, with one API key."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.entry, self.apikey = make_key(folder, "default")
        self.agent = RecordingAgent()
        self.episodes: list[FinishedEpisode] = []
        self.keys = ApiKeys(folder)
        self.sessions = Sessions(
            [self.agent], self.keys, GatewaySection(**settings), self.episodes.append, wall_clock=lambda: 1000.0
        )

    def login(self, now: float = 0.0, apikey: str | None = None, address: str = CLIENT) -> str:
        return run(self.sessions.login(apikey or self.apikey, address, now))

    def step(self, key: str, now: float = 0.0, **changes: Any) -> Any:
        return run(self.sessions.answer(step_message(**{"reward": 1.0, "session_key": key, **changes}), now))

    def expire(self, now: float) -> None:
        async def both() -> None:
            self.sessions.expire(now)
            await asyncio.sleep(0)

        run(both())

    @property
    def ids(self) -> list[str]:
        return [info.session_id for info in self.sessions.infos(0.0)]

    @property
    def closed(self) -> int:
        return sum(player.closed for player in self.agent.players.values())


def run(call: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(call)


def test_a_login_opens_a_session_that_plays(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    key = gateway.login()
    assert len(key) >= 40
    assert (gateway.step(key), gateway.step(key), gateway.step(key, terminated=True)) == (1, 2, None)
    (info,) = gateway.sessions.infos(5.0)
    assert (info.agent, info.key_id, info.steps, info.episodes) == ("default", gateway.entry.id, 2, 1)
    assert (info.opened_at, info.idle_s) == (1000.0, 5.0)
    assert info.session_id not in key
    assert gateway.episodes == [
        FinishedEpisode(
            ended_at=1000.0,
            agent="default",
            session_id=info.session_id,
            key_id=gateway.entry.id,
            steps=2,
            episode_return=2.0,
        )
    ]


def test_sessions_of_one_key_are_apart(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    first, second = gateway.login(), gateway.login()
    assert first != second
    assert [gateway.step(first), gateway.step(first), gateway.step(second)] == [1, 2, 1]


def refused(status: int, said: str, call: Any, *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        call(*arguments, **keywords)
    assert caught.value.status == status


def test_no_text_of_a_session_holds_its_key(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    key = gateway.login()
    (client,) = gateway.sessions._clients.values()
    assert key == client.key
    assert key not in f"{client!r} {client.usage!r}"


def test_a_wrong_key_is_refused_and_later_with_429_but_a_valid_one_is_accepted(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    for wrong in (*["wrong"] * (WRONG_LOGINS_AT_ONCE - 3), gateway.apikey[:-1], gateway.apikey + "x", "x" * 100_000):
        refused(401, "not valid", gateway.login, 0.0, wrong)
    refused(429, "too many logins", gateway.login, 0.0, "wrong")
    refused(401, "not valid", gateway.login, 0.0, "wrong", "192.0.2.2:1")
    refused(401, "not valid", gateway.login, 6.0, "wrong")
    assert gateway.login()


def test_a_key_of_an_unknown_agent_is_refused(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    refused(403, "agent 'other'", gateway.login, 0.0, make_key(tmp_path, "other")[1])


def test_an_agent_that_takes_no_session_is_named(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    gateway.agent.full = True
    refused(503, "no learner is free", gateway.login)
    assert len(gateway.sessions) == 0


def test_an_end_message_closes_the_session_and_may_be_repeated(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    key = gateway.login()
    gateway.step(key)
    for _ in range(2):
        assert run(gateway.sessions.answer(EndMessage(key), 0.0)) is None
    assert run(gateway.sessions.answer(EndMessage(None), 0.0)) is None
    assert gateway.closed == 1
    refused(401, "log in again", gateway.step, key)


def test_errors_have_a_status(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    key = gateway.login()
    refused(401, "session_key", gateway.step, "stale")
    refused(400, "obs: expected", gateway.step, key, obs=[1.0])
    (player,) = gateway.agent.players.values()
    player.fails = TmrlError("the policy is not there yet")
    refused(503, "not there yet", gateway.step, key)
    assert gateway.step(key) == 1


def test_numbers_that_would_make_updates_infinite_are_refused(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, max_number=1e6)
    key = gateway.login()
    gateway.step(key)
    for reward in (1e308, -1e38, 1.1e6):
        refused(400, r"reward is .*1e\+06 .*gateway.max_number", gateway.step, key, reward=reward)
    refused(400, r"obs\[1\]: expected `float` >= -1000000", gateway.step, key, obs=[0.0, -3e38])
    gateway.step(key, reward=-1e6)
    assert len(next(iter(gateway.agent.players.values())).transitions) == 1


def test_the_size_of_a_message_follows_the_largest_observation(tmp_path: Path) -> None:
    assert Gateway(tmp_path).sessions.max_body_bytes == 65_536 + 2 * 64
    assert Gateway(tmp_path, max_body_bytes=9).sessions.max_body_bytes == 9
    camera = RecordingAgent("camera", spaces.Dict({"image": spaces.Box(0, 255, (210, 160, 3), np.uint8)}))
    sizes = Sessions([RecordingAgent(), camera], ApiKeys(tmp_path), GatewaySection())
    pretty = json.dumps({"image": np.full((210, 160, 3), 255).tolist()}, indent=4)
    assert len(pretty) < sizes.max_body_bytes


def test_a_large_info_is_left_out_and_its_step_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(tmp_path)
    key = gateway.login()
    gateway.step(key)
    for info in ({"small": 1}, {"large": "x" * MAX_INFO_BYTES}, {"large": "x" * MAX_INFO_BYTES}):
        gateway.step(key, info=info)
    (player,) = gateway.agent.players.values()
    assert player.infos == [{"small": 1}, {}, {}]
    assert caplog.text.count("is left out") == 1


def test_a_session_ends_with_its_learner(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    key = gateway.login()
    (player,) = gateway.agent.players.values()
    player.fails = SessionClosedError("the learner of this session has failed. Log in again")
    refused(401, "learner of this session has failed", gateway.step, key)
    assert (len(gateway.sessions), gateway.closed) == (0, 1)
    refused(401, "log in again", gateway.step, key)


def test_idle_sessions_expire(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, idle_s=100.0)
    first, second = gateway.login(0.0), gateway.login(0.0)
    gateway.step(first, 50.0)
    gateway.expire(99.0)
    assert len(gateway.sessions) == 2
    gateway.expire(100.0)
    assert len(gateway.sessions) == gateway.closed == 1
    refused(401, "log in again", gateway.step, second)
    assert gateway.step(first, 120.0) == 2


def test_expiry_does_not_wait_for_a_session_that_takes_long_to_close(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, idle_s=100.0)

    async def play() -> None:
        key = await gateway.sessions.login(gateway.apikey, CLIENT, 0.0)
        (player,) = gateway.agent.players.values()
        player.saves.clear()
        gateway.sessions.expire(100.0)
        with pytest.raises(RequestError, match="log in again"):
            await gateway.sessions.answer(step_message(session_key=key), 100.0)
        closing = asyncio.ensure_future(gateway.sessions.close(100.0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (len(gateway.sessions), player.closed, closing.done()) == (0, False, False)
        player.saves.set()
        await closing
        assert player.closed

    run(play())


def test_logins_cannot_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(tmp_path)

    async def play() -> None:
        for number in range(1000):
            key = await gateway.sessions.login(gateway.apikey, CLIENT, number / 1000)
            await gateway.sessions.answer(EndMessage(key), number / 1000)

    with caplog.at_level(logging.INFO):
        run(play())
        assert len(caplog.records) <= LINES_AT_ONCE + 1
        gateway.login(2.0)
    assert "opened" in caplog.records[-1].message
    assert "lines about sessions and were not logged" in caplog.records[-1].message


def test_sessions_of_a_revoked_key_end(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)
    other_id, other = make_key(tmp_path, "default")[0].id, make_key(tmp_path, "default")[1]
    gateway.login()
    kept = gateway.login(apikey=other)
    assert other_id != gateway.entry.id
    revoke_key(tmp_path, gateway.entry.id)
    gateway.expire(1.0)
    assert (len(gateway.sessions), gateway.closed) == (1, 1)
    assert gateway.step(kept) == 1
    refused(401, "not valid", gateway.login)


def test_a_key_has_a_maximum_of_sessions_and_long_idle_ones_make_room(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, max_sessions_per_key=2)
    first, second = gateway.login(0.0), gateway.login(0.0)
    gateway.step(first, 1.0)
    refused(
        429, "has 2 open sessions, its maximum \\(gateway.max_sessions_per_key\\)", gateway.login, MAKE_ROOM_S - 0.1
    )
    gateway.login(MAKE_ROOM_S)
    assert gateway.closed == 1
    refused(401, "log in again", gateway.step, second)
    gateway.step(first)


def test_all_keys_have_a_maximum_and_the_busiest_makes_room(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, max_sessions=3)
    other = make_key(tmp_path, "default")[1]
    kept = gateway.login(0.0, other)
    busy = [gateway.login(1.0), gateway.login(1.0)]
    refused(429, "the gateway has 3 open sessions, its maximum \\(gateway.max_sessions\\)", gateway.login, 50.0)
    gateway.login(MAKE_ROOM_S + 1.0, other)
    refused(401, "log in again", gateway.step, busy[0])
    gateway.step(kept)


def test_steps_of_a_key_are_limited(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, max_steps_per_key_per_s=2.0)
    keys = [gateway.login(), gateway.login()]
    gateway.step(keys[0], 0.0)
    gateway.step(keys[1], 0.0)
    refused(429, "more than 2 steps per second", gateway.step, keys[0], 0.0)
    gateway.step(keys[0], 0.5)


def test_closing_ends_all_sessions_even_if_one_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway(tmp_path)
    for _ in range(3):
        gateway.login()
    next(iter(gateway.agent.players.values())).closed = True  # closing it again fails
    run(gateway.sessions.close(0.0))
    assert (len(gateway.sessions), gateway.closed) == (0, 3)
    assert "did not end cleanly" in caplog.text


def test_a_session_that_ends_during_a_request_refuses_it(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path)

    async def play() -> None:
        key = await gateway.sessions.login(gateway.apikey, CLIENT, 0.0)
        (player,) = gateway.agent.players.values()
        player.gate.clear()
        waiting = asyncio.ensure_future(gateway.sessions.answer(step_message(session_key=key), 0.0))
        await asyncio.sleep(0)
        await gateway.sessions.answer(EndMessage(key), 0.0)
        with pytest.raises(RequestError, match="ended during this request") as caught:
            await waiting
        assert caught.value.status == 401

    run(play())


def test_memory_is_bounded_with_ten_thousand_logins(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, max_sessions_per_key=100)

    async def logins(start: int, count: int, apikey: str) -> Counter[int]:
        statuses: Counter[int] = Counter()
        for number in range(start, start + count):
            try:
                await gateway.sessions.login(
                    apikey, f"10.{number // 65536}.{number // 256 % 256}.{number % 256}:1", 0.0
                )
            except RequestError as error:
                statuses[error.status] += 1
            else:
                statuses[200] += 1
        return statuses

    assert run(logins(0, 10_000, gateway.apikey)) == {200: 100, 429: 9_900}
    assert run(logins(0, 10_000, "wrong")) == {401: 10_000}
    gc.collect()
    tracemalloc.start()
    try:
        run(logins(0, 2_000, gateway.apikey))
        run(logins(10_000, 2_000, "wrong"))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(gateway.sessions) == 100
    assert grown < 2_000_000


def test_a_space_that_json_cannot_express_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Text"):
        Sessions([RecordingAgent(observation_space=spaces.Text(3))], ApiKeys(tmp_path), GatewaySection())
