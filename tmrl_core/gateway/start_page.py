"""Frame of the gateway's pages for people, and the first one: `/`, with links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tmrl_core.web.pages import Link

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --back: #fff; --faint: #5b6770; --line: #e4e7eb; --bad: #b0305c;
  --link: #0b5cad }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eef4; --back: #0f151b; --faint: #a3b2c1; --line: #34424f; --bad: #ff9ab8; --link: #9cc7ff }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--back); overflow-wrap: anywhere }
h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin-top: 2rem } a { color: var(--link) }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .25rem .6rem .25rem 0 }
th { color: var(--faint); font-weight: normal } td { border-top: 1px solid var(--line) }
img { max-width: 100% } form { display: inline } .error { color: var(--bad) }
input, button { font: inherit; padding: .2rem .6rem } nav a { margin-right: 1.2rem }
"""


def document(body: str) -> str:
    """Return a page with this body."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Gateway</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>'
    )


def navigation(links: Sequence[Link]) -> str:
    """Return links as a line."""
    found = "".join(f'<a href="{escape(link.url)}">{escape(link.title)}</a>' for link in links)
    return f'<nav aria-label="Pages">{found}</nav>'


def start_page(others: Sequence[Link]) -> str:
    """Return the page of `/`: links relative to it, since a reverse proxy may put a prefix before the paths.

    Args:
        others: links to pages of other parts of this machine.
    """
    own = (
        Link("The protocol for clients", "shepherd/"),
        Link("The owner's pages: sessions, learning curves, saves", "owner/"),
    )
    lines = "".join(f'<li><a href="{escape(link.url)}">{escape(link.title)}</a></li>' for link in (*own, *others))
    return document(f"<h1>Gateway</h1><ul>{lines}</ul>")
