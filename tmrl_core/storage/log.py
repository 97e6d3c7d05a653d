"""A log: a folder of files of records. The last file is written, and the oldest files are removed."""

# Theory of operation
#
# For: a sequence of records that outlives its process, such as the memory on disk, the spools of workers and of the
# Server, and recorded sessions. The log knows nothing of the content. Its users put into a note what must be read
# without the payload (row counts, offsets of streams), and into the payload the arrays, which are used in place.
#
# Why several files: no system can cut off the beginning of a file. Old data therefore leaves as whole files
# (`remove_before`), and each file begins with a record of everything that must be known without the files before it
# (`first_note`). In numbers: a spool with files of 64 MiB holds messages 1 to 900 in file 1 and 901 to 1,700 in file 2.
# Once message 900 is acknowledged, file 1 goes. That the stream had come to 900 is still known from the first record of
# file 2.
#
# State: `_numbers` are the files that exist. Only the last one is written, through `_file`; the others are read by
# name. One process uses a folder, since the caller holds its `FolderLock`, and one thread calls the methods. The only
# other thread is that of the background flush, which touches nothing but the file's descriptor.
#
# The order that matters: a full file is on the disk (`_begin` flushes it) before the next one exists. So only the last
# file can end in an incomplete record, and opening a log of 100 files checks the bytes of one.
#
# What fails, and what then happens:
#
# - The process dies in a write: the next opening cuts the incomplete record off and counts its bytes in `torn_bytes`.
# - The last file has no usable head, or no complete first record: it is renamed to `.damaged`, never deleted, and the
#   file before it becomes the last one. Its records may still be wanted by a person.
# - The file is of another version of the format: it is refused and stays as it is, since the release that wrote it can
#   read it. Likewise one of another kind, which is somebody else's folder.
# - The disk is full: `append` raises, the log is unchanged, and the same record may be tried again. A new file that has
#   nothing but its first record is not full, so that retries do not leave a file each.
# - The machine loses its power: `sync` decides, see the class. Waiting for the disk with each record would cost
#   milliseconds each. With "os", a thread flushes every 4 MiB, so that the end of a 64 MiB file waits for the last of
#   them instead of all. "never" is for workers, whose samples are worth less than a loop that does not stop: a flush
#   has lasted half a minute on a busy disk, and the samples that waited for it filled the memory.
#
# Rejected: SQLite (a batch of the memory is a gather of rows, not a query, and its pages cannot be mapped as arrays); a
# ring in one preallocated file (an incomplete write damages old records); rows and offsets in two files (two flushes,
# which can disagree); one file for each message (an inode and a flush for each).

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmrl_core.errors import StorageError
from tmrl_core.storage.format import Buffer, Record, StorageVersionError
from tmrl_core.storage.own_files import flush_folder
from tmrl_core.storage.segment_file import OS, FileCalls, SegmentFile, SegmentReader, Sync, storage_error

logger = logging.getLogger(__name__)

SUFFIX = ".seg"
SEGMENT_BYTES = 64 << 20
FLUSHED_AT_ONCE = 4 << 20
"""Growth of a file in bytes after which it is flushed in the background, with `sync` "os"."""


@dataclass(frozen=True)
class Place:
    """Location of a record.

    Args:
        number: number of the file.
        payload_offset: offset of the payload in the file, a multiple of 8.
        end: offset of the record's end in the file.
    """

    number: int
    payload_offset: int
    end: int


