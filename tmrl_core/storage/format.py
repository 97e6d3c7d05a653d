"""Bytes of a file of records. All numbers are little-endian; everything begins at a multiple of 8 bytes.

    file:    b"TMRLREC1"  u32 length  u32 CRC-32 of the head  head (JSON: format, description)  zeros up to 8
    record:  b"REC1"  u32 note bytes  u64 payload bytes  u32 CRC-32 of the payload  u32 CRC-32 of header and note
             note  zeros up to 8  payload  zeros up to 8

A header and its note are checked without the payload, so that a reader may skip from record to record. Payloads begin
at a multiple of 8 bytes, so that arrays of any numbers in them can be used in place. Data after the last complete
record is an incomplete record of a process or machine that died, or damage; a reader reports its size.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tmrl_core.errors import StorageError

Buffer: TypeAlias = "bytes | bytearray | memoryview"

VERSION = 1
"""Version of these bytes. No other one is read."""
MAGIC = b"TMRLREC%d" % VERSION
RECORD_MAGIC = b"REC%d" % VERSION
ALIGNMENT = 8
# Limits are checked before memory is allocated, because a damaged length may be any number.
MAX_HEAD_BYTES = 1 << 20
MAX_NOTE_BYTES = 1 << 26
MAX_PAYLOAD_BYTES = 1 << 34

_HEAD = struct.Struct("<8sII")
_RECORD = struct.Struct("<4sIQII")


class StorageVersionError(StorageError):
    """A file of records is of another version than `VERSION`."""


def padding(length: int) -> int:
    """Return the number of bytes up to the next multiple of 8."""
    return -length % ALIGNMENT


@dataclass(frozen=True)
class Record:
    """One record of a file.

    Args:
        note: a few bytes that describe the payload.
        payload: content; a view of the file's mapping, valid as long as it is referenced.
        offset: offset of the record in the file.
        payload_offset: offset of its payload, a multiple of 8.
        end: offset of the next record.
    """

    note: bytes
    payload: memoryview
    offset: int
    payload_offset: int
    end: int


def head_bytes(format_name: str, description: Any) -> bytes:
    """Return the first bytes of a file.

    Args:
        format_name: kind of the file.
        description: JSON-compatible description of its records.

    Raises:
        StorageError: the description is larger than 1 MiB.
    """
    text = json.dumps({"format": format_name, "description": description}).encode()
    if len(text) > MAX_HEAD_BYTES:
        raise StorageError(f"a head of {len(text)} bytes is too long; {MAX_HEAD_BYTES} are allowed")
    return _HEAD.pack(MAGIC, len(text), zlib.crc32(text)) + text + bytes(padding(_HEAD.size + len(text)))


def parse_head(data: memoryview, where: str) -> tuple[str, Any, int]:
    """Return format, description and length of a file's head.

    Args:
        data: the file.
        where: name of the file, for messages.

    Raises:
        StorageError: the data is not a file of records, or its head is cut short or damaged.
        StorageVersionError: the file is of another version.
    """
    if len(data) < _HEAD.size:
        raise StorageError(f"{where} is cut short within its head")
    magic, length, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        if magic[:-1] == MAGIC[:-1] and magic[-1:].isdigit():
            raise StorageVersionError(
                f"{where} is a file of records of version {int(magic[-1:])}; this release reads version {VERSION}. Use "
                "the release that wrote it, or choose another folder."
            )
        raise StorageError(f"{where} is not a file of records: its head is missing or damaged")
    end = _HEAD.size + length
    if length > MAX_HEAD_BYTES:
        raise StorageError(f"the head of {where} is damaged: it claims {length} bytes")
    if len(data) < end + padding(end):
        raise StorageError(f"{where} is cut short within its head")
    text = bytes(data[_HEAD.size : end])
    if zlib.crc32(text) != crc:
        raise StorageError(f"the head of {where} is damaged: its checksum is wrong")
    try:
        head = json.loads(text)
        return str(head["format"]), head["description"], end + padding(end)
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise StorageError(f"the head of {where} describes no records: {exc}") from exc


def record_buffers(note: Buffer, buffers: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """Return a record as a list of buffers to write in order, and its length. Nothing is joined or copied.

    Raises:
        StorageError: note or payload are too long.
    """
    views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
    payload_bytes = sum(len(view) for view in views)
    if len(note) > MAX_NOTE_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise StorageError(
            f"a record with a note of {len(note)} and a payload of {payload_bytes} bytes is too long; "
            f"{MAX_NOTE_BYTES} and {MAX_PAYLOAD_BYTES} are allowed"
        )
    # CRC-32 goes on from buffer to buffer, so the parts need not be joined. It finds damage, not forgery.
    payload_crc = 0
    for view in views:
        payload_crc = zlib.crc32(view, payload_crc)
    fields = _RECORD.pack(RECORD_MAGIC, len(note), payload_bytes, payload_crc, 0)[:-4]
    crc = zlib.crc32(note, zlib.crc32(fields))
    first = b"".join([fields, crc.to_bytes(4, "little"), note, bytes(padding(len(note)))])
    last = bytes(padding(payload_bytes))
    return [first, *views, *([last] if last else [])], len(first) + payload_bytes + len(last)


def scan(data: memoryview, start: int, check_payloads: bool) -> Iterator[Record]:
    """Yield the complete records of a file in order, up to the first incomplete or damaged one.

    Args:
        data: the file.
        start: offset of the first record.
        check_payloads: False: payloads are not read, so that a damaged payload is not noticed.
    """
    length = len(data)
    while start + _RECORD.size <= length:
        magic, note_bytes, payload_bytes, payload_crc, crc = _RECORD.unpack_from(data, start)
        if magic != RECORD_MAGIC or note_bytes > MAX_NOTE_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
            return
        note_end = start + _RECORD.size + note_bytes
        payload_start = note_end + padding(note_bytes)
        payload_end = payload_start + payload_bytes
        end = payload_end + padding(payload_bytes)
        if end > length:  # checked before the checksum, which would read behind the end
            return
        note = bytes(data[start + _RECORD.size : note_end])
        if zlib.crc32(note, zlib.crc32(data[start : start + _RECORD.size - 4])) != crc:
            return
        payload = data[payload_start:payload_end]
        if check_payloads and zlib.crc32(payload) != payload_crc:
            return
        yield Record(note, payload, start, payload_start, end)
        start = end


def cut_short(data: memoryview, start: int) -> bool:
    """Return True if the bytes from `start` on are the beginning of one record, or zeros; False: damage.

    A process that dies while it writes leaves an incomplete record. A machine that dies may also leave zeros. `start`
    is the offset at which `scan` ended.
    """
    rest = data[start:]
    # A file system may note the new length of a file before its data.
    if not bytes(rest).strip(b"\0"):
        return True
    if len(rest) < _RECORD.size:
        return RECORD_MAGIC.startswith(bytes(rest[:4]))
    magic, note_bytes, payload_bytes, _, crc = _RECORD.unpack_from(rest)
    if magic != RECORD_MAGIC or note_bytes > MAX_NOTE_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        return False
    note_end = _RECORD.size + note_bytes
    if note_end > len(rest):
        return True
    if zlib.crc32(rest[_RECORD.size : note_end], zlib.crc32(rest[: _RECORD.size - 4])) != crc:
        return False
    return bool(note_end + padding(note_bytes) + payload_bytes + padding(payload_bytes) > len(rest))
