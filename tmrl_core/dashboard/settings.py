"""Section `dashboard` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tmrl_core.config.sections import Config, Port, Positive, RoomSection, Text, is_loopback
from tmrl_core.web.pages import Page


class DashboardSection(RoomSection, frozen=True, kw_only=True):
    """The live page (extra `gateway`): `--dashboard`, and `--local --dashboard`."""

    key: ClassVar[str] = "dashboard"

    host: Text = "127.0.0.1"
    """Address to listen on. A loopback address: plain HTTP; any other one: HTTPS with the project's credentials, and a
    login with the link that is printed at the start."""
    port: Port = 8600
    """TCP port. 0: a free one."""
    login: bool | None = None
    """true: a login is needed, as on a machine of several people or behind a reverse proxy. null: only if `host` is no
    loopback address, where false is not allowed."""
    hosts: tuple[Text, ...] = ()
    """Names besides `localhost` under which browsers reach the page over plain HTTP, such as that of a reverse proxy;
    requests to other names are refused (421)."""
    max_viewers: Positive = 32
    """Maximum number of pages that are open at a time."""

    @property
    def needs_login(self) -> bool:
        """True: the page is shown after a login only."""
        return not is_loopback(self.host) if self.login is None else self.login

    def problems(self, config: Config) -> Iterator[str]:
        """Yield a line if the page would be open to a network."""
        if self.login is False and not is_loopback(self.host):
            yield (
                f"dashboard.login: found false with dashboard.host {self.host}, allowed: true or null, because other "
                "machines reach this address"
            )


def dashboard_section(config: Config) -> DashboardSection:
    """Return the section `dashboard` of a configuration, or its defaults."""
    return DashboardSection.of(config) or DashboardSection()


def page(config: Config) -> Page:
    """Return the entry of the live page in the lists of other pages."""
    section = dashboard_section(config)
    return Page("Live page", section.host, section.port)
