"""The owner's pages: sessions, learning curves and saves, behind the owner's token.

Links are relative, so that a reverse proxy may put a prefix before the paths.

Programs send the token as `Authorization: Bearer TOKEN`. In a browser, a login form exchanges it for a cookie. The
cookie is not sent with requests from other sites (SameSite=Strict). Pages of the same host on another port count as the
same site, so a request that changes something also needs the gateway's own origin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from html import escape
from typing import Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from tmrl_core.errors import MissingExtraError
from tmrl_core.gateway.api_keys import OWNER_FILE
from tmrl_core.gateway.contracts import GatewayAgent, SessionInfo
from tmrl_core.gateway.episodes import EpisodeFiles, learning_curve
from tmrl_core.gateway.start_page import document, navigation
from tmrl_core.web.logins import Logins
from tmrl_core.web.origins import check_origin
from tmrl_core.web.pages import Link

logger = logging.getLogger(__name__)

_COOKIE = "tmrl_owner"
_CURVE_S = 10.0
Handler = Callable[[Request], Awaitable[Response]]
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


async def no_links() -> Sequence[Link]:
    """Return no links to other pages."""
    return ()


class OwnerPages:
    """Routes below `/owner/`.

    Args:
        is_owner: compares a token with the owner's, in constant time.
        agents: agents by name.
        sessions: returns the open sessions.
        episodes: the agents' finished episodes.
        clock: seconds, monotonic.
        links: returns links to pages of other parts.
    """

    def __init__(
        self,
        *,
        is_owner: Callable[[str], bool],
        agents: Mapping[str, GatewayAgent],
        sessions: Callable[[], Sequence[SessionInfo]],
        episodes: EpisodeFiles,
        clock: Callable[[], float] = time.monotonic,
        links: Callable[[], Awaitable[Sequence[Link]]] = no_links,
    ) -> None:
        self._links = links
        self._logins = Logins(
            _COOKIE,
            "/owner/",
            is_owner,
            pages="the owner's pages",
            source=f"{OWNER_FILE} in the credentials folder of the gateway has it",
            clock=clock,
        )
        self._agents = agents
        self._sessions = sessions
        self._episodes = episodes
        self._clock = clock
        self._curves: dict[str, tuple[float, bytes]] = {}
        self._drawing = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        """Return the routes for the app."""
        return [
            Route("/owner", lambda request: RedirectResponse("/owner/")),
            Mount(
                "/owner",
                routes=[
                    Route("/", _with_headers(self._page)),
                    Route("/login/", _with_headers(self._login), methods=["POST"]),
                    Route("/logout/", _with_headers(self._logout), methods=["POST"]),
                    Route("/sessions/", self._private(self._list_sessions)),
                    Route("/agents/", self._private(self._list_agents)),
                    Route("/agents/{agent}/episodes.csv", self._private(self._csv)),
                    Route("/agents/{agent}/curve.png", self._private(self._curve)),
                    Route("/agents/{agent}/saves/", self._private(self._list_saves)),
                    Route("/agents/{agent}/saves/{name}", self._private(self._save), methods=["GET", "DELETE"]),
                    Route("/agents/{agent}/saves/{name}/delete/", self._private(self._save), methods=["POST"]),
                ],
            ),
        ]

    # --- admission ---

    def _private(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._logins.bearer(request):
                if not self._logins.holds(request):
                    raise HTTPException(
                        401,
                        "the owner's pages need the owner's token: `Authorization: Bearer TOKEN`, or the login at "
                        "/owner/",
                        headers={"WWW-Authenticate": "Bearer"},
                    )
                if request.method != "GET":
                    check_origin(request, "the owner's pages of this gateway")
            return await handler(request)

        return _with_headers(guarded)

    async def _login(self, request: Request) -> Response:
        return await self._logins.login(request, lambda error: _login_page("./", error), "../")

    async def _logout(self, request: Request) -> Response:
        return self._logins.logout(request, "../")

    # --- pages ---

    async def _page(self, request: Request) -> Response:
        if not self._logins.holds(request):
            return HTMLResponse(_login_page("login/"))
        agents = [
            (agent, self._episodes.path(agent.name).exists(), await asyncio.to_thread(_saves, agent))
            for agent in self._agents.values()
        ]
        return HTMLResponse(_overview(agents, self._sessions(), await self._links()))

    async def _list_sessions(self, request: Request) -> Response:
        return JSONResponse({"sessions": [asdict(session) for session in self._sessions()]})

    async def _list_agents(self, request: Request) -> Response:
        return JSONResponse({"agents": [{"name": agent.name, "mode": agent.mode} for agent in self._agents.values()]})

    async def _csv(self, request: Request) -> Response:
        agent = self._agent(request).name
        try:
            # A file that grows while it is sent would be longer than its announced length.
            rows = await asyncio.to_thread(self._episodes.path(agent).read_bytes)
        except FileNotFoundError:
            raise HTTPException(404, f"agent {agent} has no finished episode yet") from None
        return Response(rows, media_type="text/csv")

    async def _curve(self, request: Request) -> Response:
        agent = self._agent(request).name
        # Drawing takes about a second of processor time, which requests of sessions need.
        async with self._drawing:
            drawn_at, png = self._curves.get(agent, (-_CURVE_S, b""))
            if self._clock() - drawn_at >= _CURVE_S:
                try:
                    png = await asyncio.to_thread(lambda: learning_curve(agent, self._episodes.read(agent)))
                except MissingExtraError as error:
                    raise HTTPException(501, f"{error} The same numbers are in episodes.csv.") from error
                self._curves[agent] = self._clock(), png
        return Response(png, media_type="image/png")

    async def _list_saves(self, request: Request) -> Response:
        return JSONResponse({"saves": await asyncio.to_thread(_saves, self._agent(request))})

    async def _save(self, request: Request) -> Response:
        agent, name = self._agent(request), request.path_params["name"]
        # The name comes from the folder's list, so that a request cannot reach other files.
        if name not in {save["name"] for save in await asyncio.to_thread(_saves, agent)}:
            raise HTTPException(404, f"agent {agent.name} has no save {name!r}; saves/ lists them")
        assert agent.saves_folder is not None
        path = agent.saves_folder / name
        if request.method == "GET":
            return FileResponse(path, media_type="application/octet-stream", filename=f"{agent.name}_{name}")
        try:
            await asyncio.to_thread(os.remove, path)
        except FileNotFoundError:
            pass  # removed by the agent in the meantime
        except OSError as error:
            raise HTTPException(500, f"{name} cannot be deleted: {error.strerror}") from error
        logger.info("save %s of agent %s deleted by the owner", name, agent.name)
        if request.method == "POST":
            return RedirectResponse("../" * 5, 303)
        return JSONResponse({"deleted": name})

    def _agent(self, request: Request) -> GatewayAgent:
        name = request.path_params["agent"]
        if name not in self._agents:
            raise HTTPException(404, f"there is no agent {name!r}, only {', '.join(self._agents)}")
        return self._agents[name]


def _with_headers(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        response = await handler(request)
        response.headers.update(_HEADERS)
        return response

    return answer


def _saves(agent: GatewayAgent) -> list[dict[str, Any]]:
    """Return name, size and time of each save, newest first."""
    found = []
    for path in agent.saves_folder.glob("*.save") if agent.saves_folder is not None else ():
        try:
            about = path.lstat()
        except OSError:
            continue  # removed by the agent in the meantime
        if stat.S_ISREG(about.st_mode) and not path.name.startswith("."):
            found.append({"name": path.name, "bytes": about.st_size, "saved_at": about.st_mtime})
    return sorted(found, key=lambda save: float(save["saved_at"]), reverse=True)


def _login_page(action: str, error: str = "") -> str:
    return document(
        f'<h1>Gateway</h1><form method="post" action="{action}"><label>Owner\'s token '
        '<input type="password" name="token" autocomplete="off" autofocus required></label> <button>Log in</button>'
        f'</form><p class="error">{escape(error)}</p>'
    )


def _overview(
    agents: Sequence[tuple[GatewayAgent, bool, list[dict[str, Any]]]],
    sessions: Sequence[SessionInfo],
    links: Sequence[Link],
) -> str:
    """Return the page of agents (each with whether it has finished episodes, and with its saves) and sessions."""
    parts = [navigation([Link("Gateway", "../"), *links])]
    parts += ['<h1>Gateway: owner</h1><form method="post" action="logout/"><button>Log out</button></form>']
    rows = [
        [
            escape(one.session_id),
            escape(one.agent),
            escape(one.key_id),
            _time(one.opened_at),
            f"{one.idle_s:,.0f} s",
            f"{one.steps:,}",
            f"{one.episodes:,}",
        ]
        for one in sessions
    ]
    parts.append(f"<h2>Open sessions: {len(rows)}</h2>")
    parts.append(_table(["session", "agent", "key", "opened", "idle", "steps", "episodes"], rows))
    for agent, has_episodes, saves in agents:
        place = f"agents/{quote(agent.name, safe='')}"
        parts.append(f"<h2>Agent {escape(agent.name)} ({escape(agent.mode)})</h2>")
        if has_episodes:
            parts.append(f'<p><img src="{place}/curve.png" alt="learning curve"></p>')
            parts.append(f'<p><a href="{place}/episodes.csv">episodes.csv</a></p>')
        else:
            parts.append("<p>No episode has ended yet.</p>")
        rows = []
        for save in saves:
            link = f"{place}/saves/{quote(save['name'])}"
            rows.append(
                [
                    f'<a href="{link}">{escape(save["name"])}</a>',
                    f"{save['bytes'] / 1000:,.0f} kB",
                    _time(save["saved_at"]),
                    f'<form method="post" action="{link}/delete/"><button>Delete</button></form>',
                ]
            )
        parts.append(_table(["save", "size", "saved", ""], rows))
    return document("".join(parts))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    cells = "".join(f"<th>{head}</th>" for head in heads)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
