"""Roles as processes on machines with bundles of their own, over TLS and with proofs of origin."""

from __future__ import annotations

import contextlib
import io
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.command_line import Start, announced, starting
from tests.hostile.fleet import Fleet
from tmrl_core.cli.main import main
from tmrl_core.networking.security.revocations import REVOKED_FILE, SIGNED_FILE

FORGED = "without a valid proof"
"""Part of the log line about data that its alleged origin has not sent."""


class Machines:
    """The machines of a run, each with its credentials folder, and a Server that is running.

    Args:
        config: configuration of all roles.
        mode: `network.end_to_end` of all roles.
    """

    def __init__(self, folder: Path, stack: ExitStack, config: str, mode: str = "authenticate") -> None:
        self.folder = folder
        self.fleet = Fleet(folder, stack)
        self._mode = ("--set", f"network.end_to_end={mode}")
        self._start: Start = stack.enter_context(starting(folder, config))
        spool = ("--set", f"server.spool_dir={folder / 'spool'}")
        self.server = self._start("--server", "--announce", *spool, *self.on("server"))
        self._at = ("--set", f"server.port={announced(self.server)}", "--set", "server.host=localhost")

    def on(self, machine: str) -> tuple[str, ...]:
        """Return the arguments for a process on this machine."""
        return ("--set", f"network.credentials_dir={self.folder / machine}", "--set", "network.security=TLS")

    def start(self, machine: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a role."""
        return self._start(*arguments, *self._at, *self._mode, *self.on(machine))

    def command(self, machine: str, *arguments: str) -> str:
        """Run a command in this process, and return its output."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert main([*arguments, *self.on(machine)]) == 0, said.getvalue()
        return said.getvalue()

    def renew(self, *bundles: str) -> None:
        """Renew the certificates of these machines, given as NAME.ROLE, and install them."""
        new = self.folder / "new"
        new.mkdir(exist_ok=True)
        names = [bundle.partition(".")[0] for bundle in bundles]
        self.command("authority", "--credentials", "renew", *names, "--out", str(new))
        for bundle, machine in zip(bundles, names, strict=True):
            self.command(machine, "--credentials", "install", str(new / f"{bundle}.bundle"))

    def revoke(self, name: str) -> None:
        """Revoke a machine's certificates, and copy the lists to the Server, which sends one of them to the trainer."""
        self.command("authority", "--credentials", "revoke", name)
        for file in (REVOKED_FILE, SIGNED_FILE):
            shutil.copy(self.folder / "authority" / file, self.folder / "server")

    def end(self, process: subprocess.Popen[str]) -> str:
        """End a role in order, and return its log."""
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=100)
        assert process.returncode == 0, said
        return said
