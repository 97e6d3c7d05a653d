"""Heads of policies say what they are, or are refused."""

from __future__ import annotations

import pytest

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FIRST, Frame, Kind, cut
from tmrl_core.networking.protocol.messages import POLICY_DELTA, POLICY_DELTA_HEAD, POLICY_HEAD
from tmrl_core.networking.protocol.policy_heads import read_head

MOST = 1 << 20


def begin(head: bytes, flags: int) -> Frame:
    (wire,) = cut(Kind.WEIGHTS, head, [], epoch=0, channel=0, flags=flags)
    return Frame(Kind.WEIGHTS, FIRST | flags, 0, 0, bytearray(bytes(wire)))


def test_heads() -> None:
    whole = read_head(begin(POLICY_HEAD.pack(3, 4, 500), 0), MOST)
    assert (whole.version, whole.length, whole.base, whole.size) == ((3, 4), 500, None, 24)
    delta = read_head(begin(POLICY_DELTA_HEAD.pack(3, 4, 500, 3, 1), POLICY_DELTA), MOST)
    assert (delta.version, delta.length, delta.base, delta.size) == ((3, 4), 500, (3, 1), 40)


@pytest.mark.parametrize("base", [(0, 0), (3, 4), (3, 5), (4, 0), (1, 1 << 62), (1 << 62, 1)])
def test_a_base_is_an_earlier_version(base: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be a delta"):
        read_head(begin(POLICY_DELTA_HEAD.pack(3, 4, 500, *base), POLICY_DELTA), MOST)


def test_a_short_head_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="too short"):
        read_head(begin(POLICY_HEAD.pack(3, 4, 500), POLICY_DELTA), MOST)
