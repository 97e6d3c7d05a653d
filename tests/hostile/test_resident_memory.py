"""Resident memory of a Server's process beside one stolen bundle: the accounts must agree with the machine."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.fleet import steal
from tests.hostile.server_process import start_server
from tests.hostile.thief import MB, Thief, fleet_goes_on
from tests.networking.test_hostile import MESSAGE_BYTES, Place
from tests.waiting import until
from tmrl_core.networking.protocol.framing import Kind, cut
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Blob, Role, Waits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process in /proc")

BUDGET_BYTES = 64 * MB
WIDE = "\N{GRINNING FACE}" * 200


class FarPlace(Place):
    """A place whose Server is a process of its own."""

    def start_server(self, values: dict[str, Any]) -> int:
        self.process, port = start_server(self.stack, values)
        return port

    def memory_bytes(self, field: str) -> int:
        """Return the resident memory now (VmRSS) or its peak (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10


@pytest.fixture
def place(keys: Path, members: dict[Role, Path]) -> Iterator[FarPlace]:
    with ExitStack() as stack:
        place = FarPlace(keys, stack, members, budget_bytes=BUDGET_BYTES)
        place.start_trainer()
        yield place


@pytest.fixture(scope="module")
def stolen(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steal(keys, tmp_path_factory.mktemp("robot7"), "worker", "robot7")


def unfinished(place: FarPlace, stolen: Path) -> list[Thief]:
    """Large messages but for their end, in as many streams as get credit for one."""
    streams, size = 100, MESSAGE_BYTES - 1_000
    link = Thief(place, stolen, streams=streams)
    link.tell(*(link.want(channel, MESSAGE_BYTES) for channel in range(streams)))
    link.open(streams)
    for channel in link.limits:
        head = SAMPLES_HEAD.pack(0, 0, 0, 1, size)
        *frames, _ = cut(Kind.DATA, head, [bytes(size)], epoch=link.resumes[channel].epoch, channel=channel)
        link.write(*map(bytes, frames))
    return [link]


def names(place: FarPlace, stolen: Path) -> list[Thief]:
    """Streams with long names, signatures and wait reasons in the widest characters."""
    links = [Thief(place, stolen, number, 0) for number in range(4)]
    for link in links:
        with suppress(OSError):  # it is refused
            for channel in range(800):
                link.tell(link.opening(channel, WIDE, bytes(30_000)), Waits(channel, WIDE * 4))
    return links


def deaf(place: FarPlace, stolen: Path) -> list[Thief]:
    """Links that never read, each of which waits for a version of the policy that no other waits for."""
    links = []
    for number in range(16):
        link = Thief(place, stolen, number)
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        place.trainer.publish({"policy": Blob("none", bytes(6 * MB))})
        until(lambda number=number: place.worker.versions_published > number)  # type: ignore[misc]
        links.append(link)
    return links


@pytest.mark.parametrize(("attack", "at_least_mb"), [(unfinished, 20), (names, 5), (deaf, 10)])
def test_the_memory_of_the_server_grows_by_its_budget_at_most(
    place: FarPlace, stolen: Path, attack: Callable[[FarPlace, Path], list[Thief]], at_least_mb: int
) -> None:
    fleet_goes_on(place)
    before = place.memory_bytes("VmRSS")
    links = attack(place, stolen)
    fleet_goes_on(place, 4_000, *links)
    growth = place.memory_bytes("VmHWM") - before
    assert growth > at_least_mb * MB, "the attack takes memory, so the figure means something"
    assert growth < 1.1 * BUDGET_BYTES
