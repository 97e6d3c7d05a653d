"""Many connections at the level of the protocol: a small sender beside flooding ones, and two Servers with thousands.

    python benchmarks/many_links.py small           one sender of small messages beside 200 that flood
    python benchmarks/many_links.py servers         2 Servers, 1,000 connections each; one of them is killed

One process has many connections (`WorkerConnection` over TLS, in one event loop), without a link's thread, an outbox or
an environment for each, so that the Server is what is measured. The small sender has a process of its own. Latency is
from the offer of a message to the trainer's acknowledgement; the trainer takes what has come every 5 ms. Memory is a
Server's resident memory at its highest during the load, over what it was before the connections.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from load_parts import SWITCH_S, Network, server, settings_of, trainer
from processes import Process
from wire_bytes import versions

if TYPE_CHECKING:
    from tmrl_core.networking.protocol.connection import Connection

MIB = 1 << 20
BUDGET = 64 * MIB
PER_CONNECTION_BYTES = 0.6e6
QUEUE_BYTES = 1 * MIB
AT_ONCE = 32
"""Connections of a process that shake hands at a time."""


class Load(NamedTuple):
    """Equal connections of one process."""

    connections: int
    message_bytes: int
    rate: float
    """Messages a second of each; 0: as many as its queue takes."""
    name: str = "many"
    rows: int = 0
    """Rows of Pendulum in a message, in place of `message_bytes`; 0: none."""


class Told(NamedTuple):
    """Result of a process: samples acknowledged, and the latencies of what was offered in the measured time."""

    acknowledged: int
    lost_links: int
    latencies_s: list[float]


class _Peer:
    """One worker's stream and its connection."""

    def __init__(self, load: Load, index: int, token: str, body: bytes) -> None:
        from tmrl_core.networking.protocol.delivery import StreamSender
        from tmrl_core.networking.worker import WorkerState
        from tmrl_core.samples import encode_value

        self.load, self.body, self.samples = load, body, max(1, load.rows)
        self.state = WorkerState(run="run", name=f"{load.name}-{index}", peer=os.urandom(16), token=token)
        self.sender = StreamSender(self.state.new_stream(), queue_bytes=QUEUE_BYTES, drop_oldest=False)
        self.state.add_stream(self.sender, encode_value({}))
        self.state.on_change = self.look
        self.due: deque[float] = deque()
        self.latencies: list[float] = []
        self.connection: Connection | None = None
        self.sending = False
        self.lost = 0
        self.acknowledged = 0

    def look(self) -> None:
        """Time what was acknowledged, and fill the queue of one that floods."""
        new = self.sender.samples_acked - self.acknowledged
        self.acknowledged += new
        if self.load.rate:
            now = time.monotonic()
            for _ in range(new // self.samples):
                self.latencies.append(now - self.due.popleft())
        elif self.sending:
            while self.sender.offer((self.body,), 1):
                pass

    def offer(self) -> None:
        """Offer one message, unless the queue is full."""
        if self.sender.offer((self.body,), self.samples):
            self.due.append(time.monotonic())


def links(network: Network, load: Load, pipe: Pipe) -> None:
    """Sends `ready` when all are linked. (`send`, s): `Told` after that time; `active`: how many may send; `end`."""
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.transports.base import new_event_loop

    loop = new_event_loop()
    loop.run_until_complete(_links(network, load, pipe))


async def _links(network: Network, load: Load, pipe: Pipe) -> None:
    from tmrl_core.errors import NetworkError
    from tmrl_core.networking.links.base import _UNREACHABLE_WAIT_S
    from tmrl_core.networking.transports.selection import client_transport
    from tmrl_core.networking.worker import WorkerConnection
    from tmrl_core.samples import Buffer, encode_message_buffers

    settings = settings_of(network)
    transport, token = client_transport(settings, "worker")
    buffer = Buffer(maxlen=None)
    rng = np.random.default_rng(0)
    for row in range(load.rows):
        observation = rng.random(3).astype(np.float32)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.0, False, row == load.rows - 1, {}))
    if not load.rows:
        observation = rng.integers(0, 255, load.message_bytes, np.uint8)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.0, False, True, {}))
    body = b"".join(encode_message_buffers(buffer.take()[0], (), compression="none"))
    peers = [_Peer(load, i, token, body) for i in range(load.connections)]
    gate = asyncio.Semaphore(AT_ONCE)
    ended = False

    async def keep(peer: _Peer) -> None:
        while not ended:
            connection = WorkerConnection(peer.state, silent_s=settings.silent_s, heartbeat_s=settings.heartbeat_s)
            try:
                async with gate:
                    driver = await transport.dial(settings.host, settings.port, connection, 30.0)
                peer.connection = connection
                await driver.ended
                peer.lost += not ended
            except NetworkError:
                pass
            await asyncio.sleep(_UNREACHABLE_WAIT_S * random.uniform(0.5, 1.0))  # as a worker's link does

    tasks = [asyncio.create_task(keep(peer)) for peer in peers]
    while not all(peer.sender.active for peer in peers):
        await asyncio.sleep(0.05)
    pipe.send("ready")
    commands: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), lambda: commands.put_nowait(pipe.recv()))
    while (command := await commands.get())[0] != "end":
        if command[0] == "active":
            links = [peer.connection for peer in peers if peer.sender.active]
            pipe.send(sum(link is not None and not link.closing for link in links))
            continue
        before = sum(peer.acknowledged for peer in peers)
        lost = sum(peer.lost for peer in peers)
        for peer in peers:
            peer.sending = True
            peer.latencies = []
            peer.look()
            if peer.connection is not None:
                peer.connection.wake()
        until = time.monotonic() + command[1]
        if load.rate:
            await _offer(peers, load.rate, until)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        for peer in peers:
            peer.sending = False
        pipe.send(
            Told(
                sum(peer.acknowledged for peer in peers) - before,
                sum(peer.lost for peer in peers) - lost,
                [latency for peer in peers for latency in peer.latencies],
            )
        )
    ended = True
    for task in tasks:
        task.cancel()


