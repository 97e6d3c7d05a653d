"""Records, cards and trailers have one encoding and bounded sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.statements import (
    MAX_STARTED_S,
    TRAILER_BYTES,
    RunCard,
    Signature,
    StreamRecord,
    decode_statement,
    encode_statement,
    encode_trailer,
    split_trailer,
    stream_id,
)
from tmrl_core.networking.protocol.messages import MAX_SIGNATURE_BYTES

RECORD = StreamRecord(b"signature", b"certificate", bytes(32), 7, 1_000)


def test_a_record_is_decoded_as_it_was_encoded() -> None:
    assert decode_statement(encode_statement(RECORD), StreamRecord) == RECORD


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode_statement(RECORD) + b"\0",
        encode_statement(RECORD)[:-1],
        encode_statement(RECORD).replace(b"\x07", b"\xcc\x07", 1),  # a longer form of the same number
        encode_statement(StreamRecord(b"", b"", bytes(31), 0, 0)),
        encode_statement(StreamRecord(b"", b"", bytes(32), 0, MAX_STARTED_S + 1)),
        encode_statement(StreamRecord(b"", b"", bytes(32), 0, 0, bytes(63))),
        encode_statement(StreamRecord(b"", bytes(8_193), bytes(32), 0, 0)),
        encode_statement(StreamRecord(bytes(MAX_SIGNATURE_BYTES + 1), b"", bytes(32), 0, 0)),
        encode_statement(RunCard("run", 1, bytes(32), bytes(33), b"")),
    ],
    ids=range(10),
)
def test_other_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(ForgedError, match="the record of a stream could not be read"):
        decode_statement(data, StreamRecord)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    for begin in (b"", encode_statement(RECORD)[:20], encode_statement(RECORD)[:-64]):
        with pytest.raises(ForgedError):
            decode_statement(begin + data[:63], StreamRecord)
        with pytest.raises(ForgedError):
            decode_statement(begin + data, RunCard)


def test_the_id_of_a_stream_follows_from_its_holder_key_run_and_time() -> None:
    ids = {
        stream_id("run", "urn:tmrl-core:worker:a", bytes(32), 1),
        stream_id("ru", "urn:tmrl-core:worker:a", bytes(32), 1),
        stream_id("run", "urn:tmrl-core:worker:b", bytes(32), 1),
        stream_id("run", "urn:tmrl-core:worker:a", bytes(31) + b"1", 1),
        stream_id("run", "urn:tmrl-core:worker:a", bytes(32), 2),
    }
    assert len(ids) == 5
    assert {len(one) for one in ids} == {16}


def test_a_trailer_is_divided_from_its_content() -> None:
    signature = Signature((3, 4), bytes(range(64)))
    body = b"content" + encode_trailer(signature)
    assert len(encode_trailer(signature)) == TRAILER_BYTES
    content, found = split_trailer(memoryview(body))
    assert (bytes(content), found) == (b"content", signature)
    for other in (b"", b"content", body[:-1], body + b"\0"):
        with pytest.raises(ForgedError, match="no proof"):
            split_trailer(memoryview(other))
