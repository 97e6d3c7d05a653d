"""Spool in files, which survives the Server: `server.spool_dir`."""

# Theory of operation
#
# A spool of which the bodies lie in files, so that handed-over samples survive the Server. `Spool` (spool.py) does the
# accounting, in the relay's thread: what is accepted, whose it is, what it costs. This file moves bytes, and knows
# neither links nor trainers.
#
# Files. Each stream has one append-only file of checksummed records (`tmrl_core.storage`), named by the stream's id.
# The header identifies the stream, each record holds one message, and the file is removed when a trainer has
# acknowledged all of it. A stream is small and is removed as a whole, so removing its file frees its space, and no
# offsets are written. A restarted Server may therefore hold messages that were already acknowledged; the trainer's
# resume skips them. Rejected: one log for all streams, which would have to be compacted.
#
# Two threads. The relay's thread accepts and reads; the writing thread writes, closes and removes, so that a slow disk
# delays no link. It begins with the first job and takes jobs in turns of the principals (`FairQueue`). Whatever it has
# to say, it says in the relay's thread, through `post`. The maps `_files`, `_lengths` and `_broken` are its own once it
# runs; `streams` and all sums are the relay's.
#
#     _store  -> job: append the record  -> post: _written -> _is_stored, which acknowledges it to the worker
#                                                          or _is_lost, and a job that makes the file usable again
#     _forget -> job: close and unlink   -> post: _removed
#
# Order. Jobs of one principal keep their order; those of different principals do not. A stream that was forgotten may
# come back, with another owner, before its old file is gone: then the new file would be removed by the old job.
# `_removals` remembers the turn of each pending removal, and `put(after=...)` places the jobs of that stream behind it.
#
# Failure. A write that fails breaks its stream: later messages of it must not be written, since their numbers would
# follow a hole. Example: 7 cannot be written, 8 and 9 wait behind it. All three are reported as lost; the report of 7
# makes the spool go back to 7 (`_is_lost`), those of 8 and 9 find nothing and are ignored. The worker hears the reason,
# still has all three, and may hand them over again; the repair job then makes the file usable, behind 8 and 9. A torn
# record of a killed process is cut off when the folder is opened: no worker has a confirmation of it. A file whose
# header cannot be read is set aside under another name, never deleted.
#
# Bounds. Bodies that are not written yet stay in memory, within the credit of their workers, and `unwritten_bytes`
# tells the relay to read slowly from a principal of which too much waits: tiny messages take more memory than credit
# counts. 32 files are open at a time; a closed one keeps only its length.

from __future__ import annotations

import logging
import os
import stat
import struct
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import StorageError
from tmrl_core.networking.protocol.messages import MAX_NUMBER, MAX_SIGNATURE_BYTES
from tmrl_core.networking.spools.fair_queue import FairQueue, Job
from tmrl_core.networking.spools.spool import Spool, SpooledMessage, SpooledStream, StreamInfo
from tmrl_core.rate_limited_log import RateLimitedLog
from tmrl_core.storage import OS, FileCalls, FolderLock, SegmentFile, SegmentReader, open_now
from tmrl_core.storage.segment_file import Sync

logger = logging.getLogger(__name__)

FORMAT = "tmrl_core spool 1"
SUFFIX = ".seg"
_NOTE = struct.Struct("<BQQQI")
"""Metadata of each record: its kind, and number, floor, position and samples of the message in its payload."""
_MESSAGE = 1
_END = 2
"""Kind of a record without payload: the worker has ended in order."""
_MOST_CHARACTERS = 200
"""Maximum length of a run's or a worker's name, as at the relay."""
_JOB_BYTES = 65_536
"""Bytes that take as long to write as a job does in addition to its own."""
_OPEN_FILES = 32
_JOIN_S = 30.0


