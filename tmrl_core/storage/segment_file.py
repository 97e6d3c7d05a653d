"""One append-only file of records: a writer and a reader."""

# Theory of operation
#
# For: appending records to one file so that each is there completely or not at all, and reading them back without
# copies. `format.py` knows the bytes; this file knows the system calls, and `log.py` which file is next.
#
# The writer has two numbers. `bytes` is the end of the last complete record, and the place of the next one. `_dirty`
# says that bytes of a failed write may follow it. In numbers: `bytes` is 1,000, and a record of 400 bytes is to be
# written. The disk takes 250 and is full. The file is cut to 1,000 again and the error raised, so the caller may try
# the same record later. If the cut fails too, `_dirty` stays, and the next write cuts first. If the process dies before
# that, the 250 bytes are an incomplete record, which fails its checksum, and the next opening cuts it. `bytes` grows
# after everything else, so in no case does it include them.
#
# Each write seeks to `bytes` instead of using O_APPEND, which would go to the end of the file, behind such a rest.
#
# A payload is a list of buffers that goes to one `writev`: joining would copy each sample once more. Windows has no
# such call and writes buffer by buffer; a process that dies between two of them leaves an incomplete record like any
# other.
#
# The reader maps the file. Notes can be read without the payloads between them, whose pages are then never loaded, and
# payloads are views into the mapping, alive as long as somebody refers to them. The price: a file that is cut while it
# is mapped ends the process with SIGBUS. Hence the lock on the folder, and hence a limit of bytes for readers beside a
# writer.
#
# A checksum does not tell the writer's death from damage. `cut_short` does, for readers that must not drop data
# silently: what follows the last record either is the beginning of one record or zeros, or it is damage.

from __future__ import annotations

import errno
import logging
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tmrl_core.errors import StorageError, StorageFullError
from tmrl_core.storage.format import Buffer, Record, cut_short, head_bytes, parse_head, record_buffers, scan
from tmrl_core.storage.own_files import BINARY, flush_folder, open_now, open_own

logger = logging.getLogger(__name__)

Sync = Literal["never", "os", "fsync"]
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_MOST_BUFFERS = 1000
"""Maximum number of buffers in one call; POSIX systems allow 1024."""


