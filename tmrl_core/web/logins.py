"""Logins of browsers: a token is exchanged for a cookie."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tmrl_core.token_bucket import TokenBucket
from tmrl_core.web.origins import check_origin

logger = logging.getLogger(__name__)

LOGIN_S = 12 * 3600.0
"""Duration of a login in seconds."""
MAX_BODY_BYTES = 4096
"""Maximum size of the body of a request."""
_MOST_LOGINS = 20


class Logins:
    """Cookies of the browsers that have shown the token.

    Programs send the token as `Authorization: Bearer TOKEN`.

    Args:
        cookie: name of the cookie.
        path: path below which browsers send it.
        is_token: compares a token with the right one, in constant time.
        pages: name of the pages, for errors.
        source: place of the token, for errors.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        cookie: str,
        path: str,
        is_token: Callable[[str], bool],
        *,
        pages: str,
        source: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cookie = cookie
        self._path = path
        self._is_token = is_token
        self._pages = pages
        self._source = source
        self._clock = clock
        self._logins: dict[bytes, float] = {}
        self._wrong = TokenBucket(rate_per_s=0.2, burst=10)

    def bearer(self, request: Request) -> bool:
        """Check the token in the head of a request; False: there is none.

        Raises:
            HTTPException: 401 or 429: the token is wrong.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        self.check_token(token.strip())
        return True

    def check_token(self, token: str) -> None:
        """Accept the right token immediately, even while wrong ones are throttled.

        Raises:
            HTTPException: 401 or 429: the token is wrong.
        """
        if self._is_token(token):
            return
        if not self._wrong.take(self._clock()):
            raise HTTPException(429, "too many wrong tokens; try again in a few seconds", headers={"Retry-After": "5"})
        logger.warning("a wrong token was sent to %s", self._pages)
        raise HTTPException(401, f"wrong token; {self._source}")

    def holds(self, request: Request) -> bool:
        """Return True if the request has the cookie of a login."""
        cookie = request.cookies.get(self._cookie)
        return cookie is not None and self._logins.get(_digest(cookie), 0.0) > self._clock()

    async def login(self, request: Request, form: Callable[[str], str], then: str) -> Response:
        """Exchange the token that a form has sent for a cookie.

        Args:
            request: from a page of this server.
            form: returns the form with an error, which a wrong token shows again.
            then: relative address to go to.

        Raises:
            HTTPException: the request comes from elsewhere, or is too large.
        """
        check_origin(request, f"the login of {self._pages}")
        fields = parse_qs((await small_body(request)).decode("utf-8", "replace"))
        try:
            self.check_token(fields.get("token", [""])[0].strip())
        except HTTPException as error:
            return HTMLResponse(form(error.detail), error.status_code)
        response = RedirectResponse(then, 303)
        self._open(request, response)
        return response

    def _open(self, request: Request, response: Response) -> None:
        """Give the browser a cookie."""
        cookie = secrets.token_urlsafe(32)
        now = self._clock()
        alive = [item for item in self._logins.items() if item[1] > now]
        self._logins = dict(alive[-(_MOST_LOGINS - 1) :])
        self._logins[_digest(cookie)] = now + LOGIN_S
        response.set_cookie(
            self._cookie,
            cookie,
            max_age=int(LOGIN_S),
            path=self._path,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def logout(self, request: Request, then: str) -> Response:
        """End the login of this browser, and send it to a relative address.

        Raises:
            HTTPException: the request comes from elsewhere.
        """
        check_origin(request, self._pages)
        response = RedirectResponse(then, 303)
        self._logins.pop(_digest(request.cookies.get(self._cookie, "")), None)
        response.delete_cookie(self._cookie, path=self._path)
        return response


async def small_body(request: Request) -> bytes:
    """Return the body of a form, or of an order.

    Raises:
        HTTPException: 413: it is larger than any of them.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the request is larger than {MAX_BODY_BYTES} bytes")
    return body


def _digest(cookie: str) -> bytes:
    """Return the key of a login: looking a digest up tells nothing of the cookies that are valid."""
    return hashlib.sha256(cookie.encode()).digest()
