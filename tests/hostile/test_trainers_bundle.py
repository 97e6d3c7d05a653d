"""A stolen bundle of a trainer beside the honest trainer: it is refused, or sees the status; the fleet goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.test_one_bundle import fleet_goes_on
from tests.networking.test_hostile import Place, Stranger
from tmrl_core.networking.protocol.framing import FIRST, LAST, POLICY_HEAD, Kind
from tmrl_core.networking.protocol.messages import (
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
from tmrl_core.networking.security import credentials


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture(scope="module")
def stolen(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("hpc2")
    credentials.install(credentials.bundle(keys, "trainer", "hpc2", tmp_path_factory.mktemp("bundle")), there / "c")
    return there / "c"


@pytest.fixture
def place(keys: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        place = Place(keys, stack)
        place.start_trainer()
        yield place


def thief(place: Place, stolen: Path, role: Role) -> Stranger:
    context = credentials.client_context(stolen, "trainer")
    sock = context.wrap_socket(place.connect(), server_hostname="localhost")
    place.stack.callback(sock.close)
    link = Stranger(sock, {})
    link.tell(Hello((1,), role, "", "run", "hpc2", b"thief" + bytes(11)))
    return link


def test_it_is_refused_while_the_trainer_is_linked_however_often_it_tries(place: Place, stolen: Path) -> None:
    for _ in range(40):
        thief(place, stolen, "trainer").refused("trainer_present", "already has a trainer")
    fleet_goes_on(place, 1_000)


def test_it_cannot_act_as_a_worker(place: Place, stolen: Path) -> None:
    thief(place, stolen, "worker").refused("role", "this certificate is a trainer's")
    fleet_goes_on(place, 1_000)


def test_requests_for_the_status_block_nobody(place: Place, stolen: Path) -> None:
    links = [thief(place, stolen, "observer") for _ in range(3)]
    for link in links:
        assert isinstance(link.hear(Welcome), Welcome)
    for _ in range(100):
        for link in links:
            link.tell(StatusRequest(0))
            assert isinstance(link.hear(StatusPage), StatusPage)
    fleet_goes_on(place, 1_000)


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
    link.refused("misuse", "sends no frames of kind WEIGHTS")
    fleet_goes_on(place, 1_000)
