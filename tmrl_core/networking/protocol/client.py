"""State that all clients share. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.messages import SUPPORTED_VERSIONS, Hello, Role

MAX_UNREAD_BYTES = 16 << 20
"""Maximum size of unsent control messages of a client. An honest Server always reads."""


class ClientState:
    """State that all clients share.

    Args:
        run: name of the run.
        name: label for display.
        peer: 16 random bytes of this process.
        token: the role's token, if this peer authenticates by token.
    """

    role: ClassVar[Role]

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "") -> None:
        self.run = run
        self.name = name
        self.peer = peer
        self.token = token
        self.versions = SUPPORTED_VERSIONS
        """Versions of the protocol to offer."""
        self.incarnation = 0
        """Highest incarnation of a trainer that this process knows."""
        self.connections = 0
        """Number of times that a Server has accepted this process."""
        self.on_revocations: Callable[[bytes], None] = lambda body: None
        """Called with a list of revoked certificates that the Server has sent; its signature is not checked yet."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after something that the application may wait for has changed."""

    def hello(self) -> Hello:
        """Return the first message to a Server."""
        return Hello(
            versions=self.versions,
            role=self.role,
            token=self.token,
            run=self.run,
            name=self.name,
            peer=self.peer,
            incarnation=self.incarnation,
        )

    def check_version(self, version: int) -> None:
        """Check the version of the protocol that the Server chose.

        Raises:
            RemoteProtocolError: the version was not offered.
        """
        if version not in self.versions:
            raise RemoteProtocolError(
                f"the Server answers in protocol version {version}, this side speaks {list(self.versions)}: "
                "install the same version of tmrl_core on both sides"
            )
