"""The transports `tls` and `tlspyo` beside tlspyo itself, used as its users do: weights, samples, latency, bulk.

    python benchmarks/tlspyo_comparison.py
    python benchmarks/tlspyo_comparison.py --repetitions 1 --samples 40 --pings 20 --bulk 20      # a small try

Server (or Relay), trainer and each worker are processes of their own on this machine, with TLS. Clocks are the
machine's monotonic one, which its processes share.

- Weights: from `publish` (tlspyo: `broadcast`) until the last of 8 workers has the 10 MB; the median of five.
  Beside them, as the least that TLS takes here: the same bytes from one process to 8, over blocking `ssl` sockets.
- Samples: 1 MB messages, from the first that arrives to the last; ours are encoded, decoded, numbered, acknowledged and
  committed, tlspyo's are pickled bytes with at most 64 on the way. Beside them, as the most that TLS gives here: 1 MB
  at a time over blocking `ssl` sockets, from a process through a second to a third (`relay_throughput.py`).
- Latency: a message of 1 kB alone, from the hand-over in the worker until the trainer has it; the median.
- At once: so many samples of 100 kB in one hand-over through the transport `tlspyo`, until all are committed.

Needs the extra `tlspyo` and psutil.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import socket
import ssl
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np
import psutil
from processes import Process
from relay_throughput import measure_raw, raw_client
from wire_bytes import versions

UNIT = 1_000_000
WORKERS = 8
WEIGHTS_BYTES = 10 * UNIT
PUBLISHINGS = 5
IN_FLIGHT = 64
WAIT_S = 120.0
PAUSE_S = 0.02
SWITCH_S = 0.0005
"""What the command line sets for every role."""


# --- ours ---


def settings(transport: str, keys: str, port: int) -> Any:
    from tmrl_core.networking.links import LinkSettings

    return LinkSettings(
        port=port,
        transport=transport,
        hostname="localhost",
        credentials_dir=keys,
    )


def our_server(transport: str, keys: str, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    network = {"transport": transport, "credentials_dir": keys}
    if transport == "tlspyo":
        network["local_port_server"] = free_port()  # type: ignore[assignment]
    with Server(config=from_values({"network": network, "server": {"port": 0}})) as server:
        pipe.send(server.port)
        pipe.recv()


def our_trainer(transport: str, keys: str, port: int, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.networking.protocol.messages import Blob
    from tmrl_core.samples import decode_message

    link = TrainerLink(settings(transport, keys, port), name="trainer", run="run", inbox_bytes=64 << 20)
    link.start()
    assert link.wait_connected(WAIT_S)
    pipe.send("ready")
    while (command := pipe.recv())[0] != "end":
        if command[0] == "publish":
            blob = Blob("text", os.urandom(WEIGHTS_BYTES))
            start = time.monotonic()
            link.publish({"policy": blob})
            pipe.send(start)
            continue
        rows, first, delays = 0, 0.0, []
        while rows < command[1]:
            assert link.wait(WAIT_S), "the samples stopped coming"
            received = link.receive()
            now = time.monotonic()
            first = first or now
            for one in received:
                chunk = decode_message(one.payload, max_bytes=64 << 20).chunk
                assert chunk is not None
                rows += chunk.rows
                delays.append(now - float(np.asarray(chunk.action)[0, 0]))
            link.acknowledge(received)
        pipe.send((time.monotonic() - first, delays))
    link.close()


def our_worker(transport: str, keys: str, port: int, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import WorkerLink
    from tmrl_core.samples import Buffer

    def chunks(size: int, rows: int) -> Any:
        buffer = Buffer(maxlen=None)
        observation = np.frombuffer(os.urandom(size), np.uint8)
        for _ in range(rows):
            buffer.append_sample((np.array([time.monotonic()]), observation, 0.0, False, False, {}))
        return buffer.take()[0]

    link = WorkerLink(settings(transport, keys, port), name="w", run="run", queue_bytes=256 << 20, when_full="block")
    link.start()
    assert link.wait_connected(WAIT_S)
    pipe.send("ready")
    while (command := pipe.recv())[0] != "end":
        kind, size, count = command
        if kind == "ping":
            for _ in range(count):
                made = chunks(size, 1)
                np.asarray(made[0].action)[0, 0] = time.monotonic()  # of the hand-over: making a sample is no latency
                link.send(made, [])
                time.sleep(PAUSE_S)
        elif kind == "at once":
            link.send(chunks(size, count), [])
        else:
            made = chunks(size, 1)
            for _ in range(count):
                link.send(made, [])
    link.close(drain=False)


def our_taker(number: int, keys: str, transport: str, port: int, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import WorkerLink

    link = WorkerLink(settings(transport, keys, port), name=f"w{number}", run="run")
    link.start()
    assert link.wait_connected(WAIT_S)
    pipe.send("ready")
    while pipe.recv() != "end":
        assert link.wait_policy(WAIT_S)
        done = time.monotonic()
        update = link.take_policy()
        assert update is not None
        assert len(update.policies["policy"].data) == WEIGHTS_BYTES
        del update  # its memory is the next one's
        pipe.send(done)
    link.close(drain=False)


def time_weights(fleet: list[Process], trainer: Process) -> float:
    """Seconds from a publishing until the last of the fleet has it: the median; the first sets things up."""
    times: list[float] = []
    for _ in range(1 + PUBLISHINGS):
        for worker in fleet:
            worker.pipe.send("wait")
        start = trainer.ask(("publish",))
        times.append(max(worker.recv() for worker in fleet) - start)
    return statistics.median(times[1:])


def our_weights(keys: str, transport: str) -> float:
    """Seconds."""
    server = Process(our_server, transport, keys)
    port = server.recv()
    fleet = [Process(our_taker, number, keys, transport, port) for number in range(WORKERS)]
    trainer = Process(our_trainer, transport, keys, port)
    for process in (*fleet, trainer):
        process.recv()
    seconds = time_weights(fleet, trainer)
    trainer.pipe.send(("end",))
    for process in (*fleet, server):
        process.pipe.send("end")
    for process in (*fleet, trainer, server):
        process.end()
    return seconds


def our_samples(keys: str, transport: str, kind: str, size: int, count: int) -> tuple[float, list[float]]:
    """Seconds from the first message to the last, and each message's delay."""
    server = Process(our_server, transport, keys)
    port = server.recv()
    trainer = Process(our_trainer, transport, keys, port)
    trainer.recv()
    worker = Process(our_worker, transport, keys, port)
    worker.recv()
    if kind == "at once":  # from the hand-over on
        trainer.pipe.send(("take", 1 + count))
        worker.pipe.send(("ping", 1_000, 1))
        time.sleep(0.5)
        start = time.monotonic()
        worker.pipe.send((kind, size, count))
        _, delays = trainer.recv()
        seconds = time.monotonic() - start
    else:
        trainer.pipe.send(("take", count))
        worker.pipe.send((kind, size, count))
        seconds, delays = trainer.recv()
    worker.pipe.send(("end", 0, 0))
    trainer.pipe.send(("end",))
    server.pipe.send("end")
    for process in (worker, trainer, server):
        process.end()
    return seconds, delays


