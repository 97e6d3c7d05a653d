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
    payload = frame.payload
    if len(payload) < POLICY_HEAD.size:
        raise RemoteProtocolError("the first frame of a policy update is too short for its header")
    incarnation, counter, length = POLICY_HEAD.unpack_from(payload)
    if max(incarnation, counter) >= MAX_NUMBER:
        # Workers could not confirm such a version. A Server that stored it would end each new link of a worker.
        raise RemoteProtocolError(f"version {incarnation}.{counter} of the policy is out of range")
    if length > max_bytes:
        raise RemoteProtocolError(f"a policy of {length} bytes; at most {max_bytes} are allowed")
    version = incarnation, counter
    if not frame.flags & POLICY_DELTA:
        return PolicyHead(version, length, None, POLICY_HEAD.size)
    if len(payload) < POLICY_DELTA_HEAD.size:
        raise RemoteProtocolError("the first frame of a policy's delta is too short for its header")
    _, _, _, *base = POLICY_DELTA_HEAD.unpack_from(payload)
    if max(base) >= MAX_NUMBER or not (0, 0) < (base[0], base[1]) < version:
        raise RemoteProtocolError(f"policy {version[0]}.{version[1]} cannot be a delta to {base[0]}.{base[1]}")
    return PolicyHead(version, length, (base[0], base[1]), POLICY_DELTA_HEAD.size)
