"""A stolen bundle beside honest members, over TLS: the oracle is what the honest ones still get."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.fleet import steal
from tests.hostile.thief import MB, Thief, fleet_goes_on, overspend, share_of
from tests.networking.test_hostile import DEADLINE_S, Place, Stranger
from tests.waiting import until
from tmrl_core.networking.protocol.messages import (
    Blob,
    CloseStream,
    Forged,
    HandOver,
    Have,
    Lateness,
    OpenStream,
    Resume,
    Unused,
    Waits,
    Want,
    control_frame,
)
from tmrl_core.networking.relay import processor_time
from tmrl_core.networking.transports import tls

PRINCIPAL = "certificate worker robot7"


@pytest.fixture(scope="module")
def stolen(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steal(keys, tmp_path_factory.mktemp("robot7"), "worker", "robot7")


def test_unused_credit_of_many_streams_leaves_enough_for_others(place: Place, stolen: Path) -> None:
    streams, relay = 60, place.relay
    link = Thief(place, stolen, streams=streams)
    part = (relay.settings.budget_bytes - relay.flow.reserved_bytes) // streams
    link.tell(*(link.want(channel, part) for channel in range(streams)))
    link.open(streams)
    assert share_of(place, PRINCIPAL).reserved_bytes > 32 * MB
    fleet_goes_on(place, 8_000, link)
    assert share_of(place, PRINCIPAL).reserved_bytes > 32 * MB, "the thief's credit is still reserved"


class Counted(int):
    """A number that counts its comparisons."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)

    __hash__ = int.__hash__


def test_a_flood_of_wants_from_thousands_of_streams_blocks_nobody(place: Place, stolen: Path) -> None:
    streams, rounds = 300, 8
    links = [Thief(place, stolen, number, streams) for number in range(4)]
    for stream in list(place.relay.streams.values()):
        stream.turn = Counted(stream.turn)
    Counted.comparisons = 0
    part = place.relay.settings.budget_bytes // (len(links) * streams)
    for round_ in range(1, rounds + 1):
        for link in links:
            link.tell(*(link.want(channel, round_ * part) for channel in range(streams)))
        if round_ == 1:
            for link in links:
                link.open(streams)
    fleet_goes_on(place, 8_000, *links)
    assert Counted.comparisons < 20 * rounds * len(links) * streams, "a request is compared with a few others"
    assert share_of(place, PRINCIPAL).reserved_bytes > 32 * MB, "the thief's credit is still reserved"
    assert len(place.relay.workers) == 1 + len(links)


@pytest.mark.usefixtures("small_share")
def test_one_bundle_gets_a_share_of_the_processor(place: Place, stolen: Path) -> None:
    overspend(place, Thief(place, stolen, streams=4), PRINCIPAL)
    fleet_goes_on(place)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="measures the processor time of a thread")
@pytest.mark.usefixtures("small_share")
def test_a_flood_takes_little_of_the_servers_processor_time(place: Place, stolen: Path) -> None:
    link = Thief(place, stolen, streams=4)
    overspend(place, link, PRINCIPAL)
    thread = place.server._thread.ident
    assert thread is not None
    clock = time.pthread_getcpuclockid(thread)
    wants = b"".join(control_frame(link.want(channel, 1)) for channel in range(4)) * 250
    ended = threading.Event()

    def flood() -> None:
        with suppress(OSError):
            while not ended.is_set():
                link.write(wants)

    sender = threading.Thread(target=flood)
    used = time.clock_gettime(clock)
    sender.start()
    ended.wait(2.0)
    used = time.clock_gettime(clock) - used
    ended.set()
    link.sock.shutdown(socket.SHUT_RDWR)
    sender.join(DEADLINE_S)
    assert used < 0.2
    fleet_goes_on(place)