# --- what TLS takes by itself ---


def raw_sender(keys: str, pipe: Pipe) -> None:
    """The Server's second hop alone: the same bytes to each worker from a thread of its own, with blocking sockets."""
    from tmrl_core.networking.security import tls_contexts

    context, _ = tls_contexts.server_context(keys)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        ends = [context.wrap_socket(listener.accept()[0], server_side=True) for _ in range(WORKERS)]
    for end in ends:
        end.recv(1)
    pipe.send("ready")
    with ThreadPoolExecutor(WORKERS) as pool:
        while pipe.recv() != "end":
            blob = os.urandom(WEIGHTS_BYTES)
            pipe.send(time.monotonic())
            list(pool.map(ssl.SSLSocket.sendall, ends, repeat(blob)))


def raw_taker(keys: str, port: int, pipe: Pipe) -> None:
    sock = raw_client(keys, port, b"W")
    view = memoryview(bytearray(WEIGHTS_BYTES))
    pipe.send("ready")
    while pipe.recv() != "end":
        filled = 0
        while filled < WEIGHTS_BYTES:
            filled += sock.recv_into(view[filled:])
        pipe.send(time.monotonic())


def raw_weights(keys: str) -> float:
    """Seconds."""
    sender = Process(raw_sender, keys)
    port = sender.recv()
    fleet = [Process(raw_taker, keys, port) for _ in range(WORKERS)]
    for process in (*fleet, sender):
        process.recv()
    seconds = time_weights(fleet, sender)
    for process in (*fleet, sender):
        process.pipe.send("end")
        process.end()
    return seconds


