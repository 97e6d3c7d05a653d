"""The live page as a role: source, application and server, in a thread."""

# Theory of operation
#
# The port is bound in the constructor, so that a port in use is reported to the caller. The source is made by the
# caller and closed here. One thread has the event loop of the HTTP server and of the feed; the source has threads of
# its own.
#
# Order of the end: streams first, because a server waits for requests in progress and a stream never ends by itself;
# then the server; then the source.

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from types import TracebackType

from tmrl_core import __version__
from tmrl_core.config import Config, find_credentials_folder
from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.screen import Screen, screen
from tmrl_core.dashboard.settings import dashboard_section
from tmrl_core.dashboard.source import Source
from tmrl_core.errors import MissingExtraError, NetworkError, TmrlError
from tmrl_core.networking.protocol.telemetry import Scene
from tmrl_core.networking.transports.base import new_event_loop

try:
    from tmrl_core.dashboard.app import make_app
    from tmrl_core.dashboard.feed import Feed
    from tmrl_core.web.pages import running_pages
    from tmrl_core.web.server import WebServer
except ModuleNotFoundError as exc:
    if exc.name is None or exc.name.startswith("tmrl_core"):
        raise
    raise MissingExtraError(exc.name, "gateway", "the live page") from exc

logger = logging.getLogger(__name__)

SPARE_CONNECTIONS = 200
"""Maximum number of HTTP connections beyond one for each page."""
_TOKEN_BYTES = 24


class Dashboard:
    """The live page. It answers when the constructor returns, until `close`.

    Args:
        config: of the run.
        source: of the content; closed with the page, or if the page cannot start.
        command: words after `python -m tmrl_core --ROLE` that give other roles this configuration.
        recorded: True: the source is the folder of a run.

    Raises:
        CredentialsError: the certificate is missing or damaged.
        NetworkError: the port cannot be had.

    Attributes:
        port: that it listens on.
        url: address for the browser.
        link: the same with the token of the login, if there is one.
    """

    def __init__(self, config: Config, source: Source, *, command: str = "-c FILE", recorded: bool = False) -> None:
        section = dashboard_section(config)
        self._source = source
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        try:
            self._web = WebServer("dashboard", section.host, section.port, find_credentials_folder(config))
        except BaseException:
            source.close()
            raise
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.port, self.url = self._web.port, self._web.url
        self.link = f"{self.url}login/#{token}" if section.needs_login else self.url

        def make(scene: Scene | None, age_s: float) -> Screen:
            seen = Seen(source.state, scene, age_s, source.status, recorded, command)
            return screen(seen, source.history, may_order=source.may_order)

        self._feed = Feed(source, make)
        about = {"run": config.run.name, "recorded": recorded, "version": __version__}
        app = make_app(
            source, self._feed, section, token=token, about=about, links=lambda: running_pages(config, "dashboard")
        )
        self._web.load(app, max_connections=section.max_viewers + SPARE_CONNECTIONS)
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tmrl-dashboard", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()
        logger.info("the live page of run %s is at %s", config.run.name, self.link)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as exc:
            self._failure = exc if isinstance(exc, TmrlError) else NetworkError(f"the live page failed: {exc!r}")
            if not isinstance(exc, TmrlError):
                logger.exception("the live page failed")
        finally:
            self._source.close()
            self._ready.set()
            self._ended.set()
            asyncio.set_event_loop(None)
            self._loop.close()

    async def _serve(self) -> None:
        following = asyncio.create_task(self._feed.run())
        try:
            await self._web.start(lambda: following.result() if following.done() else None)
            self._ready.set()
            await self._web.wait()
        finally:
            following.cancel()
            await self._web.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the page has ended; return False after the timeout.

        Raises:
            TmrlError: it ended because something failed.
        """
        ended = self._ended.wait(timeout_s)
        if ended:
            self._raise_failure()
        return ended

    def close(self) -> None:
        """End all streams, and stop. From any thread, more than once."""
        if not self._ended.is_set():
            self._loop.call_soon_threadsafe(self._feed.stop)
        self._web.stop()
        self._ended.wait()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
