from __future__ import annotations

from tmrl_core.networking.relay.stream_budget import STREAM_BYTES, StreamBudget

COST = STREAM_BYTES + 100


def test_the_streams_of_one_identity_are_bounded_and_leave_space_for_others() -> None:
    budget = StreamBudget(of_one_bytes=2 * COST, in_all_bytes=3 * COST)
    assert not budget.acquire(b"a", "wolf", 100, 0.0)
    assert not budget.acquire(b"b", "wolf", 100, 0.0)
    assert "these credentials" in budget.acquire(b"c", "wolf", 100, 0.0)
    assert not budget.acquire(b"d", "arm", 100, 0.0)
    assert "all streams" in budget.acquire(b"e", "leg", 100, 0.0)


def test_the_streams_of_a_token_have_more_memory() -> None:
    budget = StreamBudget()
    admitted = (budget.acquire(b"%16d" % number, "token", 700, 0.0, by_token=True) for number in range(20_000))
    assert next(number for number, reason in enumerate(admitted) if reason) > 14_000
    assert not budget.acquire(b"d", "arm", 700, 0.0)


def test_a_forgotten_stream_costs_nothing() -> None:
    budget = StreamBudget(of_one_bytes=COST, in_all_bytes=COST)
    for _ in range(3):
        assert not budget.acquire(b"a", "arm", 100, 0.0)  # again, in its own place
        budget.release(b"a")
        budget.release(b"a")
        assert not budget.acquire(b"b", "leg", 100, 0.0)
        budget.release(b"b")
    assert budget.acquire(b"a", "arm", 101, 0.0)


def test_a_refused_stream_releases_its_memory() -> None:
    budget = StreamBudget(of_one_bytes=COST, in_all_bytes=COST)
    assert not budget.acquire(b"a", "arm", 100, 0.0)
    assert budget.acquire(b"a", "arm", 101, 0.0)
    assert not budget.acquire(b"b", "leg", 100, 0.0)


def test_streams_that_are_opened_again_and_again_announce_signatures_at_a_rate() -> None:
    budget = StreamBudget(announced_bytes=2_000, announced_bytes_per_s=100)
    for _ in range(20):
        assert not budget.acquire(b"a", "wolf", 100, 0.0)
        budget.release(b"a")
    assert "in a short time" in budget.acquire(b"a", "wolf", 100, 0.5)
    assert not budget.acquire(b"b", "arm", 100, 0.5)
    assert not budget.acquire(b"a", "wolf", 100, 1.0)
    assert "in a short time" in budget.acquire(b"c", "wolf", 100, 1.5)
