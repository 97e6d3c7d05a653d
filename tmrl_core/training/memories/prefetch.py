"""Prefetching: a thread prepares blocks of batches while training uses the previous block."""

# Theory of operation
#
# Batches are the same as without prefetching: one thread samples blocks one after the other, from the same generator.
# Before anything is appended to the memory, and before its state is saved, prepared blocks that were not used are
# discarded and the generator is reset. A run with prefetching, one without and one that resumes from a checkpoint
# therefore sample the same rows.
#
# Prefetching pays if preparation takes long compared with an update: for batches that are copied to a GPU, and for
# images (a third more updates on a CPU with a free core). Batches of small observations are so cheap that a CPU gains
# nothing. It is therefore off on a CPU by default, and never on for priorities, since each batch depends on the
# previous one.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

BESIDE = threading.Lock()
"""Lock that a thread of any `Prefetch` holds while it prepares a block. While another thread holds the lock, no
prefetching thread uses a device, as required while a CUDA graph is captured
(docs.pytorch.org/docs/stable/notes/cuda.html, "CUDA graphs")."""


def _prepare_locked(prepare: Callable[[], T]) -> T:
    with BESIDE:
        return prepare()


class Prefetch(Generic[T]):
    """A bounded queue of blocks, filled by its own thread.

    One thread at a time prepares blocks: the queue's thread while the queue is not empty, otherwise the caller of
    `take`. The caller owns this object. The thread ends with `close`, or when the object is deleted.

    Args:
        depth: maximum number of blocks that wait or are being prepared; 0: no thread, and `take` prepares each block.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._executor: ThreadPoolExecutor | None = None
        self._queue: deque[Future[T]] = deque()

    def take(self, prepare: Callable[[], T]) -> T:
        """Return the next block; wait until it is ready.

        Args:
            prepare: makes the next block. An error that it raises is raised by the call that would have returned the
                block.
        """
        taken = self._queue.popleft().result() if self._queue else prepare()
        if self.depth and self._executor is None:
            self._executor = ThreadPoolExecutor(1, "prefetch")
        while len(self._queue) < self.depth:
            assert self._executor is not None
            self._queue.append(self._executor.submit(_prepare_locked, prepare))
        return taken

    def stop(self) -> list[T]:
        """Wait until no block is being prepared. Return the blocks that were not taken, oldest first.

        Afterwards the thread is idle until the caller takes the next block.
        """
        queue, self._queue = self._queue, deque()
        begun = [future for future in queue if not future.cancel()]
        # A failed preparation leaves no block. The next request for the block raises the error.
        return [future.result() for future in begun if future.exception() is None]

    def close(self) -> None:
        """End the thread; the next `take` starts it again."""
        self.stop()
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
