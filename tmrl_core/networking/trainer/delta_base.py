"""Choice between a complete policy and a delta, for one link of a trainer that packs its policies. Sans-I/O."""

# Theory of operation
#
# A base is known to be stored by the Server once it has confirmed a complete version, and only for the life of the
# link: a Server that starts again has nothing, and a link that opens after a revocation has another key, which the
# letters of workers hold for the last policy alone. So each link begins with a complete policy.
#
# An incarnation that was raised while the base was in transit makes the Server drop it, although it confirms its
# arrival. A base is therefore used under the incarnation alone under which it was sent.
#
# A delta to version n is made when n is about to be sent, in the I/O thread, as sealing is: versions that are replaced
# before they are sent cost nothing, and the training thread never waits. 5 ms for a policy of 300 kB.

from __future__ import annotations

from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.protocol.packed_policy import MOST_DELTAS, pack


class DeltaBase:
    """The complete policy to which the deltas of one link are made."""

    def __init__(self) -> None:
        self._base: tuple[Version, bytes] | None = None
        self._sent: tuple[Version, bytes] | None = None
        """A complete policy that is not confirmed yet."""
        self._bytes = self._count = 0
        """Policies sent since the base, the base included."""

    def confirmed(self, version: Version, incarnation: int) -> None:
        """Handle the Server's report that a version has arrived; `incarnation`: the trainer's own, now."""
        if self._sent is not None and self._sent[0] == version and version[0] == incarnation:
            self._base = self._sent
        self._sent = None

    def delta(self, version: Version, body: bytes) -> tuple[Version, bytes] | None:
        """Return the version of the base and the packed delta to it; None: send a complete policy."""
        base = self._base
        if base is None or base[0][0] != version[0] or len(base[1]) != len(body) or self._count > MOST_DELTAS:
            return None
        packed = pack(body, base)
        # A delta below the mean of what was sent since the base lowers that mean; a larger one does not.
        if len(packed) * self._count >= self._bytes:
            return None
        self._bytes += len(packed)
        self._count += 1
        return base[0], packed

    def begin(self, version: Version, body: bytes, packed: bytes) -> None:
        """Handle the sending of a complete policy, which becomes the base."""
        self._sent = version, body
        self._base = None
        self._bytes, self._count = len(packed), 1
