"""Bodies of a worker's unacknowledged messages in files: `worker.spool_dir`.

Each stream has a folder of its own, named by its id and locked by its process, so workers never share one. Its files
are a `RecordLog`: each record holds one message, in the order of the numbers. Files are removed as a whole, once none
of their messages is needed.

The head of each file describes the stream, so that a later process can continue it (`left_streams`). It delivers what
was written, as the same stream with the same numbers, so the trainer recognises what it has. New samples have a stream
of their own: the process that has died may have sent more than it had written, under numbers that nobody else knows.
"""

# Theory of operation
#
# Bodies of messages in files of their own process, and what a later process needs to deliver them. Nothing here knows
# whether a message was sent; it is told what to write, what to load and what is not needed any more.
#
#     spool_dir/<stream id>/000000000001.seg ...      a RecordLog; each record is a message, in the order of numbers
#                           lock                      held by the process, so that workers never share a folder
#
# Nothing is flushed (`sync="never"`): a disk that others use may take half a minute for that, in which the memory would
# fill. A crash of the process loses nothing of what was written, one of the machine may. A body whose checksum is wrong
# counts as dropped. Eight files share the limit, and a file is removed as a whole, so that it may hold messages that
# are not needed any more.
#
# A later process delivers what it finds under the old stream's id, name, signature and numbers, in a second stream on
# its link, so that the trainer removes duplicates by its offset as after a reconnection. Rejected: continuing the old
# stream with new samples. The process that was killed may have sent higher numbers than it had written; the next one
# would give them to other samples, and the trainer would take those for duplicates. Ids of episodes would be used twice
# too.
#
# The head of each file holds the stream's private key (`StreamSecret`), so that its messages can be sealed again. The
# folder is for its owner alone, and a continued stream is believed only for the same CA, certificate name and run,
# since its id is a hash of them.
#
# An episode that the kill has cut has no end there, like one of a worker that never returns.

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import FolderLockedError, StorageError
from tmrl_core.networking.protocol.delivery import Body, HeldMessage, WrittenMessage
from tmrl_core.networking.protocol.messages import MAX_NUMBER
from tmrl_core.storage import OS, FileCalls, FolderLock, Place, RecordLog, open_own
from tmrl_core.storage.format import record_buffers, scan
from tmrl_core.storage.lock import LOCK_FILE
from tmrl_core.storage.log import SEGMENT_BYTES

logger = logging.getLogger(__name__)

FORMAT = "tmrl_core worker spool 1"
_NOTE = struct.Struct("<QQQI")
"""Note of each record: number, floor, position and samples of its message."""
_HEAD_BYTES = len(record_buffers(bytes(_NOTE.size), ())[0][0])
"""Bytes of a record before its payload."""
_MOST_BYTES = 10 << 30
"""Default limit: half an hour of 50 steps a second with 100 kB each."""
_FILES = 8
"""Number of files that share the limit, so that removing the oldest one makes room."""


