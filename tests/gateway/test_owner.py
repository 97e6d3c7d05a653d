"""The owner's pages, called as an ASGI app without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gymnasium import Space, spaces
from starlette.applications import Starlette
from starlette.types import Message

from tmrl_core.gateway.contracts import FinishedEpisode, Player, SessionInfo
from tmrl_core.gateway.episodes import EpisodeFiles
from tmrl_core.gateway.owner import OwnerPages

TOKEN = "right"
BEARER = {"authorization": f"Bearer {TOKEN}"}
OWN = {"origin": "http://gateway:8000"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class SavingAgent:
    """An agent with saves, and without sessions."""

    name = "heat & light"
    mode = "advice"
    observation_space: Space[Any] = spaces.Discrete(2)
    action_space: Space[Any] = spaces.Discrete(2)

    def __init__(self, saves_folder: Path) -> None:
        self.saves_folder: Path | None = saves_folder

    async def start(self) -> None: ...

    def open(self, session_id: str, key_id: str = "") -> Player:
        raise NotImplementedError

    async def close(self) -> None: ...


class Pages:
    """The pages of one agent; `now` is their clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.saves = folder / "saves"
        self.saves.mkdir()
        self.episodes = EpisodeFiles(folder)
        agent = SavingAgent(self.saves)
        session = SessionInfo(
            session_id="s<1>", agent=agent.name, key_id="key-1", opened_at=0.0, idle_s=3.0, steps=7, episodes=1
        )
        pages = OwnerPages(
            is_owner=lambda token: token == TOKEN,
            agents={agent.name: agent},
            sessions=lambda: [session],
            episodes=self.episodes,
            clock=lambda: self.now,
        )
        self._app = Starlette(routes=pages.routes())

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [
                (name.encode(), value.encode()) for name, value in {"host": "gateway:8000", **(headers or {})}.items()
            ],
        }
        asyncio.run(self._app(scope, receive, send))
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(message["body"] for message in sent[1:] if "body" in message))

    def log_in(self, token: str = TOKEN, **headers: str) -> Answer:
        return self.ask("POST", "/owner/login/", {**OWN, **headers}, f"token={token}".encode())


@pytest.fixture
def pages(tmp_path: Path) -> Any:
    made = Pages(tmp_path)
    yield made
    made.episodes.close()


AGENT = "/owner/agents/heat & light"
PRIVATE = ["/owner/sessions/", "/owner/agents/", *(f"{AGENT}/{name}" for name in ("episodes.csv", "curve.png"))]
PRIVATE += [f"{AGENT}/saves/", f"{AGENT}/saves/step_1.save"]


@pytest.mark.parametrize("path", PRIVATE)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"cookie": "tmrl_owner=wrong"}])
def test_nothing_is_shown_without_the_token(pages: Pages, path: str, headers: dict[str, str]) -> None:
    (pages.saves / "step_1.save").write_bytes(b"zip")
    assert pages.ask("GET", path, headers).status == 401
    assert pages.ask("DELETE", f"{AGENT}/saves/step_1.save", headers).status == 401
    assert (pages.saves / "step_1.save").exists()


def test_sessions_are_listed(pages: Pages) -> None:
    (session,) = pages.ask("GET", "/owner/sessions/", BEARER).json()["sessions"]
    assert session["session_id"] == "s<1>"
    assert session["steps"] == 7


def test_agents_are_listed(pages: Pages) -> None:
    assert pages.ask("GET", "/owner/agents/", BEARER).json() == {"agents": [{"name": "heat & light", "mode": "advice"}]}
    answer = pages.ask("GET", "/owner/agents/other/saves/", BEARER)
    assert answer.status == 404
    assert b"heat & light" in answer.body


def test_the_learning_curve_is_a_picture_and_a_table(pages: Pages) -> None:
    assert pages.ask("GET", f"{AGENT}/episodes.csv", BEARER).status == 404
    assert pages.ask("GET", f"{AGENT}/curve.png", BEARER).body.startswith(b"\x89PNG")
    pages.episodes.add(
        FinishedEpisode(ended_at=1.0, agent="heat & light", session_id="s", key_id="k", steps=4, episode_return=2.5)
    )
    pages.episodes.close()
    answer = pages.ask("GET", f"{AGENT}/episodes.csv", BEARER)
    assert answer.body.splitlines()[1] == b"1.000,s,k,4,2.5"
    assert answer.headers["content-type"].startswith("text/csv")


