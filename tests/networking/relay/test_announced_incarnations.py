"""Incarnations that trainers of protocol 2 announce: the relay keeps those of two trainers apart. Sans-I/O."""

from __future__ import annotations

from tests.networking.relay.test_one_principal import End
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.messages import MOST_RAISED, Announce, Hello, Incarnation
from tmrl_core.networking.relay import Relay


class Chooser(End):
    """A trainer that announces what a test says."""

    def __init__(self, relay: Relay, name: bytes, incarnation: int) -> None:
        self.link = relay.connection()
        self.link.connected(Identity("there", "trainer", "node"), 0.0)
        peer = name.ljust(16, b".")
        self.tell(Hello((2,), "trainer", "", "run", "node", peer, incarnation, holding=incarnation))
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
        self.tell(Hello((2,), "worker", "", "run", name, name.encode().ljust(16, b"."), incarnation))


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
