"""What both kinds of client know of themselves. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tmrl_core.networking.messages import (
    Role,
)


class ClientState:
    """What both kinds of client know of themselves.

    Args:
        run: name of the run.
        name: label for people.
        peer: 16 random bytes of this process.
        token: the role's token, if a token speaks for this peer.
    """

    role: ClassVar[Role]

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "") -> None:
        self.run = run
        self.name = name
        self.peer = peer
        self.token = token
        self.incarnation = 0
        """The highest incarnation of a trainer that this process has heard of."""
        self.connections = 0
        """How often a Server has welcomed this process."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after something that the application may wait for has changed."""
