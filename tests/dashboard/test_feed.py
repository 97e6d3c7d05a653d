"""Streams of events: the latest, once, resumed by id, ended."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from tests.dashboard.played import Played, history, scene
from tmrl_core.dashboard import feed as feeds
from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.feed import Feed
from tmrl_core.dashboard.screen import screen


class Place:
    """A feed whose clock is `now`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.source = Played()
        self.feed = Feed(
            self.source,
            lambda told, age_s: screen(Seen(scene=told, scene_age_s=age_s), None, may_order=False),
            lambda: self.now,
        )

    def show(self, **values: Any) -> None:
        self.now += 1.0
        self.source.show(**values)
        self.feed.refresh()


def run(function: Callable[[Place], Awaitable[None]]) -> None:
    async def inside() -> None:
        await function(Place())

    asyncio.run(inside())


def parsed(event: bytes) -> tuple[str, str, Any]:
    lines = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
    return lines["event"], lines["id"], json.loads(lines["data"])


async def taken(stream: AsyncIterator[bytes], count: int) -> list[tuple[str, str, Any]]:
    return [parsed(await asyncio.wait_for(anext(stream), 5)) for _ in range(count)]


async def opened(place: Place, last_id: str = "") -> AsyncIterator[bytes]:
    stream = place.feed.stream(last_id)
    assert await anext(stream) == b"retry: 2000\n\n"
    return stream


def test_a_new_page_gets_screen_and_curves() -> None:
    async def inside(place: Place) -> None:
        place.source.show(scene=scene(), history=history())
        stream = await opened(place)
        first, second = await taken(stream, 2)
        assert (first[0], second[0]) == ("screen", "curves")
        assert first[2]["scene"]["env_steps"] == 41_200
        assert len(second[2]["series"]["rollout/ep_rew"]["values"]) == 300

    run(inside)


def test_a_slow_page_skips_to_the_latest() -> None:
    async def inside(place: Place) -> None:
        place.source.show(scene=scene())
        stream = await opened(place)
        await taken(stream, 1)
        for steps in range(50_000, 50_010):
            place.show(scene=scene(env_steps=steps, time_s=steps))
        ((_, _, found),) = await taken(stream, 1)
        assert found["scene"]["env_steps"] == 50_009

    run(inside)


def test_a_page_that_returns_gets_no_curves_that_it_has() -> None:
    async def inside(place: Place) -> None:
        place.source.show(scene=scene(), history=history())
        _, (_, last_id, _) = await taken(await opened(place), 2)
        stream = await opened(place, last_id)
        place.show(scene=scene(env_steps=1, time_s=1.0))
        ((kind, _, found),) = await taken(stream, 1)
        assert (kind, found["scene"]["env_steps"]) == ("screen", 1)
        place.show(history=history(10))
        assert {kind for kind, _, _ in await taken(stream, 2)} == {"screen", "curves"}

    run(inside)


@pytest.mark.parametrize("last_id", ["", "x", "other-1-1", "-", "1-2-3-4", "9" * 500])
def test_ids_of_others_mean_nothing(last_id: str) -> None:
    async def inside(place: Place) -> None:
        place.source.show(scene=scene(), history=history())
        assert [kind for kind, _, _ in await taken(await opened(place, last_id), 2)] == ["screen", "curves"]

    run(inside)


def test_a_quiet_source_gives_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_S", 0.01)

    async def inside(place: Place) -> None:
        stream = await opened(place)
        await taken(stream, 1)
        assert await asyncio.wait_for(anext(stream), 5) == b": \n\n"

    run(inside)


def test_the_end_is_told_and_streams_end() -> None:
    async def inside(place: Place) -> None:
        stream = await opened(place)
        await taken(stream, 1)
        place.feed.stop()
        assert [event async for event in stream] == [b"event: end\ndata: {}\n\n"]
        assert place.feed.viewers == 0

    run(inside)


def test_nothing_is_made_while_nobody_looks() -> None:
    async def inside(place: Place) -> None:
        made: list[float] = []
        place.feed = Feed(
            place.source,
            lambda told, age_s: made.append(age_s) or screen(Seen(scene=told), None, may_order=False),  # type: ignore[func-returns-value]
            lambda: place.now,
        )
        place.show(scene=scene())
        assert made == []
        place.now += 7.0
        await taken(await opened(place), 1)
        assert made == [7.0]

    run(inside)


def test_a_scene_that_is_made_anew_is_not_younger() -> None:
    async def inside(place: Place) -> None:
        stream = await opened(place)
        place.show(scene=scene())
        await taken(stream, 1)
        place.now += 9.0
        place.show(scene=msgspec.structs.replace(scene(), updates=7))
        ((_, _, found),) = await taken(stream, 1)
        assert found["scene_age_s"] == 10.0

    run(inside)


def test_events_are_followed_and_compressed() -> None:
    async def inside(place: Place) -> None:
        following = asyncio.create_task(place.feed.run())
        place.source.show(scene=scene(50))
        unpack = zlib.decompressobj(31)
        sizes = []
        stream = place.feed.stream(compressed=True)
        for number in range(4):
            place.source.show(scene=scene(50, time_s=number, env_steps=number))
            packed = await asyncio.wait_for(anext(stream), 5)
            sizes.append(len(packed))
            plain = unpack.decompress(packed)
            assert plain.endswith(b"\n\n")
        assert sizes[-1] < len(plain) / 8
        following.cancel()

    run(inside)
