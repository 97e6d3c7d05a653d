"""Settings of one link: the section `network`, with an address and a token."""

from __future__ import annotations

from msgspec import field

from tmrl_core.config import Config
from tmrl_core.config.sections import NetworkSection


class LinkSettings(NetworkSection, frozen=True, kw_only=True):
    """Section `network`, with the address (of the Server, or to listen on) and the token.

    Without `security`, a client uses TLS, except towards a Server on this machine that the same user runs without it.
    """

    host: str = "127.0.0.1"
    port: int = 55555
    token: str | None = None
    token_is_argument: bool = False
    """True: the token is the argument `password` of a role's class, for the message if it is refused."""
    connect_timeout_s: float = 5.0
    """Time limit of each step of connecting: TCP, TLS, the greeting. If the network drops all packets, the kernel's
    waits between repetitions double. A new attempt then finds a recovered network earlier than a longer limit would."""
    part: int = 0
    """Number of this process among those that are one trainer together."""
    config: Config = field(default_factory=Config)
    """Source of the keys that the transport's room adds to the configuration."""

    def __repr__(self) -> str:
        # leave out the token
        return f"LinkSettings(host={self.host!r}, port={self.port}, transport={self.transport!r})"
