"""The processes of `server_load.py` and `black_hole.py`: a Server that tells its memory, a trainer that counts, and
processes of many WorkerLinks each.

Each takes commands over its pipe. A worker here is a WorkerLink, with its own thread and connection as in a
RolloutWorker, and no environment.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
from collections import deque
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

SWITCH_S = 0.0005
"""What the command line sets for every role."""
START_S = 120.0


class Network(NamedTuple):
    """What all processes of a run share."""

    keys: str
    port: int = 0
    silent_s: float = 10.0
    heartbeat_s: float = 3.0
    budget_bytes: int = 64 << 20
    max_message_bytes: int = 16 << 20
    end_to_end: Literal["off", "authenticate", "encrypt"] | None = None


class Sender(NamedTuple):
    """One worker's link and what is sent over it."""

    name: str
    rate: float
    """Messages a second; 0: as fast as it goes."""
    rows: int
    width: int
    """float32 numbers in an observation."""
    when_full: str = "block"
    queue_bytes: int = 1 << 20
    watched: bool = False
    """Time each message until its acknowledgement."""


class Sent(NamedTuple):
    """What became of it. Samples."""

    name: str
    sent: int
    acknowledged: int
    dropped: int
    reconnects: int
    acknowledged_meanwhile: int
    """Until the sending ended."""
    latencies_s: list[float]
    policies: int
    """Versions that arrived; skipped ones do not count."""
    versions_published: int
    version: int
    sending_s: float


def memory_bytes() -> tuple[int, int]:
    """(resident now, at most since `forget_peak`) of this process."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            fields[name] = int(value.split()[0]) * 1024
    return fields["VmRSS"], fields["VmHWM"]


def forget_peak() -> None:
    """Begin the peak anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def settings_of(network: Network) -> Any:
    """Settings of a link to the Server of `network`."""
    from tmrl_core.networking.links import LinkSettings

    return LinkSettings(
        port=network.port,
        hostname="localhost",
        credentials_dir=network.keys,
        silent_s=network.silent_s,
        heartbeat_s=network.heartbeat_s,
        max_message_bytes=network.max_message_bytes,
        end_to_end=network.end_to_end,
    )


# --- the Server -------------------------------------------------------------------------------------------------------


def server(network: Network, pipe: Pipe) -> None:
    """Sends its port. `forget`: the peak begins anew; `memory`: (now, peak); `queued`: bytes; `end`."""
    import sys

    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    config = from_values(
        {
            "network": {
                "credentials_dir": network.keys,
                "silent_s": network.silent_s,
                "heartbeat_s": network.heartbeat_s,
                "max_message_bytes": network.max_message_bytes,
            },
            "server": {"port": network.port, "budget_bytes": network.budget_bytes},
        }
    )
    with Server(config=config) as made:
        _say_why_links_end(made.relay)
        pipe.send(made.port)
        while True:
            command = pipe.recv()
            if command == "end":
                return
            if command == "forget":
                forget_peak()
            flow = made.relay.flow
            pipe.send((flow.queued_bytes, flow.reserved_bytes) if command == "queued" else memory_bytes())


def _say_why_links_end(relay: Any) -> None:
    """Print the reasons for which links ended that nobody wanted to end."""
    left = relay.worker_left

    def worker_left(connection: Any) -> None:
        if connection.reason is not None:
            print(f"the Server lost {connection.name}: {connection.reason}", flush=True)
        left(connection)

    relay.worker_left = worker_left


# --- the trainer ------------------------------------------------------------------------------------------------------


