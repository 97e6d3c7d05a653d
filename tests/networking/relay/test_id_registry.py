"""Whose an id is, and how long that is remembered."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_core.networking.relay.id_registry import IdRegistry


def test_an_id_belongs_to_its_first_user() -> None:
    owners = IdRegistry()
    assert owners.claim(b"a", "robot7")
    assert owners.claim(b"a", "robot7")
    assert not owners.claim(b"a", "robot8")
    assert owners.claim(b"b", "robot8")


def test_many_ids_of_one_identity_do_not_evict_those_of_others() -> None:
    owners = IdRegistry(per_identity=10, total=100)
    owners.claim(b"mine", "robot7")
    for i in range(1_000):
        assert owners.claim(b"%d" % i, "wolf")
    assert not owners.claim(b"mine", "wolf")
    assert len(owners) == 11


def test_at_the_total_limit_the_largest_identity_loses_its_oldest_id() -> None:
    owners = IdRegistry(per_identity=10, total=12)
    owners.claim(b"mine", "robot7")
    for i in range(10):
        owners.claim(b"w%d" % i, "wolf")
    owners.claim(b"x", "fox")
    owners.claim(b"y", "fox")
    assert len(owners) == 12
    assert owners.claim(b"w0", "hare"), "forgotten"
    assert not owners.claim(b"mine", "hare")


def test_a_reused_id_is_not_the_oldest() -> None:
    owners = IdRegistry(per_identity=2, total=10)
    for key in (b"a", b"b", b"a", b"c"):
        owners.claim(key, "robot7")
    assert not owners.claim(b"a", "robot8")
    assert owners.claim(b"b", "robot8")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_the_bounds_hold_for_any_claims(seed: int) -> None:
    source = random.Random(seed)
    owners = IdRegistry(per_identity=5, total=12)
    for _ in range(500):
        owners.claim(source.randbytes(1), f"robot{source.randrange(4)}")
        assert len(owners) <= 12
        assert sum(map(len, owners._ids.values())) == len(owners)
        assert max(map(len, owners._ids.values())) <= 5
