"""Heads of policies, complete and as deltas. The Server reads them, and nothing of what follows."""

from __future__ import annotations

from typing import NamedTuple

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import Frame
from tmrl_core.networking.protocol.messages import (
    MAX_NUMBER,
    POLICY_DELTA,
    POLICY_DELTA_HEAD,
    POLICY_HEAD,
    Version,
    policy_head,
)


class PolicyHead(NamedTuple):
    """Head of a WEIGHTS message: version, bytes of its content, base (None: it is complete), and its own bytes."""

    version: Version
    length: int
    base: Version | None
    size: int


def read_head(frame: Frame, max_bytes: int) -> PolicyHead:
    """Return the head of the WEIGHTS message that a frame begins.

    Raises:
        RemoteProtocolError: the payload is too short, a number is out of range, or the policy is too large.
    """
    version, length = policy_head(frame.payload, max_bytes)
    if not frame.flags & POLICY_DELTA:
        return PolicyHead(version, length, None, POLICY_HEAD.size)
    if len(frame.payload) < POLICY_DELTA_HEAD.size:
        raise RemoteProtocolError("the first frame of a policy's delta is too short for its header")
    _, _, _, *base = POLICY_DELTA_HEAD.unpack_from(frame.payload)
    if max(base) >= MAX_NUMBER or not (0, 0) < (base[0], base[1]) < version:
        raise RemoteProtocolError(f"policy {version[0]}.{version[1]} cannot be a delta to {base[0]}.{base[1]}")
    return PolicyHead(version, length, (base[0], base[1]), POLICY_DELTA_HEAD.size)
