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

import contextlib
import logging
import time
from collections.abc import Sequence
from functools import partial

from tmrl_core.config import Config, find_credentials_folder
from tmrl_core.errors import MissingExtraError
from tmrl_core.gateway.api_keys import ApiKeys, make_owner_token
from tmrl_core.gateway.from_config import make_agents
from tmrl_core.gateway.settings import gateway_section
from tmrl_core.roles.server import raise_file_limit

try:
    from starlette.routing import BaseRoute

    from tmrl_core.gateway.app import make_app
    from tmrl_core.gateway.client_sessions import Sessions
    from tmrl_core.gateway.episodes import EpisodeFiles
    from tmrl_core.gateway.owner import OwnerPages
    from tmrl_core.web.pages import running_pages
    from tmrl_core.web.server import WebServer
    from tmrl_core.web.thread import WebThread
except ModuleNotFoundError as exc:
    if exc.name is None or exc.name.startswith("tmrl_core"):
        raise
    raise MissingExtraError(exc.name, "gateway", "the gateway") from exc

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 1000
"""Maximum number of HTTP connections beyond one for each session."""


class Gateway(WebThread):
    """A running gateway. It listens when the constructor returns, and serves in a thread of its own until `close`.

    Args:
        config: of the run.
        routes: further routes of the app.

    Raises:
        ConfigError: the settings do not go together.
        CredentialsError: credentials are missing or damaged.
        NetworkError: the port cannot be had.

    Attributes:
        agents: of the gateway.
        sessions: the client sessions.
    """

    def __init__(self, config: Config, routes: Sequence[BaseRoute] = ()) -> None:
        self._config = config
        section = gateway_section(config)
        folder = find_credentials_folder(config)
        self._keys = ApiKeys(folder)
        super().__init__(WebServer("gateway", section.host, section.port, folder), "gateway")
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
        logger.info("the owner's pages are at %sowner/; their token is in %s", self.url, owner_token)
        self._begin()
        without = sorted({agent.name for agent in self.agents} - self._keys.agents)
        if without:
            logger.warning(
                "no API key for %s: create one with `python -m tmrl_core --credentials key %s`",
                ", ".join(without),
                without[0],
            )

    async def _serve(self) -> None:
        raise_file_limit()
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
