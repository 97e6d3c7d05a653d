"""The state of a client, and its end of a link up to the welcome, which all roles share. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.messages import SUPPORTED_VERSIONS, Hello, Role, Welcome


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
            versions=SUPPORTED_VERSIONS,
            role=self.role,
            token=self.token,
            run=self.run,
            name=self.name,
            peer=self.peer,
            incarnation=self.incarnation,
        )


class ClientConnection(Connection):
    """A client's end of one link: it greets the Server, and is open once the Server has welcomed it.

    Args:
        client: state of the client, which outlives links.
        silent_s, heartbeat_s, greeting_s: see `Connection`.
    """

    MAX_UNREAD_BYTES = 16 << 20
    """Maximum size of unsent control messages. An honest Server always reads."""

    def __init__(self, client: ClientState, *, silent_s: float, heartbeat_s: float, greeting_s: float = 10.0) -> None:
        super().__init__(silent_s=silent_s, heartbeat_s=heartbeat_s, greeting_s=greeting_s)
        self._client = client

    def _on_connected(self) -> None:
        self.send(self._client.hello())

    def _welcomed(self, message: Welcome) -> None:
        """Open the link.

        Raises:
            RemoteProtocolError: the Server has chosen a version of the protocol that was not offered.
        """
        if message.version not in SUPPORTED_VERSIONS:
            raise RemoteProtocolError(
                f"the Server answers in protocol version {message.version}, this side speaks "
                f"{list(SUPPORTED_VERSIONS)}: install the same version of tmrl_core on both sides"
            )
        self.state = "open"
        self._client.connections += 1

    def _on_closed(self) -> None:
        self._client.on_change()
