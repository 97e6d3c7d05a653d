"""The recording of a worker: its samples as sessions in a folder, written beside the environment loop."""

# Theory of operation
#
# The samples that the uplink hands over go to a folder as well as to the link (`--record`), so every schedule records.
# A thread writes, so a slow disk delays no step. The records are messages of a worker, not whole sessions: memory stays
# bounded, and a killed process loses one message. `SessionJoiner` joins episodes when they are read, and compares their
# steps and returns with the episodes' records, since a step that vanishes on the way leaves no other trace.
#
# Hand-overs that wait for the thread become one record: with one step in each hand-over, that writes 4.7 times as many.
# The ranges of actions are in the recording too, written before the samples that widen them.
#
# A recording must not disturb the run: the thread that collects only appends to a queue, under a short lock, and a
# thread of its own writes. The queue is bounded in bytes, and one hand-over always fits, or a single large one would
# never be recorded. Beyond that, samples are left out of the recording and counted; they are sent all the same.
#
# Up to 128 hand-overs of one layout become one record. What was written is removed from the queue only afterwards, so
# that its bytes count until they are really gone. If a joined record fails, each hand-over is tried alone: one bad
# value must not cost the other 127.

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

from tmrl_core.errors import CodecError, StorageError, StorageFullError
from tmrl_core.samples import Chunk, EpisodeRecord, same_layout
from tmrl_core.sessions.session_files import RECORD_BYTES, SessionWriter

logger = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
"""Maximum bytes of samples that wait for the disk."""
MAX_JOINED = 128
JOINED_BYTES = RECORD_BYTES // 4
"""Hand-overs that waited while the thread wrote become one record, up to this number and about this size."""

HandOver: TypeAlias = tuple[list[Chunk], list[EpisodeRecord]]


class Recording:
    """Writes samples in a thread, so that a slow disk never delays an environment.

    It never raises an error: after a failure, samples are missing in the recording only. Full disks are tried again
    with each hand-over; a warning tells of the first failure, another message of the end of a failure.

    Args:
        writer: writes the sessions; `close` closes it.
        queue_bytes: maximum bytes of samples that wait; further ones are left out.

    Attributes:
        left_out: number of samples that could not be recorded.
    """

    def __init__(self, writer: SessionWriter, queue_bytes: int = QUEUE_BYTES) -> None:
        self.left_out = 0
        self._writer = writer
        self._queue_bytes = queue_bytes
        # Guarded by `_changed`: what waits, its bytes, and whether more may come.
        self._changed = threading.Condition()
        self._waiting: deque[HandOver] = deque()
        self._bytes = 0
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="tmrl-recording", daemon=True)
        self._thread.start()

    def put(self, chunks: list[Chunk], records: list[EpisodeRecord]) -> None:
        """Record samples and the records of their episodes, soon."""
        size = sum(chunk.nbytes for chunk in chunks)
        with self._changed:
            fits = self._bytes + size <= self._queue_bytes or not self._waiting
            if fits and not self._closed:
                self._waiting.append((chunks, records))
                self._bytes += size
                self._changed.notify()
        if not fits:
            self._leave_out(chunks, f"the disk of {self._writer.folder} is too slow for these samples")

    def close(self) -> None:
        """Write what waits, and let another process use the folder; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                waiting = list(islice(self._waiting, MAX_JOINED))
            handed = _together(waiting)
            self._write(handed)
            with self._changed:
                for chunks, _ in handed:
                    self._waiting.popleft()
                    self._bytes -= sum(chunk.nbytes for chunk in chunks)

    def _write(self, handed: Sequence[HandOver]) -> None:
        try:
            self._writer.append(
                [chunk for chunks, _ in handed for chunk in chunks], [record for _, ended in handed for record in ended]
            )
        except (StorageError, CodecError) as exc:
            if len(handed) > 1:
                # They are one record, so none is written: some may fit.
                for one in handed:
                    self._write([one])
                return
            next_step = "" if isinstance(exc, StorageFullError) else " Restart the worker to record again."
            self._leave_out(handed[0][0], f"{str(exc).rstrip('.')}.{next_step}")
            return
        except Exception:
            # A defect of this package. Without this thread, the samples would wait, and then count as too many.
            logger.exception("the recording of sessions failed")
            for chunks, _ in handed:
                self._leave_out(chunks, "the recording failed (see the error above); please report it")
            return
        if self._failing:
            self._failing = False
            logger.warning(
                "%s: sessions are recorded again; %d samples are missing", self._writer.folder, self.left_out
            )

    def _leave_out(self, chunks: list[Chunk], why: str) -> None:
        self.left_out += sum(chunk.rows for chunk in chunks)
        if not self._failing:
            self._failing = True
            logger.warning("sessions are not recorded now; the worker goes on without: %s", why)


def _together(handed: Sequence[HandOver]) -> Sequence[HandOver]:
    """Return the first hand-over, and those after it that become one record with it."""
    room = JOINED_BYTES
    for count, (chunks, _) in enumerate(handed):
        room -= sum(chunk.nbytes for chunk in chunks)
        if count and (room < 0 or len(chunks) != 1 or not same_layout(handed[0][0][0], chunks[0])):
            return handed[:count]
        if len(chunks) != 1:
            return handed[:1]
    return handed
