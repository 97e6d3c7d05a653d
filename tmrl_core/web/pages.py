"""Pages of other parts that run on this machine now, as links.

Sections of rooms import this module, and `--help` imports those: what takes long is imported where it is used.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from tmrl_core import rooms
from tmrl_core.config.sections import Config, is_loopback
from tmrl_core.errors import TmrlError

_LOOK_S = 0.5
"""Longest look at one port. A loopback address answers or refuses at once."""


class Page(NamedTuple):
    """A page of a room: an entry of `pages` (see `tmrl_core.rooms`) is a function that returns it for a configuration.

    Args:
        title: shown as link.
        host: address that its server listens on.
        port: TCP port; 0: unknown.
    """

    title: str
    host: str
    port: int


class Link(NamedTuple):
    """A link to a page."""

    title: str
    url: str


async def running_pages(config: Config, besides: str) -> list[Link]:
    """Return links to the pages of rooms, except for one room's own, whose port takes connections now.

    Args:
        config: of the run.
        besides: name of the entry to leave out.
    """
    import asyncio

    from tmrl_core.web.listening import url_of

    found = []
    for name, entry in rooms.entries("pages").items():
        if name == besides:
            continue
        with contextlib.suppress(TmrlError):
            page: Page = entry.load()(config)
            if page.port and await asyncio.to_thread(_answers, page):
                found.append(Link(page.title, url_of(page.host, page.port)))
    return found


def _answers(page: Page) -> bool:
    import socket

    anywhere = page.host in ("0.0.0.0", "::") or is_loopback(page.host)
    try:
        socket.create_connection(("127.0.0.1" if anywhere else page.host, page.port), _LOOK_S).close()
    except OSError:
        return False
    return True
