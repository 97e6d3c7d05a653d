"""The live page as a role: source, application and server, in a thread."""

# Theory of operation
#
# The port is bound in the constructor, so that a port in use is reported to the caller. The source is made by the
# caller and closed here. One thread has the event loop of the HTTP server and of the feed (`web/thread.py`); the source
# has threads of its own.
#
# Order of the end: streams first, because a server waits for requests in progress and a stream never ends by itself;
# then the server; then the source.

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from pathlib import Path

from tmrl_core import __version__
from tmrl_core.config import Config, find_credentials_folder
from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.screen import Screen, screen
from tmrl_core.dashboard.settings import dashboard_section
from tmrl_core.dashboard.several import SeveralServers
from tmrl_core.dashboard.source import Source
from tmrl_core.errors import MissingExtraError
from tmrl_core.networking.protocol.telemetry import Scene

try:
    from tmrl_core.dashboard.app import Pages
    from tmrl_core.dashboard.feed import Feed
    from tmrl_core.dashboard.pictures import Pictures
    from tmrl_core.web.pages import running_pages
    from tmrl_core.web.server import WebServer
    from tmrl_core.web.thread import WebThread
except ModuleNotFoundError as exc:
    if exc.name is None or exc.name.startswith("tmrl_core"):
        raise
    raise MissingExtraError(exc.name, "gateway", "the live page") from exc

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 200
"""Maximum number of HTTP connections beyond one for each page."""
_TOKEN_BYTES = 24


class Dashboard(WebThread):
    """The live page. It answers when the constructor returns, until `close`.

    Args:
        config: of the run.
        source: of the content; closed with the page, or if the page cannot start.
        command: words after `python -m tmrl_core --ROLE` that give other roles this configuration.
        folder: of the run, if the source is that folder; None: the source is a link.

    Raises:
        CredentialsError: the certificate is missing or damaged.
        NetworkError: the port cannot be had.

    Attributes:
        link: address for the browser, with the token of the login if there is one.
    """

    def __init__(self, config: Config, source: Source, *, command: str = "-c FILE", folder: Path | None = None) -> None:
        section = dashboard_section(config)
        self._source = source
        try:
            super().__init__(
                WebServer("dashboard", section.host, section.port, find_credentials_folder(config)), "live page"
            )
        except BaseException:
            source.close()
            raise
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.link = f"{self.url}login/#{token}" if section.needs_login else self.url
        recorded = folder is not None
        name = config.run.name if folder is None else folder.name
        pictures = Pictures(source, config.run_folder if folder is None else folder)

        def make(scene: Scene | None, age_s: float) -> Screen:
            others = source.others(command) if isinstance(source, SeveralServers) else ()
            seen = Seen(source.state, scene, age_s, source.status, recorded, command, others=others)
            return screen(seen, source.history, pictures.list(), may_order=source.may_order)

        self._feed = Feed(source, make)
        pages = Pages(
            source,
            self._feed,
            pictures,
            section,
            token=token,
            about={"run": name, "recorded": recorded, "version": __version__},
            links=lambda: running_pages(config, "dashboard"),
        )
        self._web.load(pages.app(), max_connections=section.max_viewers + SPARE_CONNECTIONS)
        self._begin()
        logger.info("the live page of run %s is at %s", name, self.link)

    async def _serve(self) -> None:
        following = asyncio.create_task(self._feed.run())
        try:
            await self._web.start(lambda: following.result() if following.done() else None)
            self._ready.set()
            await self._web.wait()
        finally:
            following.cancel()
            await self._web.close()
            self._source.close()

    def close(self) -> None:
        """End all streams, and stop. From any thread, more than once."""
        if not self._ended.is_set():
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._feed.stop)
        super().close()
