"""The application of the live page, called as an ASGI app without a socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.types import Message

from tests.dashboard.played import Played, scene
from tmrl_core.config import from_values
from tmrl_core.dashboard.app import Pages, text_of
from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.feed import Feed
from tmrl_core.dashboard.pictures import Pictures
from tmrl_core.dashboard.screen import screen
from tmrl_core.dashboard.settings import DashboardSection, dashboard_section
from tmrl_core.errors import ConfigError
from tmrl_core.networking.protocol.pictures import Picture
from tmrl_core.networking.protocol.telemetry import Order
from tmrl_core.web.pages import Link

TOKEN = "right"
OWN = {"origin": "http://localhost:8600"}
JSON = {**OWN, "content-type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Place:
    """The application with a source in memory."""

    def __init__(self, *, may_order: bool = True, **settings: Any) -> None:
        self.source = Played(may_order)
        self.pictures = Pictures(self.source, Path("no folder"))
        self.feed = Feed(self.source, lambda told, age_s: screen(Seen(scene=told), None, may_order=False))
        section = DashboardSection(**settings)

        async def links() -> list[Link]:
            return [Link("Other", "http://localhost:1/")]

        self._app = Pages(
            self.source, self.feed, self.pictures, section, token=TOKEN, about={"run": "a"}, links=links
        ).app()

    def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        scheme: str = "http",
    ) -> Answer:
        """Send a request. A stream ends with its first events."""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)
            if b"event: screen" in message.get("body", b""):
                self.feed.stop()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": method,
            "path": path.partition("?")[0],
            "raw_path": path.partition("?")[0].encode(),
            "root_path": "",
            "scheme": scheme,
            "query_string": path.partition("?")[2].encode(),
            "headers": [
                (name.encode(), value.encode()) for name, value in {"host": "localhost:8600", **(headers or {})}.items()
            ],
        }
        asyncio.run(self._app(scope, receive, send))
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(message["body"] for message in sent[1:] if "body" in message))

    def order(self, value: Any, headers: Mapping[str, str] = JSON) -> Answer:
        return self.ask("POST", "/orders", headers, json.dumps(value).encode())

    def cookie(self, token: str = TOKEN) -> dict[str, str]:
        """Log in, and return the headers of the browser."""
        answer = self.ask("POST", "/login/", OWN, f"token={token}".encode())
        assert answer.status == 303, answer
        return {"cookie": answer.headers["set-cookie"].split(";")[0]}


FILES = ["/", "/page.css", "/page.js", "/chart.js", "/login.js", "/icon.svg", "/about", "/login/"]


@pytest.mark.parametrize("path", FILES)
def test_every_file_has_the_headers_that_protect_it(path: str) -> None:
    answer = Place().ask("GET", path)
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name", ["index.html", "login.html", "page.css", "page.js", "chart.js", "login.js", "icon.svg"]
)
def test_no_file_loads_anything_from_elsewhere(name: str) -> None:
    text = text_of(name).decode()
    addresses = set(re.findall(r"https?://[^\s\"')]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in text
    assert not re.search(r"\sstyle=|\son[a-z]+=", text), "the policy allows neither"


def test_all_files_are_small() -> None:
    names = ["index.html", "page.css", "page.js", "chart.js"]
    assert sum(len(text_of(name)) for name in names) < 60_000


def test_the_events_begin_with_the_screen() -> None:
    place = Place()
    place.source.show(scene=scene())
    answer = place.ask("GET", "/events")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.body.startswith(b"retry: 2000\n\nid: ")
    assert answer.body.endswith(b"event: end\ndata: {}\n\n")
    assert place.feed.viewers == 0


def test_the_number_of_pages_is_limited() -> None:
    place = Place(max_viewers=1)
    place.feed.viewers = 1
    answer = place.ask("GET", "/events")
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.error == "1 pages are open (dashboard.max_viewers)"


def test_links_to_other_pages() -> None:
    about = json.loads(Place().ask("GET", "/about").body)
    assert about == {"run": "a", "links": [{"title": "Other", "url": "http://localhost:1/"}], "login": False}


# --- names and sites ---


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8600", "", "localhost.evil.example", "[::"])
def test_other_names_are_refused_over_plain_http(host: str) -> None:
    for path in ("/", "/events", "/page.js"):
        answer = Place().ask("GET", path, {"host": host})
        assert (answer.status, answer.error) == (421, "this page has another name; set dashboard.hosts")


@pytest.mark.parametrize("host", ["localhost:8600", "127.0.0.1", "[::1]:8600", "robots.example"])
def test_own_names_are_served(host: str) -> None:
    assert Place(hosts=("robots.example",)).ask("GET", "/", {"host": host}).status == 200


def test_a_certificate_protects_any_name() -> None:
    assert Place().ask("GET", "/", {"host": "evil.example"}, scheme="https").status == 200


def test_other_sites_may_link_and_nothing_else() -> None:
    for path in ("/events", "/about", "/page.js"):
        answer = Place().ask("GET", path, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"})
        assert (answer.status, answer.error) == (403, "this request comes from another site")
    assert Place().ask("GET", "/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status == 200


# --- orders ---


@pytest.mark.parametrize(
    ("value", "order"),
    [
        ({"kind": "pause"}, Order(kind="pause")),
        ({"kind": "pause_worker", "worker": "robot1"}, Order(kind="pause_worker", worker="robot1")),
        ({"kind": "ratio", "value": 0.5}, Order(kind="ratio", value=0.5)),
    ],
)
def test_an_order_is_sent(value: dict[str, Any], order: Order) -> None:
    place = Place()
    answer = place.order(value)
    assert (answer.status, json.loads(answer.body)) == (202, {"id": "o1"})
    assert place.source.orders == [order]


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:8601", "null", ""])
def test_an_order_of_another_page_is_refused(origin: str) -> None:
    place = Place()
    answer = place.order({"kind": "pause"}, {**JSON, "origin": origin})
    assert (answer.status, answer.error) == (403, "this request must come from this page")
    assert place.source.orders == []


def test_an_order_of_a_form_is_refused() -> None:
    place = Place()
    assert place.order({"kind": "pause"}, {**OWN, "content-type": "text/plain"}).status == 415
    assert place.source.orders == []


@pytest.mark.parametrize("value", [{"kind": "destroy"}, {}, [], "pause", {"kind": "pause", "worker": 1}])
def test_what_is_no_order_is_refused(value: Any) -> None:
    answer = Place().order(value)
    assert answer.status == 400
    assert answer.error.startswith("this is no order: ")


def test_a_long_order_is_refused() -> None:
    assert Place().order({"kind": "pause", "worker": "x" * 5000}).status == 413


def test_a_page_without_an_operator_only_shows() -> None:
    place = Place(may_order=False)
    answer = place.order({"kind": "pause"})
    assert answer.status == 403
    assert "--credentials bundle operator" in answer.error
    assert place.source.orders == []


def test_an_order_that_cannot_be_sent_is_told() -> None:
    place = Place()
    place.source.refusal = "no Server"
    answer = place.order({"kind": "pause"})
    assert (answer.status, answer.error) == (409, "no Server")


# --- login ---


@pytest.mark.parametrize("path", ["/events", "/about"])
def test_nothing_is_shown_without_a_login(path: str) -> None:
    answer = Place(login=True).ask("GET", path)
    assert answer.status == 401
    assert "the link that `--dashboard` printed at its start" in answer.error


def test_the_page_leads_to_the_login() -> None:
    answer = Place(login=True).ask("GET", "/")
    assert (answer.status, answer.headers["location"]) == (303, "login/")


def test_a_login_opens_everything() -> None:
    place = Place(host="0.0.0.0")
    cookie = place.cookie()
    assert place.ask("GET", "/", cookie).status == 200
    assert place.ask("GET", "/events", cookie).status == 200
    assert place.ask("GET", "/about", {"authorization": f"Bearer {TOKEN}"}).status == 200
    assert place.order({"kind": "pause"}, {**JSON, **cookie}).status == 202
    assert place.order({"kind": "pause"}).status == 401


def test_the_cookie_is_for_this_page_only() -> None:
    place = Place(login=True)
    for scheme in ("http", "https"):
        headers = {"origin": f"{scheme}://localhost:8600"}
        cookie = place.ask("POST", "/login/", headers, b"token=right", scheme=scheme).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ("Secure" in cookie) == (scheme == "https")
        assert TOKEN not in cookie


def test_a_wrong_token_is_told_and_limited() -> None:
    place = Place(login=True)
    answers = [place.ask("POST", "/login/", OWN, b"token=wrong") for _ in range(12)]
    assert answers[0].status == 401
    assert b"wrong token; the link that `--dashboard` printed" in answers[0].body
    assert answers[-1].status == 429
    assert place.cookie()


def test_a_login_of_another_site_is_refused() -> None:
    assert Place(login=True).ask("POST", "/login/", {"origin": "http://evil.example"}, b"token=right").status == 403


def test_a_logout_ends_the_login() -> None:
    place = Place(login=True)
    cookie = place.cookie()
    assert place.ask("POST", "/logout/", cookie).status == 403
    assert place.ask("POST", "/logout/", {**OWN, **cookie}).status == 303
    assert place.ask("GET", "/about", cookie).status == 401


def test_other_machines_always_log_in() -> None:
    with pytest.raises(ConfigError, match=r"dashboard.login: found false with dashboard.host 0.0.0.0, allowed: true"):
        from_values({"dashboard": {"host": "0.0.0.0", "login": False}})
    assert dashboard_section(from_values({"dashboard": {"host": "192.0.2.1"}})).needs_login
    assert not dashboard_section(from_values({})).needs_login
    assert dashboard_section(from_values({"dashboard": {"login": True}})).needs_login


def test_a_picture_is_a_file_of_its_kind_and_the_latest() -> None:
    place = Place()
    place.source.show(pictures={("robot1", "camera"): Picture("robot1", "camera", 7, b"jpeg")})
    found = place.ask("GET", "/pictures/camera?worker=robot1")
    assert (found.status, found.headers["content-type"], found.body) == (200, "image/jpeg", b"jpeg")
    for path in ("/pictures/camera?worker=robot2", "/pictures/video?worker=robot1", "/pictures/video", "/pictures/x"):
        assert place.ask("GET", path).status == 404
    assert place.source.orders == []


def test_a_picture_needs_the_login_too() -> None:
    place = Place(login=True)
    place.source.show(pictures={("robot1", "camera"): Picture("robot1", "camera", 7, b"jpeg")})
    assert place.ask("GET", "/pictures/camera?worker=robot1").status == 401
