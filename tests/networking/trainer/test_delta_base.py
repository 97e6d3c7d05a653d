"""A trainer's link sends deltas to what the Server has confirmed, as long as they are worth it."""

from __future__ import annotations

import os

from tests.networking.protocol.test_packed_policy import weights
from tmrl_core.networking.protocol.packed_policy import MOST_DELTAS, decode_packed, pack, unpack
from tmrl_core.networking.trainer.delta_base import DeltaBase

BODY = weights(0.0, 500)


def begun(body: bytes = BODY) -> DeltaBase:
    base = DeltaBase()
    base.begin((3, 1), body, pack(body))
    base.confirmed((3, 1), 3)
    return base


def test_a_delta_is_to_the_confirmed_complete_policy() -> None:
    body = weights(0.01, 500)
    found = begun().delta((3, 2), body)
    assert found is not None
    assert found[0] == (3, 1)
    assert unpack(decode_packed(found[1], 1 << 20), BODY) == body


def test_there_is_no_delta_without_a_confirmed_base_of_this_incarnation() -> None:
    base = DeltaBase()
    assert base.delta((3, 1), BODY) is None
    base.begin((3, 1), BODY, pack(BODY))
    assert base.delta((3, 2), BODY) is None, "it is in transit"
    base.confirmed((3, 1), 4)
    assert base.delta((4, 2), BODY) is None, "the Server has dropped it, because it had raised the incarnation"
    assert begun().delta((4, 2), BODY) is None
    assert begun().delta((3, 2), BODY + b"x") is None, "another architecture"


def test_a_base_is_replaced_once_deltas_are_not_worth_it() -> None:
    base = begun(os.urandom(2_000))
    assert base.delta((3, 2), os.urandom(2_000)) is None, "a delta of noise is as large"
    base = begun()
    numbers = range(2, 200)
    last = next(number for number in numbers if base.delta((3, number), weights(0.001, 500)) is None)
    assert last - 2 == MOST_DELTAS
