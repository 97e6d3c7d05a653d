"""The gateway as a role: address and TLS, start and end."""

# Theory of operation
#
# This file puts the parts of the gateway together and gives them a thread. It knows no message and no session.
#
# Order of the start. Everything that may be refused is checked in the constructor and in the caller's thread:
# credentials, the port, the agents of the configuration. The sockets are bound first, so that a port in use is reported
# before a policy is loaded. Then the thread starts the agents, and only then uvicorn: the first client must meet agents
# that can act. The constructor returns when all of that is done, so a gateway that exists serves.
#
# Order of the end, by the exit stack in reverse: the sessions are closed first, each with its last samples or its save;
# then the agents, which send what is left and wait for acknowledgements; at last the files of episodes. uvicorn stops
# before them, since a request in progress may still use its session.
#
# Failures. Tasks that never end by themselves (uvicorn, the check for idle sessions, the TLS listener) are awaited
# together: the first one that fails ends the gateway in the order above, and `wait` raises its error in the caller's
# thread.
#
# A certificate that `--credentials renew` has made is loaded into the context in use, so that the gateway need not be
# restarted and open connections stay. Key and certificate are two files; if only one is new, loading fails and is tried
# again a second later.

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tmrl_core.config import Config, find_credentials_folder, is_loopback
from tmrl_core.errors import CredentialsError, MissingExtraError, NetworkError, PortInUseError, TmrlError
from tmrl_core.gateway.api_keys import ApiKeys, make_owner_token
from tmrl_core.gateway.from_config import make_agents
from tmrl_core.gateway.settings import gateway_section, gateway_url
from tmrl_core.networking.security.tls_contexts import server_context
from tmrl_core.networking.transports.base import new_event_loop
from tmrl_core.networking.transports.port_holder import port_holder
from tmrl_core.roles.server import raise_file_limit

try:
    import uvicorn
    from starlette.routing import BaseRoute

    from tmrl_core.gateway.app import make_app
    from tmrl_core.gateway.client_sessions import Sessions
    from tmrl_core.gateway.connections import Connections, LimitedWebSocket, TlsListener
    from tmrl_core.gateway.episodes import EpisodeFiles
    from tmrl_core.gateway.owner import OwnerPages
except ModuleNotFoundError as exc:
    if exc.name is None or exc.name.startswith("tmrl_core"):
        raise
    raise MissingExtraError(exc.name, "gateway", "the gateway") from exc

logger = logging.getLogger(__name__)

EXPIRE_S = 1.0
"""Seconds between two checks for idle sessions and revoked API keys."""
END_S = 5.0
"""Longest wait in seconds for requests in progress when the gateway ends."""
KEEP_ALIVE_S = 75
"""Seconds without a request after which a connection is closed: more than between steps that a person watches."""
SPARE_CONNECTIONS = 1000
"""Maximum number of HTTP connections beyond one for each session."""
_BACKLOG = 1024


