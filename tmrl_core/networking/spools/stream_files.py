"""Bodies of a worker's unacknowledged messages in files: `worker.spool_dir`.

Each stream has a folder of its own, named by its id and locked by its process, so workers never share one. Its files
are a `RecordLog`: each record holds one message, in the order of the numbers. Files are removed as a whole, once none
of their messages is needed.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tmrl_core.errors import StorageError
from tmrl_core.networking.protocol.delivery import Body, HeldMessage
from tmrl_core.storage import OS, FileCalls, FolderLock, Place, RecordLog, open_own
from tmrl_core.storage.format import record_buffers, scan
from tmrl_core.storage.lock import LOCK_FILE
from tmrl_core.storage.log import SEGMENT_BYTES

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


class StreamFiles:
    """Files of one stream. A `BodyStore`.

    One thread writes (`write`, `remove_before`, `remove`); another one reads and counts (`load`, `count`, `release`).
    Nothing is created before the first `write`.

    Args:
        folder: folder of the stream. Its parent holds those of other streams.
        description: description of the stream, in each file.
        limit_bytes: maximum bytes of bodies, which the caller observes.
        calls: implementation of the file operations.
    """

    def __init__(
        self, folder: Path, description: Mapping[str, Any], limit_bytes: int, *, calls: FileCalls = OS
    ) -> None:
        self.folder = folder
        self._description = dict(description)
        self._segment_bytes = max(1, min(SEGMENT_BYTES, limit_bytes // _FILES))
        self._calls = calls
        self._lock: FolderLock | None = None
        self._log: RecordLog | None = None
        self._needed: dict[int, int] = {}
        """Number of needed messages in each file, by its number."""
        self.has_obsolete = False
        """True: a file is not needed any more, see `first_needed`."""

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
        record = bytearray(place.end - start)
        try:
            with open(open_own(path, os.O_RDONLY), "rb", buffering=0) as file:
                file.seek(start)
                filled = 0
                while filled < len(record):
                    n = file.readinto(memoryview(record)[filled:])
                    if not n:
                        break
                    filled += n
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
            self._description,
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
            self.folder.parent.rmdir()  # fails while other streams have folders there

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
