"""Reading of `metrics.jsonl`, complete or while it is being written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from tmrl_core.metrics import names
from tmrl_core.metrics.records import MetricRecord, decode_line
from tmrl_core.storage import open_now

_BYTES_A_READ = 16 << 20
# A record has its own time to the microsecond, so 256 bytes are enough to know a place again.
_TAIL_BYTES = 256


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
        records: list[MetricRecord] = []
        try:
            file = open(self.path, "rb", opener=open_now)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError):
            return records
        with file:
            status = os.fstat(file.fileno())
            # A file of the same name may be another one, made anew by a run that begins again.
            identity = (status.st_dev, status.st_ino)
            known = self._offset > 0
            if identity != self._identity or status.st_size < self._offset or not self._has_tail(file):
                self._offset, self._rest, self._tail, self._identity = 0, b"", b"", identity
            cut = known and not self._offset
            file.seek(self._offset)
            while block := file.read(_BYTES_A_READ):
                self._offset += len(block)
                self._tail = (self._tail + block)[-_TAIL_BYTES:]
                *lines, self._rest = (self._rest + block).split(b"\n")
                for line in filter(bytes.strip, lines):
                    try:
                        records.append(decode_line(line))
                    except msgspec.DecodeError:
                        self.bad_lines += 1
        return _after_cut(records) if cut else records

    def _has_tail(self, file: BinaryIO) -> bool:
        """Return True if the bytes before the offset are unchanged. A cut file may have grown beyond the offset."""
        if not self._tail:
            return True
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail


# The caller has shown the records before the cut already; a second time, its counts would double.
def _after_cut(records: list[MetricRecord]) -> list[MetricRecord]:
    for index in range(len(records) - 1, -1, -1):
        if records[index].text(names.EVENT) == names.EVENT_CUT:
            return records[index:]
    return records


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


def read_records(path: str | os.PathLike[str]) -> list[MetricRecord]:
    """Return all records of a file, oldest first. Invalid lines are skipped.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} not found: a run writes its metrics.jsonl from its start on")
    return RecordReader(path).read()