@pytest.mark.usefixtures("small_share")
def test_a_refused_link_is_cut_when_its_bundle_has_no_share_left(
    place: Place, stolen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_DISCARDED_BYTE_S", 1e-6)
    monkeypatch.setattr(tls, "_LINGER_BYTES", 1 << 40)
    link = Thief(place, stolen)
    link.tell(CloseStream(99))
    sent = 0
    with suppress(OSError):
        while sent < 64 * MB:
            sent += socket.socket.send(link.sock, bytes(MB))  # without TLS
    now = time.monotonic()
    account = place.relay.processor_time._accounts[PRINCIPAL]
    assert -4.0 < account.share.available(now) < 0.0, "a few MB were read"
    fleet_goes_on(place)


def test_a_flood_of_streams_leaves_the_trainer_to_the_others(
    place: Place, stolen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_time, "TRAINER_SHARE", 0.001)
    monkeypatch.setattr(processor_time, "TRAINER_BURST_S", 0.01)
    link = Thief(place, stolen)
    for channel in range(1, 900):
        link.tell(link.opening(channel, signature=bytes(1_000)))
    fleet_goes_on(place)
    assert len(place.relay.streams) < 600
    assert place.relay.processor_time.overspent(PRINCIPAL, time.monotonic())


@pytest.mark.parametrize(
    ("place", "certificate"),
    [("off", False), pytest.param("off", True, marks=pytest.mark.full), ("authenticate", True)],
    indirect=["place"],
)
def test_a_hundred_links_of_one_principal_come_back_at_once(place: Place, stolen: Path, certificate: bool) -> None:
    """They are honest, so the burst of processor time suffices for them."""
    links: list[Stranger] = []
    for number in range(100):
        if certificate:
            link: Stranger = (member := Thief(place, stolen, number, 0))
            link.tell(member.opening(0, signature=bytes(1_000)))
        else:
            link = place.stranger()
            peer = b"peer%12d" % number
            link.greet(name="robot7", peer=peer)
            link.tell(OpenStream(0, peer, "robot7", bytes(1_000)))
        links.append(link)
    for link in links:
        assert isinstance(link.hear(Resume), Resume)
    principal = PRINCIPAL if certificate else "token worker"
    assert not place.relay.processor_time.overspent(principal, time.monotonic())
    fleet_goes_on(place, 1_000)


def test_links_that_never_read_hold_few_versions_of_the_policy(place: Place, stolen: Path) -> None:
    size = 4 * MB

    def published(versions: int) -> bool:
        return place.worker.versions_published >= versions

    for number in range(8):
        link = Thief(place, stolen, number)
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        place.trainer.publish({"policy": Blob("none", bytes(size))})
        until(partial(published, number + 1))
    old = set(map(id, place.relay.old_policies().values()))
    assert 0 < len(old) * size <= place.relay.settings.budget_bytes // 4
    fleet_goes_on(place)


MESSAGES: tuple[Any, ...] = (
    OpenStream, CloseStream, Want, Unused, Waits, Lateness, Forged, HandOver, Have, "samples", "link",
)  # fmt: skip


# In each change, one seed for each mode.
@pytest.mark.parametrize(
    ("place", "seed"),
    [
        pytest.param(mode, seed, marks=() if seed == quick else pytest.mark.full)
        for quick, mode in enumerate(("off", "authenticate", "encrypt"))
        for seed in range(4)
    ],
    indirect=["place"],
)
def test_random_valid_messages_of_a_thief_harm_nobody(place: Place, stolen: Path, seed: int) -> None:
    chosen = random.Random(seed)
    links = [Thief(place, stolen, number, streams=4) for number in range(3)]
    said = set()
    for step in range(600):
        at = chosen.randrange(len(links))
        link = links[at]
        channel = chosen.choice(list(link.resumes))
        kind = chosen.choice(MESSAGES)
        said.add(kind)
        if kind == "samples":
            link.sample(channel, bytes(chosen.randrange(200)))
        elif kind == "link":  # it ends with some streams, and others begin over another one
            link.sock.close()
            links[at] = Thief(place, stolen, 100 + step, streams=4)
        elif kind is OpenStream:
            link.open(100 + step, name="x" * chosen.randrange(300))
        elif kind is CloseStream and len(link.resumes) > 2:
            del link.resumes[channel]
            link.tell(CloseStream(channel))
        elif kind is Want:
            link.tell(link.want(channel, chosen.randrange(7 * MB)))
        elif kind is Unused:
            size = chosen.randrange(link.left[channel] // 2)
            link.left[channel] -= size
            link.tell(Unused(channel, link.resumes[channel].epoch, size))
        elif kind is Waits:
            link.tell(Waits(channel, "\N{GRINNING FACE}" * chosen.randrange(900)))
        elif kind is Lateness:
            link.tell(Lateness(channel, *(chosen.getrandbits(62) for _ in range(3))))
        elif kind is Forged:
            link.tell(Forged(chosen.getrandbits(62), chosen.getrandbits(62)))
        elif kind is HandOver:
            link.tell(HandOver(channel))
        elif kind is Have:
            link.tell(Have(chosen.randrange(1 << 20), chosen.randrange(1 << 20)))
    assert said == {*MESSAGES}
    fleet_goes_on(place, 1_000, *links)
    for link in links:
        link.open(1_000)
    assert (place.relay.protocol_errors, place.relay.refused_peers) == (0, 0)
    share_of(place, PRINCIPAL)
