"""Weights that one certificate makes the Server send: each version once, and few repetitions. Sans-I/O."""

from __future__ import annotations

import pytest

from tests.networking.relay.test_one_principal import MB, End, Place
from tmrl_core.networking.protocol.framing import FIRST, LAST, Kind
from tmrl_core.networking.protocol.messages import POLICY_HEAD, Have
from tmrl_core.networking.relay.sent_weights import BURST_BYTES, BYTES_PER_S, SentWeights


def versions(end: End, now: float = 0.0) -> int:
    """Return the number of complete versions that the relay has for this peer, and confirm each."""
    count = 0
    while True:
        frames = [frame for frame in end.read(now) if frame.kind == Kind.WEIGHTS]
        for frame in frames:
            if frame.flags & FIRST:
                head = POLICY_HEAD.unpack_from(frame.payload)
            if frame.flags & LAST:
                count += 1
                end.tell(Have(head[0], head[1]), now=now)
        if not frames:
            return count


def test_each_version_is_free_once() -> None:
    sent = SentWeights()
    for counter in range(1, 101):
        assert sent.wait_s("robot", (1, counter), BURST_BYTES, 0.0) == 0.0
    for _ in range(2):
        assert sent.wait_s("robot", (1, 100), BURST_BYTES - 1, 0.0) == 0.0, "the burst"
    assert 0.9 < sent.wait_s("robot", (1, 100), BURST_BYTES, 0.0) * BYTES_PER_S / BURST_BYTES < 1.1
    assert sent.wait_s("robot", (1, 101), BURST_BYTES, 0.0) == 0.0
    assert sent.wait_s("honest", (1, 100), BURST_BYTES, 0.0) == 0.0


def test_in_any_minute_the_rate_is_not_exceeded_by_more_than_the_burst_and_one_version() -> None:
    sent, now, taken = SentWeights(), 0.0, 0
    sent.wait_s("robot", (1, 1), 10 * MB, now)
    while now < 60.0:
        wait_s = sent.wait_s("robot", (1, 1), 10 * MB, now)
        taken += 0 if wait_s else 10 * MB
        now += wait_s
    assert taken <= 60.0 * BYTES_PER_S + BURST_BYTES + 20 * MB


@pytest.fixture
def place() -> Place:
    """A place where a policy of 1 MB is published, and a certificate may have it four times and then once a second."""
    place = Place()
    place.relay.sent_weights = SentWeights(MB, 3 * MB)
    place.publish(1, MB)
    return place


def test_links_that_take_the_same_version_again_and_again_wait_and_others_do_not(place: Place) -> None:
    links = [End(place.relay, "worker", "wolf", number) for number in range(6)]
    assert [versions(link) for link in links] == [1, 1, 1, 1, 0, 0]
    assert versions(End(place.relay, "worker", "honest")) == 1
    due = links[5].link.deadline()
    assert 0.0 < due < 1.1
    links[5].link.tick(due)
    assert versions(links[5], due) == 1, "its turn has come"
    place.publish(2, MB)
    assert versions(links[4], due) == 1, "the first link to receive a new version has it without a limit"
    assert versions(links[0], due) == 0


def test_a_role_token_that_a_fleet_shares_has_no_limit(place: Place) -> None:
    for number in range(20):
        link = End(place.relay, "worker", "fleet", number)
        link.link.identity = link.link.identity._replace(role=None)
        assert versions(link) == 1
