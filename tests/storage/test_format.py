from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import StorageError
from tmrl_core.storage import MAX_NOTE_BYTES
from tmrl_core.storage import format as storage_format
from tmrl_core.storage.format import StorageVersionError, cut_short, head_bytes, parse_head, record_buffers, scan


def record(note: bytes, *buffers: Any) -> bytes:
    parts, length = record_buffers(note, buffers)
    joined = b"".join(map(bytes, parts))
    assert len(joined) == length
    return joined


def records(data: bytes, check_payloads: bool = True) -> list[tuple[bytes, bytes]]:
    return [(r.note, bytes(r.payload)) for r in scan(memoryview(data), 0, check_payloads)]


@given(st.lists(st.tuples(st.binary(max_size=20), st.lists(st.binary(max_size=30), max_size=4)), max_size=5))
def test_records_come_back_in_order_and_aligned(written: list[tuple[bytes, list[bytes]]]) -> None:
    data = b"".join(record(note, *buffers) for note, buffers in written)
    expected = [(note, b"".join(buffers)) for note, buffers in written]
    assert records(data) == records(data, check_payloads=False) == expected
    for found in scan(memoryview(data), 0, True):
        assert found.offset % 8 == found.payload_offset % 8 == found.end % 8 == 0


@given(st.binary(max_size=40), st.binary(max_size=40), st.data())
def test_a_cut_anywhere_in_the_last_record_leaves_those_before(
    note: bytes, payload: bytes, data: st.DataObject
) -> None:
    first, last = record(b"one", b"payload"), record(note, payload)
    cut = data.draw(st.integers(0, len(last) - 1))
    assert records(first + last[:cut]) == [(b"one", b"payload")]


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40), st.data())
def test_a_changed_bit_is_noticed_unless_it_is_in_padding(note: bytes, payload: bytes, data: st.DataObject) -> None:
    whole = bytearray(record(note, payload))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert records(bytes(whole)) in ([], [(note, payload)])
    start = storage_format._RECORD.size
    if bit // 8 < start + len(note) or start + len(note) + -(start + len(note)) % 8 <= bit // 8 < len(whole) - 8:
        assert records(bytes(whole)) == []


def test_another_version_is_refused_with_both_numbers() -> None:
    whole = bytearray(head_bytes("kind", None))
    assert whole[:8] == b"TMRLREC1"
    whole[7:8] = b"2"
    with pytest.raises(
        StorageVersionError, match="here is a file of records of version 2; this release reads version 1"
    ):
        parse_head(memoryview(whole), "here")


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_none(data: bytes) -> None:
    for check in (True, False):
        list(scan(memoryview(data), 0, check))
    with contextlib.suppress(StorageError):
        parse_head(memoryview(data), "here")


def test_a_head_comes_back_and_a_cut_or_change_in_it_is_an_error() -> None:
    whole = head_bytes("kind", {"a": [1, 2]})
    assert parse_head(memoryview(whole + b"more"), "here") == ("kind", {"a": [1, 2]}, len(whole))
    for length in range(len(whole)):
        with pytest.raises(StorageError, match="here is cut short within its head"):
            parse_head(memoryview(whole[:length]), "here")
    text_end = whole.rindex(b"}") + 1
    for i in range(text_end):
        damaged = bytearray(whole)
        damaged[i] ^= 1
        with pytest.raises(StorageError, match="here"):
            parse_head(memoryview(damaged), "here")


def test_lengths_are_checked_before_anything_is_allocated() -> None:
    with pytest.raises(StorageError, match=f"{MAX_NOTE_BYTES} and"):
        record_buffers(bytes(MAX_NOTE_BYTES + 1), [])
    with pytest.raises(StorageError, match="too long"):
        head_bytes("kind", "x" * (2 << 20))
    huge = bytearray(record(b"note", b"payload"))
    huge[8:16] = (2**40).to_bytes(8, "little")
    assert records(bytes(huge)) == []


def test_payloads_are_checked_only_on_request() -> None:
    whole = bytearray(record(b"note", b"payload."))
    whole[-1] ^= 1
    assert records(bytes(whole)) == []
    assert [note for note, _ in records(bytes(whole), check_payloads=False)] == [b"note"]


def test_an_incomplete_record_is_distinguished_from_damage() -> None:
    whole = record(b"one", b"payload" * 9) + record(b"two", b"payload" * 9)
    start = len(record(b"one", b"payload" * 9))
    assert all(cut_short(memoryview(whole[:length]), start) for length in range(start, len(whole)))
    assert cut_short(memoryview(whole[:start] + bytes(100)), start)
    for changed in (start, start + 12, start + 21, start + 25, len(whole) - 9):
        damaged = bytearray(whole)
        damaged[changed] ^= 1
        assert not cut_short(memoryview(damaged), start)
