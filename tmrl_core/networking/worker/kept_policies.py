"""Policies that a worker keeps, so that the trainer can send the next ones as deltas. Sans-I/O."""

# Theory of operation
#
# Two bodies at most: the newest complete policy, to which the trainer makes its deltas, and the newest of all. The
# second is kept because a trainer's new link begins with a complete policy. If that is the version that this worker has
# made of a delta already, the Server does not send it again, and the next delta is to it.
#
# A complete policy may be older than the one that acts: a worker that has lost its base gets one, keeps it, and does
# not act with it. With `network.weights: whole` policies are not packed, and nothing is kept.
#
# Rejected: keeping the arrays that the policy has loaded in place of the bytes. They lie in another thread, in another
# layout, and an actor of one's own may have none.

from __future__ import annotations

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.protocol.packed_policy import NO_VERSION, decode_packed, is_packed, unpack


class KeptPolicies:
    """A worker's complete policies.

    Args:
        max_bytes: maximum size of one.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self._max_bytes = max_bytes
        self._whole: tuple[Version, bytes] | None = None
        self._newest: tuple[Version, bytes] | None = None
        self.misfits = 0
        """Number of policies that could not be made of what was sent and kept."""

    @property
    def base(self) -> Version:
        """Return the version of the complete policy that is kept; (0, 0): none."""
        return self._whole[0] if self._whole is not None else NO_VERSION

    def clear(self) -> None:
        """Keep nothing."""
        self._whole = self._newest = None

    def body_of(self, version: Version, content: bytes | memoryview) -> bytes | memoryview | None:
        """Return the encoded `PolicyUpdate` of an arrived policy, and keep it if deltas may follow.

        None: it is a delta that does not fit what is kept, or damaged, so that nothing is kept from now on.
        """
        if not is_packed(content):
            self.clear()
            return content
        try:
            packed = decode_packed(content, self._max_bytes)
            whole = packed.base == NO_VERSION
            body = unpack(packed, None if whole else self._kept(packed.base))
        except RemoteProtocolError:
            # Not the end of the link: the Server would send it again over the next one.
            self.misfits += 1
            self.clear()
            return None
        if whole:
            self._whole = version, body
        if self._newest is None or version > self._newest[0]:
            self._newest = version, body
        return body

    def _kept(self, version: Version) -> bytes:
        for kept in (self._whole, self._newest):
            if kept is not None and kept[0] == version:
                return kept[1]
        raise RemoteProtocolError(f"a delta to policy {version[0]}.{version[1]}, which is not kept here")