class RecordLog:
    """Records in order, in numbered files `000000000001.seg`, ... of one folder. Not thread-safe.

    Opening an existing folder checks every byte of its last file and removes an incomplete record of a killed process.
    Of older files, it reads only the names. The caller must hold the folder's `FolderLock` while the log is open.

    Nothing is written before the first `append`.

    Args:
        folder: created if it is missing.
        format_name: kind of the records; a folder with another kind is refused.
        description: JSON-compatible, written into the head of each new file; may be changed at any time
            (`log.description = ...`) and applies from the next file on.
        sync: "os": when `append` returns, a record survives a crash of this process. It survives a crash of the machine
            once its file is full, after `flush`, or when the system has written it. "fsync": when `append` returns, it
            survives a crash of the machine too, at the cost of one flush per record. With "os", a thread flushes a file
            while it grows, so that little is left to flush when the next file begins; `close` joins the thread.
            "never": as "os", but no call waits for the disk, and a crash of the machine may damage any file.
        segment_bytes: size after which a new file begins, head and first record not counted.
        first_note: called when a file begins; returns the note of its first record, which has no payload. The note
            holds all state that must survive the deletion of earlier files, such as the offsets of all streams. None:
            no such record.
        calls: functions that write files.
        mode: mode of new files, less the umask.

    Raises:
        StorageError: the folder or its last file cannot be read, or holds another kind or version of records.

    Attributes:
        torn_bytes: number of bytes truncated on opening; 0 if the log was closed in order.
        description: description of the next file.
        segment_bytes: size limit of the next file.
    """

    def __init__(
        self,
        folder: Path,
        format_name: str,
        description: Any = None,
        *,
        sync: Sync = "os",
        segment_bytes: int = SEGMENT_BYTES,
        first_note: Callable[[], bytes] | None = None,
        calls: FileCalls = OS,
        mode: int = 0o644,
    ) -> None:
        self.folder = folder
        self.format_name = format_name
        self.description = description
        self.segment_bytes = segment_bytes
        self.torn_bytes = 0
        self._sync = sync
        self._first_note = first_note
        self._calls = calls
        self._mode = mode
        # None until the first append: a log that is opened only to be read leaves no file.
        self._file: SegmentFile | None = None
        self._sealed = False
        self._closed = False
        self._begun_bytes = 0
        """End of the first record of the current file, which is written before other records."""
        self._flushed_bytes = 0
        self._flushing: threading.Thread | None = None
        self._not_flushed: StorageError | None = None
        """Error of the background flush, which the next waiting flush raises, since a system reports it once."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._numbers = sorted(int(path.stem) for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())
        except OSError as exc:
            raise storage_error(f"{folder} cannot be read", exc) from exc
        # Numbers only grow, also over damaged files that were set aside: a reader may still know the old ones.
        self._next_number = max(self._numbers, default=0) + 1
        self._open_last()

    def _open_last(self) -> None:
        while self._numbers and self._file is None:
            path = self.path(self._numbers[-1])
            size = path.stat().st_size
            try:
                reader = SegmentReader(path)
            except StorageVersionError:
                raise  # the file is whole, and the release that wrote it can read it
            except StorageError as exc:
                self._set_aside(path, size, str(exc))
                continue
            if reader.format_name != self.format_name:
                raise StorageError(
                    f"{path} holds records of the kind {reader.format_name!r}, not {self.format_name!r}. Choose "
                    "another folder."
                )
            first = reader.head_bytes
            ends = [record.end for record in reader.records()]
            good = reader.good_bytes
            reader.close()
            # Without its first record, a file says nothing of the files before it, and they may be gone.
            if self._first_note is not None and not ends:
                self._set_aside(path, size, f"its first record, at byte {first}, is cut short or damaged")
                continue
            self._file = SegmentFile.open(path, sync=self._sync, calls=self._calls, good_bytes=good)
            self._begun_bytes = ends[0] if self._first_note is not None else first
            self.torn_bytes += self._file.torn_bytes
            if self._file.torn_bytes:
                logger.warning(
                    "%s: the last %d bytes, after byte %d, are not a complete record (a process or machine died while "
                    "writing) and were cut off",
                    path,
                    self._file.torn_bytes,
                    good,
                )

    def _set_aside(self, path: Path, size: int, why: str) -> None:
        # A file without records can be deleted; a damaged one may still be useful.
        aside = path.with_name(f"{path.name}.damaged")
        logger.warning("%s cannot be used (%s) and is now %s", path, why, aside.name)
        try:
            path.replace(aside)
        except OSError as exc:
            raise storage_error(f"{path} cannot be renamed", exc) from exc
        self.torn_bytes += size
        self._numbers.pop()

    # --- reading ---

    def path(self, number: int) -> Path:
        """Return the path of the file with that number."""
        return self.folder / f"{number:012d}{SUFFIX}"

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the files, ascending. The last file is being written."""
        return list(self._numbers)

    @property
    def bytes(self) -> int:
        """Size of all files, heads included."""
        total = 0
        for number in self._numbers:
            with suppress(OSError):  # somebody has removed the file
                total += self.path(number).stat().st_size
        return total

    def reader(self, number: int) -> SegmentReader:
        """Return a reader of one file, up to the end of its last complete record if that is known.

        Raises:
            StorageError: the file cannot be read, its head is damaged, or it is of another kind.
        """
        # The last file may have an incomplete record behind its end, after a write that failed and was not cut yet.
        last = self._file if self._file is not None and number == self._numbers[-1] else None
        reader = SegmentReader(self.path(number), last.bytes if last is not None else None)
        if reader.format_name != self.format_name:
            raise StorageError(f"{reader.path} holds records of the kind {reader.format_name!r}")
        return reader

    def records(self, check_payloads: bool = True) -> Iterator[tuple[int, Record]]:
        """Yield each complete record with the number of its file, in the order of writing, lazily.

        Records that are appended to a file while it is read are not included. For a damaged file, the records before
        the damage are included, and a warning reports the number of lost bytes.

        Args:
            check_payloads: False: skip payloads without reading them.

        Raises:
            StorageError: a file cannot be read, or its head is damaged.
        """
        for number in list(self._numbers):
            reader = self.reader(number)
            for record in reader.records(check_payloads):
                yield number, record
            if reader.torn_bytes:
                logger.warning(
                    "%s is damaged after byte %d: %d bytes are not read",
                    reader.path,
                    reader.good_bytes,
                    reader.torn_bytes,
                )
            reader.close()

    # --- changing it ---

    def append(self, note: Buffer, buffers: Sequence[Buffer] = ()) -> Place:
        """Write a record. If the last file is full, begin a new one first.

        Args:
            note: a few bytes that readers get without reading the payload.
            buffers: the payload, one after another; they are not joined.

        Raises:
            StorageFullError: the disk is full. The log is unchanged, and the same record may be tried again.
            StorageError: the record cannot be written for another reason, or is too long. The log is unchanged.
        """
        if self._closed:
            raise StorageError(f"the log in {self.folder} is closed")
        file = self._file
        if file is None or self._sealed or file.bytes - self._begun_bytes >= self.segment_bytes:
            file = self._begin()
        payload_offset, end = file.append(note, buffers)
        if self._sync == "os" and end - self._flushed_bytes >= FLUSHED_AT_ONCE:
            self._flush_in_background(file, end)
        return Place(self._numbers[-1], payload_offset, end)

    def _flush_in_background(self, file: SegmentFile, end: int) -> None:
        # One at a time: two would wait for the same disk. The next append that finds it idle starts another.
        if self._flushing is not None and self._flushing.is_alive():
            return

        def work() -> None:
            try:
                file.flush()
            except StorageError as exc:
                self._not_flushed = exc

        self._flushed_bytes = end
        self._flushing = threading.Thread(target=work, name="tmrl-flush")
        self._flushing.start()

    def _join_flush(self) -> None:
        """Wait for the background flush.

        Raises:
            StorageError: the flush failed.
        """
        if self._flushing is not None:
            self._flushing.join()
            self._flushing = None
        # Linux reports an error of writing back once per descriptor, then takes the pages for clean. A second fsync
        # would succeed without the data: https://wiki.postgresql.org/wiki/Fsync_Errors
        failed, self._not_flushed = self._not_flushed, None
        if failed is not None:
            raise failed

    def seal(self) -> None:
        """Make the next record begin a new file."""
        self._sealed = True

    def _begin(self) -> SegmentFile:
        number = self._next_number
        first_note = self._first_note() if self._first_note is not None else None
        path = self.path(number)
        if self._file is not None and self._sync == "os":
            # Later openings do not check earlier files, so their data must reach the disk now.
            self._join_flush()
            self._file.flush()
        file = SegmentFile.create(
            path,
            self.format_name,
            self.description,
            first_note,
            sync=self._sync,
            calls=self._calls,
            mode=self._mode,
        )
        # Only now: a file that cannot be made leaves the present one in use.
        if self._file is not None:
            self._file.close()
        self._file = file
        self._begun_bytes = file.bytes
        self._flushed_bytes = 0
        self._sealed = False
        self._numbers.append(number)
        self._next_number = number + 1
        return file

    def remove_before(self, number: int) -> int:
        """Delete the files with lower numbers, but never the last one. Return the number of deleted files.

        A file that cannot be deleted now (Windows, while it is being read) is tried again next time.
        """
        removed = 0
        # None after one that stays: a reader must never miss a file between two others.
        for old in [n for n in self._numbers[:-1] if n < number]:
            try:
                self.path(old).unlink(missing_ok=True)
            except OSError as exc:
                logger.debug("%s cannot be removed yet: %s", self.path(old), exc)
                break
            self._numbers.remove(old)
            removed += 1
        return removed

    def flush(self) -> None:
        """Wait until all records and the names of their files are on the disk, also with `sync` "os".

        Raises:
            StorageError: the records may not be on the disk.
        """
        if self._file is not None:
            self._join_flush()
            self._file.flush()
            try:
                flush_folder(self.folder)
            except OSError as exc:
                raise storage_error(f"{self.folder} cannot be flushed", exc) from exc

    def close(self) -> None:
        """Close the files. A second call does nothing. Afterwards, no record can be appended."""
        self._closed = True
        try:
            self._join_flush()
        except StorageError as exc:
            logger.warning("%s", exc)
        if self._file is not None:
            self._file.close()
            self._file = None
            self._sealed = False
            self._numbers = []
