"""Packed policies become the same bytes again, and nothing else does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.messages import Blob, PolicyUpdate, check_update_head, encode_body
from tmrl_core.networking.protocol.packed_policy import decode_packed, is_packed, pack, unpack

MOST = 1 << 20


def weights(step: float = 0.0, size: int = 20_000) -> bytes:
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    values += np.random.default_rng(1).standard_normal(size).astype(np.float32) * np.float32(step)
    return encode_body(PolicyUpdate((0, 0), {"policy": Blob("safetensors", values.tobytes())}, {"epsilon": step}))


@given(st.binary(max_size=200), st.booleans(), st.randoms())
def test_any_bytes_come_back(body: bytes, delta: bool, random: object) -> None:
    base = np.random.default_rng(len(body)).bytes(len(body)) if delta else None
    packed = pack(body, ((3, 1), base) if base is not None else None)
    assert is_packed(packed)
    assert unpack(decode_packed(packed, MOST), base) == body


def test_a_packed_policy_passes_the_servers_check_and_is_no_update() -> None:
    check_update_head(pack(weights()))
    assert not is_packed(weights())
    assert not is_packed(b"")


def test_a_delta_takes_a_part_of_the_body() -> None:
    before, after = weights(), weights(0.01)
    assert len(pack(after, ((1, 1), before))) < 0.75 * len(after)
    assert len(pack(after)) < 0.95 * len(after)


def test_a_wrong_base_is_noticed() -> None:
    before, after = weights(), weights(0.01)
    packed = decode_packed(pack(after, ((1, 1), before)), MOST)
    for wrong in (weights(0.02), after, before[:-1], None):
        with pytest.raises(RemoteProtocolError, match="another hash"):
            unpack(packed, wrong)


def test_damage_is_noticed_before_memory_is_allocated() -> None:
    packed = decode_packed(pack(weights()), MOST)
    changed = msgspec.structs.replace
    with pytest.raises(RemoteProtocolError, match="contradicts"):
        unpack(changed(packed, size=1 << 40), None)
    with pytest.raises(RemoteProtocolError, match="decompressed"):
        unpack(changed(packed, data=b""), None)
    with pytest.raises(RemoteProtocolError, match="decompressed"):
        unpack(changed(packed, data=packed.data[:-40]), None)
    with pytest.raises(RemoteProtocolError, match="at most 1000 are allowed"):
        decode_packed(pack(weights()), 1_000)
    with pytest.raises(RemoteProtocolError, match="could not be decoded"):
        decode_packed(pack(weights())[:50], MOST)
