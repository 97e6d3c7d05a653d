"""Commands that rooms add to the command line, as `--NAME` and as `--credentials NAME`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tmrl_core.config import Config, resolve

if TYPE_CHECKING:
    from tmrl_core.networking.security.credentials import CredentialInfo


@dataclass(frozen=True)
class Command:
    """An option with options of its own, registered as an entry of `commands`, see `tmrl_core.rooms`.

    Its module imports nothing heavy, because `--help` needs it.

    Args:
        help: its line in `--help`.
        function: called with the command line, returns the exit status; `package.module:name`, imported on use.
        metavar: its argument in `--help`; None: it has none.
    """

    help: str
    function: str
    metavar: str | None = None

    def run(self, arguments: Sequence[str]) -> int:
        """Run it with all words of the command line."""
        status: int = resolve(self.function)(arguments)
        return status


class CredentialsCommand:
    """A command of `--credentials` for secrets of a room, registered as an entry of `credentials`.

    Attributes:
        help: its line in `--credentials --help`.
        epilog: lines of examples there.
    """

    help: str
    epilog: str = ""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments."""

    def run(self, config: Config, options: argparse.Namespace, folder: Path) -> int:
        """Run it for a credentials folder and return the exit status.

        Raises:
            ConfigError, CredentialsError: the message names the next step.
        """
        raise NotImplementedError("implement run")

    def show(self, folder: Path) -> list[CredentialInfo]:
        """List the room's secrets in the folder, for `--credentials show`."""
        return []

    def revoke(self, folder: Path, name: str) -> str | None:
        """Revoke the secret of this name and return the message; None: the room has no secret of this name."""
        return None
