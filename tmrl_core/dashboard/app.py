"""The HTTP application of the live page: its files, the stream of events, orders and logins."""

# Theory of operation
#
# The page is three files of this folder and one stream. It loads nothing from elsewhere, which the policy in
# `_HEADERS` enforces, so that it works on a robot's network without Internet and no text of a worker can run as code.
#
# Admission, in this order:
#
# 1. Over plain HTTP, the Host must be a name of this server (421): a web page may have its own name resolve to a
#    loopback address.
# 2. A request that another site's page makes is refused (403), except for following a link.
# 3. With a login, everything but the login page needs its cookie. A cookie, because a browser's EventSource sends no
#    other proof. The link that is printed at the start has the token behind `#`, which browsers send to nobody, so it
#    stands in no log of a proxy; a script of the login page posts it.
# 4. An order must come from this page (Origin) and be JSON, which no form of another site can send. It is signed by
#    the source with the operator's key; the browser never has that key.

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tmrl_core.dashboard.feed import Feed
from tmrl_core.dashboard.pictures import Pictures
from tmrl_core.dashboard.settings import DashboardSection
from tmrl_core.dashboard.source import Source
from tmrl_core.errors import TmrlError
from tmrl_core.networking.protocol.telemetry import Order
from tmrl_core.web.logins import Logins, small_body
from tmrl_core.web.origins import HostNames, check_origin
from tmrl_core.web.pages import Link

COOKIE = "tmrl_dashboard"
_FILES = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "chart.js": "text/javascript",
    "login.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_PICTURES = {"camera": "image/jpeg", "video": "video/mp4"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send a form's Origin as null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Links = Callable[[], Awaitable[Sequence[Link]]]


def text_of(name: str) -> bytes:
    """Return a file of the page."""
    return files("tmrl_core.dashboard").joinpath("page").joinpath(name).read_bytes()


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    body = text_of(name)

    async def answer(request: Request) -> Response:
        return Response(body, media_type=kind)

    return answer


class Pages:
    """The pages, the stream, orders and logins.

    Args:
        source: receives orders.
        feed: makes the events.
        pictures: videos and camera pictures.
        settings: names, login, limits.
        token: of the login.
        about: facts that do not change, which the page shows.
        links: returns links to other pages.
    """

    def __init__(
        self,
        source: Source,
        feed: Feed,
        pictures: Pictures,
        settings: DashboardSection,
        *,
        token: str,
        about: dict[str, Any],
        links: Links,
    ) -> None:
        self._source = source
        self._feed = feed
        self._pictures = pictures
        self._settings = settings
        self._about = about
        self._links = links
        self._logins = Logins(
            COOKIE,
            "/",
            lambda given: hmac.compare_digest(given.encode(), token.encode()),
            pages="the live page",
            source="the link that `--dashboard` printed at its start has it",
        )
        self._page = text_of("index.html")
        self._form = text_of("login.html").decode()

    def app(self) -> Starlette:
        """Return the application."""
        settings = self._settings
        app = Starlette(
            routes=[
                Route("/", self.page),
                Route("/login/", self.login_page, methods=["GET"]),
                Route("/login/", self.login, methods=["POST"]),
                Route("/logout/", self.logout, methods=["POST"]),
                Route("/events", self.events),
                Route("/about", self.about),
                Route("/orders", self.order, methods=["POST"]),
                Route("/pictures/{kind}", self.picture),
                *(Route(f"/{name}", _file(name, kind)) for name, kind in _FILES.items()),
            ],
            middleware=[Middleware(_Entrance, names=HostNames((settings.host, *settings.hosts)))],
            exception_handlers={HTTPException: _refused},
        )
        app.router.redirect_slashes = False
        return app

    def _may_look(self, request: Request) -> bool:
        return not self._settings.needs_login or self._logins.bearer(request) or self._logins.holds(request)

    def _check(self, request: Request) -> None:
        if not self._may_look(request):
            raise HTTPException(
                401, "the live page needs a login: use the link that `--dashboard` printed at its start"
            )

    async def page(self, request: Request) -> Response:
        """The page itself, or the way to the login."""
        if not self._may_look(request):
            return RedirectResponse("login/", 303)
        return HTMLResponse(self._page)

    async def about(self, request: Request) -> Response:
        """Facts that do not change, and links to other pages."""
        self._check(request)
        links = [link._asdict() for link in await self._links()]
        return JSONResponse({**self._about, "links": links, "login": self._settings.needs_login})

    async def events(self, request: Request) -> Response:
        """The stream of events."""
        self._check(request)
        if self._feed.viewers >= self._settings.max_viewers:
            raise HTTPException(
                503, f"{self._settings.max_viewers} pages are open (dashboard.max_viewers)", {"Retry-After": "5"}
            )
        compressed = bool(re.search(r"\bgzip\b", request.headers.get("accept-encoding", "")))
        events = self._feed.stream(request.headers.get("last-event-id", ""), compressed=compressed)
        # The second one is for nginx, which would keep events until it has some kilobytes.
        headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, headers=headers | ({"Content-Encoding": "gzip"} if compressed else {}))

    async def order(self, request: Request) -> Response:
        """Send an order to the trainer."""
        self._check(request)
        check_origin(request, "this page")
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise HTTPException(415, "an order is a JSON object, with `Content-Type: application/json`")
        try:
            order = msgspec.json.decode(await small_body(request), type=Order)
        except msgspec.DecodeError as exc:
            raise HTTPException(400, f"this is no order: {exc}") from exc
        if not self._source.may_order:
            raise HTTPException(
                403,
                "this page only shows: orders need a bundle of role operator, which "
                "`python -m tmrl_core --credentials bundle operator` makes where the CA's key is",
            )
        try:
            number = await asyncio.to_thread(self._source.order, order)
            self._pictures.ordered(order)
            return JSONResponse({"id": number}, 202)
        except TmrlError as exc:
            raise HTTPException(409, str(exc)) from exc

    async def picture(self, request: Request) -> Response:
        """A picture of a worker, or of the run's folder: the latest, whatever the address says besides."""
        self._check(request)
        kind, worker = request.path_params["kind"], request.query_params.get("worker", "")
        content = await asyncio.to_thread(self._pictures.content, worker, kind)
        if not content or kind not in _PICTURES:
            raise HTTPException(404, "there is no such picture")
        with contextlib.suppress(TmrlError):  # it is looked at all the same
            await asyncio.to_thread(self._pictures.repeat, worker, kind)
        return Response(content, media_type=_PICTURES[kind])

    async def login_page(self, request: Request) -> Response:
        """A form for the token."""
        return HTMLResponse(self._login_form())

    def _login_form(self, error: str = "") -> str:
        return self._form.replace("<!-- error -->", error)

    async def login(self, request: Request) -> Response:
        """Exchange the token for a cookie."""
        return await self._logins.login(request, self._login_form, "../")

    async def logout(self, request: Request) -> Response:
        """End the login."""
        return self._logins.logout(request, "../login/")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


class _Entrance:
    """Refuse names and sites that are not this server's, and add the headers of all answers."""

    def __init__(self, app: ASGIApp, names: HostNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["scheme"] == "http" and not self._names.allows(headers.get("host", "").encode()):
            answer: ASGIApp = JSONResponse({"error": "this page has another name; set dashboard.hosts"}, 421)
        elif headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            answer = JSONResponse({"error": "this request comes from another site"}, 403)
        else:
            answer = self._app
        await answer(scope, receive, sending)
