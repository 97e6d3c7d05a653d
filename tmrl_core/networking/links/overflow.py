"""Move samples that wait for a Server or a trainer from a worker's memory into files, without delaying its loop."""

# Theory of operation
#
# A worker with `when_full: drop_oldest` need not lose samples in an outage: what waits long goes to its own disk. Three
# files share the work. `StreamSender` decides which bodies leave the memory (the oldest first) and loads each again
# when it is sent. This file decides when, and has the thread that writes. `spools/stream_files.py` has the files.
#
# When: if messages are held and none was acknowledged for 1 s while no trainer takes them, or for 10 s while one does,
# or if half of `worker.queue_bytes` is used. While acknowledgements come, nothing is written. The two times differ
# because a trainer that computes long updates acknowledges rarely, and a flash card must not take every sample then.
# Rejected: writing each message before it is sent, which puts each sample on the flash card; the kill of a worker loses
# at most a second of an outage either way.
#
#     waits 1 s -> batch of 4 MB -> thread writes -> result used in the I/O thread (`_done`) -> next batch
#     acknowledged -> files without a needed message are removed
#
# One job at a time (`_busy`), in 4 MB: memory that a batch has freed is known before the next one begins, and what was
# acknowledged while it was written need not be written. `StreamSender` is touched in the I/O thread alone; the writing
# thread sees only the messages that it was given.
#
# Failure. If the disk takes no more, one warning says so, and the memory has its own bound again (`failed`): then its
# oldest message is dropped, and what is on the disk stays. It is tried again after all samples were acknowledged. At
# the end of the process the thread is waited for up to 30 s; a disk that does not answer must not keep a robot's
# program from ending.

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from tmrl_core.errors import StorageError
from tmrl_core.networking.protocol.delivery import HeldMessage, StreamSender
from tmrl_core.networking.spools.stream_files import StreamFiles
from tmrl_core.rate_limited_log import RateLimitedLog
from tmrl_core.storage import Place

logger = logging.getLogger(__name__)

CHECK_S = 0.5
"""Time between two calls of `Overflow.check` while messages wait."""
_AWAY_S = 1.0
"""Time without an acknowledgement after which messages are written if no trainer takes them."""
_BUSY_S = 10.0
"""The same time while a trainer takes them: one that computes long updates acknowledges rarely, and needs no disk."""
_BATCH_BYTES = 4 << 20
"""Bytes that are written before the results are used, so that freed memory is known early."""
_JOIN_S = 30.0


class Overflow:
    """Move the oldest bodies of a sender into files while no acknowledgements come, or while its memory fills.

    A thread writes one batch at a time, so that neither the I/O thread nor the application waits for the disk. The I/O
    thread makes all calls; `close` follows its end.

    Args:
        sender: end of the stream, whose store is `files`.
        files: files of the stream.
        post: runs a function in the I/O thread.
        on_written: called in the I/O thread once a batch was written, so that `check` can begin the next one.
        restored: True: the files are of an earlier process.
    """

    def __init__(
        self,
        sender: StreamSender,
        files: StreamFiles,
        post: Callable[[Callable[[], None]], None],
        on_written: Callable[[], None],
        *,
        restored: bool = False,
    ) -> None:
        self._sender = sender
        self.files = files
        self._post = post
        self._on_written = on_written
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._result: tuple[Sequence[HeldMessage], list[Place], StorageError | None] | None = None
        self.has_files = restored
        """True: samples are on the disk, or on the way there."""
        self.failed = False
        """True: the disk takes nothing, so samples wait in memory until all of them are acknowledged."""
        self._since: float | None = None
        """Time of the last acknowledgement, or of the first message since none waited; None: none waits."""
        self._releases = 0
        self._begun_line = RateLimitedLog(logger.info, "about samples on the disk")

    def check(self, now: float, receiving: bool) -> bool:
        """Begin to write if it is time to. Return True if this must be called again after `CHECK_S`.

        Args:
            now: the present time, monotonic.
            receiving: True: a trainer takes samples.
        """
        sender = self._sender
        if not sender.held_messages:
            self._since = None
            self.failed = False
        elif self._since is None or sender.releases != self._releases:
            self._since = now
        self._releases = sender.releases
        if self.files.has_obsolete and not self._busy:
            self._remove_obsolete()
        if not self._busy and not self.failed and self._since is not None:
            waits = now - self._since >= (_BUSY_S if receiving else _AWAY_S)
            if waits or sender.memory_bytes > sender.queue_bytes // 2:
                self._write(now)
        return self._since is not None or self._busy or self.files.has_obsolete

    def _remove_obsolete(self) -> None:
        first = self.files.first_needed()
        if first is None:
            self.has_files = False
            self._do(self.files.remove)
        else:
            self._do(lambda: self.files.remove_before(first))

    def _write(self, now: float) -> None:
        messages = self._sender.take_unwritten(_BATCH_BYTES)
        if not messages:
            return
        if not self.has_files:
            self.has_files = True
            self._begun_line(f"samples that wait for the Server or the trainer are written to {self.files.folder}", now)

        def work() -> None:
            self._result = (messages, *self.files.write(messages))

        self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tmrl-worker-spool", daemon=True)
            self._thread.start()
        self._busy = True
        self._jobs.put(work)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("the spool's writing thread continues after an error")
            self._post(self._done)
            self._post(self._on_written)

    @property
    def bound(self) -> str:
        """Return the setting that limits the samples that wait now."""
        sender = self._sender
        full = sender.written_bytes + _BATCH_BYTES > sender.store_bytes
        return "worker.spool_bytes" if full and not self.failed else "worker.queue_bytes"

    def _done(self) -> None:
        """Use the result of the last job, in the I/O thread."""
        self._busy = False
        result, self._result = self._result, None
        if result is None:
            return
        messages, places, error = result
        self.files.count(places)
        self._sender.written(messages, places)
        if error is not None:
            if not self.failed:
                logger.warning(
                    "worker.spool_dir: %s. Until all samples are acknowledged, further ones wait in memory only "
                    "(worker.queue_bytes). Make room, or set another worker.spool_dir",
                    str(error).rstrip("."),
                )
            self.failed = True

    def end_thread(self) -> None:
        """End the thread, after its last job."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout=_JOIN_S)
            if self._thread.is_alive():
                logger.warning("%s does not answer", self.files.folder)
                self.failed = True
                return
            self._thread = None
        self._done()

    def write_all(self) -> None:
        """Write all that is in memory, in the calling thread. `end_thread` was called before."""
        while not self.failed and (messages := self._sender.take_unwritten(_BATCH_BYTES)):
            self._result = (messages, *self.files.write(messages))
            self._done()

    def close(self) -> int:
        """Close the files, and remove them if they are not needed. Return the number of samples that stay in them."""
        self.end_thread()
        if self._thread is not None:
            return self._sender.samples_written
        if self.files.first_needed() is None:
            self.files.remove()
        self.files.close()
        return self._sender.samples_written