async def _offer(peers: list[_Peer], rate: float, until: float) -> None:
    """Offer messages in turn, evenly over time."""
    begun = time.monotonic()
    sent = 0
    while (now := time.monotonic()) < until:
        while sent < (now - begun) * rate * len(peers):
            peer = peers[sent % len(peers)]
            peer.offer()
            if peer.connection is not None:
                peer.connection.wake()
            sent += 1
        await asyncio.sleep(min(0.002, 1.0 / (rate * len(peers))))


# --- scenarios --------------------------------------------------------------------------------------------------------


class Side:
    """A Server, its trainer and processes of connections."""

    def __init__(self, keys: str, *loads: Load) -> None:
        network = Network(keys, budget_bytes=BUDGET)
        self.server = Process(server, network)
        network = network._replace(port=self.server.recv())
        self.idle_bytes = self.server.ask("forget")[0]
        self.trainer = Process(trainer, network)
        self.trainer.recv()
        self.groups = [Process(links, network, load) for load in loads]
        for group in self.groups:
            group.recv()
        self.connections = 1 + sum(load.connections for load in loads)

    def send(self, seconds: float) -> None:
        for group in self.groups:
            group.pipe.send(("send", seconds))

    def told(self) -> list[Told]:
        return [group.recv() for group in self.groups]

    def grown(self) -> str:
        """The Server's memory at its highest over idle, and the limit."""
        grown = self.server.ask("memory")[1] - self.idle_bytes
        limit = BUDGET + PER_CONNECTION_BYTES * self.connections
        return f"{grown / MIB:.0f} MiB (at most {limit / MIB:.0f}: the budget and 0.6 MB a connection)"

    def close(self) -> None:
        for process in (*self.groups, self.trainer):
            process.pipe.send(("end", 0.0))
        self.server.pipe.send("end")
        for process in (*self.groups, self.trainer, self.server):
            process.end()


def told(values: list[float]) -> str:
    """Median, 99th percentile and highest, in milliseconds."""
    ordered = sorted(values)
    found = (statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1])
    return " / ".join(f"{1e3 * value:.1f}" for value in found) + " ms"


def small(keys: str, options: argparse.Namespace) -> None:
    """One sender of 1 kB messages, ten a second, beside those that flood."""
    side = Side(keys, Load(1, 1_000, 10.0, "small"), Load(options.count, options.message_bytes, 0.0))
    try:
        alone = side.groups[0]
        alone.pipe.send(("send", 5.0))
        print(f"alone, median / 99 % / worst: {told(alone.recv().latencies_s)}")
        for turn in range(options.turns):
            side.send(options.seconds)
            one, many = side.told()
            rate = many.acknowledged * options.message_bytes / options.seconds / 1e6
            print(
                f"beside {options.count}, turn {turn + 1}: {told(one.latencies_s)}; they send {rate:.0f} MB/s",
                flush=True,
            )
        print(f"growth of the Server's memory: {side.grown()}; links lost: {one.lost_links + many.lost_links}")
    finally:
        side.close()


def servers(keys: str, options: argparse.Namespace) -> None:
    """Two Servers with their trainers; each connection sends little. One Server is killed, the other goes on.

    *other alone*: the workers of the one that will be killed are connected and send nothing, as after its end.
    """
    load = Load(options.count, 1_000, options.rate)
    sides = [Side(keys, load), Side(keys, load)]
    killed, other = sides
    try:
        for name, senders in (
            ("both", sides),
            ("other alone", [other]),
            ("one killed", [other]),
            ("one dead", [other]),
        ):
            kill = name == "one killed"
            for side in senders:
                side.send(options.seconds)
            if kill:
                time.sleep(options.seconds / 10)
                killed_memory = killed.grown()
                os.kill(killed.server.process.pid or 0, signal.SIGKILL)
            if senders is sides:
                killed.told()
            (result,) = other.told()
            latency = f"{name}: of the other, median / 99 % / worst: {told(result.latencies_s)}"
            print(f"{latency}; links lost: {result.lost_links}", flush=True)
        print(f"growth of memory, of the killed one: {killed_memory}; of the other: {other.grown()}")
    finally:
        for process in (*killed.groups, killed.trainer):
            process.process.kill()
        other.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["small", "servers"])
    parser.add_argument("--count", type=int, help="connections that flood (200), or of each Server (1,000)")
    parser.add_argument("--message-bytes", type=int, default=20_000, help="of those that flood")
    parser.add_argument("--rate", type=float, default=0.5, help="messages a second of each connection of `servers`")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    options.count = options.count or (200 if options.what == "small" else 1_000)
    from tmrl_core.networking.security import credentials

    print(versions())
    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        (small if options.what == "small" else servers)(keys, options)


if __name__ == "__main__":
    main()
