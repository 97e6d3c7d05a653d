"""A stolen bundle of a gateway: its weight gives it more turns, and no more memory, time or anything else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.hostile.fleet import steal
from tests.hostile.thief import MB, Thief, fleet_goes_on, large, overspend, share_of
from tests.networking.test_hostile import DEADLINE_S, Place
from tests.waiting import until
from tmrl_core.errors import NetworkError
from tmrl_core.networking.links import LinkSettings, WorkerLink
from tmrl_core.networking.protocol.framing import FIRST, HEADER_BYTES, LAST, Kind
from tmrl_core.networking.protocol.messages import POLICY_HEAD, SAMPLES_HEAD, Hello, Role
from tmrl_core.networking.relay.streams import RelayStream
from tmrl_core.networking.security.certificates import MAX_WEIGHT

WEIGHT = 8
PRINCIPAL = "certificate worker site"


@pytest.fixture
def stolen(keys: Path, tmp_path: Path) -> Path:
    return steal(keys, tmp_path, "worker", "site", WEIGHT)


class Flood:
    """Links with the stolen bundle that send samples as fast as the Server takes them."""

    def __init__(self, place: Place, stolen: Path, links: int) -> None:
        settings = LinkSettings(
            port=place.server.port,
            hostname="localhost",
            credentials_dir=str(stolen),
            end_to_end=place.settings.end_to_end,
        )
        self.links = [
            WorkerLink(settings, name="site", run="run", when_full="block", queue_bytes=4 * MB) for _ in range(links)
        ]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(link,)) for link in self.links]
        place.stack.callback(self.close)
        for link in self.links:
            link.start()
            assert link.wait_connected(DEADLINE_S)
        for thread in self._threads:
            thread.start()

    def _send(self, link: WorkerLink) -> None:
        samples = large(500)
        while not self._ended.is_set():
            try:
                link.send(samples, [], timeout_s=1.0)
            except NetworkError:
                continue

    def close(self) -> None:
        self._ended.set()
        for link in self.links:
            link.close(drain=False)
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.mark.parametrize("inbox_bytes", [2 * MB])
def test_a_weight_gives_as_many_turns_however_many_links_there_are(
    place: Place, stolen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which the Server forwards what has waited since before, while the trainer took nothing."""
    flow, streams = place.relay.flow, place.relay.streams
    Flood(place, stolen, 2 * WEIGHT)
    until(lambda: flow.queued_bytes > 36 * MB)
    honest = streams[place.worker.stream]
    for _ in range(40):
        place.worker.send(large(150), [])
    until(lambda: honest.held_bytes > 0.9 * 40 * 150 * 64 * 8)
    share_of(place, PRINCIPAL)
    own = taken = 0
    count = flow._count

    def counted(stream: RelayStream, frame: bytearray) -> None:
        nonlocal own, taken
        size = SAMPLES_HEAD.unpack_from(frame, HEADER_BYTES)[-1]
        if stream is honest:
            own += size
        elif honest.queue:  # else it waits for its own messages, which are late on a busy machine, and not for a turn
            taken += size
        count(stream, frame)

    monkeypatch.setattr(flow, "_count", counted)
    while place.worker.counts.samples_acked < 40 * 150:
        assert place.trainer.wait(DEADLINE_S)
        place.trainer.acknowledge(place.trainer.receive())
    assert 0.5 * WEIGHT * own < taken < 1.25 * WEIGHT * own


@pytest.fixture
def heaviest(keys: Path, tmp_path: Path) -> Path:
    return steal(keys, tmp_path, "worker", "site", MAX_WEIGHT)


def test_a_weight_reserves_no_more_credit(place: Place, heaviest: Path) -> None:
    streams = 60
    link = Thief(place, heaviest, streams=streams, name="site")
    part = (place.relay.settings.budget_bytes - place.relay.flow.reserved_bytes) // streams
    link.tell(*(link.want(channel, part) for channel in range(streams)))
    link.open(streams)
    assert share_of(place, PRINCIPAL).reserved_bytes > 32 * MB
    fleet_goes_on(place, 8_000, link)
    assert share_of(place, PRINCIPAL).reserved_bytes > 32 * MB, "the thief's credit is still reserved"


@pytest.mark.usefixtures("small_share")
def test_a_weight_takes_no_more_of_the_processor(place: Place, heaviest: Path) -> None:
    overspend(place, Thief(place, heaviest, streams=4, name="site"), PRINCIPAL)
    fleet_goes_on(place)


def test_it_can_act_as_a_worker_only(place: Place, stolen: Path) -> None:
    link = Thief(place, stolen, name="site")
    link.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(1 << 40, 1, 1) + b"x")
    link.refused("misuse", "it may not send frames of kind WEIGHTS")
    roles: list[tuple[Role, str]] = [("trainer", "it cannot act as trainer"), ("observer", "only the trainer's")]
    for role, words in roles:
        other = place.stranger(stolen)
        other.tell(Hello((1,), role, "", "run", "site", b"y" * 16))
        other.refused("role", words)
    fleet_goes_on(place, 1_000)
