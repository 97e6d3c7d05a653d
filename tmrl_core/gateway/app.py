"""The HTTP application of the gateway: logins, steps, the description of the protocol, and routes of other parts."""

# Theory of operation
#
# Every answer is a JSON object, also every refusal, except pages for browsers. A client can therefore read the reason
# with the code that reads actions.
#
# The shortest path is that of a step: `_Entrance` checks the Host and hands it to `_Steps`, both plain ASGI functions.
# Request and response objects, routing and the layers of Starlette take longer than the session itself, so they serve
# everything else. Steps with an Origin header take the long way, which has the rules for other origins.
#
# Protection of browsers' users. Over plain HTTP, the Host must be a name of this machine, because a web page may have
# its own name resolve to a loopback address (DNS rebinding); over HTTPS the certificate protects from that. Browsers
# add cookies by themselves, so the cookie of a login can end its session but makes no step of it.
#
# Bodies are read with a limit each, and all incomplete ones share `_INCOMPLETE_BYTES`. Example: 2,000 connections that
# each send 63 kB of a message of 64 kB and wait would hold 126 MB; the limit refuses them from 64 MB on.

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tmrl_core.gateway import openapi
from tmrl_core.gateway.client_sessions import Sessions
from tmrl_core.gateway.messages import RequestError, answer_to, fields_from_json
from tmrl_core.gateway.owner import no_links
from tmrl_core.gateway.settings import GatewaySection
from tmrl_core.gateway.start_page import start_page
from tmrl_core.gateway.websocket import WebSocketEndpoint, address_of
from tmrl_core.web.origins import HostNames
from tmrl_core.web.pages import Link

logger = logging.getLogger(__name__)

COOKIE = "tmrl_session"
"""Cookie with the session key of the last login. It ends a session whose client does not send its key."""

_STEPS = "/shepherd/env/"
_SOCKET = "/shepherd/ws/"

_INCOMPLETE_BYTES = 64 << 20
"""Maximum size of all requests together that are not complete."""

Clock = Callable[[], float]