class _Taker:
    """The training thread: takes all that has come every few milliseconds, unless it is busy."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.busy_until = 0.0
        self.samples: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            busy = self.busy_until - time.monotonic()
            if busy > 0:
                self._ended.wait(busy)
                continue
            if not self.link.wait(0.05):
                continue
            received = self.link.receive()
            for one in received:
                name = self.link.trainer.worker_name(one.stream)
                self.samples[name] = self.samples.get(name, 0) + one.samples
            self.link.acknowledge(received)
            self._ended.wait(0.005)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def trainer(network: Network, pipe: Pipe) -> None:
    """Sends `ready`. (`busy`, s); (`publish`, how many, bytes, a second); `counts`; `end`."""
    import sys

    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.networking.protocol.messages import Blob

    link = TrainerLink(settings_of(network), name="trainer", run="run")
    link.start()
    assert link.wait_connected(START_S)
    taker = _Taker(link)
    pipe.send(("ready", os.getpid()))
    try:
        while True:
            command, *values = pipe.recv()
            if command == "end":
                return
            if command == "busy":
                taker.busy_until = time.monotonic() + values[0]
            elif command == "publish":
                count, size, rate = values
                begun = time.monotonic()
                for i in range(count):
                    link.publish({"policy": Blob("none", os.urandom(16) + bytes(size - 16))})
                    time.sleep(max(0.0, begun + (i + 1) / rate - time.monotonic()))
            pipe.send((link.counts, dict(taker.samples)))
    finally:
        taker.close()
        link.close()


# --- workers ----------------------------------------------------------------------------------------------------------


class _Worker:
    """One link while it is sent over."""

    def __init__(self, network: Network, sender: Sender) -> None:
        from tmrl_core.networking.links import WorkerLink
        from tmrl_core.samples import Buffer

        self.sender = sender
        self.link = WorkerLink(
            settings_of(network),
            name=sender.name,
            run="run",
            queue_bytes=sender.queue_bytes,
            when_full=sender.when_full,  # type: ignore[arg-type]
        )
        self.link.start()
        buffer = Buffer(maxlen=None)
        for i in range(sender.rows):
            observation = np.random.default_rng(i).random(sender.width, np.float32)
            buffer.append_sample((np.zeros(1, np.float32), observation, 0.0, False, i == sender.rows - 1, {}))
        self.chunks = buffer.take()[0]
        self.waiting: deque[tuple[int, float]] = deque()
        self.latencies: list[float] = []
        self.offered = 0
        self.policies = 0
        self.version = 0
        self.meanwhile = 0

    def send(self) -> None:
        if self.sender.watched:
            self.offered += self.sender.rows
            self.waiting.append((self.offered, time.monotonic()))
        self.link.send(self.chunks, [])

    def look(self) -> None:
        """Time what has been acknowledged, and take the policy."""
        if self.waiting:
            counts = self.link.counts
            now = time.monotonic()
            while self.waiting and counts.samples_acked + counts.samples_dropped >= self.waiting[0][0]:
                self.latencies.append(now - self.waiting.popleft()[1])
        update = self.link.take_policy()
        if update is not None:
            self.policies += 1
            self.version = update.version[1]

    def send_without_end(self, until: float) -> None:
        from tmrl_core.errors import LinkClosedError

        while time.monotonic() < until:
            with contextlib.suppress(LinkClosedError):
                self.link.send(self.chunks, [], timeout_s=until - time.monotonic())

    def settled(self) -> bool:
        counts = self.link.counts
        return counts.queued_samples == 0 and counts.samples_acked + counts.samples_dropped == counts.samples_sent

    def report(self, sending_s: float) -> Sent:
        counts = self.link.counts
        return Sent(
            self.sender.name,
            counts.samples_sent,
            counts.samples_acked,
            counts.samples_dropped,
            counts.reconnects,
            self.meanwhile,
            self.latencies,
            self.policies,
            self.link.versions_published,
            self.version,
            sending_s,
        )


def workers(network: Network, senders: list[Sender], pipe: Pipe) -> None:
    """Sends `ready`. (`send`, s, longest wait for acknowledgements in s): a list of `Sent` when all is done; `end`."""
    import sys

    sys.setswitchinterval(SWITCH_S)
    made = [_Worker(network, sender) for sender in senders]
    for worker in made:
        assert worker.link.wait_connected(START_S)
    pipe.send(("ready", os.getpid()))
    while True:
        command, *values = pipe.recv()
        if command == "end":
            for worker in made:
                worker.link.close(drain=False)
            return
        begun = time.monotonic()
        _send(made, begun + values[0])
        sending_s = time.monotonic() - begun
        deadline = time.monotonic() + values[1]
        while not all(worker.settled() for worker in made) and time.monotonic() < deadline:
            for worker in made:
                worker.look()
            time.sleep(0.01)
        for worker in made:
            worker.look()
        pipe.send([worker.report(sending_s) for worker in made])


def _send(made: list[_Worker], until: float) -> None:
    greedy = [worker for worker in made if worker.sender.rate == 0]
    timed = [worker for worker in made if worker.sender.rate > 0]
    threads = [threading.Thread(target=worker.send_without_end, args=(until,)) for worker in greedy]
    for thread in threads:
        thread.start()
    now = time.monotonic()
    due = [(now + i / max(1, len(timed)) / worker.sender.rate, i) for i, worker in enumerate(timed)]
    heapq.heapify(due)
    looked_at = [worker for worker in made if worker.sender.watched]
    while (now := time.monotonic()) < until:
        while due and due[0][0] <= now:
            at, index = heapq.heappop(due)
            timed[index].send()
            heapq.heappush(due, (max(at + 1 / timed[index].sender.rate, now - 0.5), index))
        for worker in looked_at:
            worker.look()
        soonest = due[0][0] if due else until
        time.sleep(max(0.0, min(soonest, until) - time.monotonic(), 0.001) if not looked_at else 0.001)
    for worker in made:
        worker.meanwhile = worker.link.counts.samples_acked
    for thread in threads:
        thread.join()
