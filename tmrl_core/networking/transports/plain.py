"""Private file that tells a user's clients that the user's own Server on this machine uses plaintext."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tmrl_core.storage.port_record import PortRecord, recorded_port


def _plain_file(port: int) -> Path:
    from tmrl_core.config import data_folder

    return data_folder() / "plain_servers" / f"{port}.json"


class PlainNotice(PortRecord):
    """Record of a Server on `port` that uses plaintext, until `close`.

    Raises:
        OSError: the file cannot be written or locked.
    """

    def __init__(self, port: int) -> None:
        path = _plain_file(port)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # An older file may have other access rights. Only one Server can have the port, so nobody else makes the file.
        path.unlink(missing_ok=True)
        super().__init__(path, port, 0o600)

    def close(self) -> None:
        """Remove the file; further calls do nothing."""
        held = self._descriptor >= 0
        super().close()
        if held:
            with contextlib.suppress(OSError):
                self.path.unlink()


def plain_server(port: int) -> bool:
    """Return True if a running Server of this user on this machine's `port` uses plaintext."""
    return recorded_port(_plain_file(port), private=True) == port
