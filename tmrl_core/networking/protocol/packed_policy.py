"""Policies for thin links: complete ones with compressed bytes, and deltas to an earlier complete one.

Sans-I/O, and blind to what a policy is: bytes go in, the same bytes come out.
"""

# Theory of operation
#
# A *body* is an encoded `PolicyUpdate`, the bytes that `network.weights: whole` sends. With `delta` and `bfloat16` the
# trainer sends a `PackedPolicy` in its place, sealed and encrypted as a body is:
#
#     complete   the body itself
#     delta      the body XOR the body of a *base*: a complete policy that the receiver has kept
#
# Both are split into planes (all first bytes of the 4-byte words, then all second bytes, ...) and compressed. Between
# two publications a weight changes by some percent, so sign, exponent and the first bits of the fraction stay, and
# their planes are mostly zeros. Measured, SAC with two layers of 256, 50 updates apart: 0.42 to 0.55 of the body in
# float32 (the more training, the fewer), and 0.14 to 0.19 after matrices were rounded to bfloat16, where two planes are
# zeros (benchmarks/wire_weights.py). Rejected: differences of the numbers (0.40 where XOR has 0.42, and 0.18 where it
# has 0.14), because XOR is its own inverse, is exact for any bytes, and needs to know neither a dtype nor an alignment;
# higher levels of zstd (the same bytes, three times the time).
#
# A base is a whole version and no chain. Example, with versions of incarnation 5: the trainer sends 5.1 complete, and
# 5.2, 5.3 and 5.4 as deltas to 5.1. A worker on a slow link has 5.1, skips two, and needs only the delta of 5.4. A
# chain (5.4 to 5.3 to 5.2 to 5.1) would help nobody who skips, which is what slow links do. The delta grows slowly with
# the distance: 0.55 of the body after 50 updates, 0.64 after 800.
#
# The trainer takes another base once a delta is larger than the mean of what was sent since the base, the base
# included, or after `MOST_DELTAS`, since a late worker acts with the base until the delta has come. The Server keeps
# the complete version and the newest delta to it, unopened, and chooses by the versions in the heads of the messages.
#
# What a delta makes of a wrong base would be weights of noise, so each message carries a hash of the body. If it
# differs, the worker discards the delta and what it has kept, acts on with its policy, and reports `Lacks`.

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
import numpy as np
import zstandard

from tmrl_core.decodable import decodable
from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.messages import Number, Version, decode_body, encode_body

MOST_DELTAS = 64
"""Maximum number of deltas to one base."""
NO_VERSION: Version = (0, 0)

_WORD = 4
"""Number of planes: bytes of a float32."""
_LEVEL = 1
_FLUSH_BLOCK = zstandard.COMPRESSOBJ_FLUSH_BLOCK
_BEGINS = b"\xa7version\x92\x00\x00\xa4base\x92"


@decodable
class PackedPolicy(msgspec.Struct, frozen=True):
    """A `PolicyUpdate`, packed.

    Args:
        version: not used, as in `PolicyUpdate`: the head of the message has it. First, as the Server checks.
        base: version of the complete policy to which `data` is a delta; (0, 0): it is complete itself.
        size: bytes of the body.
        digest: SHA-256 of the body.
        data: the compressed planes.
    """

    version: Version
    base: Version
    size: Number
    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    data: bytes


def pack(body: bytes, base: tuple[Version, bytes] | None = None) -> bytes:
    """Return a body as an encoded `PackedPolicy`.

    Args:
        body: encoded `PolicyUpdate`.
        base: version and body of a complete policy of the same length; None: pack a complete policy.
    """
    values = np.frombuffer(body, np.uint8)
    if base is not None:
        values = values ^ np.frombuffer(base[1], np.uint8)
    padded = np.zeros(-(-len(body) // _WORD) * _WORD, np.uint8)
    padded[: len(values)] = values
    planes = np.ascontiguousarray(padded.reshape(-1, _WORD).T)
    stream = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=len(padded))
    # A block for each plane, and with it an entropy code: one code for all makes a delta larger by a tenth of the body.
    parts = [part for plane in planes for part in (stream.compress(plane.data), stream.flush(_FLUSH_BLOCK))]
    data = b"".join((*parts, stream.flush()))
    digest = hashlib.sha256(body).digest()
    return encode_body(PackedPolicy(NO_VERSION, NO_VERSION if base is None else base[0], len(body), digest, data))


def is_packed(content: bytes | memoryview) -> bool:
    """Return True if a policy's content is a `PackedPolicy`, and not a `PolicyUpdate`."""
    return bytes(content[1 : 1 + len(_BEGINS)]) == _BEGINS


def decode_packed(content: bytes | memoryview, max_bytes: int) -> PackedPolicy:
    """Decode a `PackedPolicy`.

    Raises:
        RemoteProtocolError: it is not one, or its body would have more than `max_bytes`.
    """
    packed: PackedPolicy = decode_body(content, PackedPolicy)
    if packed.size > max_bytes:
        raise RemoteProtocolError(f"a packed policy of {packed.size} bytes; at most {max_bytes} are allowed")
    return packed


def unpack(packed: PackedPolicy, base: bytes | None) -> bytes:
    """Return the body.

    Args:
        packed: of at most so many bytes as the caller allows, see `decode_packed`.
        base: body of the version `packed.base`; None for a complete policy.

    Raises:
        RemoteProtocolError: it is damaged, or `base` is not what the trainer has packed it with.
    """
    padded = -(-packed.size // _WORD) * _WORD
    try:
        # Before memory is allocated for what the frame announces.
        if zstandard.frame_content_size(packed.data) != padded:
            raise RemoteProtocolError("the size of a packed policy contradicts its content")
        planes = zstandard.ZstdDecompressor().decompress(packed.data, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise RemoteProtocolError(f"a packed policy could not be decompressed: {exc}") from exc
    values = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(_WORD, -1).T).reshape(-1)[: packed.size]
    if base is not None and len(base) == packed.size:
        values = values ^ np.frombuffer(base, np.uint8)
    body = values.tobytes()
    if hashlib.sha256(body).digest() != packed.digest:
        raise RemoteProtocolError("a packed policy has another hash after unpacking")
    return body
