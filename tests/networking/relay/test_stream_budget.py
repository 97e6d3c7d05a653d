from __future__ import annotations

from tmrl_core.networking.relay.stream_budget import STREAM_BYTES, Room

COST = STREAM_BYTES + 100


def test_the_streams_of_one_identity_are_bounded_and_leave_the_others_room() -> None:
    room = Room(of_one_bytes=2 * COST, in_all_bytes=3 * COST)
    assert not room.take(b"a", "wolf", 100)
    assert not room.take(b"b", "wolf", 100)
    assert "these credentials" in room.take(b"c", "wolf", 100)
    assert not room.take(b"d", "arm", 100)
    assert "all streams" in room.take(b"e", "leg", 100)


def test_a_stream_that_is_known_no_more_costs_nothing() -> None:
    room = Room(of_one_bytes=COST, in_all_bytes=COST)
    for _ in range(3):
        assert not room.take(b"a", "arm", 100)  # again, in its own place
        room.give_back(b"a")
        room.give_back(b"a")
        assert not room.take(b"b", "leg", 100)
        room.give_back(b"b")
    assert room.take(b"a", "arm", 101)


def test_a_stream_that_is_refused_gives_back_what_it_had() -> None:
    room = Room(of_one_bytes=COST, in_all_bytes=COST)
    assert not room.take(b"a", "arm", 100)
    assert room.take(b"a", "arm", 101)
    assert not room.take(b"b", "leg", 100)