class FileCalls:
    """The system calls that change a file. Tests replace them to make a disk fail."""

    def write(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        """Write from buffers, in order; return the number of bytes, which may be fewer than given.

        Raises:
            OSError: nothing could be written.
        """
        if sys.platform == "win32":
            return os.write(descriptor, buffers[0])
        return os.writev(descriptor, buffers)

    def sync(self, descriptor: int) -> None:
        """Wait until written data is on the disk.

        Raises:
            OSError: the data may not be on the disk.
        """
        os.fsync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file to a length.

        Raises:
            OSError: the file was not cut.
        """
        os.ftruncate(descriptor, length)


OS = FileCalls()
"""The operating system's calls."""


def storage_error(what: str, exc: OSError) -> StorageError:
    """Return the documented error for an error of the operating system."""
    if exc.errno in _FULL:
        return StorageFullError(f"{what}: {exc.strerror}. Make room on this disk (or raise the quota or limit).")
    return StorageError(f"{what}: {exc.strerror or exc}")


class SegmentFile:
    """Writer that appends to one file of records. Not thread-safe, except for `flush`.

    Use `create` or `open`, not the constructor.

    Attributes:
        path: the file.
        bytes: length up to the end of the last complete record, where the next one begins.
        torn_bytes: number of bytes after the last complete record that `open` truncated.
    """

    # `create` and `open` report errors of the system with the path; a constructor would have to do it for both.
    def __init__(self, path: Path, descriptor: int, length: int, sync: Sync, calls: FileCalls) -> None:
        self.path = path
        self.bytes = length
        self.torn_bytes = 0
        self._descriptor = descriptor
        self._sync = sync
        self._calls = calls
        self._dirty = False

    @classmethod
    def create(
        cls,
        path: Path,
        format_name: str,
        description: Any,
        first_note: bytes | None = None,
        *,
        sync: Sync = "os",
        calls: FileCalls = OS,
        mode: int = 0o644,
    ) -> SegmentFile:
        """Create a file with its head. With `first_note`, also write a record with this note and no payload.

        `mode` is the file's mode from its creation, less the umask.

        Raises:
            StorageError: the file exists already, or cannot be written; no file is left then.
        """
        parts: list[Buffer] = [head_bytes(format_name, description)]
        if first_note is not None:
            parts += record_buffers(first_note, [])[0]
        # O_EXCL: neither a file of another writer nor a link that somebody has prepared is written to.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY
        try:
            descriptor = os.open(path, flags, mode)
        except OSError as exc:
            raise storage_error(f"{path} cannot be made", exc) from exc
        made = cls(path, descriptor, 0, sync, calls)
        try:
            made._write(parts, sum(len(part) for part in parts))
            if sync == "fsync":
                flush_folder(path.parent)
        except BaseException as exc:
            made.close()
            # A head without its first record would be taken for a damaged file at the next opening.
            with suppress(OSError):
                path.unlink()
            if isinstance(exc, OSError):
                raise storage_error(f"{path.parent} cannot be flushed", exc) from exc
            raise
        return made

    @classmethod
    def open(cls, path: Path, *, good_bytes: int, sync: Sync = "os", calls: FileCalls = OS) -> SegmentFile:
        """Open an existing file; data after its last complete record is truncated and counted in `torn_bytes`.

        Args:
            path: the file.
            good_bytes: the length up to the end of the last complete record, see `SegmentReader`.
            sync: see `RecordLog`.
            calls: functions that write the file.

        Raises:
            StorageError: the file cannot be opened or truncated.
        """
        try:
            descriptor = open_own(path, os.O_RDWR)
            opened = cls(path, descriptor, good_bytes, sync, calls)
            opened.torn_bytes = os.fstat(descriptor).st_size - good_bytes
            if opened.torn_bytes:
                calls.truncate(descriptor, good_bytes)
        except OSError as exc:
            raise storage_error(f"{path} cannot be opened for writing", exc) from exc
        return opened

    def append(self, note: Buffer, buffers: Sequence[Buffer] = ()) -> tuple[int, int]:
        """Write a record.

        When this method returns, the record survives a crash of this process with `sync` "os", and a crash of the
        machine with "fsync".

        Args:
            note: a few bytes that readers get without reading the payload.
            buffers: the payload, one after another; they are not joined.

        Returns:
            Offset of its payload, a multiple of 8, and offset of the record's end.

        Raises:
            StorageFullError: the disk is full. The file is unchanged, and the same record may be tried again.
            StorageError: the record cannot be written for another reason, or is too long. The file is unchanged.
        """
        parts, length = record_buffers(note, buffers)
        start = self.bytes
        self._write(parts, length)
        return start + len(parts[0]), self.bytes

    def _write(self, parts: Sequence[Buffer], length: int) -> None:
        try:
            if self._dirty:
                self._calls.truncate(self._descriptor, self.bytes)
                self._dirty = False
            os.lseek(self._descriptor, self.bytes, os.SEEK_SET)
            pending = [memoryview(part) for part in parts]
            while pending:
                written = self._calls.write(self._descriptor, pending[:_MOST_BUFFERS])
                if written <= 0:  # a call that takes nothing and says nothing would be repeated for ever
                    raise OSError(errno.EIO, "nothing was written")
                while pending and written >= len(pending[0]):
                    written -= len(pending.pop(0))
                if written:
                    pending[0] = pending[0][written:]
            if self._sync == "fsync":
                self._calls.sync(self._descriptor)
        except OSError as exc:
            self._dirty = True
            # If this fails too, the next write, or the next opening of the file, truncates it.
            with suppress(OSError):
                self._calls.truncate(self._descriptor, self.bytes)
                self._dirty = False
            raise storage_error(f"{self.path} cannot be written", exc) from exc
        # Last: until here, a reader beside the writer sees the record before as the last one.
        self.bytes += length

    def flush(self) -> None:
        """Wait until all records are on the disk, also with `sync` "os".

        Raises:
            StorageError: the records may not be on the disk.
        """
        try:
            self._calls.sync(self._descriptor)
        except OSError as exc:
            raise storage_error(f"{self.path} cannot be flushed", exc) from exc

    def close(self) -> None:
        """Close the file without flushing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SegmentReader:
    """Reader of one file of records through a memory mapping: only the accessed parts are read from the disk.

    The file must not be truncated meanwhile: hold the folder's lock.

    Args:
        path: the file.
        limit_bytes: maximum number of bytes to read.

    Raises:
        StorageError: the file cannot be read, or its head is incomplete or damaged.

    Attributes:
        format_name: kind of the file.
        description: description of its records, from its head.
        head_bytes: offset of its first record.
        size: length of the file (at most `limit_bytes`).
        good_bytes: end of the last complete record that `records` has returned.
    """

    def __init__(self, path: Path, limit_bytes: int | None = None) -> None:
        self.path = path
        try:
            with open(path, "rb", opener=open_now) as file:
                size = os.fstat(file.fileno()).st_size
                size = size if limit_bytes is None else min(size, limit_bytes)
                if size == 0:  # an empty file cannot be mapped
                    raise StorageError(f"{path} is cut short within its head")
                self._mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as exc:
            raise StorageError(f"{path} cannot be read: {exc}") from exc
        self.size = size
        self.view = memoryview(self._mapping)
        self.format_name, self.description, self.head_bytes = parse_head(self.view, str(path))
        self.good_bytes = self.head_bytes

    @property
    def torn_bytes(self) -> int:
        """Number of incomplete or damaged bytes after the last complete record, once `records` has reached its end."""
        return self.size - self.good_bytes

    @property
    def cut_short(self) -> bool:
        """True: the bytes after the last complete record are an incomplete record and no damage.

        Valid once `records` has reached its end.
        """
        return cut_short(self.view, self.good_bytes)

    def records(self, check_payloads: bool = True) -> Iterator[Record]:
        """Yield the complete records, lazily, up to the first incomplete or damaged one, which is not an error.

        Args:
            check_payloads: False: skip payloads without reading them; headers and notes are checked nevertheless.
        """
        for record in scan(self.view, self.head_bytes, check_payloads):
            # A second pass that ends early must not lose what the first has found.
            self.good_bytes = max(self.good_bytes, record.end)
            yield record

    def close(self) -> None:
        """Release the mapping. If views of it are still in use, it is released with the last view."""
        with suppress(BufferError):
            self.view.release()
            self._mapping.close()
