"""A stolen bundle of a trainer beside the honest trainer: it is refused, or sees the status; the fleet goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.hostile.fleet import steal
from tests.hostile.thief import fleet_goes_on
from tests.networking.test_hostile import Place, Stranger
from tmrl_core.networking.protocol.framing import FIRST, LAST, Kind
from tmrl_core.networking.protocol.messages import (
    POLICY_HEAD,
    Ack,
    Control,
    Credit,
    Direct,
    Hello,
    Report,
    Resume,
    Role,
    StatusPage,
    StatusRequest,
    Welcome,
)
from tmrl_core.networking.relay import processor_time
from tmrl_core.networking.security import tls_contexts


@pytest.fixture(scope="module")
def stolen(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steal(keys, tmp_path_factory.mktemp("hpc2"), "trainer", "hpc2")


def thief(place: Place, stolen: Path, role: Role) -> Stranger:
    context = tls_contexts.client_context(stolen, "trainer")
    sock = context.wrap_socket(place.connect(), server_hostname="localhost")
    place.stack.callback(sock.close)
    link = Stranger(sock, {})
    link.tell(Hello((1,), role, "", "run", "hpc2", b"thief" + bytes(11), announces=place.members is not None))
    return link


def test_it_is_refused_while_the_trainer_is_linked_however_often_it_tries(place: Place, stolen: Path) -> None:
    for _ in range(40):
        thief(place, stolen, "trainer").refused("trainer_present", "already has a trainer")
    fleet_goes_on(place, 1_000)


def test_it_cannot_act_as_a_worker(place: Place, stolen: Path) -> None:
    thief(place, stolen, "worker").refused("role", "this certificate is a trainer's")
    fleet_goes_on(place, 1_000)


@pytest.mark.usefixtures("small_share")
def test_requests_for_the_status_have_a_share_and_block_nobody(place: Place, stolen: Path) -> None:
    links = [thief(place, stolen, "observer") for _ in range(3)]
    for link in links:
        assert isinstance(link.hear(Welcome), Welcome)
    sent = 0
    while not place.relay.processor_time.overspent("certificate trainer hpc2", time.monotonic()):
        for link in links:
            link.tell(StatusRequest(0))
            page = link.hear(StatusPage)
            assert isinstance(page, StatusPage)
            sent += len(page.body)
    assert sent < 4 * processor_time.BURST_S / processor_time.STATUS_BYTE_S
    for link in links:
        link.tell(StatusRequest(0))
    fleet_goes_on(place)


@pytest.mark.parametrize("message", [Resume(1, 0), Ack(1, 9), Credit(0, 0, 1 << 40), Direct(0, 1, b""), Report(b"")])
def test_an_observer_says_nothing_that_a_trainer_says(place: Place, stolen: Path, message: Control) -> None:
    link = thief(place, stolen, "observer")
    assert isinstance(link.hear(Welcome), Welcome)
    link.tell(message)
    link.refused("misuse", "is not allowed in state 'observer'")
    fleet_goes_on(place, 1_000)


def test_an_observer_publishes_no_weights(place: Place, stolen: Path) -> None:
    link = thief(place, stolen, "observer")
    assert isinstance(link.hear(Welcome), Welcome)
    link.frame(Kind.WEIGHTS, FIRST | LAST, POLICY_HEAD.pack(1 << 40, 1, 1) + b"x")
    link.refused("misuse", "it may not send frames of kind WEIGHTS")
    fleet_goes_on(place, 1_000)
