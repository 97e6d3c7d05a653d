"""The role `--gateway`."""

from __future__ import annotations

import argparse

from tmrl_core.config import Config
from tmrl_core.roles.role import Role, one_thread
from tmrl_core.roles.shutdown import ShutdownSignal


def run(config: Config, options: argparse.Namespace, shutdown: ShutdownSignal) -> int:
    """`--gateway`: serve until a stop is requested."""
    from tmrl_core.roles import from_config as roles

    one_thread()
    roles.ensure_credentials(config)
    from tmrl_core.gateway.serve import Gateway

    with Gateway(config) as made:
        made.serve(shutdown, announce=options.announce)
    return 0


def local_text(config: Config) -> str:
    """Return the address of the gateway and the command that makes a key for its clients."""
    from tmrl_core.gateway.settings import gateway_section
    from tmrl_core.web.listening import url_of

    section = gateway_section(config)
    place = f"at {url_of(section.host, section.port)}" if section.port else "on a free port, which its log names"
    return (
        f"Gateway {place}, log in {config.run_folder / 'logs' / 'gateway.log'}. API keys for clients: "
        f"python -m tmrl_core --credentials key {next(iter(section.agents), 'default')}"
    )


ROLE = Role(
    "the gateway: acts for environments that are HTTP clients; with --local, instead of workers",
    run,
    takes=("announce", "seed"),
    client=True,
    weighted=True,
    local_text=local_text,
)
