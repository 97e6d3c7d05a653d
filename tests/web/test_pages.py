"""Links to pages of other rooms: those that answer now."""

from __future__ import annotations

import asyncio
import socket

from tmrl_core.config import from_values
from tmrl_core.web.pages import Link, running_pages


def links(port: int, besides: str) -> list[Link]:
    config = from_values({"gateway": {"port": port}, "dashboard": {"port": port}})
    return asyncio.run(running_pages(config, besides))


def test_a_page_whose_port_answers_is_linked() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        url = f"http://localhost:{port}/"
        assert links(port, "dashboard") == [Link("Gateway", url)]
        assert links(port, "gateway") == [Link("Live page", url)]
    assert links(port, "gateway") == []


def test_a_port_that_is_unknown_is_not_linked() -> None:
    assert links(0, "dashboard") == []
