"""Twenty workers that send steadily over TLS, alone and beside strangers: what the strangers cost each of them.

    python benchmarks/hostile_load.py

Six processes on this machine: a Server, a trainer that decodes and commits every message, two that run ten WorkerLinks
each, the strangers, and the one that measures. Each worker sends messages of 10 kB at a steady rate (20 a second, in
all 4 MB/s; `--rate`), measured as what the trainer has committed. Phases of the same length take turns, without and
with strangers. In each phase with them a hundred connections say nothing (they are opened again when the Server closes
them), and a thousand logins with a wrong token are tried over all such phases, as fast as the Server takes them; who
does not hear its refusal at once hangs up and tries again. All come from one address, which is the workers' too. A
worker's loss is one minus the quotient of its rates with and without strangers.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
from processes import Process
from wire_bytes import versions

WORKERS = 20
OF_A_PROCESS = 10
PAYLOAD_BYTES = 10_000
IDLE = 100
GUESSERS = 8
PATIENCE_S = 0.2
"""How long a guesser waits for the answer."""


def server(keys: str, pipe: Pipe) -> None:
    sys.setswitchinterval(0.0005)
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    with Server(config=from_values({"network": {"credentials_dir": keys}, "server": {"port": 0}})) as running:
        pipe.send(running.port)
        admission = running._transport.admission  # type: ignore[attr-defined]
        while pipe.recv() == "counts":
            counts = (admission.failed_logins, admission.rejected, admission.evicted, admission.waiting)
            pipe.send((time.process_time(), *counts))


def settings(keys: str, port: int) -> Any:
    from tmrl_core.networking.links import LinkSettings

    return LinkSettings(port=port, hostname="localhost", credentials_dir=keys)


def trainer(keys: str, port: int, pipe: Pipe) -> None:
    """Answers each request with how many samples of each worker it has committed."""
    sys.setswitchinterval(0.0005)
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.samples import decode_message

    link = TrainerLink(settings(keys, port), name="trainer", run="run")
    link.start()
    link.wait_connected(30)
    pipe.send("ready")
    committed: Counter[int] = Counter()
    while True:
        link.wait(0.05)
        received = link.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=1 << 24).chunk
            assert chunk is not None
            committed.update(np.asarray(chunk.observation)[:, 0].tolist())
        link.acknowledge(received)
        if pipe.poll():
            if pipe.recv() == "end":
                break
            pipe.send(dict(committed))
    link.close()


def workers(bundles: list[str], port: int, first: int, rate: float, pipe: Pipe) -> None:
    """Ten links in one process; one thread hands a message to each in turn, by the clock."""
    sys.setswitchinterval(0.0005)
    from tmrl_core.networking.links import WorkerLink
    from tmrl_core.samples import Buffer

    links = []
    chunks = []
    for i, bundle in enumerate(bundles):
        link = WorkerLink(settings(bundle, port), name=f"robot{first + i}", run="run", when_full="drop_oldest")
        link.start()
        link.wait_connected(30)
        links.append(link)
        buffer: Any = Buffer(maxlen=None)
        observation = np.frombuffer(os.urandom(PAYLOAD_BYTES), np.uint8).copy()
        observation[0] = first + i
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.0, False, False, {}))
        chunks.append(buffer.take()[0])
    pipe.send("ready")
    pipe.recv()
    begun = time.perf_counter()
    sent = 0
    while not pipe.poll():
        due = int((time.perf_counter() - begun) * rate)
        while sent < due:
            for link, chunk in zip(links, chunks, strict=True):
                link.send(chunk, [])
            sent += 1
        time.sleep(0.2 / rate)
    pipe.send([(link.counts.reconnects, link.counts.samples_dropped) for link in links])
    for link in links:
        link.close(drain=False)


def strangers(keys: str, port: int, logins: int, pipe: Pipe) -> None:
    """While it is told to: connections that say nothing, and logins with a wrong token, `logins` of them sent."""
    from tmrl_core.networking.protocol.messages import Hello, control_frame

    context = ssl.create_default_context(cafile=os.path.join(keys, "ca.pem"))
    hello = control_frame(Hello((1,), "worker", "a wrong token", "run", "stranger", b"s" * 16))
    active = threading.Event()
    refused = tried = sent = 0
    lock = threading.Lock()

    def guess() -> None:
        nonlocal refused, tried, sent
        while True:
            active.wait()
            if sent >= logins:
                time.sleep(0.1)
                continue
            with lock:
                tried += 1
            answer = b""
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=20) as raw,
                context.wrap_socket(raw, server_hostname="localhost") as sock,
            ):
                sock.sendall(hello)
                with lock:
                    sent += 1
                sock.settimeout(PATIENCE_S)
                answer = sock.recv(4096)
            if b"refused" in answer:
                with lock:
                    refused += 1

    def keep_idle() -> None:
        idle: list[socket.socket] = []
        while True:
            if not active.is_set():
                for sock in idle:
                    sock.close()
                idle = []
                active.wait()
            for sock in list(idle):
                try:
                    if sock.recv(1, socket.MSG_DONTWAIT) == b"":
                        raise ConnectionError
                except BlockingIOError:
                    continue
                except OSError:
                    sock.close()
                    idle.remove(sock)
            for _ in range(IDLE - len(idle)):
                with suppress(OSError):
                    idle.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            time.sleep(0.05)

    for target in (keep_idle, *[guess] * GUESSERS):
        threading.Thread(target=target, daemon=True).start()
    pipe.send("ready")
    while (said := pipe.recv()) != "end":
        if said == "begin":
            active.set()
        else:
            active.clear()
        pipe.send((tried, refused))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each phase")
    parser.add_argument("--turns", type=int, default=3, help="of a phase without and one with strangers")
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second of each worker")
    parser.add_argument("--logins", type=int, default=1_000, help="with a wrong token, in all")
    arguments = parser.parse_args()
    from tmrl_core.networking.security import credentials

    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        bundles = [str(credentials.bundle(keys, "worker", f"robot{i}", keys)) for i in range(WORKERS)]
        relay = Process(server, keys)
        port = relay.recv()
        sink = Process(trainer, keys, port)
        sink.recv()
        groups = [
            Process(workers, bundles[first : first + OF_A_PROCESS], port, first, arguments.rate)
            for first in range(0, WORKERS, OF_A_PROCESS)
        ]
        wolves = Process(strangers, keys, port, arguments.logins)
        for process in (*groups, wolves):
            process.recv()
        for process in groups:
            process.pipe.send("go")

        def phase() -> tuple[dict[int, float], float]:
            """Each worker's messages a second, and the Server's share of a core."""
            marks = []
            for wait_s in (arguments.seconds, 0.0):
                relay.pipe.send("counts")
                cpu = relay.recv()[0]
                sink.pipe.send("counts")
                marks.append((time.perf_counter(), cpu, sink.recv()))
                time.sleep(wait_s)
            (begin, cpu_before, before), (end, cpu_after, after) = marks
            rates = {i: (after.get(i, 0) - before.get(i, 0)) / (end - begin) for i in range(WORKERS)}
            return rates, (cpu_after - cpu_before) / (end - begin)

        time.sleep(2.0)
        without: list[dict[int, float]] = []
        beside: list[dict[int, float]] = []
        busy: dict[str, list[float]] = {"without": [], "with": []}
        most_waiting = 0
        for _ in range(arguments.turns):
            rates, cpu = phase()
            without.append(rates)
            busy["without"].append(cpu)
            wolves.pipe.send("begin")
            wolves.recv()
            time.sleep(1.0)
            rates, cpu = phase()
            beside.append(rates)
            busy["with"].append(cpu)
            relay.pipe.send("counts")
            most_waiting = max(most_waiting, relay.recv()[4])
            wolves.pipe.send("pause")
            tried, refused = wolves.recv()
            time.sleep(1.0)
        relay.pipe.send("counts")
        _, failed, rejected, evicted, _ = relay.recv()
        ends = []
        for process in groups:
            process.pipe.send("end")
            ends += process.recv()
        for process in (sink, wolves, relay):
            process.pipe.send("end")
        for process in (*groups, sink, wolves, relay):
            process.end()
    each = f"{arguments.rate:g} messages of {PAYLOAD_BYTES} bytes a second each"
    print(f"{WORKERS} workers, {each}; cores: {os.cpu_count()}")
    print(versions(), ssl.OPENSSL_VERSION)
    print(f"{arguments.turns} turns of {arguments.seconds:g} s; worker: messages/s without, with strangers, loss")
    losses = []
    for i in range(WORKERS):
        alone = statistics.mean(rates[i] for rates in without)
        crowded = statistics.mean(rates[i] for rates in beside)
        losses.append(1.0 - crowded / alone)
        print(f"robot{i:<3} {alone:8.2f} {crowded:8.2f} {100 * losses[-1]:7.2f} %")
    print(f"largest loss of a worker: {100 * max(losses):.2f} % (to reach: at most 5 %)")
    print(f"logins with a wrong token: {tried} connections, {failed} judged, {refused} heard their refusal in time")
    print(f"closed before the handshake: {rejected}; to make room: {evicted}; waiting at an end: {most_waiting}")
    for name, shares in busy.items():
        print(f"the Server's share of a core {name} strangers: {100 * statistics.mean(shares):.0f} %")
    print(f"links lost: {sum(lost for lost, _ in ends)}, samples dropped by workers: {sum(drop for _, drop in ends)}")
    good = max(losses) <= 0.05 and not any(lost for lost, _ in ends)
    return 0 if good and failed >= arguments.logins else 1


if __name__ == "__main__":
    sys.exit(main())