def default_limit(folder: Path) -> int:
    """Return the maximum bytes of a worker's spool, which leaves half of the free disk to others."""
    place = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
    try:
        return min(_MOST_BYTES, shutil.disk_usage(place).free // 2)
    except OSError:
        return _MOST_BYTES  # writing there will report the error, or work


@decodable
class SpooledStreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a stream in its files.

    Args:
        stream: its id, hexadecimal.
        run: name of its run.
        name: label of its worker.
        signature: description of its environment.
        authority: digest of the CA, identity: URI of the worker's certificate; empty without authentication.
        started_s, key: see `StreamSecret`.
    """

    stream: str
    run: str
    name: str
    signature: bytes
    authority: str = ""
    identity: str = ""
    started_s: int = 0
    key: bytes = msgspec.field(default=b"")

    def __repr__(self) -> str:
        return f"SpooledStreamInfo({self.stream!r}, run={self.run!r}, name={self.name!r})"  # not the key


class StreamFiles:
    """Files of one stream. A `BodyStore`.

    One thread writes (`write`, `remove_before`, `remove`); another one reads and counts (`load`, `count`, `release`).
    Nothing is created before the first `write`.

    Args:
        folder: folder of the stream. Its parent holds those of other streams.
        info: description of the stream, in each file.
        limit_bytes: maximum bytes of bodies, which the caller observes.
        calls: implementation of the file operations.
    """

    def __init__(self, folder: Path, info: SpooledStreamInfo, limit_bytes: int, *, calls: FileCalls = OS) -> None:
        self.folder = folder
        self.info = info
        self._segment_bytes = max(1, min(SEGMENT_BYTES, limit_bytes // _FILES))
        self._calls = calls
        self._lock: FolderLock | None = None
        self._log: RecordLog | None = None
        self._needed: dict[int, int] = {}
        """Number of needed messages in each file, by its number."""
        self.has_obsolete = False
        """True: a file is not needed any more, see `first_needed`."""

    @classmethod
    def left(cls, folder: Path) -> tuple[StreamFiles, list[WrittenMessage]] | None:
        """Return the files of a process that has ended, and their messages. None: it has not, or there are none.

        Raises:
            StorageError: the folder cannot be read, or its files describe no stream.
        """
        if not any(folder.glob("*.seg")):
            return None
        try:
            lock = FolderLock(folder, "a worker's spool")
        except FolderLockedError:
            return None
        try:
            log = RecordLog(folder, FORMAT, mode=0o600)
            if not log.numbers:  # another process has delivered them meanwhile, or they are damaged
                lock.close()
                return None
            reader = log.reader(log.numbers[-1])
            description = reader.description
            reader.close()
            info = msgspec.convert(description, SpooledStreamInfo)
            if folder.name != info.stream or len(bytes.fromhex(info.stream)) != 16:
                raise ValueError("it is of another stream")
            files = cls(folder, info, 0)
            messages: list[WrittenMessage] = []
            for number, record in log.records(check_payloads=False):
                if len(record.note) != _NOTE.size:
                    raise ValueError("a record has another form")
                at, floor, position, samples = _NOTE.unpack(record.note)
                if max(at, floor, position) < MAX_NUMBER and (not messages or at > messages[-1].number):
                    place = Place(number, record.payload_offset, record.end)
                    messages.append(WrittenMessage(at, floor, position, samples, len(record.payload), place))
            files.count([message.place for message in messages])
        except (StorageError, ValueError, OSError) as exc:  # ValueError: also what msgspec raises
            lock.close()
            raise StorageError(f"{folder} holds no samples of a worker that can be read: {exc}") from exc
        files._lock, files._log = lock, log
        return files, messages

    # --- the reading thread ---

    def count(self, places: Sequence[Place]) -> None:
        """Count messages that were written."""
        for place in places:
            self._needed[place.number] = self._needed.get(place.number, 0) + 1

    def release(self, place: Place) -> None:
        """Forget a message. Its file can be removed once it holds no other one."""
        self._needed[place.number] -= 1
        if not self._needed[place.number]:
            del self._needed[place.number]
            self.has_obsolete = True

    def first_needed(self) -> int | None:
        """Return the number of the first file that is needed; None: there is none. Reset `has_obsolete`."""
        self.has_obsolete = False
        return min(self._needed, default=None)

    def load(self, place: Place) -> Body:
        """Return a message's body.

        Raises:
            StorageError: it cannot be read, or it is damaged.
        """
        path = self.folder / f"{place.number:012d}.seg"
        start = place.payload_offset - _HEAD_BYTES
        try:
            with open(open_own(path, os.O_RDONLY), "rb") as file:
                file.seek(start)
                record = file.read(place.end - start)
        except OSError as exc:
            raise StorageError(f"{path} cannot be read: {exc}") from exc
        for found in scan(memoryview(record), 0, True):
            return [found.payload]
        raise StorageError(f"{path} is damaged at byte {start}")

    # --- the writing thread ---

    def write(self, messages: Sequence[HeldMessage]) -> tuple[list[Place], StorageError | None]:
        """Write messages in order. Return the places of those that were written, and what stopped the others."""
        places: list[Place] = []
        try:
            log = self._log if self._log is not None else self._open()
            for message in messages:
                assert message.body is not None
                note = _NOTE.pack(message.number, message.floor, message.position, message.samples)
                places.append(log.append(note, message.body))
        except StorageError as exc:
            return places, exc
        except OSError as exc:
            return places, StorageError(f"{self.folder} cannot be used: {exc}")
        return places, None

    def _open(self) -> RecordLog:
        # The samples are readable here, so that no other user of this machine may enter.
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if self._lock is None:
            self._lock = FolderLock(self.folder, "a worker's spool")
        self._log = RecordLog(
            self.folder,
            FORMAT,
            msgspec.to_builtins(self.info),
            sync="never",  # a disk that others use may take half a minute for it, and the memory fills meanwhile
            segment_bytes=self._segment_bytes,
            calls=self._calls,
            mode=0o600,
        )
        return self._log

    def remove_before(self, number: int) -> None:
        """Remove the files below a number."""
        if self._log is not None:
            self._log.remove_before(number)

    def remove(self) -> None:
        """Remove all files and the folder."""
        log, self._log = self._log, None
        if log is None:
            return
        numbers = log.numbers
        log.close()
        with suppress(OSError):
            for number in numbers:
                log.path(number).unlink(missing_ok=True)
            self._unlock()
            (self.folder / LOCK_FILE).unlink(missing_ok=True)
            self.folder.rmdir()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def close(self) -> None:
        """Close the files, and release the folder."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._unlock()


def left_streams(spool_dir: Path) -> Iterator[tuple[StreamFiles, list[WrittenMessage]]]:
    """Yield the files of processes that have ended, the oldest first, each locked. Others are logged or in use."""
    try:
        folders = sorted((path for path in spool_dir.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    except OSError:
        return  # there is no spool
    for folder in folders:
        try:
            found = StreamFiles.left(folder)
        except StorageError as exc:
            logger.warning("worker.spool_dir: %s", exc)
            continue
        if found is not None:
            yield found
