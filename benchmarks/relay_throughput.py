"""Samples relayed from a worker to a trainer over two TLS hops, against raw TLS sockets in the same shape.

    python benchmarks/relay_throughput.py

Ours: three processes (WorkerLink, Server, TrainerLink) on this machine, acknowledgements on, no compression; the sink
decodes every message, checks its number and length and commits it. The baseline: three processes with blocking `ssl`
sockets, TLS 1.3, the same certificate; the source writes 1 MB at a time, the middle reads into a 1 MB buffer and writes
on, the sink reads into a 1 MB buffer and checks a number in each MB. Five repetitions in turn, median and range.
Samples are measured without and with end-to-end authentication; ratios are those of neighbouring measurements.

It also hands 100 MB over at once, and reports how far the Server's memory grew in all of it. Processor time is that of
all three processes, without their start.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
from processes import Cost, Process
from wire_bytes import versions

UNIT = 1_000_000
STAMPS = 16
BUDGET = 64 << 20
RAW, BULK = "raw two-hop TLS, blocking sockets, 1 MB writes", "100 MB at once"
REACH = {"100 kB": 0.8, "1 MB": 0.9, "100 kB, authenticated": 0.8, "1 MB, authenticated": 0.9}
"""Throughput in parts of the raw sockets'."""


# --- the baseline ---


