"""Logins of browsers: cookies instead of tokens."""

from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tmrl_core.web.logins import LOGIN_S, Logins
from tmrl_core.web.origins import HostNames, check_origin

OWN = "http://a.example:1"


class Place:
    """Logins with the token `right`; `now` is their clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logins = Logins(
            "session",
            "/a/",
            lambda token: token == "right",
            pages="the pages",
            source="ask Anna",
            clock=lambda: self.now,
        )

    def log_in(self, token: str = "right", origin: str = OWN) -> Response:
        sent = iter([{"type": "http.request", "body": f"token={token}".encode()}])

        async def receive() -> Message:
            return next(sent)

        made = Request({**request(origin=origin).scope, "method": "POST"}, receive)
        return asyncio.run(self.logins.login(made, lambda error: f"form: {error}", "../"))

    def cookie(self) -> str:
        return self.log_in().headers["set-cookie"].split(";")[0]


def request(scheme: str = "http", **headers: str) -> Request:
    found = [(name.encode(), value.encode()) for name, value in {"host": "a.example:1", **headers}.items()]
    return Request({"type": "http", "scheme": scheme, "path": "/", "query_string": b"", "headers": found})


def test_a_cookie_holds_until_its_end() -> None:
    place = Place()
    cookie = place.cookie()
    assert place.logins.holds(request(cookie=cookie))
    assert not place.logins.holds(request(cookie="session=other"))
    assert not place.logins.holds(request())
    place.now = LOGIN_S
    assert not place.logins.holds(request(cookie=cookie))


def test_a_closed_login_does_not_hold() -> None:
    place = Place()
    cookie = place.cookie()
    place.logins.logout(request(cookie=cookie, origin=OWN), "../")
    assert not place.logins.holds(request(cookie=cookie))


def test_a_wrong_token_shows_the_form_again() -> None:
    response = Place().log_in("wrong")
    assert (response.status_code, response.body) == (401, b"form: wrong token; ask Anna")


def test_a_login_comes_from_a_page_of_this_server() -> None:
    with pytest.raises(HTTPException, match="this request must come from the login of the pages"):
        Place().log_in(origin="http://b.example:1")


def test_the_oldest_login_makes_room() -> None:
    place = Place()
    cookies = [place.cookie() for _ in range(21)]
    assert [place.logins.holds(request(cookie=cookie)) for cookie in cookies] == [False, *[True] * 20]


def test_a_program_sends_the_token() -> None:
    place = Place()
    assert place.logins.bearer(request(authorization="bearer right"))
    assert not place.logins.bearer(request())
    with pytest.raises(HTTPException, match="wrong token; ask Anna"):
        place.logins.bearer(request(authorization="Bearer wrong"))


def test_wrong_tokens_have_a_rate_and_the_right_one_has_none() -> None:
    place = Place()
    statuses = []
    for _ in range(11):
        with pytest.raises(HTTPException) as refusal:
            place.logins.check_token("wrong")
        statuses.append(refusal.value.status_code)
    assert statuses == [401] * 10 + [429]
    place.logins.check_token("right")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"localhost:1", True),
        (b"127.0.0.1", True),
        (b"[::1]:1", True),
        (b"ROBOTS.example:9", True),
        (b"evil.example", False),
        (b"", False),
        (b"[::", False),
        (b"\xff", False),
    ],
)
def test_names_of_a_server(host: bytes, allowed: bool) -> None:
    assert HostNames(["Robots.example"]).allows(host) == allowed


@pytest.mark.parametrize("origin", ["http://a.example:1", "https://a.example:1"])
def test_a_request_of_an_own_page(origin: str) -> None:
    check_origin(request(origin=origin), "the pages")


@pytest.mark.parametrize("origin", ["", "null", "http://a.example", "http://a.example:2", "http://b.example:1"])
def test_a_request_of_another_page(origin: str) -> None:
    with pytest.raises(HTTPException, match="this request must come from the pages"):
        check_origin(request(origin=origin), "the pages")