# --- tlspyo itself ---


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def may_have_children() -> None:
    """tlspyo starts processes with multiprocessing, which forbids that to a process that ends with its parent."""
    mp.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def end_children() -> None:
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


def their_relay(keys: str, port: int, pipe: Pipe) -> None:
    may_have_children()
    from tlspyo import Relay

    _relay = Relay(port=port, password="p" * 16, local_com_port=free_port(), header_size=12, keys_dir=keys)
    pipe.send("ready")
    pipe.recv()
    end_children()


def their_endpoint(keys: str, port: int, group: str) -> Any:
    from tlspyo import Endpoint

    made = Endpoint(
        ip_server="127.0.0.1",
        port=port,
        password="p" * 16,
        groups=group,
        local_com_port=free_port(),
        header_size=12,
        max_buf_len=512 << 20,
        keys_dir=keys,
        recon_initial_delay=0.5,
    )
    made.broadcast("joined", group)  # it does not say when it has
    made.receive_all(blocking=True)
    return made


def their_trainer(keys: str, port: int, got: Any, pipe: Pipe) -> None:
    may_have_children()
    end = their_endpoint(keys, port, "trainer")
    pipe.send("ready")
    while (command := pipe.recv())[0] != "end":
        if command[0] == "publish":
            blob = os.urandom(WEIGHTS_BYTES)
            start = time.monotonic()
            end.broadcast(blob, "workers")
            pipe.send(start)
            continue
        first, delays = 0.0, []
        while got.value < command[1]:
            messages = end.receive_all(blocking=True)
            now = time.monotonic()
            first = first or now
            delays += [now - sent for sent, _ in messages]
            got.value += len(messages)
        pipe.send((time.monotonic() - first, delays))
    end_children()


def their_worker(keys: str, port: int, got: Any, pipe: Pipe) -> None:
    may_have_children()
    end = their_endpoint(keys, port, "one worker")
    pipe.send("ready")
    while (command := pipe.recv())[0] != "end":
        kind, size, count = command
        payload = os.urandom(size)
        for i in range(count):
            while i - got.value >= IN_FLIGHT:
                time.sleep(0.0005)
            end.broadcast((time.monotonic(), payload), "trainer")
            if kind == "ping":
                time.sleep(PAUSE_S)
    end_children()


def their_taker(keys: str, port: int, pipe: Pipe) -> None:
    may_have_children()
    end = their_endpoint(keys, port, "workers")
    pipe.send("ready")
    while (word := pipe.recv()) != "end":
        if word == "clear":  # the others' "joined" reach it too
            end.receive_all()
            continue
        assert len(end.receive_all(blocking=True)[-1]) == WEIGHTS_BYTES
        pipe.send(time.monotonic())
    end_children()


def their_weights(keys: str) -> float:
    """Seconds."""
    port = free_port()
    relay = Process(their_relay, keys, port)
    relay.recv()
    fleet = [Process(their_taker, keys, port) for _ in range(WORKERS)]
    for worker in fleet:
        worker.recv()
    time.sleep(1.0)
    for worker in fleet:
        worker.pipe.send("clear")
    got = mp.get_context("spawn").Value("q", 0)  # in a name: it goes with the last one
    trainer = Process(their_trainer, keys, port, got)
    trainer.recv()
    seconds = time_weights(fleet, trainer)
    trainer.pipe.send(("end",))
    for process in (*fleet, relay):
        process.pipe.send("end")
    for process in (*fleet, trainer, relay):
        process.end()
    return seconds


def their_samples(keys: str, kind: str, size: int, count: int) -> tuple[float, list[float]]:
    """Seconds from the first message to the last, and each message's delay."""
    port = free_port()
    got = mp.get_context("spawn").Value("q", 0)
    relay = Process(their_relay, keys, port)
    relay.recv()
    trainer = Process(their_trainer, keys, port, got)
    trainer.recv()
    worker = Process(their_worker, keys, port, got)
    worker.recv()
    trainer.pipe.send(("take", count))
    worker.pipe.send((kind, size, count))
    seconds, delays = trainer.recv()
    for process, word in ((worker, ("end", 0, 0)), (trainer, ("end",)), (relay, "end")):
        process.pipe.send(word)
        process.end()
    return seconds, delays


