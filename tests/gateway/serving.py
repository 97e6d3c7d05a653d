"""The gateway's application behind a real server and socket, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from tests.gateway.players import RecordingAgent, RecordingPlayer
from tmrl_core.gateway.api_keys import ApiKeys, make_key
from tmrl_core.gateway.app import make_app
from tmrl_core.gateway.client_sessions import Sessions
from tmrl_core.gateway.settings import GatewaySection
from tmrl_core.web.connections import Connections, LimitedWebSocket, TlsListener

FIRST: dict[str, Any] = {"obs": [0.0, 0.0], "reward": 0.0, "done": False, "info": {}}


@dataclass
class Answer:
    """An answer to a request."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        assert self.headers["Content-Type"] == "application/json", self.body
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def error(self) -> str:
        """The reason of a refusal, which names nothing of the program."""
        value = self.json
        assert "ok" not in value
        assert "Traceback" not in value["error"]
        assert ".py" not in value["error"]
        return str(value["error"])


class Served:
    """A served application with one agent and one API key."""

    def __init__(
        self, folder: Path, routes: Sequence[BaseRoute] = (), max_connections: int = 1000, **settings: Any
    ) -> None:
        self.apikey = make_key(folder, "default")[1]
        self.agent = RecordingAgent()
        self.settings = GatewaySection(**settings)
        self.sessions = Sessions([self.agent], ApiKeys(folder), self.settings)
        self.app = make_app(self.sessions, self.settings, routes)
        self.connections = Connections(max_connections)
        self.port = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answer:
        """Send one request on a connection of its own, or on `connection`."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        used = connection or self.connect()
        try:
            used.request(method, path, data, dict(headers or {}))
            response = used.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            if connection is None:
                used.close()

    def post(self, path: str, body: Any, **arguments: Any) -> Answer:
        return self.request("POST", path, body, **arguments)

    def login(self) -> str:
        return str(self.post("/shepherd/login_user/", {"apikey": self.apikey}).json["session_key"])

    def step(self, key: str, **changes: Any) -> Answer:
        fields = {**FIRST, "session_key": key, **changes}
        return self.post("/shepherd/env/", {name: value for name, value in fields.items() if value is not ...})

    @property
    def player(self) -> RecordingPlayer:
        """The player of the latest session."""
        return list(self.agent.players.values())[-1]

    def open_gate(self, open_: bool) -> None:
        """Let the latest player's calls wait, or go on."""
        assert self.loop is not None
        done = threading.Event()
        self.loop.call_soon_threadsafe(self.player.gate.set if open_ else self.player.gate.clear)
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(10)


@contextlib.contextmanager
def serve(folder: Path, context: ssl.SSLContext | None = None, **arguments: Any) -> Iterator[Served]:
    """Serve the application until the block ends."""
    served = Served(folder, **arguments)
    config = uvicorn.Config(
        served.app,
        http=served.connections.protocol(),
        ws=LimitedWebSocket,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
    )
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    ready = threading.Event()

    async def run(listening: socket.socket) -> None:
        served.loop = asyncio.get_running_loop()
        serving = asyncio.create_task(server.serve(sockets=[listening] if context is None else []))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        accepting = None
        if context is not None:
            listening.setblocking(False)
            accepting = asyncio.create_task(TlsListener(server, [listening], context).serve())
        ready.set()
        await serving
        if accepting is not None:
            accepting.cancel()

    # With the protocol named, asyncio turns Nagle's algorithm off.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        served.port = listening.getsockname()[1]
        thread = threading.Thread(target=asyncio.run, args=(run(listening),))
        thread.start()
        try:
            assert ready.wait(30)
            yield served
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
