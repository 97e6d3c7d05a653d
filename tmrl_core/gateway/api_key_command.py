"""`--credentials key`: API keys for the gateway's clients."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tmrl_core.config import Config
from tmrl_core.errors import ConfigError
from tmrl_core.networking.security.credentials import CredentialInfo
from tmrl_core.roles.command import CredentialsCommand


class KeyCommand(CredentialsCommand):
    """Create, list and revoke API keys."""

    help = "create an API key for clients of the gateway; printed once"
    epilog = "For programs that reach an agent through the gateway:\n  python -m tmrl_core --credentials key AGENT\n"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the agent's name."""
        parser.add_argument("agent", metavar="AGENT", help="name of the agent in gateway.agents (without any: default)")

    def run(self, config: Config, options: argparse.Namespace, folder: Path) -> int:
        """Create a key."""
        from tmrl_core.gateway.api_keys import make_key
        from tmrl_core.gateway.settings import gateway_section

        agent = options.agent
        agents = list(gateway_section(config).agents) or ["default"]
        if agent not in agents:
            raise ConfigError(
                f"gateway.agents: there is no agent {agent!r}, but {', '.join(agents)}. Name one of these, or the "
                "configuration that has it (-c FILE)."
            )
        made, text = make_key(folder, agent)
        print(f"API key of agent {agent}, shown only now:\n\n    {text}\n")
        print('A client logs in with it: POST /shepherd/login_user/ with {"apikey": KEY}.')
        print(f"Its id is {made.id}. To end it: python -m tmrl_core --credentials revoke {made.id}")
        print("It is secret: its holder can train that agent.", file=sys.stderr)
        return 0

    def show(self, folder: Path) -> list[CredentialInfo]:
        """List the keys."""
        from tmrl_core.gateway.api_keys import KEYS_FILE, read_keys

        if folder.is_file():  # a bundle has no keys
            return []
        file = str(folder / KEYS_FILE)
        return [
            CredentialInfo("API key", file, key.id, (f"agent {key.agent}",), not_before=key.made)
            for key in read_keys(folder)
        ]

    def revoke(self, folder: Path, name: str) -> str | None:
        """End a key; a running gateway ends its sessions."""
        from tmrl_core.gateway.api_keys import revoke_key

        if (ended := revoke_key(folder, name)) is None:
            return None
        return f"the API key {ended.id} of agent {ended.agent}; a running gateway ends its sessions"


KEY = KeyCommand()