class Gateway:
    """A running gateway. It listens when the constructor returns, and serves in a thread of its own until `close`.

    Args:
        config: of the run.
        routes: further routes of the app.

    Raises:
        ConfigError: the settings do not go together.
        CredentialsError: credentials are missing or damaged.
        NetworkError: the port cannot be had.

    Attributes:
        port: that it listens on.
        agents: of the gateway.
        sessions: the client sessions.
    """

    def __init__(self, config: Config, routes: Sequence[BaseRoute] = ()) -> None:
        self._config = config
        section = gateway_section(config)
        folder = find_credentials_folder(config)
        self._keys = ApiKeys(folder)
        context = None if is_loopback(section.host) else https_context(folder)
        self._certificate = folder / "server.pem"
        self._certificate_stamp = _stamp(self._certificate)
        self._sockets = listening_sockets(section.host, section.port)
        self.port = int(self._sockets[0].getsockname()[1])
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        try:
            owner_token = make_owner_token(folder)
            self._episodes = EpisodeFiles(config.run_folder / "gateway")
            self.agents = make_agents(config)
            self.sessions = Sessions(self.agents, self._keys, section, self._episodes.add)
            owner = OwnerPages(
                is_owner=self._keys.is_owner,
                agents={agent.name: agent for agent in self.agents},
                sessions=lambda: self.sessions.infos(time.monotonic()),
                episodes=self._episodes,
            )
            self._connections = Connections(section.max_sessions + SPARE_CONNECTIONS)
            settings = uvicorn.Config(
                make_app(self.sessions, section, [*owner.routes(), *routes]),
                http=self._connections.protocol(),
                ws=LimitedWebSocket,
                ws_max_size=self.sessions.max_body_bytes,
                ws_per_message_deflate=False,  # costs more time and memory than the bytes of small messages
                timeout_keep_alive=KEEP_ALIVE_S,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(END_S),
            )
            settings.load()
            settings.ssl = context
            self._uvicorn = uvicorn.Server(settings)
        except BaseException:
            for one in self._sockets:
                one.close()
            raise
        self.url = gateway_url(section, self.port)
        logger.info("the owner's pages are at %sowner/; their token is in %s", self.url, owner_token)
        self._thread = threading.Thread(target=self._run, name="tmrl-gateway", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()
        without = sorted({agent.name for agent in self.agents} - self._keys.agents)
        if without:
            logger.warning(
                "no API key for %s: create one with `python -m tmrl_core --credentials key %s`",
                ", ".join(without),
                without[0],
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        raise_file_limit()
        loop = new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve())
        except BaseException as exc:
            self._failure = exc if isinstance(exc, TmrlError) else NetworkError(f"the gateway failed: {exc!r}")
            if not isinstance(exc, TmrlError):
                logger.exception("the gateway failed")
        finally:
            self._ready.set()
            self._ended.set()
            asyncio.set_event_loop(None)
            loop.close()

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as ending:
            ending.callback(self._episodes.close)
            for agent in self.agents:
                ending.push_async_callback(agent.close)
            for agent in self.agents:
                await agent.start()
            ending.push_async_callback(lambda: self.sessions.close(time.monotonic()))
            context = self._uvicorn.config.ssl
            serving = asyncio.create_task(self._uvicorn.serve(sockets=[] if context else self._sockets))
            while not self._uvicorn.started and not serving.done():
                await asyncio.sleep(0.01)
            endless = [asyncio.create_task(self._expire())]
            if context is not None:
                endless.append(asyncio.create_task(TlsListener(self._uvicorn, self._sockets, context).serve()))
            for task in endless:
                ending.callback(task.cancel)
            logger.info("the gateway serves %s at %s", ", ".join(agent.name for agent in self.agents), self.url)
            self._ready.set()
            # These never end by themselves: a failure is the gateway's, and what is left is sent and saved.
            await asyncio.wait([serving, *endless], return_when=asyncio.FIRST_COMPLETED)
            self._uvicorn.should_exit = True
            await serving
            for task in endless:
                if task.done():
                    await task

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            self._connections.expire(asyncio.get_running_loop().time())
            self.sessions.expire(time.monotonic())
            self._renew()

    def _renew(self) -> None:
        """Use a certificate that `--credentials renew` has made, for new connections."""
        context, stamp = self._uvicorn.config.ssl, _stamp(self._certificate)
        if context is None or stamp in (None, self._certificate_stamp):
            return
        # Key and certificate are two files: if they do not match yet, the next attempt finds both.
        with contextlib.suppress(ssl.SSLError, OSError):
            context.load_cert_chain(self._certificate, self._certificate.with_suffix(".key"))
            self._certificate_stamp = stamp

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the gateway has ended; return False after the timeout.

        Raises:
            TmrlError: it ended because something failed.
        """
        ended = self._ended.wait(timeout_s)
        if ended:
            self._raise_failure()
        return ended

    def close(self) -> None:
        """End all sessions, send and save what is left, and stop. From any thread, more than once."""
        self._uvicorn.should_exit = True
        self._ended.wait()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def https_context(folder: Path) -> ssl.SSLContext:
    """Return the TLS context with the Server's certificate.

    Raises:
        CredentialsError: the certificate is not here; with what to run.
    """
    if not folder.is_file() and not (folder / "server.pem").exists():
        raise CredentialsError(
            f"{folder / 'server.pem'} not found. Other machines reach the gateway over HTTPS, with a certificate that "
            "names its host: run `python -m tmrl_core --credentials create --host NAME`; or make a bundle with "
            "`--credentials bundle server` where the CA's key is and install it here; or set gateway.host to 127.0.0.1."
        )
    context, _ = server_context(folder)
    context.verify_mode = ssl.CERT_NONE  # clients have API keys; a browser would ask its user for a certificate
    context.set_alpn_protocols(["http/1.1"])
    return context


def _stamp(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets; for loopback at 127.0.0.1 and ::1, since `localhost` may be either.

    Raises:
        NetworkError: the address or port cannot be had.
    """
    hosts = ["127.0.0.1", *(["::1"] if _has_ipv6() else [])] if is_loopback(host) else [host]
    made: list[socket.socket] = []
    try:
        for one in hosts:
            at = made[0].getsockname()[1] if made else port
            flags = socket.AI_PASSIVE
            family, *_, address = socket.getaddrinfo(one, at, type=socket.SOCK_STREAM, flags=flags)[0]
            # 127.0.0.1 has a socket of its own beside ::1; any other IPv6 address takes IPv4 clients too.
            both = family == socket.AF_INET6 and one != "::1" and socket.has_dualstack_ipv6()
            made.append(socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both))
            made[-1].setblocking(False)
    except OSError as exc:
        for open_one in made:
            open_one.close()
        if exc.errno == errno.EADDRINUSE:
            holder = port_holder(port) or "the program that listens there"
            raise PortInUseError(f"port {port} of {host} is in use: end {holder}, or set gateway.port") from exc
        raise NetworkError(f"the gateway cannot listen on {host} port {port}: {exc.strerror or exc}") from exc
    return made


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
