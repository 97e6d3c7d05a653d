"""Incarnations that trainers choose and announce: the relay keeps those of two trainers apart. Sans-I/O."""

from __future__ import annotations

import pytest

from tests.networking.relay.test_one_principal import End
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.framing import Kind, cut
from tmrl_core.networking.protocol.messages import (
    MOST_RAISED,
    POLICY_HEAD,
    Announce,
    Hello,
    Incarnation,
    Refused,
    decode_control,
)
from tmrl_core.networking.relay import Relay


class Chooser(End):
    """A trainer that announces what a test says."""

    def __init__(self, relay: Relay, name: bytes, incarnation: int) -> None:
        self.link = relay.connection()
        self.link.connected(Identity("there", "trainer", "node"), 0.0)
        peer = name.ljust(16, b".")
        self.tell(Hello((1,), "trainer", "", "run", "node", peer, incarnation, holding=incarnation, announces=True))
        self.announce(incarnation)

    def announce(self, incarnation: int) -> None:
        self.tell(Announce(incarnation, b"card"))

    def suggested(self) -> list[int]:
        return [message.incarnation for message in self.heard() if isinstance(message, Incarnation)]


def test_the_incarnation_of_an_earlier_trainer_is_answered_with_a_free_one() -> None:
    relay = Relay()
    Chooser(relay, b"first", 9)
    assert relay.trainer is not None
    relay.trainer.close()
    relay.trainer.lost(None, 0.0)
    second = Chooser(relay, b"second", 2)
    second.announce(9)  # raised by a worker's record before the suggestion arrives
    assert second.suggested() == [10, 10]
    assert relay._announced is None
    second.announce(10)
    assert (relay.trainer_incarnation, second.suggested()) == (10, [])


def test_a_trainer_that_cannot_take_the_suggestion_keeps_its_incarnation() -> None:
    relay = Relay()
    Chooser(relay, b"first", 1 << 40)
    assert relay.trainer is not None
    relay.trainer.lost(None, 0.0)
    second = Chooser(relay, b"second", 2)
    assert second.suggested() == [(1 << 40) + 1]
    second.announce(2)
    assert (relay.trainer_incarnation, second.suggested()) == (2, [])


def test_an_announcement_that_crosses_the_suggestion_does_not_keep_the_incarnation() -> None:
    relay = Relay()
    Chooser(relay, b"first", 9)
    assert relay.trainer is not None
    relay.trainer.lost(None, 0.0)
    second = Chooser(relay, b"second", 2)
    Claimant(relay, "thief", 1 << 40)
    assert second.suggested() == [10, (1 << 40) + 1]
    second.announce(2)  # the answer to one of them
    assert relay._announced is None
    second.announce(2)
    assert relay.trainer_incarnation == 2


class Claimant(End):
    """A worker that reports an incarnation."""

    def __init__(self, relay: Relay, name: str, incarnation: int) -> None:
        self.link = relay.connection()
        self.link.connected(Identity("there", "worker", name), 0.0)
        self.tell(Hello((1,), "worker", "", "run", name, name.encode().ljust(16, b"."), incarnation))


def test_an_implausible_claim_does_not_hide_a_plausible_one() -> None:
    relay = Relay()
    trainer = Chooser(relay, b"first", 8)
    trainer.suggested()
    Claimant(relay, "thief", 1 << 40)
    Claimant(relay, "honest", 9)  # it has seen another trainer of incarnation 8
    assert trainer.suggested() == [(1 << 40) + 1]
    trainer.announce(8)
    assert trainer.suggested() == [10]
    trainer.announce(10)
    assert (relay.trainer_incarnation, trainer.suggested()) == (10, [])


def test_a_trainer_that_keeps_its_incarnation_is_told_of_a_higher_one_once() -> None:
    relay = Relay()
    trainer = Chooser(relay, b"first", 8)
    Claimant(relay, "thief", 1 << 40)
    Claimant(relay, "honest", 8 + MOST_RAISED)
    Claimant(relay, "stranger", 9 + MOST_RAISED)
    trainer.announce(8)
    assert trainer.suggested()[-1] == 9 + MOST_RAISED
    trainer.announce(8)
    assert (relay.trainer_incarnation, trainer.suggested()) == (8, [])


def test_only_a_trainer_that_chooses_its_incarnation_announces_one() -> None:
    """It says so in its first message. Another one would pass by the comparison with the earlier trainer."""
    relay = Relay()
    Chooser(relay, b"first", 9)
    assert relay.trainer is not None
    relay.trainer.lost(None, 0.0)
    other = End(relay, "trainer", "node")
    other.tell(Announce(9, b"card"))
    assert isinstance(other.heard()[-1], Refused)
    assert relay.protocol_errors == 1
    assert relay._announced is None


@pytest.mark.parametrize("chooses", [True, False])
def test_the_card_and_the_policy_of_a_run_are_kept_for_a_trainer_that_authenticates_too(chooses: bool) -> None:
    """Workers that authenticate use no others, and workers that do not could not use these."""
    relay = Relay()
    first = Chooser(relay, b"first", 2)
    first.write(b"".join(map(bytes, cut(Kind.WEIGHTS, POLICY_HEAD.pack(2, 1, 5), (b"proof",), epoch=0, channel=0))))
    assert relay.policies.latest is not None
    first.link.lost(None, 0.0)
    trainer = Chooser(relay, b"second", 3) if chooses else End(relay, "trainer", "node")
    assert relay.trainer is trainer.link
    worker = End(relay, "worker", "robot")
    frames = worker.read()
    heard = [decode_control(frame.payload) for frame in frames if frame.kind == Kind.CONTROL]
    assert any(isinstance(message, Announce) for message in heard) == chooses
    assert any(frame.kind == Kind.WEIGHTS for frame in frames) == chooses
    assert relay.card_of("run") == (b"card" if chooses else b"")
