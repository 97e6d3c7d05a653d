"""A stolen bundle beside honest members, over TLS: the oracle is what the honest ones still get."""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hostile.fleet import steal
from tests.networking.test_hostile import DEADLINE_S, Place, Stranger, head
from tests.waiting import until
from tmrl_core.networking.protocol.framing import FIRST, LAST, Kind
from tmrl_core.networking.protocol.messages import (
    Blob,
    CloseStream,
    Control,
    HandOver,
    Have,
    OpenStream,
    Resume,
    Unused,
    Waits,
    Want,
    Welcome,
)
from tmrl_core.networking.relay import processor_time
from tmrl_core.networking.transports import tls
from tmrl_core.samples import Buffer, Chunk

MB = 1 << 20


@pytest.fixture(scope="module")
def stolen(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steal(keys, tmp_path_factory.mktemp("robot7"), "worker", "robot7")


def thief(place: Place, stolen: Path, number: int = 0, streams: int = 1) -> tuple[Stranger, dict[int, Resume]]:
    """A link with the stolen bundle, whose streams the trainer has resumed."""
    link = place.stranger(stolen)
    link.greet(token="", name="robot7", peer=bytes([1, number]) * 8)
    assert isinstance(link.hear(Welcome), Welcome)
    link.tell(*(OpenStream(i, bytes([2, number, i >> 8, i & 255]) * 4, "robot7") for i in range(streams)))
    resumes: dict[int, Resume] = {}
    while len(resumes) < streams:
        told = link.hear(Resume)
        assert isinstance(told, Resume)
        resumes[told.channel] = told
    return link, resumes


def large(rows: int) -> list[Chunk]:
    """An episode that does not compress."""
    buffer = Buffer(maxlen=None)
    noise = np.random.default_rng(0)
    for row in range(rows):
        buffer.append_sample((np.zeros(1, np.float32), noise.random(64), 0.5, False, row == rows - 1, {}))
    return buffer.take()[0]


def fleet_goes_on(place: Place, rows: int = 4_000) -> None:
    """The honest worker's samples, some megabytes, are all acknowledged over the links that there were."""
    before = place.worker.counts.samples_acked
    place.worker.send(large(rows), [])
    received = 0
    while received < rows:
        assert place.trainer.wait(DEADLINE_S)
        messages = place.trainer.receive()
        received += sum(one.samples for one in messages if one.stream == place.worker.stream)
        place.trainer.acknowledge(messages)
    until(lambda: place.worker.counts.samples_acked == before + rows)
    assert place.worker.counts.reconnects == 0
    assert place.trainer.counts.reconnects == 0


def test_unused_credit_of_many_streams_leaves_enough_for_others(place: Place, stolen: Path) -> None:
    link, resumes = thief(place, stolen, streams=40)
    link.tell(*(Want(i, resumes[i].epoch, resumes[i].credit + 7 * MB) for i in range(40)))
    until(lambda: place.relay.flow.reserved_bytes > 32 * MB)
    fleet_goes_on(place)
    assert place.relay.flow.reserved_bytes > 32 * MB, "the thief's credit is still reserved"


def test_a_flood_of_wants_from_thousands_of_streams_blocks_nobody(place: Place, stolen: Path) -> None:
    links = [thief(place, stolen, number, streams=300) for number in range(4)]
    for round_ in range(20):
        for link, resumes in links:
            link.tell(*(Want(i, resumes[i].epoch, resumes[i].credit + 1_000 * (round_ + 1)) for i in range(300)))
    fleet_goes_on(place)


def overspend(place: Place, stolen: Path, principal: str) -> None:
    """Use up the share of a principal's processor time."""
    link, resumes = thief(place, stolen, streams=4)
    step = 0
    while not place.relay.processor_time.overspent(principal, time.monotonic()):
        step += 1
        link.tell(*(Want(i, resumes[i].epoch, resumes[i].credit + step) for i in range(4) for _ in range(250)))


@pytest.mark.usefixtures("small_share")
def test_one_bundle_gets_a_share_of_the_processor(place: Place, stolen: Path) -> None:
    overspend(place, stolen, "certificate worker robot7")
    fleet_goes_on(place)


@pytest.mark.usefixtures("small_share")
def test_a_refused_link_is_cut_when_its_bundle_has_no_share_left(
    place: Place, stolen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_DISCARDED_BYTE_S", 1e-6)
    monkeypatch.setattr(tls, "_LINGER_BYTES", 1 << 40)
    link, _ = thief(place, stolen)
    link.tell(CloseStream(99))
    sent = 0
    with suppress(OSError):
        while sent < 64 * MB:
            sent += socket.socket.send(link.sock, bytes(MB))  # without TLS
    now = time.monotonic()
    account = place.relay.processor_time._accounts["certificate worker robot7"]
    assert -4.0 < account.share.available(now) < 0.0, "a few MB were read"
    fleet_goes_on(place)


def test_a_flood_of_streams_leaves_the_trainer_to_the_others(
    place: Place, stolen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_time, "TRAINER_SHARE", 0.001)
    monkeypatch.setattr(processor_time, "TRAINER_BURST_S", 0.01)
    link, _ = thief(place, stolen)
    for i in range(1, 900):
        link.tell(OpenStream(i, bytes([4, 0, i >> 8, i & 255]) * 4, "robot7", bytes(1_000)))
    fleet_goes_on(place)
    assert len(place.relay.streams) < 600
    assert place.relay.processor_time.overspent("certificate worker robot7", time.monotonic())


@pytest.mark.parametrize("certificate", [False, True])
def test_a_hundred_links_of_one_principal_come_back_at_once(place: Place, stolen: Path, certificate: bool) -> None:
    """They are honest, so the burst of processor time suffices for them."""
    links = []
    for number in range(100):
        link = place.stranger(stolen if certificate else None)
        links.append(link)
        peer = b"peer%12d" % number
        changes: dict[str, Any] = {"token": ""} if certificate else {}
        link.greet(**changes, name="robot7", peer=peer)
        link.tell(OpenStream(0, peer, "robot7", bytes(1_000)))
    for link in links:
        assert isinstance(link.hear(Resume), Resume)
    principal = "certificate worker robot7" if certificate else "token worker"
    assert not place.relay.processor_time.overspent(principal, time.monotonic())
    fleet_goes_on(place, 1_000)


def test_links_that_never_read_hold_few_versions_of_the_policy(place: Place, stolen: Path) -> None:
    size = 4 * MB

    def published(versions: int) -> bool:
        return place.worker.versions_published >= versions

    for number in range(8):
        link, _ = thief(place, stolen, number)
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        place.trainer.publish({"policy": Blob("none", bytes(size))})
        until(partial(published, number + 1))
    old = {id(one.old_policy) for one in list(place.relay.workers.values()) if one.old_policy is not None}
    assert 0 < len(old) * size <= place.relay.settings.budget_bytes // 4
    fleet_goes_on(place)


MESSAGES: tuple[Any, ...] = (OpenStream, CloseStream, Want, Unused, Waits, HandOver, Have, "samples")


@pytest.mark.parametrize("seed", range(6))
def test_random_valid_messages_of_a_thief_harm_nobody(place: Place, stolen: Path, seed: int) -> None:
    chosen = random.Random(seed)
    link, resumes = thief(place, stolen, streams=4)
    numbers = dict.fromkeys(resumes, 0)
    sent: list[Control] = []
    closed: set[int] = set()
    for step in range(300):
        channel = chosen.choice([one for one in resumes if one not in closed] or [0])
        epoch, credit = resumes[channel].epoch, resumes[channel].credit
        kind = chosen.choice(MESSAGES)
        if kind == "samples" and channel not in closed:
            body = bytes(chosen.randrange(200))
            link.frame(Kind.DATA, FIRST | LAST, head(numbers[channel], len(body)) + body, epoch=epoch, channel=channel)
            numbers[channel] += 1
        elif kind is OpenStream and len(resumes) < 60:
            sent = [OpenStream(100 + step, bytes([3, seed, step >> 8, step & 255]) * 4, "x" * chosen.randrange(300))]
        elif kind is CloseStream and len(closed) < 3 and channel not in closed:
            closed.add(channel)
            sent = [CloseStream(channel)]
        elif kind is Want and channel not in closed:
            sent = [Want(channel, epoch, credit + chosen.randrange(4 * MB))]
        elif kind is Waits and channel not in closed:
            sent = [Waits(channel, "\N{GRINNING FACE}" * chosen.randrange(900))]
        elif kind is HandOver and channel not in closed:
            sent = [HandOver(channel)]
        elif kind is Have:
            sent = [Have(chosen.randrange(1 << 20), chosen.randrange(1 << 20))]
        link.tell(*sent)
        sent = []
    fleet_goes_on(place, 1_000)
