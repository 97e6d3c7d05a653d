"""Reading of `metrics.jsonl`, complete or while it is being written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tmrl_core.metrics import names
from tmrl_core.metrics.records import Kind, MetricRecord, decode_line
from tmrl_core.storage import open_now

_BYTES_A_READ = 16 << 20
# A record has its own time to the microsecond, so 256 bytes are enough to know a place again.
_TAIL_BYTES = 256
# More than any line has.
_LAST_LINE_BYTES = 1 << 20
_CUT = f'"{names.EVENT_CUT}"'.encode()


class RecordReader:
    """Reader of the records that were added to a file since the last read.

    Args:
        path: the file, which need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.bad_lines = 0
        """Number of complete lines without a valid record: truncated by a crash, or foreign."""
        self._offset = 0
        self._rest = b""
        self._tail = b""
        """The latest bytes that were read."""
        self._identity: tuple[int, int] | None = None

    def read(self) -> list[MetricRecord]:
        """Return the new records, oldest first; []: there are none, or no file yet.

        An incomplete last line is left for the next call. A file that was truncated or replaced is read from its start;
        of one that a resumed trainer has cut (`branch.py`), the records after the cut are new.

        Raises:
            OSError: the file exists and cannot be read.
        """
        return [record for block in self.blocks() for record in block]

    def blocks(self) -> Iterator[list[MetricRecord]]:
        """Yield the records that `read` returns, in parts, so that a large file is never in memory whole.

        Raises:
            OSError: the file exists and cannot be read.
        """
        try:
            file = open(self.path, "rb", opener=open_now)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError):
            return
        with file:
            status = os.fstat(file.fileno())
            # A file of the same name may be another one, made anew by a run that begins again.
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset or not self._has_tail(file):
                # The caller has seen the records before a cut already; a second time, its counts would double.
                self._offset = _place_of_cut(file) if self._offset else 0
                self._rest, self._tail, self._identity = b"", b"", identity
            file.seek(self._offset)
            while block := file.read(_BYTES_A_READ):
                self._offset += len(block)
                self._tail = (self._tail + block)[-_TAIL_BYTES:]
                *lines, self._rest = (self._rest + block).split(b"\n")
                records = []
                for line in filter(bytes.strip, lines):
                    try:
                        records.append(decode_line(line))
                    except msgspec.DecodeError:
                        self.bad_lines += 1
                yield records

    def skip(self) -> None:
        """Leave out the records that the file has now, unread: the next `read` returns those that follow.

        Raises:
            OSError: the file exists and cannot be read.
        """
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            open(self.path, "rb", opener=open_now) as file,
        ):
            status = os.fstat(file.fileno())
            start = max(0, status.st_size - _LAST_LINE_BYTES)
            file.seek(start)
            end = file.read()
            self._identity = (status.st_dev, status.st_ino)
            self._offset, self._tail, self._rest = start + len(end), end[-_TAIL_BYTES:], end.rpartition(b"\n")[2]

    def _has_tail(self, file: BinaryIO) -> bool:
        """Return True if the bytes before the offset are unchanged. A cut file may have grown beyond the offset."""
        if not self._tail:
            return True
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail


def _place_of_cut(file: BinaryIO) -> int:
    """Return the position of the latest event of a cut; 0: there is none."""
    file.seek(0)
    place = position = 0
    for line in file:
        # The bytes are looked at first: decoding a file of hundreds of megabytes takes seconds.
        if _CUT in line and any(record.text(names.EVENT) == names.EVENT_CUT for record in records_of(line)):
            place = position
        position += len(line)
    return place


def records_of(lines: bytes) -> list[MetricRecord]:
    """Return the records in a part of a file, oldest first. Invalid lines are skipped."""
    records = []
    for line in lines.split(b"\n"):
        with contextlib.suppress(msgspec.DecodeError):
            records.append(decode_line(line))
    return records


def follow(path: str | os.PathLike[str]) -> RecordReader:
    """Return a reader whose `read()` returns the records added since its last call."""
    return RecordReader(path)


def iter_records(path: str | os.PathLike[str], *, without: Collection[Kind] = ()) -> Iterator[MetricRecord]:
    """Yield the records of a file one by one, oldest first, because it may have gigabytes. Invalid lines are skipped.

    Args:
        path: the file.
        without: kinds of records that are left out. They are recognized by their bytes and not decoded.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} not found: a run writes its metrics.jsonl from its start on")
    unread = [f'"kind":"{kind}"'.encode() for kind in without]
    with open(path, "rb", opener=open_now) as file:
        for line in file:
            # Half a line at the end is one that is being written.
            if line.endswith(b"\n") and not any(kind in line for kind in unread):
                yield from records_of(line)


def read_records(path: str | os.PathLike[str]) -> list[MetricRecord]:
    """Return all records of a file, oldest first. Invalid lines are skipped.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
    """
    return list(iter_records(path))
