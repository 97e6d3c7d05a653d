"""Protection of browsers' users: names under which a server is reached, and pages that may send requests.

A web page may have its own name resolve to a loopback address (DNS rebinding); over plain HTTP the Host must therefore
be a name of the server. Over HTTPS the certificate protects from that. Browsers send cookies by themselves, also with
requests of other pages of the same host on another port; a request that changes something needs the server's own
origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tmrl_core.config.sections import is_loopback


class HostNames:
    """Names under which a server is reached over plain HTTP.

    Args:
        names: besides those of loopback.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(name.lower() for name in names)
        self.allows = lru_cache(1024)(self._allows)
        """Return True if a Host header has a name of this server."""

    def _allows(self, host: bytes) -> bool:
        try:
            name = urlsplit("//" + host.decode("ascii")).hostname or ""
        except ValueError:
            return False
        return name in self._names or is_loopback(name)


def is_own_origin(request: Request) -> bool:
    """Return True if the request comes from a page of this server.

    The scheme is not compared: a proxy may end TLS.
    """
    return request.headers.get("origin", "").partition("://")[2] == request.headers.get("host")


def check_origin(request: Request, pages: str) -> None:
    """Refuse a request that does not come from a page of this server.

    Args:
        request: changes something.
        pages: name of the pages, for the error.

    Raises:
        HTTPException: 403.
    """
    if not is_own_origin(request):
        raise HTTPException(403, f"this request must come from {pages}")
