"""Append-only files of checksummed records, and a lock on the folder that they lie in.

    from tmrl_core.storage import FolderLock, RecordLog

    with FolderLock(folder, "the spool"):
        log = RecordLog(folder, "spool", {"version": 1})
        if log.torn_bytes:
            ...                                     # what a killed process left half written was cut off
        for record in log.records():
            handle(record.note, record.payload)     # bytes, memoryview
        log.append(b"who and which", [head, body])  # whole, or StorageError and nothing
        log.remove_before(number)                   # whole old files

`format.py` is the bytes, `files.py` one file, `log.py` a folder of them, `lock.py` the lock, `own_files.py` writing
without following links. No layer is below this one but the errors.
"""

from tmrl_core.storage.files import OS, FileCalls, SegmentFile, SegmentReader
from tmrl_core.storage.format import MAX_NOTE_BYTES, MAX_PAYLOAD_BYTES, Record
from tmrl_core.storage.lock import FolderLock
from tmrl_core.storage.log import Place, RecordLog
from tmrl_core.storage.own_files import open_now, open_own, write_whole

__all__ = [
    "MAX_NOTE_BYTES",
    "MAX_PAYLOAD_BYTES",
    "OS",
    "FileCalls",
    "FolderLock",
    "Place",
    "Record",
    "RecordLog",
    "SegmentFile",
    "SegmentReader",
    "open_now",
    "open_own",
    "write_whole",
]
