"""One principal gets a share of the Server's processor for everything but samples. Sans-I/O."""

from __future__ import annotations

import pytest

from tests.networking.relay.test_one_principal import End, Place
from tmrl_core.networking.protocol.framing import control_frame
from tmrl_core.networking.protocol.messages import Have, Hello, Resume
from tmrl_core.networking.relay.processor_time import (
    AT_ONCE_S,
    BURST_S,
    MAX_PAUSE_S,
    MAX_READ_BYTES,
    MIN_PAUSE_S,
    MIN_READ_BYTES,
    READ_S,
    SHARE,
    SHARE_AT_ONCE,
    ProcessorTime,
    ReadSize,
)


def test_a_principal_gets_a_burst_and_then_its_share() -> None:
    account, now, used = ProcessorTime(), 0.0, 0.0
    while not account.overspent("wolf", now):
        used += AT_ONCE_S
        now += account.charge("wolf", AT_ONCE_S, now)
    assert used == pytest.approx(BURST_S + SHARE * now, abs=2 * AT_ONCE_S)
    pause_s = account.charge("wolf", 0.1, now)
    assert pause_s >= 0.1 / SHARE
    assert account.charge("wolf", 0.0, now + pause_s + 0.001) == 0.0
    assert account.charge("honest", AT_ONCE_S, now) == 0.0


def test_a_burst_leaves_half_of_the_time_to_others() -> None:
    account, now, used = ProcessorTime(), 0.0, 0.0
    while now < 1.0:
        used += READ_S
        pause_s = account.charge("wolf", READ_S, now)
        assert pause_s == 0.0 or pause_s >= MIN_PAUSE_S
        now += READ_S + pause_s
    assert used <= SHARE_AT_ONCE * now + AT_ONCE_S + READ_S


def test_reads_of_tiny_messages_become_small_and_others_grow_again() -> None:
    size = ReadSize()
    while size.bytes < MAX_READ_BYTES:
        assert not size.spent(READ_S / 10, size.bytes)
    assert size.spent(MAX_READ_BYTES * 400e-9, MAX_READ_BYTES)
    for _ in range(5):
        assert size.bytes <= 2 * READ_S / 400e-9
        size.spent(size.bytes * 400e-9, size.bytes)
    assert size.spent(1.0, 100)
    assert size.bytes == MIN_READ_BYTES


def test_no_pause_is_as_long_as_the_silence_that_closes_a_link() -> None:
    assert ProcessorTime().charge("wolf", 100.0, 0.0) == MAX_PAUSE_S


def test_in_any_minute_the_share_is_not_exceeded_by_more_than_the_burst() -> None:
    account, now, used = ProcessorTime(), 0.0, 0.0
    while now < 60.0:
        used += 0.05
        now += account.charge("wolf", 0.05, now) + 0.05
    assert used <= 60.0 * SHARE + BURST_S + 0.1


class Paused:
    """The pauses that a link asks its transport for; `turns`: those that only give the others their turn."""

    def __init__(self, end: End) -> None:
        self.pauses: list[float] = []
        self.turns = 0
        end.link.pause = self.pause

    def pause(self, seconds: float) -> None:
        if seconds:
            self.pauses.append(seconds)
        else:
            self.turns += 1


def test_all_links_of_the_principal_pause_and_no_other() -> None:
    place = Place()
    first, second, honest = place.worker("wolf"), place.worker("wolf", number=1), place.worker("honest")
    paused = [Paused(end) for end in (first, second, honest, place.trainer)]
    first.tell(Have(1, 1))
    first.link.charge(BURST_S + 0.1, 20, 0.0)
    assert [len(one.pauses) for one in paused] == [1, 1, 0, 0]
    assert first.link.overspent
    assert not honest.link.overspent


def test_a_link_whose_read_took_long_gives_others_their_turn() -> None:
    place = Place()
    end = place.worker("w")
    paused = Paused(end)
    before = end.link.read_bytes
    end.link.charge(READ_S / 2, 100, 0.0)
    assert (paused.turns, end.link.read_bytes) == (0, 2 * before)
    end.link.charge(2 * READ_S, before, 0.0)
    assert (paused.turns, end.link.read_bytes) == (1, before // 2)


def test_samples_are_not_charged() -> None:
    place = Place(budget_bytes=64 << 20)
    end = place.worker("busy")
    end.link.charge(0.0, end.link.bytes_in, 0.0)  # for its greeting
    paused = Paused(end)
    for number in range(4):
        before = end.link.bytes_in
        place.send(end, number, 10_000)
        end.link.charge(10.0, end.link.bytes_in - before, 0.0)
    assert paused.pauses == []


@pytest.mark.parametrize("wire", [1, 40])
def test_samples_in_tiny_records_and_frames_of_no_epoch_are_charged(wire: int) -> None:
    place = Place(budget_bytes=64 << 20)
    end = place.worker("wolf")
    end.link.charge(0.0, end.link.bytes_in, 0.0)
    paused = Paused(end)
    if wire == 1:
        end.resumes[0] = Resume(0, 0, 77)
    before = end.link.bytes_in
    place.send(end, 0, 10_000)
    end.link.charge(BURST_S + 1.0, wire * (end.link.bytes_in - before), 0.0)
    assert len(paused.pauses) == 1


def test_the_trainer_is_not_charged() -> None:
    place = Place()
    paused = Paused(place.trainer)
    place.trainer.tell()
    place.trainer.link.charge(100.0, 20, 0.0)
    assert paused.pauses == []


def test_handshakes_are_charged_to_certificates_only() -> None:
    place = Place()
    for role, expected in (("worker", True), (None, False)):
        link = place.relay.connection()
        link.connected(place.trainer.link.identity._replace(role=role, name=role and "wolf"), 0.0)
        pauses: list[float] = []
        link.pause = pauses.append
        link.charge(BURST_S + 1.0, 1_000, 0.0)
        pauses.clear()  # others had their turn
        hello = control_frame(Hello((1,), "worker", "", "run", "wolf", b"wolf" * 4))
        link.get_buffer()[: len(hello)] = hello
        link.received(len(hello), 0.0)
        link.charge(0.0, 100, 0.0)
        assert bool(pauses) is expected
