"""A Server, workers and a trainer over real TLS, through networks that delay, cut, hide and break: nothing is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests import waiting
from tmrl_core.config import from_values
from tmrl_core.networking import Server
from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink, base
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.networking.security import credentials
from tmrl_core.samples import Buffer, Chunk, decode_message
from tmrl_core.testing.proxy import Proxy

DEADLINE_S = 30.0
SILENT_S = 0.8
HEARTBEAT_S = 0.2


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


def numbered(first: int, rows: int, width: int = 3) -> list[Chunk]:
    """Samples whose observations begin with their number."""
    buffer = Buffer(maxlen=None)
    for i in range(rows):
        observation = np.full(width, first + i, np.float32)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.5, False, i == rows - 1, {}))
    return buffer.take()[0]


class Place:
    """A Server, and a proxy in front of it for each of a worker and a trainer."""

    def __init__(self, keys: Path, stack: ExitStack) -> None:
        self.keys = keys
        self.stack = stack
        config = from_values(
            {
                "network": {
                    "credentials_dir": str(keys),
                    "silent_s": SILENT_S,
                    "heartbeat_s": HEARTBEAT_S,
                    "max_message_bytes": 1 << 20,
                },
                "server": {"port": 0},
            }
        )
        self.server = stack.enter_context(Server(config=config))
        self.worker_net = stack.enter_context(Proxy(("127.0.0.1", self.server.port), seed=1))
        self.trainer_net = stack.enter_context(Proxy(("127.0.0.1", self.server.port), seed=2))
        self.trainer_link: TrainerLink
        self.numbers: list[int] = []
        """Of the samples that the trainer has committed, in their order."""
        self._stop = threading.Event()

    def settings(self, net: Proxy, **changes: Any) -> LinkSettings:
        values = {
            "port": net.port,
            "hostname": "localhost",
            "credentials_dir": str(self.keys),
            "silent_s": SILENT_S,
            "heartbeat_s": HEARTBEAT_S,
            "connect_timeout_s": 2.0,
            "backoff_min_s": 0.01,
            "backoff_max_s": 0.1,
        }
        return LinkSettings(**{**values, **changes})

    def worker(self, name: str = "a", **changes: Any) -> WorkerLink:
        link = WorkerLink(
            self.settings(self.worker_net, **changes.pop("settings", {})),
            name=name,
            run="run",
            **{"when_full": "block", "drain_timeout_s": DEADLINE_S, **changes},
        )
        link.start()
        self.stack.callback(link.close, drain=False)
        return link

    def trainer(self, **changes: Any) -> TrainerLink:
        link = TrainerLink(self.settings(self.trainer_net), name="trainer", run="run", **changes)
        link.start()
        self.stack.callback(link.close, 0.1)
        self.trainer_link = link
        thread = threading.Thread(target=self._take, args=(link,), daemon=True)
        self.stack.callback(thread.join, 5.0)
        self.stack.callback(self._stop.set)
        thread.start()
        return link

    def _take(self, link: TrainerLink) -> None:
        while not self._stop.is_set():
            if not link.wait(0.1):
                continue
            received = link.receive()
            for one in received:
                chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
                assert chunk is not None
                self.numbers += np.asarray(chunk.observation)[:, 0].astype(int).tolist()
            link.acknowledge(received)


@pytest.fixture
def place(keys: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(keys, stack)


def until(condition: Callable[[], bool], link: WorkerLink | TrainerLink) -> None:
    assert link._wait(condition, DEADLINE_S)


def acknowledged(worker: WorkerLink, samples: int) -> None:
    until(lambda: worker.counts.samples_acked == samples, worker)


def test_latency_and_little_bandwidth(place: Place) -> None:
    for net in (place.worker_net, place.trainer_net):
        net.change(latency_s=0.03, jitter_s=0.02, bytes_per_s=400_000)
    worker, trainer = place.worker(), place.trainer()
    trainer.publish({"policy": Blob("text", bytes(50_000))})
    for i in range(20):
        worker.send(numbered(i * 100, 100, width=50), [])
    acknowledged(worker, 2000)
    assert worker.wait_policy(DEADLINE_S)
    assert place.numbers == list(range(2000))
    assert worker.counts.reconnects == trainer.counts.reconnects == 0


def test_byte_by_byte(place: Place) -> None:
    for net in (place.worker_net, place.trainer_net):
        net.change(slice_bytes=1)
    worker = place.worker()
    place.trainer()
    for i in range(10):
        worker.send(numbered(i * 100, 100), [])
    acknowledged(worker, 1000)
    assert place.numbers == list(range(1000))


@pytest.mark.parametrize("cut", ["worker", "trainer"])
def test_streams_that_end_anywhere(place: Place, cut: str) -> None:
    """Each connection ends a few bytes later than the one before: in the handshake, in a head, in a frame."""
    net = place.worker_net if cut == "worker" else place.trainer_net
    net.truncate(1)
    worker = place.worker()
    place.trainer()
    worker.send(numbered(0, 2000, width=20), [])
    for upto in range(100, 12_100, 400):
        net.truncate(upto)
        made = net.connections_made
        deadline = time.monotonic() + DEADLINE_S
        while net.connections_made == made and worker.counts.samples_acked < 2000:
            assert time.monotonic() < deadline
            worker.wait_change(0.02)
    net.truncate(None)
    net.reset_all()
    worker.send(numbered(2000, 100, width=20), [])
    acknowledged(worker, 2100)
    assert place.numbers == list(range(2100))


def test_resets_while_samples_flow(place: Place) -> None:
    worker, trainer = place.worker(), place.trainer()
    for i in range(60):
        worker.send(numbered(i * 100, 100, width=50), [])
        if i % 6 == 3:
            until(lambda: worker.connected, worker)
            place.worker_net.reset_all()
        if i % 6 == 5:
            until(lambda: trainer.connected, trainer)
            place.trainer_net.reset_all()
    acknowledged(worker, 6000)
    assert place.numbers == list(range(6000))
    assert worker.counts.reconnects > 0
    assert trainer.counts.reconnects > 0


@pytest.mark.parametrize("where", ["worker", "trainer"])
@pytest.mark.parametrize("direction", ["both", "up", "down"])
def test_a_black_hole_is_noticed_by_both_sides_and_samples_flow_when_it_heals(
    place: Place, where: str, direction: Literal["both", "up", "down"]
) -> None:
    worker, trainer = place.worker(), place.trainer()
    worker.send(numbered(0, 100), [])
    acknowledged(worker, 100)
    net, link = (place.worker_net, worker) if where == "worker" else (place.trainer_net, trainer)
    begun = time.monotonic()
    net.black_hole(direction)
    worker.send(numbered(100, 100), [])
    until(lambda: not link.connected, link)
    relay = place.server.relay
    gone = (lambda: not relay.workers) if where == "worker" else (lambda: relay.trainer is None)
    waiting.until(gone, limit_s=DEADLINE_S)
    assert time.monotonic() - begun < SILENT_S + 3.0
    worker.send(numbered(200, 100), [])
    net.heal()
    begun = time.monotonic()
    acknowledged(worker, 300)
    assert time.monotonic() - begun < 5.0
    assert place.numbers == list(range(300))


def test_a_short_black_hole_ends_no_link(place: Place) -> None:
    worker = place.worker()
    place.trainer()
    worker.send(numbered(0, 100), [])
    acknowledged(worker, 100)
    place.worker_net.black_hole()
    worker.send(numbered(100, 100), [])
    worker.wait_change(SILENT_S / 4)
    place.worker_net.heal()
    acknowledged(worker, 200)
    assert place.numbers == list(range(200))
    assert worker.counts.reconnects == 0


def test_a_worker_that_starts_in_a_black_hole_connects_when_it_heals(place: Place) -> None:
    place.worker_net.black_hole()
    worker = place.worker(settings={"connect_timeout_s": 0.2})
    place.trainer()
    worker.send(numbered(0, 100), [])
    waiting.until(lambda: place.worker_net.connections > 0, limit_s=DEADLINE_S)
    place.worker_net.heal()
    acknowledged(worker, 100)
    assert place.numbers == list(range(100))


def test_waits_between_attempts_stay_short_without_answers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_UNREACHABLE_WAIT_S", 0.05)
    tries = 0
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.settimeout(DEADLINE_S)
        link = WorkerLink(
            LinkSettings(
                port=deaf.getsockname()[1],
                hostname="localhost",
                credentials_dir=str(place.keys),
                backoff_min_s=0.01,
                backoff_max_s=600.0,
            ),
            name="a",
            run="run",
        )
        link.start()
        begun = time.monotonic()
        while tries < 12:
            deaf.accept()[0].close()
            tries += 1
        # 0.01 s doubled eleven times would be 20 s, and half of that at least.
        assert time.monotonic() - begun < 5.0
        link.close(drain=False)


def test_a_lasting_link_is_renewed_immediately(place: Place) -> None:
    worker = place.worker(settings={"backoff_min_s": 0.001, "backoff_max_s": 600.0})
    place.trainer()
    for i in range(20):
        worker.send(numbered(i * 10, 10), [])
        acknowledged(worker, (i + 1) * 10)
        time.sleep(0.02)  # the link lasts longer than the wait before it, which is 2 ms at most
        place.worker_net.reset_all()  # doubled each time, the wait would come to a quarter of an hour
    assert place.numbers == list(range(200))