# --- both ---


def row(name: str, values: list[float], unit: str) -> str:
    return f"{name:<60} {statistics.median(values):8.2f} {unit:<5} ({min(values):.2f} to {max(values):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--samples", type=int, default=300, help="messages of 1 MB")
    parser.add_argument("--pings", type=int, default=100, help="messages of 1 kB, each alone")
    parser.add_argument("--bulk", type=int, default=100, help="MB handed over at once")
    arguments = parser.parse_args()
    from tmrl_core.networking.security import credentials

    sides: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        sides.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        for _ in range(arguments.repetitions):
            note("weights tls", our_weights(keys, "tls"))
            note("weights theirs", their_weights(keys))
            note("weights raw", raw_weights(keys))
            n = arguments.samples
            note("samples tls", (n - 1) * UNIT / our_samples(keys, "tls", "samples", UNIT, n)[0] / 1e6)
            note("samples theirs", (n - 1) * UNIT / their_samples(keys, "samples", UNIT, n)[0] / 1e6)
            note("samples raw", n / measure_raw(keys, n * UNIT).wall_s)
            for transport in ("tls", "tlspyo"):
                _, delays = our_samples(keys, transport, "ping", 1_000, arguments.pings)
                note(f"ping {transport}", 1e3 * statistics.median(delays))
            _, delays = their_samples(keys, "ping", 1_000, arguments.pings)
            note("ping theirs", 1e3 * statistics.median(delays))
            seconds, _ = our_samples(keys, "tlspyo", "at once", 100_000, 10 * arguments.bulk)
            note("bulk", arguments.bulk / seconds)
    print(f"{arguments.repetitions} repetitions in turn; cores: {os.cpu_count()}; {versions()}")
    print(row("10 MB of weights to 8 workers, tls", sides["weights tls"], "s"))
    print(row("10 MB of weights to 8 workers, tlspyo itself", sides["weights theirs"], "s"))
    print(row("the same bytes to 8 processes over bare TLS sockets, one hop", sides["weights raw"], "s"))
    print(row("samples in 1 MB messages, tls", sides["samples tls"], "MB/s"))
    print(row("samples in 1 MB messages, tlspyo itself", sides["samples theirs"], "MB/s"))
    print(row("the same bytes over bare TLS sockets, two hops", sides["samples raw"], "MB/s"))
    print(row("1 kB from worker to trainer, tls", sides["ping tls"], "ms"))
    print(row("1 kB from worker to trainer, transport tlspyo", sides["ping tlspyo"], "ms"))
    print(row("1 kB from worker to trainer, tlspyo itself", sides["ping theirs"], "ms"))
    print(row(f"{arguments.bulk} MB at once, transport tlspyo", sides["bulk"], "MB/s"))
    middle = {name: statistics.median(values) for name, values in sides.items()}
    most = middle["samples raw"] / middle["samples theirs"]
    print(f"{'samples: rate of bare TLS over that of tlspyo':<60} {most:8.2f}")
    figures = [
        ("weights: tlspyo's time over ours", middle["weights theirs"] / middle["weights tls"], 15.0),
        ("samples: our rate over tlspyo's", middle["samples tls"] / middle["samples theirs"], 5.0),
        ("latency of tls: 1 ms over ours", 1.0 / middle["ping tls"], 1.0),
        ("latency of the transport tlspyo: 5 ms over ours", 5.0 / middle["ping tlspyo"], 1.0),
        ("at once: our rate over 60 MB/s", middle["bulk"] / 60.0, 1.0),
    ]
    for name, ratio, least in figures:
        print(f"{name:<60} {ratio:8.2f} (to reach: {least:g})")
    return 0 if all(ratio >= least for _, ratio, least in figures) else 1


if __name__ == "__main__":
    try:
        status = main()
    finally:  # tlspyo's processes outlive a parent that fails
        for left in psutil.Process().children(recursive=True):
            left.kill()
    sys.exit(status)