def make_app(
    sessions: Sessions,
    settings: GatewaySection,
    routes: Sequence[BaseRoute] = (),
    clock: Clock = time.monotonic,
    links: Callable[[], Awaitable[Sequence[Link]]] = no_links,
) -> Starlette:
    """Return the application.

    Args:
        sessions: receive the messages.
        settings: limits, names and origins.
        routes: of other parts.
        clock: seconds; the time of requests.
        links: returns links to pages of other parts.
    """

    async def start(request: Request) -> Response:
        return HTMLResponse(start_page(await links()))

    bodies = _Bodies(sessions.max_body_bytes)
    steps = _Steps(sessions, bodies, clock)
    document = openapi.document()
    page = openapi.page(document)
    app = Starlette(
        routes=[
            Route(_STEPS, steps, methods=["POST"]),
            Route("/shepherd/login_user/", _Logins(sessions, bodies, clock), methods=["POST"]),
            Route("/shepherd/openapi.json", lambda request: JSONResponse(document)),
            Route("/", start),
            Route("/shepherd/", lambda request: HTMLResponse(page)),
            *routes,
        ],
        middleware=[
            Middleware(
                _Entrance,
                names=frozenset(name.lower() for name in (settings.host, *settings.hosts)),
                steps=steps,
                socket=WebSocketEndpoint(sessions, settings, clock),
            ),
            Middleware(
                _Origins,
                allow_origins=settings.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["content-type"],
                max_age=3600,
            ),
        ],
        exception_handlers={
            RequestError: lambda request, error: _refused(error),
            HTTPException: _http_error,
            ClientDisconnect: _disconnected,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False  # a redirection is no JSON object
    return app


class _Steps:
    """The messages of environments."""

    def __init__(self, sessions: Sessions, bodies: _Bodies, clock: Clock) -> None:
        self._sessions = sessions
        self._bodies = bodies
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = fields_from_json(await self._bodies.read(receive))
        # Browsers add cookies by themselves, so a cookie can end its session but makes no step of it.
        cookie = None
        if not fields.session_key and fields.is_end:
            cookie = cookie_parser(Headers(scope=scope).get("cookie", "")).get(COOKIE)
        message = fields.message(cookie)
        await _respond(send, answer_to(message, await self._sessions.answer(message, self._clock())))


class _Logins:
    """Logins with an API key."""

    def __init__(self, sessions: Sessions, bodies: _Bodies, clock: Clock) -> None:
        self._sessions = sessions
        self._bodies = bodies
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        apikey = fields_from_json(await self._bodies.read(receive)).login()
        key = await self._sessions.login(apikey, address_of(scope), self._clock())
        secure = "; Secure" if scope["scheme"] == "https" else ""
        cookie = f"{COOKIE}={key}; Path=/shepherd/; HttpOnly; SameSite=Strict{secure}"
        await _respond(send, {"ok": True, "session_key": key}, (b"set-cookie", cookie.encode()))


class _Bodies:
    """Read the bodies of requests. Those that are not complete share a limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._incomplete_bytes = 0

    async def read(self, receive: Receive) -> bytes:
        """Return the body of a request.

        Raises:
            RequestError: it is too large, or too many others are not complete. The rest is not kept.
            ClientDisconnect: the client has gone.
        """
        body, more = bytearray(), True
        try:
            while more:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise ClientDisconnect
                part, more = event.get("body", b""), event.get("more_body", False)
                self._incomplete_bytes += len(part)
                body += part
                if len(body) > self._max_bytes:
                    raise RequestError(
                        413, f"the request is larger than {self._max_bytes} bytes (gateway.max_body_bytes)"
                    )
                if more and self._incomplete_bytes > max(_INCOMPLETE_BYTES, 2 * self._max_bytes):
                    raise RequestError(429, "too many requests are not complete: send each at once, and try again")
        finally:
            self._incomplete_bytes -= len(body)
        return bytes(body)


async def _respond(send: Send, value: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    body = msgspec.json.encode(value)
    length = b"%d" % len(body)
    start = [(b"content-type", b"application/json"), (b"content-length", length), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": [*start, *headers]})
    await send({"type": "http.response.body", "body": body})


class _Entrance:
    """Refuse requests over plain HTTP to names that are not this machine's; answer steps on the shortest path."""

    def __init__(self, app: ASGIApp, names: frozenset[str], steps: ASGIApp, socket: ASGIApp) -> None:
        self._app = app
        self._steps = steps
        self._socket = socket
        self._allowed = HostNames(names).allows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = False
        for name, value in scope.get("headers", ()):
            if name == b"host" and scope["scheme"] in ("http", "ws") and not self._allowed(value):
                await _answer(scope, receive, send, 421, "this gateway has another name; set gateway.hosts")
                return
            origin = origin or name == b"origin"
        # Steps go without the layers of Starlette, which take longer than the session.
        path = scope.get("path")
        if path == _SOCKET and scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif path == _STEPS and scope.get("method") == "POST" and not origin:
            try:
                await self._steps(scope, receive, send)
            except RequestError as error:
                await _refused(error)(scope, receive, send)
            except ClientDisconnect:
                pass
        else:
            await self._app(scope, receive, send)


class _Origins(CORSMiddleware):
    """The CORS rules of Starlette, with JSON as answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"origin" for name, _ in scope.get("headers", ())):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        headers = {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
        if answer.status_code == 200:
            return JSONResponse({"ok": True}, headers=headers)
        return JSONResponse({"error": f"{bytes(answer.body).decode()} (gateway.origins)"}, 400, headers)


async def _answer(scope: Scope, receive: Receive, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})
    else:
        await JSONResponse({"error": text}, status)(scope, receive, send)


def _refused(error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {401: {"WWW-Authenticate": "ApiKey"}, 429: {"Retry-After": "1"}}.get(error.status)
    return JSONResponse({"error": str(error)}, error.status, headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail
    if text == HTTPStatus(error.status_code).phrase:
        text = f"{text}: {request.method} {request.url.path[:100]}. Paths end in a slash; see /shepherd/openapi.json"
    return JSONResponse({"error": text}, error.status_code, error.headers)


def _disconnected(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the request is incomplete"}, 400)  # nobody reads it


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "internal error; the gateway's log has the reason"}, 500)
