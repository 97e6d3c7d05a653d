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
# Failures. The first failure of the HTTP server (`web/server.py`) or of the check for idle sessions ends the gateway in
# the order above, and `wait` raises its error in the caller's thread.

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType

from tmrl_core.config import Config, find_credentials_folder
from tmrl_core.errors import MissingExtraError, NetworkError, TmrlError
from tmrl_core.gateway.api_keys import ApiKeys, make_owner_token
from tmrl_core.gateway.from_config import make_agents
from tmrl_core.gateway.settings import gateway_section
from tmrl_core.networking.transports.base import new_event_loop
from tmrl_core.roles.server import raise_file_limit

try:
    from starlette.routing import BaseRoute

    from tmrl_core.gateway.app import make_app
    from tmrl_core.gateway.client_sessions import Sessions
    from tmrl_core.gateway.episodes import EpisodeFiles
    from tmrl_core.gateway.owner import OwnerPages
    from tmrl_core.web.pages import running_pages
    from tmrl_core.web.server import WebServer
except ModuleNotFoundError as exc:
    if exc.name is None or exc.name.startswith("tmrl_core"):
        raise
    raise MissingExtraError(exc.name, "gateway", "the gateway") from exc

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 1000
"""Maximum number of HTTP connections beyond one for each session."""


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
        self._web = WebServer("gateway", section.host, section.port, folder)
        self.port = self._web.port
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        try:
            owner_token = make_owner_token(folder)
            self._episodes = EpisodeFiles(config.run_folder / "gateway")
            self.agents = make_agents(config)
            self.sessions = Sessions(self.agents, self._keys, section, self._episodes.add)
            links = partial(running_pages, config, "gateway")
            owner = OwnerPages(
                is_owner=self._keys.is_owner,
                agents={agent.name: agent for agent in self.agents},
                sessions=lambda: self.sessions.infos(time.monotonic()),
                episodes=self._episodes,
                links=links,
            )
            self._web.load(
                make_app(self.sessions, section, [*owner.routes(), *routes], links=links),
                max_connections=section.max_sessions + SPARE_CONNECTIONS,
                ws_max_bytes=self.sessions.max_body_bytes,
            )
        except BaseException:
            self._web.close_sockets()
            raise
        self.url = self._web.url
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
            await self._web.start(lambda: self.sessions.expire(time.monotonic()))
            ending.push_async_callback(self._web.close)
            logger.info("the gateway serves %s at %s", ", ".join(agent.name for agent in self.agents), self.url)
            self._ready.set()
            # It never ends by itself: a failure is the gateway's, and what is left is sent and saved.
            await self._web.wait()

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
        self._web.stop()
        self._ended.wait()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