class DiskSpool(Spool):
    """Spool in the files of one folder, locked against other processes.

    Existing files are loaded. A record that a killed process has left incomplete is removed, with a warning.

    Args:
        folder: folder of the files, created if it does not exist.
        limit_bytes: see `Spool`. An acknowledged message frees its space together with the last one of its stream.
        post: schedules a function in the relay's thread; must be set before the first `append`.
        sync: "os": stored messages survive a crash of this process; "fsync": also a crash of this machine.
        calls: implementation of the file operations.

    Raises:
        FolderLockedError: another Server uses the folder.
        StorageError: the folder cannot be used.
    """

    frees_messages = False

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        *,
        post: Callable[[Callable[[], None]], object] = lambda function: function(),
        sync: Sync = "os",
        calls: FileCalls = OS,
    ) -> None:
        super().__init__(limit_bytes)
        self.folder = folder
        self.post = post
        self.torn_bytes = 0
        """Number of bytes of incomplete records that opening has removed."""
        self._sync: Sync = sync
        self._calls = calls
        # the lock reports errors of the folder; other users of this machine must not read samples
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = FolderLock(folder, "the Server's spool")
        _warn_if_open(folder)
        # Only the writing thread uses the following, once it runs.
        self._files: OrderedDict[bytes, SegmentFile] = OrderedDict()
        self._lengths: dict[bytes, int] = {}
        """Length of the complete records in files that are not open."""
        self._broken: dict[bytes, str] = {}
        """Streams with a message that could not be written: later messages must not be written either."""
        # A worker can cause a line with each message that it hands over to a failing disk.
        self._error_line = RateLimitedLog(logger.error, "that were other messages")
        self._warning_line = RateLimitedLog(logger.warning, "that were other failures")
        self._jobs = FairQueue()
        self._removals: dict[bytes, float] = {}
        """Turn of each removal of a file that waits. The stream may return before it, also with another owner."""
        self._thread: threading.Thread | None = None
        self._closed = False
        self._unwritten: Counter[str] = Counter()
        try:
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                self._find(path)
        except BaseException:
            self._lock.close()
            raise

    # --- files that the folder already has ---

    def _find(self, path: Path) -> None:
        try:
            if path.is_symlink():
                raise StorageError(f"{path} is a symbolic link")
            reader = SegmentReader(path)
            info = _stream_info(reader.format_name, reader.description, path)
        except StorageError as exc:
            aside = path.with_name(path.name + ".damaged")
            logger.warning("%s: it was renamed to %s and is not used", str(exc).rstrip("."), aside.name)
            with suppress(OSError):
                path.replace(aside)
            return
        kept = SpooledStream(info)
        for note, length, place in _notes(reader):
            kind, number, floor, position, samples = _NOTE.unpack(note)
            # True only if nothing follows: a worker that has come back goes on after its end.
            kept.ended = kind == _END
            # A message that was handed over again after a failed write may be there twice.
            if kind == _MESSAGE and number >= kept.next_number:
                message = SpooledMessage(number, floor, position, samples, length)
                message.place = place
                kept.messages.append(message)
                kept.next_number = kept.stored = number + 1
                kept.samples += samples
                kept.body_bytes += length
                kept.cost += message.cost
        good, torn = reader.good_bytes, reader.torn_bytes
        reader.close()
        if torn:
            self.torn_bytes += torn
            logger.warning(
                "%s: the last %d bytes are not a complete record (a process or machine died while writing) and were "
                "cut off; no worker has a confirmation of them",
                path,
                torn,
            )
            SegmentFile.open(path, sync=self._sync, calls=self._calls, good_bytes=good).close()
        # It was acknowledged, and the Server was killed before it removed the file; or only the end was written.
        if not kept.messages:
            path.unlink()
            return
        self._lengths[info.stream] = good
        self._add(kept)

    def unwritten_bytes(self, principal: str) -> int:
        """Return the cost of a principal's messages that are not written yet."""
        return self._unwritten[principal]

    # --- for the base class, in the relay's thread ---

    def _store(self, kept: SpooledStream, message: SpooledMessage) -> None:
        self._unwritten[kept.info.principal] += message.cost
        self._do(kept, lambda: self._write(kept, message), message.length)

    def _store_end(self, kept: SpooledStream) -> None:
        self._do(kept, lambda: self._write_end(kept))

    def _forget(self, kept: SpooledStream) -> None:
        self._removals[kept.info.stream] = self._do(kept, lambda: self._delete(kept.info.stream))

    def _load(self, kept: SpooledStream, message: SpooledMessage) -> Sequence[bytes | memoryview]:
        with open(self._path(kept.info.stream), "rb", opener=open_now) as file:
            file.seek(message.place)
            body = file.read(message.length)
            if len(body) < message.length:
                raise OSError(f"{file.name} ends before byte {message.place + message.length}")
        return [body]

    def _written(self, kept: SpooledStream, message: SpooledMessage, place: int | None, reason: str) -> None:
        # A callback after `close` would reach a relay that has ended.
        if self._closed:
            return
        self._unwritten[kept.info.principal] -= message.cost
        if place is not None:
            message.place = place
            message.body = None
            self._is_stored(kept, message)
            return
        # Only the first lost message ends the failure: one that was handed over again may have failed since.
        if self._is_lost(kept, message, reason):
            self._do(kept, lambda: self._repair(kept.info.stream))

    def _removed(self, stream: bytes, turn: float) -> None:
        if self._removals.get(stream) == turn:
            del self._removals[stream]

    def close(self) -> None:
        """Finish pending writes and release the folder. No callback follows; a second call has no effect."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._jobs.end()
            self._thread.join(timeout=_JOIN_S)
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._lock.close()

    # --- the writing thread ---

    def _do(self, kept: SpooledStream, job: Job, n: int = 0) -> float:
        if self._closed:
            return 0.0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tmrl-spool", daemon=True)
            self._thread.start()
        return self._jobs.put(kept.info.principal, n + _JOB_BYTES, job, after=self._removals.get(kept.info.stream, 0.0))

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception:
                logger.exception("the spool's writing thread continues after an error")

    def _path(self, stream: bytes) -> Path:
        return self.folder / f"{stream.hex()}{SUFFIX}"

    def _file(self, info: StreamInfo) -> SegmentFile:
        file = self._files.get(info.stream)
        if file is None:
            length = self._lengths.pop(info.stream, None)
            path = self._path(info.stream)
            if length is None:
                file = SegmentFile.create(
                    path,
                    FORMAT,
                    msgspec.to_builtins(_Header(info.stream.hex(), *info[1:])),
                    sync=self._sync,
                    calls=self._calls,
                    mode=0o600,
                )
            else:
                file = SegmentFile.open(path, sync=self._sync, calls=self._calls, good_bytes=length)
            self._files[info.stream] = file
            if len(self._files) > _OPEN_FILES:
                self._close_file(next(iter(self._files)))
        else:
            self._files.move_to_end(info.stream)
        return file

    def _close_file(self, stream: bytes) -> None:
        file = self._files.pop(stream, None)
        if file is not None:
            self._lengths[stream] = file.bytes
            file.close()

    def _write(self, kept: SpooledStream, message: SpooledMessage) -> None:
        stream = kept.info.stream
        reason = self._broken.get(stream, "")
        place = None
        body = message.body
        if not reason and body is not None:
            note = _NOTE.pack(_MESSAGE, message.number, message.floor, message.position, message.samples)
            try:
                place, _ = self._file(kept.info).append(note, body)
            except (StorageError, OSError) as exc:
                reason = self._broken[stream] = f"the Server could not store them: {exc}"
                line = f"a spooled message of worker {kept.info.name} could not be written: {exc}"
                self._error_line(line, time.monotonic())
        self._tell(lambda: self._written(kept, message, place, reason))

    def _write_end(self, kept: SpooledStream) -> None:
        stream = kept.info.stream
        if stream in self._broken:
            return
        try:
            self._file(kept.info).append(_NOTE.pack(_END, 0, 0, 0, 0))
        except (StorageError, OSError) as exc:  # without this record, only the end of the worker is unknown
            self._warning_line(f"the end of worker {kept.info.name} could not be recorded: {exc}", time.monotonic())
        self._close_file(stream)

    def _repair(self, stream: bytes) -> None:
        self._broken.pop(stream, None)

    def _delete(self, stream: bytes) -> None:
        turn = self._jobs.turn
        self._repair(stream)
        self._close_file(stream)
        self._lengths.pop(stream, None)
        try:
            self._path(stream).unlink(missing_ok=True)
        except OSError as exc:
            self._warning_line(f"{self._path(stream)} cannot be removed: {exc}", time.monotonic())
        self._tell(lambda: self._removed(stream, turn))

    def _tell(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the relay's event loop is closed
            self.post(function)


def _warn_if_open(folder: Path) -> None:
    """Log a warning if other users may read or write the spool's folder. The folder is used nevertheless."""
    info = folder.stat()
    if sys.platform != "win32" and (stat.S_IMODE(info.st_mode) & 0o077 or info.st_uid != os.getuid()):
        logger.warning(
            "%s (server.spool_dir) is open to other users of this machine. Its files are not, but restrict it too: "
            "`chmod 700 %s`.",
            folder,
            folder,
        )


