"""One branch of records over a resume.

A killed trainer has written records after its latest checkpoint. The resumed trainer trains these updates again, so
both branches would overlap in every curve. A checkpoint therefore holds the position in `metrics.jsonl`, and a resume
moves what follows it to `metrics.cut.jsonl`.
"""

# Theory of operation
#
# For: one curve of a run that was killed and resumed. This file knows lines, records and byte positions. It knows
# neither checkpoints, which keep the position as plain numbers, nor sinks.
#
# In numbers: a checkpoint is written at update 1,000, when `metrics.jsonl` has 52,000 bytes. The trainer is killed at
# update 1,400; the file has 71,000 bytes by then. The resumed trainer begins at 1,000 again and gets other numbers,
# since its workers have played on. Without a cut, updates 1,000 to 1,400 have two branches in every picture, and every
# mean over them is wrong. So the bytes from 52,000 on move to `metrics.cut.jsonl`, and an event at update 1,000 takes
# their place.
#
# They are moved and not deleted, because they were measured, and are all that is known of what the killed trainer did.
#
# The order that matters:
#
# 1. The lines are appended to the cut file, and that file is flushed to the disk. A machine that ends now has them
#    twice.
#
# 2. The event is written over the first of them, and the file is cut behind it. A display that follows the file by its
#    size never sees it end without the event, which is how it recognizes the cut (`reading.py`).
#
# A checksum of the 64 KiB before the position tells whether the file is the one of the checkpoint. A user may have
# deleted it, or copied the checkpoint beside the file of another run; then nothing is cut, and the run goes on without.
# 64 KiB are some hundred records, each with its own time, so two runs do not agree in them by chance.
#
# Each sink does what it can with the result: TensorBoard gets a purge step, from which on it drops the old branch;
# wandb cannot delete steps and gets the event, which marks the place in its charts.
#
# Nothing is cut if only events follow the position. A trainer that ends in order writes its end after its last
# checkpoint, and no update is repeated then.

from __future__ import annotations

import logging
import os
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from tmrl_core.metrics import names
from tmrl_core.metrics.reading import records_of
from tmrl_core.metrics.records import Axis, MetricRecord, encode_line, record
from tmrl_core.storage import open_now, open_own

logger = logging.getLogger(__name__)

CUT_NAME = "metrics.cut.jsonl"
"""Name of the file of removed records, beside `metrics.jsonl`."""
# Also the most that is read for `Cut.last`: the latest value of each axis is in the latest records.
_TAIL_BYTES = 64 << 10
_BLOCK_BYTES = 1 << 20


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Place at which the records of a resumed run continue.

    Attributes:
        last: the latest records before it.
        event: the record of the removal, which is the next one in the file; None: nothing was removed.
    """

    last: tuple[MetricRecord, ...]
    event: MetricRecord | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began, at the latest record."""
        return max((record.elapsed_s for record in self.last), default=0.0)

    def next_step(self, axis: Axis) -> int:
        """Return the first position on an axis, as a whole number, after the remaining records."""
        return 1 + max((int(record.at(axis) or 0) for record in self.last), default=-1)


def position_in(path: Path) -> tuple[int, int] | None:
    """Return the end of a file's last complete line, for `cut_after`; None: the file has none.

    Returns:
        Bytes up to there, and a checksum of the latest of them. The checksum tells the file of another run.
    """
    try:
        with open(path, "rb", opener=open_now) as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            # Up to the last line end: a process that was killed in a write has left half a line.
            end = start + file.read(_TAIL_BYTES).rfind(b"\n") + 1
            return (end, _checksum(file, end)) if end > start else None
    except OSError:  # a checkpoint without a position is worth more than none
        return None


def cut_after(path: Path, position: Sequence[int] | None, *, updates: int, elapsed_s: float) -> Cut | None:
    """Move the lines after a position to the file `CUT_NAME` in the same folder, and write an event in their place.

    Nothing is moved if only events follow, as after a trainer that ended in order.

    Args:
        path: the file.
        position: a result of `position_in`; None: there is none.
        updates: number of updates at the checkpoint.
        elapsed_s: seconds from the start of the run to the checkpoint.

    Returns:
        The place; None: there is no position, or the file is another run's.

    Raises:
        OSError: the lines cannot be moved. None of them is lost.
    """
    if position is None or position_in(path) is None:
        return None
    end, checksum = position
    # Not through a link: the folder may be one that another user has prepared.
    with open(path, "r+b", opener=open_own) as file:
        if os.fstat(file.fileno()).st_size < end or _checksum(file, end) != checksum:
            logger.info("%s is not the file of this checkpoint, so no record is cut", path)
            return None
        start = max(0, end - _TAIL_BYTES)
        file.seek(start)
        last = tuple(records_of(file.read(end - start)))
        lost = records_of(file.read())
        if all(made.kind == "event" for made in lost):
            return Cut(last=(*last, *lost))
        file.seek(end)
        with open(path.with_name(CUT_NAME), "ab", opener=open_own) as moved:
            shutil.copyfileobj(file, moved, _BLOCK_BYTES)
            moved.flush()
            # A machine that ends here has these lines twice, but never lacks them.
            os.fsync(moved.fileno())
        event = _event(len(lost), last, updates, elapsed_s)
        # A reader that follows the file recognizes the cut by this event, so the file never ends without it.
        file.seek(end)
        file.write(encode_line(event))
        file.truncate()
        return Cut(last=last, event=event)


def _event(lost: int, last: Sequence[MetricRecord], updates: int, elapsed_s: float) -> MetricRecord:
    text = (
        f"the previous trainer ended without a last checkpoint; its {lost:,} records after the checkpoint at update "
        f"{updates:,} are now in {CUT_NAME}"
    )
    made = record(
        "event",
        {names.EVENT: names.EVENT_CUT, names.MESSAGE: text, names.CUT_RECORDS: lost},
        step=updates,
        elapsed_s=elapsed_s,
    )
    # `record` takes them from the values, and the event has none: it stands where the last kept record stood.
    return msgspec.structs.replace(made, env_steps=max((found.env_steps or 0 for found in last), default=0))


def _checksum(file: BinaryIO, end: int) -> int:
    start = max(0, end - _TAIL_BYTES)
    file.seek(start)
    return zlib.crc32(file.read(end - start))
