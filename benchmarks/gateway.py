"""Steps per second, latency and memory of the gateway.

    python benchmarks/gateway.py                 all, a few minutes
    python benchmarks/gateway.py --only latency

Four processes on this machine: a Server; a sink that takes and acknowledges samples as a trainer does; the gateway with
a central agent (spaces of CartPole, NumPy policy of two hidden layers of 64 with the sink's weights); and the clients.
All connections use TLS on loopback.

- steps: one client sends prepared messages of CartPole one after another, over HTTP with keep-alive and over a
  WebSocket. In turn it sends the same messages to a path of the same server that answers with the bytes it got: a plain
  ASGI function without JSON, session or policy. A client of "prepared bytes" only moves bytes, so that little of its
  own time counts; the others use the libraries that clients in Python use.
- latency: 200 WebSocket clients, each with a session of its own at 10 steps/s; the time from sending a message to its
  answer.
- memory: resident memory of the gateway for each of 1,000 sessions that have made 20 steps, and for each of the 200
  with an open WebSocket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple, cast

from load_parts import memory_bytes
from processes import Process
from wire_bytes import versions

from tmrl_core.networking.transports.base import new_event_loop

REACH_SHARE = 0.7
REACH_P99_MS = 50.0
REACH_SESSION_KB = 200.0
EPISODE = 100


def configuration(folder: str, server_port: int = 1) -> Any:
    from tmrl_core.config import from_values

    return from_values(
        {
            "run": {"name": "gateway", "seed": 0, "folder": f"{folder}/runs"},
            "network": {"credentials_dir": f"{folder}/keys"},
            "server": {"port": server_port},
            "environment": {"cls": "tmrl_core.envs:ShepherdEnv", "kwargs": {"env_id": "CartPole-v1"}},
            "actor": {"cls": "tmrl_core.actor:QValueMLPActor", "kwargs": {"hidden_sizes": [64, 64]}},
            "agent": {"cls": "tmrl_core.training:DQNAgent"},
            # Not a loopback address: HTTPS.
            "gateway": {"host": "0.0.0.0", "port": 0, "max_sessions_per_key": 2000},
        }
    )


# --- processes --------------------------------------------------------------------------------------------------------


def server_process(folder: str, pipe: Pipe) -> None:
    from tmrl_core.networking import Server

    with Server(config=configuration(folder, 0)) as server:
        pipe.send(server.port)
        pipe.recv()


def sink_process(folder: str, port: int, pipe: Pipe) -> None:
    """Publish a policy, then take and acknowledge all samples; send their number at the end."""
    import gymnasium

    from tmrl_core.actor import NumpyQValueMLPActor
    from tmrl_core.networking.links import LinkSettings, TrainerLink
    from tmrl_core.networking.protocol.messages import Blob
    from tmrl_core.samples import decode_message

    env = gymnasium.make("CartPole-v1")
    actor = NumpyQValueMLPActor(env.observation_space, env.action_space, hidden_sizes=(64, 64), seed=0)
    settings = LinkSettings(host="127.0.0.1", port=port, hostname="localhost", credentials_dir=f"{folder}/keys")
    link = TrainerLink(settings, name="sink", run="gateway")
    link.start()
    link.wait_connected(30)
    link.publish({"policy": Blob(*actor.to_blob())})
    pipe.send("ready")
    rows = 0
    while not pipe.poll():
        link.wait(0.2)
        received = link.receive()
        chunks = [decode_message(one.payload, max_bytes=64 << 20).chunk for one in received]
        rows += sum(chunk.rows for chunk in chunks if chunk is not None)
        link.acknowledge(received)
    pipe.recv()
    pipe.send(rows)
    link.close()


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the bytes of the request: an ASGI function without Starlette's objects."""
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo_socket(scope: Any, receive: Any, send: Any) -> None:
    """Answer each text message with itself."""
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": event["text"]})


