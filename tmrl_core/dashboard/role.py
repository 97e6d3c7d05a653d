"""The role `--dashboard`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tmrl_core.config import Config
from tmrl_core.dashboard.source import Source
from tmrl_core.roles.role import Role
from tmrl_core.roles.shutdown import ShutdownSignal


def run(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--dashboard`: serve the page until a stop is requested."""
    from tmrl_core.dashboard.serve import Dashboard

    folder = None if options.folder is None else Path(options.folder).expanduser().absolute()
    given = options.config
    if folder is not None and (folder / "config.yaml").is_file():
        given = folder / "config.yaml"  # the run's own, which its trainer has written
    command = f"-c {given}" if given else ""
    with Dashboard(config, source_of(config, folder), command=command, folder=folder) as made:
        made.serve(shutdown, announce=options.announce)
    return 0


def source_of(config: Config, folder: Path | None) -> Source:
    """Return the source of the page: a link to the Server, or the folder of a run.

    Raises:
        ConfigError: the folder has no records of a run.
        CredentialsError: credentials are missing or damaged.
    """
    if folder is not None:
        from tmrl_core.dashboard.recorded import RecordedRun

        return RecordedRun(folder)
    from tmrl_core.config.endpoints import at_endpoint, endpoints_of
    from tmrl_core.dashboard.several import SeveralServers
    from tmrl_core.networking.links.viewer_link import ViewerLink
    from tmrl_core.networking.transports.selection import link_settings
    from tmrl_core.roles import from_config as roles

    roles.ensure_credentials(config)

    def linked(at: Config) -> ViewerLink:
        link = ViewerLink(link_settings(at), config.run.name, name="the live page")
        link.start()
        return link

    if not config.server.endpoints:
        return linked(config)
    links: dict[str, Source] = {str(one): linked(at_endpoint(config, one)) for one in endpoints_of(config)}
    return SeveralServers(links) if len(links) > 1 else next(iter(links.values()))


def options(parser: argparse.ArgumentParser) -> None:
    """Add the option of this role."""
    parser.add_argument_group("with --dashboard").add_argument(
        "--folder", default=None, metavar="RUN", help="show the records in the folder of a run; no Server is needed"
    )


def local_text(config: Config) -> str:
    """Return the address of the page."""
    from tmrl_core.dashboard.settings import dashboard_section
    from tmrl_core.web.listening import url_of

    section = dashboard_section(config)
    log = config.run_folder / "logs" / "dashboard.log"
    if section.needs_login or not section.port:
        return f"Live page: its link is in {log}"
    return f"Live page: {url_of(section.host, section.port)}"


def local_changes(config: Config) -> list[str]:
    """Return a free port instead of a default one that is taken, as by the page of another run of this machine."""
    from tmrl_core.dashboard.settings import DashboardSection, dashboard_section
    from tmrl_core.errors import PortInUseError
    from tmrl_core.web.listening import listening_sockets

    section = dashboard_section(config)
    if section.port != DashboardSection().port:
        return []
    try:
        found = listening_sockets(section.host, section.port, "dashboard")
    except PortInUseError:
        found = listening_sockets(section.host, 0, "dashboard")
    port = found[0].getsockname()[1]
    for one in found:
        one.close()
    return [f"dashboard.port={port}"]


ROLE = Role(
    "the live page: shows a run in a browser; with --local, beside it",
    run,
    takes=("announce", "folder"),
    options=options,
    client=True,
    local_text=local_text,
    watches=True,
    local_changes=local_changes,
)
