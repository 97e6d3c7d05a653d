"""The messages of clients over a WebSocket, login included."""

# Theory of operation
#
# A text message is JSON, a binary one MessagePack, and the answer has the same format. A connection remembers the
# session of its login, or of its first message, so that further messages need no session key. A refusal is an answer
# with the fields `error` and `status`, and the connection goes on: an environment that sent one bad number can correct
# it.
#
# A lost connection does not end its session: on unreliable networks a client connects again and goes on with its key. A
# session has one connection, its latest; an earlier one is closed by `_hold`. There are therefore at most as many
# connections as sessions, whose number is limited, and `MAX_WITHOUT_SESSION` more, each of which must show a session
# within `LOGIN_S`. Without these limits, a stranger could hold connections that never log in.
#
# A cancelled task has two causes. If the connection is still the session's latest one, the gateway ends and the
# cancellation goes on. Otherwise another connection has replaced it, or the session has ended, and the client is told
# the reason.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from tmrl_core.gateway.client_sessions import Sessions
from tmrl_core.gateway.messages import RequestError, StepMessage, answer_to, fields_from_json, fields_from_msgpack
from tmrl_core.gateway.settings import GatewaySection

logger = logging.getLogger(__name__)

LOGIN_S = 60.0
"""Time in seconds within which a connection must show a session."""
MAX_WITHOUT_SESSION = 256
"""Maximum number of connections that have shown no session yet. A session has one connection, its latest."""


def address_of(scope: Scope) -> str:
    """Return the address of a client as `host:port`."""
    host, port = scope.get("client") or ("", 0)
    return f"{host}:{port}"


class WebSocketEndpoint:
    """The ASGI endpoint of WebSockets.

    Args:
        sessions: receive the messages.
        settings: limits and origins.
        clock: seconds; the time of messages.
    """

    def __init__(self, sessions: Sessions, settings: GatewaySection, clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._without_session = 0
        self._latest: dict[str, asyncio.Task[Any] | None] = {}
        """The task of the latest connection of each session."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection until its client closes it."""
        await receive()  # the request to connect
        full = self._without_session >= MAX_WITHOUT_SESSION
        if full or not self._is_allowed(Headers(scope=scope)):
            reason = "too many connections" if full else "origin not allowed (gateway.origins)"
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        connection = _Connection(self._sessions, address_of(scope))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOGIN_S
        shown: str | None = None
        self._without_session += 1
        try:
            await send({"type": "websocket.accept"})
            while True:
                event = await (asyncio.wait_for(receive(), deadline - loop.time()) if shown is None else receive())
                if event["type"] != "websocket.receive":
                    return
                text = event.get("text")
                answer = await connection.answer(event["bytes"] if text is None else text, self._clock())
                if text is None:
                    await send({"type": "websocket.send", "bytes": msgspec.msgpack.encode(answer)})
                else:
                    await send({"type": "websocket.send", "text": msgspec.json.encode(answer).decode()})
                key = connection.session_key if connection.session_key in self._sessions else None
                if key != shown:
                    self._release(shown)
                    shown, deadline = key, loop.time() + LOGIN_S
                    self._hold(shown)
        except asyncio.TimeoutError:
            await send({"type": "websocket.close", "code": 1008, "reason": f"no session within {LOGIN_S:g} s"})
        except asyncio.CancelledError:
            if shown is None or self._latest.get(shown) is asyncio.current_task():
                raise  # the gateway ends
            await send({"type": "websocket.close", "code": 1008, "reason": "another connection, or the session ended"})
        finally:
            self._release(shown)

    def _release(self, key: str | None) -> None:
        """Forget this connection."""
        if key is None:
            self._without_session -= 1
        elif self._latest.get(key) is asyncio.current_task():
            del self._latest[key]

    def _hold(self, key: str | None) -> None:
        """Note this connection, and end an earlier one of its session, and those of sessions that have ended.

        There are thus no more connections than sessions, whose number is limited.
        """
        if key is None:
            self._without_session += 1
            return
        for one in [one for one in self._latest if one == key or one not in self._sessions]:
            task = self._latest.pop(one)
            if task is not None:
                task.cancel()
        self._latest[key] = asyncio.current_task()

    def _is_allowed(self, headers: Headers) -> bool:
        """Browsers name the page's origin and connect to other origins without asking."""
        origin, allowed = headers.get("origin"), self._settings.origins
        return (
            origin is None
            or origin in allowed
            or "*" in allowed
            or origin.partition("://")[2] == headers.get("host", "")
        )


class _Connection:
    """The messages of one connection.

    Attributes:
        session_key: of the latest login, or of the first message that was answered; None: none was.
    """

    def __init__(self, sessions: Sessions, address: str) -> None:
        self._sessions = sessions
        self._max_bytes = sessions.max_body_bytes
        self._address = address
        self.session_key: str | None = None

    async def answer(self, data: bytes | str, now: float) -> dict[str, Any]:
        """Return the answer to a message; a refusal is an answer too."""
        try:
            if len(data) > self._max_bytes:
                raise RequestError(413, f"the message is larger than {self._max_bytes} bytes (gateway.max_body_bytes)")
            fields = fields_from_json(data) if isinstance(data, str) else fields_from_msgpack(data)
            if fields.is_login:
                key = self.session_key = await self._sessions.login(fields.login(), self._address, now)
                return {"ok": True, "session_key": key}
            message = fields.message(self.session_key)
            action = await self._sessions.answer(message, now)
            if self.session_key is None and isinstance(message, StepMessage):
                self.session_key = message.session_key
            return answer_to(message, action)
        except RequestError as error:
            return {"error": str(error), "status": error.status}
        except Exception:
            logger.exception("a message over a WebSocket failed")
            return {"error": "internal error; the gateway's log has the reason", "status": 500}