class _Plain:
    """An ASGI endpoint for Starlette's routes, which call functions with a request."""

    def __init__(self, endpoint: Callable[[Any, Any, Any], Any]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._endpoint(scope, receive, send)


def gateway_process(folder: str, port: int, pipe: Pipe) -> None:
    """Answer "processor" with the seconds used, "memory" with resident bytes, until "end"."""
    from starlette.routing import Route, WebSocketRoute

    from tmrl_core.cli.main import SWITCH_INTERVAL_S
    from tmrl_core.gateway.serve import Gateway

    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the role does
    routes = [
        Route("/echo/", _Plain(echo), methods=["POST"]),
        WebSocketRoute("/echo/ws/", _Plain(echo_socket)),
    ]
    config = configuration(folder, port)
    with Gateway(config, routes) as gateway:
        policy = config.run_folder / "gateway" / "default" / "policy.tmod"
        while not policy.exists():
            time.sleep(0.1)
        pipe.send(gateway.port)
        while (command := pipe.recv()) != "end":
            pipe.send(time.process_time() if command == "processor" else memory_bytes()[0])


# --- clients ----------------------------------------------------------------------------------------------------------


def episode(session_key: str = "") -> list[bytes]:
    """Return the messages of an episode."""
    key = {"session_key": session_key} if session_key else {}
    return [
        json.dumps(
            {
                "obs": [random.gauss(0, 0.1) for _ in range(4)],
                "reward": float(number > 0),
                "done": number == EPISODE,
                **key,
            }
        ).encode()
        for number in range(EPISODE + 1)
    ]


def request(path: str, body: bytes) -> bytes:
    """Return the bytes of an HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def upgrade(path: str) -> bytes:
    """Return the bytes that open a WebSocket."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def frame(text: bytes) -> bytes:
    """Return a client's WebSocket frame. Its masking key is zero, which leaves the text as it is."""
    size = bytes([128 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
    return b"\x81" + size + b"\0\0\0\0" + text


def without_pings(data: bytes, send: Callable[[bytes], object]) -> bytes:
    """Answer the WebSocket pings at the beginning of what was received; return the rest."""
    while data.startswith(b"\x89"):
        end = 2 + data[1]
        send(bytes([0x8A, 0x80 | data[1]]) + b"\0\0\0\0" + data[2:end])
        data = data[end:]
    return data


class Client:
    """A connection to the gateway that sends prepared bytes and waits for each answer: the lightest client.

    Args:
        port: of the gateway.
        context: of TLS.
    """

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        made = socket.create_connection(("localhost", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(made, server_hostname="localhost")

    def exchange(self, data: bytes) -> bytes:
        """Send a message and return the answer with its head. Small answers arrive in one piece."""
        self._socket.sendall(data)
        answer = b""
        while not answer:
            answer = without_pings(self._socket.recv(65536), self._socket.sendall)
        while answer.endswith(b"\r\n\r\n") and b"101 Switching" not in answer:  # the head alone
            answer += self._socket.recv(65536)
        return answer

    def log_in(self, key: str) -> str:
        """Log in over HTTP and return the session key."""
        answer = self.exchange(request("/shepherd/login_user/", json.dumps({"apikey": key}).encode()))
        return str(json.loads(answer.partition(b"\r\n\r\n")[2])["session_key"])

    def close(self) -> None:
        self._socket.close()


class SwarmClient(asyncio.Protocol):
    """A WebSocket client of `latency`. A message that is due while an answer is missing is sent right after it."""

    def __init__(self, key: str, latencies: list[float], ready: asyncio.Queue[SwarmClient]) -> None:
        self._key = key
        self._latencies = latencies
        self._ready = ready
        frames = [frame(message) for message in episode()]
        begin = random.randrange(EPISODE)  # clients do not end their episodes at the same time
        self._messages = itertools.cycle(frames[begin:] + frames[:begin])
        self._answers = 0
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's derives from nothing
        self.transport.write(upgrade("/shepherd/ws/"))

    def data_received(self, data: bytes) -> None:
        data = without_pings(data, self.transport.write)
        if not data:
            return
        self._answers += 1
        if self._answers == 1:
            assert b" 101 " in data, data
            self.transport.write(frame(json.dumps({"apikey": self._key}).encode()))
        elif self._answers == 2:
            assert b"session_key" in data, data
            self._ready.put_nowait(self)
        else:
            self._latencies.append(time.perf_counter() - self._sent)
            assert b"action" in data, data
            self._go_on()

    def start(self, first: float, last: float, interval: float) -> None:
        """Send messages from the time `first` to the time `last` of the loop."""
        self._loop = asyncio.get_running_loop()
        self._due, self._last, self._interval = first, last, interval
        self._go_on()

    def _go_on(self) -> None:
        if self._due < self._last:
            self._loop.call_at(self._due, self._send)
            self._due += self._interval

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self.transport.write(next(self._messages))


async def swarm(
    setting: Setting, clients: int, rate: float, seconds: float, connected: Callable[[], None]
) -> list[float]:
    """Return the latency of each answer, in seconds, of WebSocket clients that send `rate` messages per second each.

    `connected` is called when all of them are logged in.
    """
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    ready: asyncio.Queue[SwarmClient] = asyncio.Queue()
    made = []
    for _ in range(clients):
        await loop.create_connection(
            lambda: SwarmClient(setting.key, latencies, ready), "localhost", setting.port, ssl=setting.context
        )
        made.append(await ready.get())
    connected()
    began = loop.time() + 0.1
    for number, client in enumerate(made):
        client.start(began + number / clients / rate, began + seconds, 1 / rate)
    await asyncio.sleep(began + seconds + 1.0 - loop.time())
    for client in made:
        client.transport.close()
    return latencies


# --- figures ----------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """The gateway and what its clients need."""

    gateway: Process
    port: int
    key: str
    ca: str
    context: ssl.SSLContext

    def client(self) -> Client:
        return Client(self.port, self.context)


Exchange = tuple[Callable[[Any], Any], list[Any]]
"""A function that sends a message and returns the answer, and the messages of an episode."""


@contextlib.contextmanager
def prepared_http(setting: Setting) -> Iterator[dict[str, Exchange]]:
    """Move the bytes of HTTP requests."""
    with contextlib.closing(setting.client()) as ours, contextlib.closing(setting.client()) as theirs:
        texts = episode(ours.log_in(setting.key))
        yield {
            "gateway": (ours.exchange, [request("/shepherd/env/", text) for text in texts]),
            "echo": (theirs.exchange, [request("/echo/", text) for text in texts]),
        }


@contextlib.contextmanager
def prepared_websocket(setting: Setting) -> Iterator[dict[str, Exchange]]:
    """Move the bytes of WebSocket frames."""
    with contextlib.closing(setting.client()) as ours, contextlib.closing(setting.client()) as theirs:
        ours.exchange(upgrade("/shepherd/ws/"))
        theirs.exchange(upgrade("/echo/ws/"))
        ours.exchange(frame(json.dumps({"apikey": setting.key}).encode()))
        frames = [frame(text) for text in episode()]
        yield {"gateway": (ours.exchange, frames), "echo": (theirs.exchange, frames)}


@contextlib.contextmanager
def requests_session(setting: Setting) -> Iterator[dict[str, Exchange]]:
    """Use the library requests, as `examples/clients/client.py` does."""
    import requests

    url = f"https://localhost:{setting.port}"
    with contextlib.closing(setting.client()) as other, requests.Session() as session:
        texts = episode(other.log_in(setting.key))

        def exchange(path: str) -> Callable[[bytes], bytes]:
            return lambda text: session.post(url + path, text, verify=setting.ca).content

        yield {"gateway": (exchange("/shepherd/env/"), texts), "echo": (exchange("/echo/"), texts)}


@contextlib.contextmanager
def websockets_library(setting: Setting) -> Iterator[dict[str, Exchange]]:
    """Use the library websockets, as `examples/clients/websocket_client.py` does."""
    from websockets.sync.client import ClientConnection, connect

    def exchange(socket: ClientConnection) -> Callable[[str], Any]:
        def both(text: str) -> Any:
            socket.send(text)
            return socket.recv()

        return both

    url = f"wss://localhost:{setting.port}"
    with (
        connect(f"{url}/shepherd/ws/", ssl=setting.context, compression=None) as ours,
        connect(f"{url}/echo/ws/", ssl=setting.context, compression=None) as theirs,
    ):
        exchange(ours)(json.dumps({"apikey": setting.key}))
        texts = [text.decode() for text in episode()]
        yield {"gateway": (exchange(ours), texts), "echo": (exchange(theirs), texts)}


CLIENTS = {
    "HTTP keep-alive, prepared bytes": prepared_http,
    "HTTP keep-alive, requests": requests_session,
    "WebSocket, prepared bytes": prepared_websocket,
    "WebSocket, websockets": websockets_library,
}


def steps(setting: Setting, repetitions: int, episodes: int) -> Iterator[tuple[str, bool]]:
    """Yield lines of the table, each with whether the figure is reached."""
    messages = episodes * (EPISODE + 1)
    yield f"{repetitions} repetitions in turn of {messages:,} messages each\n", True
    yield "| one client | steps/s, median | echo | gateway / echo, median (spread) | server's processor | reach |", True
    yield "| --- | --- | --- | --- | --- | --- |", True
    for name, client in CLIENTS.items():
        rates: dict[str, list[float]] = {"gateway": [], "echo": []}
        processor: dict[str, list[float]] = {"gateway": [], "echo": []}
        with client(setting) as sides:
            for repetition in range(repetitions + 1):
                for side, (exchange, texts) in sides.items():
                    used, began = setting.gateway.ask("processor"), time.perf_counter()
                    for text in itertools.chain.from_iterable(itertools.repeat(texts, episodes)):
                        exchange(text)
                    elapsed = time.perf_counter() - began
                    if repetition:  # the first one warms up
                        rates[side].append(messages / elapsed)
                        processor[side].append((setting.gateway.ask("processor") - used) / messages * 1e6)
            exchange, texts = sides["gateway"]
            assert "action" in str(exchange(texts[0])), "the gateway gives no action"
        shares = [ours / theirs for ours, theirs in zip(rates["gateway"], rates["echo"], strict=True)]
        share = statistics.median(shares)
        used_us = " / ".join(f"{statistics.median(processor[side]):.0f} us" for side in rates)
        yield (
            (
                f"| {name} | {statistics.median(rates['gateway']):,.0f} | {statistics.median(rates['echo']):,.0f} "
                f"| {share:.2f} ({min(shares):.2f} to {max(shares):.2f}) | {used_us} | {REACH_SHARE} |"
            ),
            share >= REACH_SHARE,
        )


def latency(setting: Setting, clients: int, rate: float, seconds: float) -> Iterator[tuple[str, bool]]:
    """Yield lines of the table, each with whether the figure is reached."""
    gateway = setting.gateway
    before = gateway.ask("memory")
    grown, used = 0, 0.0

    def connected() -> None:
        nonlocal grown, used
        grown, used = gateway.ask("memory") - before, gateway.ask("processor")

    loop = new_event_loop()
    own = time.process_time()
    latencies = sorted(loop.run_until_complete(swarm(setting, clients, rate, seconds, connected)))
    own = time.process_time() - own
    loop.close()
    used = gateway.ask("processor") - used
    median, p99, worst = (latencies[min(int(len(latencies) * at), len(latencies) - 1)] * 1e3 for at in (0.5, 0.99, 1))
    yield f"{clients} WebSocket clients at {rate:g} steps/s each for {seconds:g} s\n", True
    yield "| answers per second | median | 99th percentile | longest | processor: gateway, clients | reach |", True
    yield "| --- | --- | --- | --- | --- | --- |", True
    yield (
        (
            f"| {len(latencies) / seconds:,.0f} | {median:.1f} ms | {p99:.1f} ms | {worst:.1f} ms "
            f"| {used / seconds:.0%}, {own / seconds:.0%} of a core | {REACH_P99_MS:g} ms |"
        ),
        p99 <= REACH_P99_MS and len(latencies) >= 0.95 * clients * rate * seconds,
    )
    yield f"\nAn open WebSocket with its session: {grown / clients / 1000:.0f} kB of the gateway's memory.", True


def memory(setting: Setting, sessions: int) -> Iterator[tuple[str, bool]]:
    """Yield lines of the table, each with whether the figure is reached."""
    client = setting.client()

    def open_one() -> None:
        for text in episode(client.log_in(setting.key))[:21]:
            client.exchange(request("/shepherd/env/", text))

    for _ in range(50):
        open_one()
    before = setting.gateway.ask("memory")
    for _ in range(sessions):
        open_one()
    each = (setting.gateway.ask("memory") - before) / sessions / 1000
    client.close()
    yield "| idle sessions | memory of each | reach |", True
    yield "| --- | --- | --- |", True
    yield f"| {sessions:,} | {each:.1f} kB | {REACH_SESSION_KB:g} kB |", each <= REACH_SESSION_KB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("steps", "latency", "memory"))
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--episodes", type=int, default=20, help=f"of {EPISODE + 1} messages, per repetition and side")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--sessions", type=int, default=1000)
    arguments = parser.parse_args()

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from tmrl_core.gateway import api_keys
    from tmrl_core.networking.security import credentials

    good = True
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        credentials.ensure(keys)
        _, key = api_keys.make_key(keys, "default")
        server = Process(server_process, folder)
        port = server.recv()
        sink = Process(sink_process, folder, port)
        sink.recv()
        gateway = Process(gateway_process, folder, port)
        ca = str(keys / "ca.pem")
        setting = Setting(gateway, gateway.recv(), key, ca, ssl.create_default_context(cafile=ca))
        figures: dict[str, Callable[[], Iterator[tuple[str, bool]]]] = {
            "steps": lambda: steps(setting, arguments.repetitions, arguments.episodes),
            "latency": lambda: latency(setting, arguments.clients, 10.0, arguments.seconds),
            "memory": lambda: memory(setting, arguments.sessions),
        }
        print(versions())
        for name, figure in figures.items():
            if arguments.only in (None, name):
                print()
                for line, reached in figure():
                    print(line, flush=True)
                    good = good and reached
        gateway.pipe.send("end")
        gateway.end()
        print(f"\n{sink.ask('end'):,} samples arrived.")
        sink.end()
        server.pipe.send("end")
        server.end()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