def raw_sink(keys: str, port: int, total: int, pipe: Pipe) -> None:
    sock = raw_client(keys, port, b"T")
    buffer = bytearray(UNIT)
    view = memoryview(buffer)
    pipe.send("ready")
    used = time.process_time()
    got = 0
    start = 0.0
    while got < total:
        filled = 0
        while filled < UNIT:
            n = sock.recv_into(view[filled:])
            assert n, "the baseline's connection ended early"
            start = start or time.perf_counter()
            filled += n
        assert buffer[0] == (got // UNIT) % STAMPS
        got += UNIT
    pipe.send((time.perf_counter() - start, time.process_time() - used))


def raw_source(keys: str, port: int, total: int, pipe: Pipe) -> None:
    sock = raw_client(keys, port, b"W")
    units = [bytes([i]) + os.urandom(UNIT - 1) for i in range(STAMPS)]
    pipe.send("ready")
    pipe.recv()
    used = time.process_time()
    for i in range(total // UNIT):
        sock.sendall(units[i % STAMPS])
    sock.close()
    pipe.send(time.process_time() - used)


def raw_relay(keys: str, pipe: Pipe) -> None:
    from tmrl_core.networking.security import tls_contexts

    context, _ = tls_contexts.server_context(keys)
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    ends: dict[bytes, ssl.SSLSocket] = {}
    while len(ends) < 2:
        raw, _ = listener.accept()
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock = context.wrap_socket(raw, server_side=True)
        ends[sock.recv(1)] = sock
    view = memoryview(bytearray(UNIT))
    used = time.process_time()
    while True:
        n = ends[b"W"].recv_into(view)
        if not n:
            break
        filled = n
        while filled < UNIT and ends[b"W"].pending():
            filled += ends[b"W"].recv_into(view[filled:])
        ends[b"T"].sendall(view[:filled])
    pipe.send(time.process_time() - used)


def raw_client(keys: str, port: int, role: bytes) -> ssl.SSLSocket:
    from tmrl_core.networking.security import tls_contexts

    context = tls_contexts.client_context(keys, "worker")
    raw = socket.create_connection(("127.0.0.1", port))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock = context.wrap_socket(raw, server_hostname="localhost")
    sock.sendall(role)
    return sock


# --- ours ---


SWITCH_S = 0.0005
"""What the command line sets for every role."""


def our_server(keys: str, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    config = from_values(
        {
            "network": {"credentials_dir": keys, "max_message_bytes": 16 << 20},
            "server": {"port": 0, "budget_bytes": BUDGET},
        }
    )
    with Server(config=config) as server:
        pipe.send(server.port)
        while pipe.recv() == "figures":
            pipe.send((peak_bytes("VmRSS"), peak_bytes("VmHWM"), time.process_time()))


def _settings(keys: str, port: int) -> Any:
    from tmrl_core.networking.links import LinkSettings

    return LinkSettings(
        host="127.0.0.1", port=port, hostname="localhost", credentials_dir=keys, max_message_bytes=16 << 20
    )


def our_source(keys: str, port: int, payload: int, total: int, at_once: bool, pipe: Pipe) -> None:
    from tmrl_core.networking.links import WorkerLink
    from tmrl_core.samples import Buffer

    sys.setswitchinterval(SWITCH_S)

    def chunk(stamp: int, rows: int) -> Any:
        buffer = Buffer(maxlen=None)
        observation = np.frombuffer(os.urandom(payload), np.uint8).copy()
        observation[0] = stamp
        for i in range(rows):
            observation[0] = i % STAMPS if rows > 1 else stamp
            buffer.append_sample((np.zeros(1, np.float32), observation, 0.0, False, False, {}))
        return buffer.take()[0]

    link = WorkerLink(
        _settings(keys, port), name="source", run="run", queue_bytes=64 << 20, when_full="block", drain_timeout_s=60
    )
    link.start()
    link.wait_connected(30)
    chunks = chunk(0, total // payload) if at_once else [chunk(i, 1)[0] for i in range(STAMPS)]
    pipe.send("ready")
    pipe.recv()
    used = time.process_time()
    if at_once:
        link.send(chunks, [])
    else:
        for i in range(total // payload):
            link.send([chunks[i % STAMPS]], [])
    report = link.close()
    pipe.send((report, time.process_time() - used))


def our_sink(keys: str, port: int, payload: int, total: int, pipe: Pipe) -> None:
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.samples import decode_message

    sys.setswitchinterval(SWITCH_S)

    link = TrainerLink(_settings(keys, port), name="sink", run="run", inbox_bytes=64 << 20)
    link.start()
    link.wait_connected(30)
    pipe.send("ready")
    used = time.process_time()
    rows = 0
    start = 0.0
    while rows < total // payload:
        assert link.wait(30), "the samples stopped coming"
        start = start or time.perf_counter()
        received = link.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=64 << 20).chunk
            assert chunk is not None
            observation = np.asarray(chunk.observation)
            assert observation.shape[1] == payload
            for stamp in observation[:, 0]:
                assert stamp == rows % STAMPS
                rows += 1
        link.acknowledge(received)
    wall_s = time.perf_counter() - start
    link.close()
    pipe.send((wall_s, time.process_time() - used))


# --- both ---


def peak_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def measure_raw(keys: str, total: int) -> Cost:
    relay = Process(raw_relay, keys)
    port = relay.recv()
    sink = Process(raw_sink, keys, port, total)
    sink.recv()
    source = Process(raw_source, keys, port, total)
    source.recv()
    source.pipe.send("go")
    wall_s, sink_s = sink.recv()
    parts_s = (source.recv(), relay.recv(), sink_s)
    for process in (source, sink, relay):
        process.end()
    return Cost(wall_s, sum(parts_s), parts_s)


def measure_ours(keys: str, payload: int, total: int, at_once: bool = False) -> tuple[Cost, int]:
    """Return the cost of all three processes, and by how many bytes the Server's memory grew over idle."""
    server = Process(our_server, keys)
    port = server.recv()
    sink = Process(our_sink, keys, port, payload, total)
    sink.recv()
    source = Process(our_source, keys, port, payload, total, at_once)
    source.recv()
    idle, _, used = server.ask("figures")
    source.pipe.send("go")
    wall_s, sink_s = sink.recv()
    report, source_s = source.recv()
    assert report.acknowledged == total // payload, report
    _, peak, server_s = server.ask("figures")
    server.pipe.send("end")
    for process in (source, sink, server):
        process.end()
    parts_s = (source_s, server_s - used, sink_s)
    return Cost(wall_s, sum(parts_s), parts_s), peak - idle


def row(name: str, costs: list[Cost], amount: int) -> str:
    rates = [amount / cost.wall_s / 1e6 for cost in costs]
    median, least, most = statistics.median(rates), min(rates), max(rates)
    seconds = statistics.median(cost.processor_s for cost in costs) / amount * 1e9
    parts = [statistics.median(part) / amount * 1e9 for part in zip(*(cost.parts_s for cost in costs), strict=True)]
    shares = ", ".join(f"{part:.2f}" for part in parts)
    return f"{name:<46} {median:5.0f} MB/s ({least:.0f} to {most:.0f}), {seconds:.2f} s a GB ({shares})"


def of_raw(raw: list[Cost], ours: list[Cost]) -> tuple[float, float, float]:
    """Return our throughput in parts of the raw sockets': by wall time, processor time, and that of the middle alone.

    The last one is what counts where source and sink are other machines, and the middle is the bound.
    """
    pairs = list(zip(raw, ours, strict=True))
    return (
        statistics.median(one.wall_s / other.wall_s for one, other in pairs),
        statistics.median(one.processor_s / other.processor_s for one, other in pairs),
        statistics.median(one.parts_s[1] / other.parts_s[1] for one, other in pairs),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1000, help="moved in each measurement")
    arguments = parser.parse_args()
    from tmrl_core.networking.security import credentials

    total = arguments.megabytes * UNIT
    bulk = 100 * UNIT
    found: dict[str, list[Cost]] = {}
    growth: list[int] = []
    with tempfile.TemporaryDirectory() as keys, tempfile.TemporaryDirectory() as signed:
        for folder in (keys, signed):
            credentials.create(folder, ["localhost"])
        credentials.bundle(signed, "worker", "another", signed)  # which turns end-to-end authentication on
        for _ in range(arguments.repetitions):
            found.setdefault(RAW, []).append(measure_raw(keys, total))
            for name, folder, payload, amount, at_once in (
                ("100 kB", keys, 100_000, total, False),
                ("1 MB", keys, 1_000_000, total, False),
                ("100 kB, authenticated", signed, 100_000, total, False),
                ("1 MB, authenticated", signed, 1_000_000, total, False),
                (BULK, keys, 100_000, bulk, True),
            ):
                cost, grown = measure_ours(folder, payload, amount, at_once)
                found.setdefault(name, []).append(cost)
                growth.append(grown)
    print(
        f"{arguments.repetitions} repetitions in turn, {arguments.megabytes} MB each, {os.cpu_count()} cores, load",
        end="",
    )
    print(f" of {os.getloadavg()[1]:.0f}\n{versions()} {ssl.OPENSSL_VERSION}")
    print("throughput, and processor time of all (source, middle, sink)")
    for name, costs in found.items():
        print(row(name, costs, bulk if name == BULK else total))
    good = True
    for name, reach in REACH.items():
        share, processor, middle = of_raw(found[RAW], found[name])
        good = good and share >= reach
        print(f"{name}, of raw: {share:.2f} (to reach: {reach}); by processor time: {processor:.2f}, ", end="")
        print(f"of the Server alone: {middle:.2f}")
    bulk_rate = statistics.median(bulk / cost.wall_s for cost in found[BULK])
    bulk_rate /= statistics.median(total / cost.wall_s for cost in found["1 MB"])
    print(f"ratio of 100 MB at once to 1 MB: {bulk_rate:.2f} (to reach: 0.9)")
    print(f"growth of the Server's memory over idle: {max(growth) / 2**20:.0f} MiB at most (budget {BUDGET >> 20} MiB)")
    return 0 if good and bulk_rate >= 0.9 and max(growth) <= 1.1 * BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
