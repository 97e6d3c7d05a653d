"""Reading of `metrics.jsonl`, complete or while it is being written."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tmrl_core.metrics.records import MetricRecord, decode_line
from tmrl_core.storage import open_now

_BYTES_A_READ = 16 << 20


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
        self._identity: tuple[int, int] | None = None

    def read(self) -> list[MetricRecord]:
        """Return the new records, oldest first; []: there are none, or no file yet.

        An incomplete last line is left for the next call. A file that was truncated or replaced is read from its start.

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
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                self._offset, self._rest, self._identity = 0, b"", identity
            file.seek(self._offset)
            while block := file.read(_BYTES_A_READ):
                self._offset += len(block)
                *lines, self._rest = (self._rest + block).split(b"\n")
                records.extend(record for line in lines if (record := self._decode(line)) is not None)
        return records

    def _decode(self, line: bytes) -> MetricRecord | None:
        if not line.strip():
            return None
        try:
            return decode_line(line)
        except msgspec.DecodeError:
            self.bad_lines += 1
            return None


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
