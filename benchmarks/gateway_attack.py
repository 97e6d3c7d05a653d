"""Latency of honest clients of the gateway while a stranger, or the holder of another API key, sends costly messages.

    python benchmarks/gateway_attack.py
    PYTHONPATH=OTHER python benchmarks/gateway_attack.py       the same of another version of the package

The processes of `gateway.py`, and one more with the attackers: connections that send one message, wait for the answer,
and send the next. Honest clients are WebSockets at 10 steps/s each with a key of their own. An attack is a kind of
message and its size; `valid steps` are what any holder of a key may send.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import msgspec
from gateway import (
    Client,
    Setting,
    episode,
    gateway_process,
    request,
    server_process,
    sink_process,
    swarm,
    upgrade,
)
from processes import Process
from wire_bytes import versions

from tmrl_core.networking.transports.base import new_event_loop

SIZES = {"1 MB": 1_040_000, "64 kB": 65_000, "16 kB": 16_300, "1.5 kB": 1_600}


def hostile_text(kind: str, size: int, session_key: str) -> bytes:
    """Return a JSON message with as many empty lists as fit into the size."""
    lists = b"[" + b",".join([b"[]"] * (size // 3 - 60)) + b"]"
    fields = {"obs": [0.0] * 4, "info": {}, "reward": 0.0, "done": False, "session_key": session_key}
    values = {name: json.dumps(value).encode() for name, value in fields.items()}
    values |= {"obs": lists} if "obs" in kind else {"info": b'{"a":%s}' % lists}
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), value) for name, value in values.items())


def hostile_packed(kind: str, size: int, session_key: str) -> bytes:
    """Return a message in MessagePack, where an empty list is one byte."""
    lists = b"\xdd" + (size - 200).to_bytes(4, "big") + b"\x90" * (size - 200)
    fields = {"obs": [0.0] * 4, "info": {}, "reward": 0.0, "done": False, "session_key": session_key}
    values = {name: msgspec.msgpack.encode(value) for name, value in fields.items()}
    values |= {"obs": lists} if "obs" in kind else {"info": b"\x81\xa1a" + lists}
    return bytes([0x80 | len(values)]) + b"".join(msgspec.msgpack.encode(key) + values[key] for key in values)


def frame(data: bytes, binary: bool) -> bytes:
    """Return a WebSocket frame of any size."""
    return bytes([0x82 if binary else 0x81, 0xFF]) + len(data).to_bytes(8, "big") + b"\0\0\0\0" + data


def attack_process(port: int, ca: str, key: str, pipe: Pipe) -> None:
    """Attack as told, `(kind, over, size, connections)`, until told otherwise; answer the number of messages."""
    context = ssl.create_default_context(cafile=ca)
    while (command := pipe.recv()) != "end":
        kind, over, size, connections = command
        stop, sent = threading.Event(), [0] * connections

        def attack(number: int, kind: str, over: str, size: int, stop: threading.Event, sent: list[int]) -> None:
            while not stop.is_set():
                try:
                    client = Client(port, context)
                    session_key = "unknown" if kind.startswith("stranger") else client.log_in(key)
                    if kind == "valid steps":
                        bodies = episode(session_key)
                    else:
                        make = hostile_packed if over == "MessagePack" else hostile_text
                        bodies = [make(kind, size, session_key)]
                    if over == "HTTP":
                        messages = [request("/shepherd/env/", body) for body in bodies]
                    else:
                        client.exchange(upgrade("/shepherd/ws/"))
                        messages = [frame(body, over == "MessagePack") for body in bodies]
                    while not stop.is_set():
                        for message in messages:
                            client.exchange(message)
                            sent[number] += 1
                except OSError:  # closed, because the message is too large
                    sent[number] += 1

        threads = [
            threading.Thread(target=attack, args=(number, kind, over, size, stop, sent))
            for number in range(connections)
        ]
        for thread in threads:
            thread.start()
        pipe.send("begun")
        pipe.recv()
        total = sum(sent)
        stop.set()
        pipe.send(total)
        for thread in threads:
            thread.join()


ATTACKS = (
    ("none", "", ""),
    ("valid steps", "HTTP", "64 kB"),
    ("stranger, obs", "HTTP", "1 MB"),
    ("stranger, obs", "HTTP", "64 kB"),
    ("stranger, obs", "MessagePack", "64 kB"),
    ("key, obs", "HTTP", "1 MB"),
    ("key, obs", "HTTP", "64 kB"),
    ("key, obs", "MessagePack", "64 kB"),
    ("key, info", "HTTP", "64 kB"),
    ("key, info", "HTTP", "16 kB"),
    ("key, info", "MessagePack", "16 kB"),
    ("key, info", "HTTP", "1.5 kB"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20, help="honest ones")
    parser.add_argument("--connections", type=int, default=8, help="of the attacker")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from tmrl_core.gateway import api_keys
    from tmrl_core.networking.security import credentials

    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        credentials.ensure(keys)
        honest, hostile = (api_keys.make_key(keys, "default")[1] for _ in range(2))
        server = Process(server_process, folder)
        port = server.recv()
        sink = Process(sink_process, folder, port)
        sink.recv()
        gateway = Process(gateway_process, folder, port)
        ca = str(keys / "ca.pem")
        setting = Setting(gateway, gateway.recv(), honest, ca, ssl.create_default_context(cafile=ca))
        attacker = Process(attack_process, setting.port, ca, hostile)
        print(versions())
        print(f"\n{options.clients} honest clients, {options.connections} connections of the attacker\n")
        print("| attack | over | size | median | 99th percentile (spread) | longest | messages/s | processor of each |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for kind, over, size in ATTACKS:
            rows = []
            for _ in range(options.repetitions):
                used = began = 0.0

                def begin(kind: str = kind, over: str = over, size: str = size) -> None:
                    nonlocal used, began
                    if over:
                        attacker.ask((kind, over, SIZES[size], options.connections))
                    used, began = gateway.ask("processor"), time.perf_counter()

                loop = new_event_loop()
                latencies = sorted(
                    loop.run_until_complete(swarm(setting, options.clients, 10.0, options.seconds, begin))
                )
                loop.close()
                sent = 0
                if over:
                    attacker.pipe.send("stop")
                    sent = attacker.recv()
                elapsed = time.perf_counter() - began
                used = gateway.ask("processor") - used
                at = [latencies[min(int(len(latencies) * share), len(latencies) - 1)] * 1e3 for share in (0.5, 0.99, 1)]
                rows.append((*at, sent / elapsed, used / max(sent, 1) * 1e3))
            median, p99, longest, rate, each = map(statistics.median, zip(*rows, strict=True))
            spread = [row[1] for row in rows]
            print(
                f"| {kind} | {over} | {size if kind != 'valid steps' else ''} | {median:.1f} ms "
                f"| {p99:.1f} ms ({min(spread):.1f} to {max(spread):.1f}) | {longest:.0f} ms "
                f"| {rate:,.0f} | {f'{each:.2f} ms' if over else ''} |",
                flush=True,
            )
        for process in (attacker, gateway):
            process.pipe.send("end")
            process.end()
        sink.ask("end")
        sink.end()
        server.pipe.send("end")
        server.end()


if __name__ == "__main__":
    main()
