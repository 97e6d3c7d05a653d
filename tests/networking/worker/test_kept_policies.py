"""A worker keeps two policies at most, and makes of a delta the trainer's bytes or nothing."""

from __future__ import annotations

import pytest

from tests.networking.protocol.test_packed_policy import weights
from tmrl_core.networking.protocol.packed_policy import pack
from tmrl_core.networking.worker.kept_policies import KeptPolicies

BODIES = [weights(step / 100, 500) for step in range(5)]


def test_deltas_to_the_complete_policy_and_to_the_newest() -> None:
    kept = KeptPolicies()
    assert kept.body_of((3, 1), pack(BODIES[0])) == BODIES[0]
    assert kept.body_of((3, 2), pack(BODIES[1], ((3, 1), BODIES[0]))) == BODIES[1]
    assert kept.body_of((3, 4), pack(BODIES[3], ((3, 1), BODIES[0]))) == BODIES[3], "one was skipped"
    assert kept.base == (3, 1)
    # A new link of the trainer has begun with 3.4, which this worker has.
    assert kept.body_of((3, 5), pack(BODIES[4], ((3, 4), BODIES[3]))) == BODIES[4]
    assert kept.misfits == 0


def test_an_older_complete_policy_is_kept_beside_the_newest() -> None:
    kept = KeptPolicies()
    kept.body_of((3, 5), pack(BODIES[4]))
    kept.body_of((3, 1), pack(BODIES[0]))
    assert kept.base == (3, 1)
    assert kept.body_of((3, 6), pack(BODIES[2], ((3, 5), BODIES[4]))) == BODIES[2]


@pytest.mark.parametrize("content", [pack(BODIES[1], ((3, 2), BODIES[0])), pack(BODIES[1], ((3, 1), BODIES[2]))])
def test_a_delta_that_does_not_fit_leaves_nothing(content: bytes) -> None:
    kept = KeptPolicies()
    kept.body_of((3, 1), pack(BODIES[0]))
    assert kept.body_of((3, 3), content) is None
    assert (kept.base, kept.misfits) == ((0, 0), 1)
    assert kept.body_of((3, 4), pack(BODIES[1], ((3, 1), BODIES[0]))) is None
    assert kept.body_of((3, 5), pack(BODIES[2])) == BODIES[2]


def test_damaged_and_too_large_ones_leave_nothing() -> None:
    kept = KeptPolicies(max_bytes=1_000)
    assert kept.body_of((3, 1), pack(BODIES[0])) is None
    assert kept.body_of((3, 2), pack(BODIES[0])[:60]) is None
    assert kept.misfits == 2


def test_policies_that_are_not_packed_pass_and_nothing_is_kept() -> None:
    kept = KeptPolicies()
    kept.body_of((3, 1), pack(BODIES[0]))
    content = memoryview(BODIES[1])
    assert kept.body_of((3, 2), content) is content
    assert kept.base == (0, 0)
