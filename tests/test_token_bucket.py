from __future__ import annotations

from tmrl_core.token_bucket import TokenBucket


def test_a_burst_is_allowed_at_once_and_the_rate_afterwards() -> None:
    bucket = TokenBucket(rate_per_s=2.0, burst=3)
    assert [bucket.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(10.5), bucket.take(10.5)] == [True, False]


def test_no_more_than_a_burst_gathers() -> None:
    bucket = TokenBucket(rate_per_s=2.0, burst=3)
    assert bucket.take(0.0)
    assert bucket.available(1e6) == 3


def test_reading_the_level_takes_no_token() -> None:
    bucket = TokenBucket(rate_per_s=1.0, burst=1)
    assert bucket.available(0.0) == bucket.available(0.0) == 1.0


def test_a_clock_that_goes_back_adds_nothing() -> None:
    bucket = TokenBucket(rate_per_s=1.0, burst=2)
    bucket.spend(2.0)
    assert bucket.available(5.0) == 0.0
    assert bucket.available(3.0) == 0.0
    assert bucket.available(4.0) == 1.0


def test_a_token_can_be_returned_up_to_a_burst() -> None:
    bucket = TokenBucket(rate_per_s=0.0, burst=1)
    assert bucket.take(0.0)
    bucket.give_back()
    bucket.give_back()
    assert bucket.available(0.0) == 1.0
