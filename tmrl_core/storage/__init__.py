"""Append-only files of checksummed records, and a lock on their folder.

    from tmrl_core.storage import FolderLock, RecordLog

    with FolderLock(folder, "the spool"):
        log = RecordLog(folder, "spool", {"version": 1})
        if log.torn_bytes:
            ...                                     # an incomplete record of a killed process was removed
        for record in log.records():
            handle(record.note, record.payload)     # bytes, memoryview
        log.append(b"name and size", [head, body])  # completely, or StorageError and not at all
        log.remove_before(number)                   # complete old files

`format.py` defines the bytes, `segment_file.py` one file, `log.py` a folder of files and `lock.py` the lock.
`own_files.py` writes without following links. Below this package are only the errors.
"""

from tmrl_core.storage.format import MAX_NOTE_BYTES, Record
from tmrl_core.storage.lock import FolderLock
from tmrl_core.storage.log import Place, RecordLog
from tmrl_core.storage.own_files import open_now, open_own, read_whole, write_whole
from tmrl_core.storage.segment_file import OS, FileCalls, SegmentFile, SegmentReader

__all__ = [
    "MAX_NOTE_BYTES",
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
    "read_whole",
    "write_whole",
]