def test_the_picture_is_drawn_at_most_every_ten_seconds(pages: Pages) -> None:
    first = pages.ask("GET", f"{AGENT}/curve.png", BEARER).body
    pages.episodes.add(
        FinishedEpisode(ended_at=1.0, agent="heat & light", session_id="s", key_id="k", steps=4, episode_return=2.5)
    )
    pages.episodes.close()
    assert pages.ask("GET", f"{AGENT}/curve.png", BEARER).body == first
    pages.now = 11.0
    assert pages.ask("GET", f"{AGENT}/curve.png", BEARER).body != first


def test_saves_are_listed_sent_and_deleted(pages: Pages) -> None:
    save = pages.saves / "step_1.save"
    save.write_bytes(b"weights")
    (listed,) = pages.ask("GET", f"{AGENT}/saves/", BEARER).json()["saves"]
    assert (listed["name"], listed["bytes"]) == ("step_1.save", 7)
    assert pages.ask("GET", f"{AGENT}/saves/step_1.save", BEARER).body == b"weights"
    assert pages.ask("DELETE", f"{AGENT}/saves/step_1.save", BEARER).json() == {"deleted": "step_1.save"}
    assert not save.exists()


@pytest.mark.parametrize("name", ["../secret.save", "..%2fsecret.save", "link.save", ".step_2.save", "other.txt"])
def test_only_saves_can_be_reached(pages: Pages, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.save").write_bytes(b"secret")
    (pages.saves / "link.save").symlink_to(tmp_path / "secret.save")
    (pages.saves / ".step_2.save").write_bytes(b"incomplete")
    (pages.saves / "other.txt").write_bytes(b"other")
    assert pages.ask("GET", f"{AGENT}/saves/{name}", BEARER).status == 404
    assert pages.ask("DELETE", f"{AGENT}/saves/{name}", BEARER).status == 404


def test_a_browser_logs_in_and_out(pages: Pages) -> None:
    assert b"Owner's token" in pages.ask("GET", "/owner/").body
    answer = pages.log_in()
    assert answer.status == 303
    cookie = answer.headers["set-cookie"]
    assert "samesite=strict" in cookie.lower()
    assert "httponly" in cookie.lower()
    assert TOKEN not in cookie
    logged_in = {"cookie": cookie.partition(";")[0]}
    page = pages.ask("GET", "/owner/", logged_in)
    assert b"s&lt;1&gt;" in page.body
    assert b"heat &amp; light" in page.body
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert pages.ask("POST", "/owner/logout/", {**logged_in, **OWN}).status == 303
    assert pages.ask("GET", "/owner/sessions/", logged_in).status == 401


def test_a_login_ends(pages: Pages) -> None:
    logged_in = {"cookie": pages.log_in().headers["set-cookie"].partition(";")[0]}
    pages.now = 13 * 3600.0
    assert pages.ask("GET", "/owner/sessions/", logged_in).status == 401


def test_a_page_of_another_origin_changes_nothing(pages: Pages) -> None:
    (pages.saves / "step_1.save").write_bytes(b"zip")
    logged_in = {"cookie": pages.log_in().headers["set-cookie"].partition(";")[0]}
    delete = f"{AGENT}/saves/step_1.save/delete/"
    for other in ({}, {"origin": "http://gateway:8080"}, {"origin": "null"}, {"origin": "http://["}):
        assert pages.ask("POST", delete, {**logged_in, **other}).status == 403
    assert pages.log_in(origin="http://other").status == 403
    assert pages.ask("POST", delete, {**logged_in, **OWN}).status == 303
    assert not (pages.saves / "step_1.save").exists()


def test_wrong_tokens_are_limited_and_the_right_one_is_accepted_meanwhile(pages: Pages) -> None:
    statuses = [pages.log_in("wrong").status for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert pages.log_in().status == 303
    assert pages.ask("GET", "/owner/sessions/", BEARER).status == 200
    pages.now = 5.0
    assert pages.log_in("wrong").status == 401


def test_a_huge_form_is_refused(pages: Pages) -> None:
    assert pages.ask("POST", "/owner/login/", OWN, b"token=" + b"x" * 100_000).status == 413
