"""Samples relayed from a worker to a trainer over two TLS hops, against raw TLS sockets in the same shape.

    python benchmarks/relay_throughput.py

Ours: three processes (WorkerLink, Server, TrainerLink) on this machine, acknowledgements on, no compression; the sink
decodes every message, checks its number and length and commits it. The baseline: three processes with blocking `ssl`
sockets, TLS 1.3, the same certificate; the source writes 1 MB at a time, the middle reads into a 1 MB buffer and writes
on, the sink reads into a 1 MB buffer and checks a number in each MB. Five repetitions in turn, median and range.

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
PROCESSOR_REACH = 1.25


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
    processor_s = sink_s + source.recv() + relay.recv()
    for process in (source, sink, relay):
        process.end()
    return Cost(wall_s, processor_s)


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
    return Cost(wall_s, sink_s + source_s + server_s - used), peak - idle


def row(name: str, rates: list[float], processor_s: float) -> str:
    median, least, most = statistics.median(rates), min(rates), max(rates)
    return f"{name:<52} {median:8.0f} MB/s   ({least:.0f} to {most:.0f}), {processor_s:.2f} s of processor time a GB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1000, help="moved in each measurement")
    arguments = parser.parse_args()
    from tmrl_core.networking.security import credentials

    labels = {
        "raw": "raw two-hop TLS, blocking sockets, 1 MB writes",
        "100 kB": "relayed, samples of 100 kB",
        "1 MB": "relayed, samples of 1 MB",
        "100 MB": "relayed, 100 MB handed over at once",
    }
    rates: dict[str, list[float]] = {name: [] for name in labels}
    seconds_a_gb: dict[str, list[float]] = {name: [] for name in labels}
    growth: list[int] = []

    def keep(name: str, cost: Cost, amount: int) -> None:
        rates[name].append(amount / cost.wall_s / 1e6)
        seconds_a_gb[name].append(cost.processor_s / amount * 1e9)

    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        total = arguments.megabytes * UNIT
        for _ in range(arguments.repetitions):
            keep("raw", measure_raw(keys, total), total)
            for name, payload, amount, at_once in (
                ("100 kB", 100_000, total, False),
                ("1 MB", 1_000_000, total, False),
                ("100 MB", 100_000, 100 * UNIT, True),
            ):
                cost, grown = measure_ours(keys, payload, amount, at_once)
                keep(name, cost, amount)
                growth.append(grown)
    print(f"{arguments.repetitions} repetitions in turn, {arguments.megabytes} MB each, two cores: {os.cpu_count()}")
    print(versions(), ssl.OPENSSL_VERSION)
    processor = {name: statistics.median(values) for name, values in seconds_a_gb.items()}
    for name, label in labels.items():
        print(row(label, rates[name], processor[name]))
    raw = statistics.median(rates["raw"])
    ratios = {name: statistics.median(rates[name]) / raw for name in ("100 kB", "1 MB")}
    bulk = statistics.median(rates["100 MB"]) / statistics.median(rates["1 MB"])
    for name, ratio in ratios.items():
        print(f"ratio of {name} to raw: {ratio:.2f} (to reach: 0.8)")
    print(
        f"processor time of 100 kB to raw: {processor['100 kB'] / processor['raw']:.2f} (to reach: {PROCESSOR_REACH})"
    )
    print(f"ratio of 100 MB at once to 1 MB: {bulk:.2f} (to reach: 0.9)")
    print(f"growth of the Server's memory over idle: {max(growth) / 2**20:.0f} MiB at most (budget {BUDGET >> 20} MiB)")
    reached = min(ratios.values()) >= 0.8 and processor["100 kB"] <= PROCESSOR_REACH * processor["raw"]
    return 0 if reached and bulk >= 0.9 and max(growth) <= 1.1 * BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