def _notes(reader: SegmentReader) -> Iterator[tuple[bytes, int, int]]:
    """Yield metadata, payload length and payload offset of each record, without keeping the records."""
    for record in reader.records():
        if len(record.note) == _NOTE.size and max(_NOTE.unpack(record.note)[1:4]) < MAX_NUMBER:
            yield record.note, len(record.payload), record.payload_offset


@decodable
class _Header(msgspec.Struct, frozen=True):
    """Description of a stream in its file.

    The same limits apply as when a worker opens a stream, so that the stream can be announced to a trainer.
    """

    stream: str
    run: Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS)]
    name: Annotated[str, msgspec.Meta(max_length=_MOST_CHARACTERS)]
    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE_BYTES)]
    principal: str


def _stream_info(format_name: str, description: Any, path: Path) -> StreamInfo:
    if format_name != FORMAT:
        raise StorageError(f"{path} holds records of the kind {format_name!r}, not {FORMAT!r}")
    try:
        header = msgspec.convert(description, _Header)
        stream = bytes.fromhex(header.stream)
        if len(stream) != 16 or path.stem != stream.hex():
            raise ValueError("another stream")
    except ValueError as exc:  # also what msgspec raises
        raise StorageError(f"{path}: its header does not identify the stream of its messages") from exc
    return StreamInfo(stream, header.run, header.name, header.signature, header.principal)
