"""Pool of memory for bodies of received messages, reused once no view of it exists.

Fresh memory costs more than filling it: the system provides it page by page, zeroed, in a third of the total time of
receiving a message. A body returns to the pool when its last view, for instance a decoded column, is deleted.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 65_536
"""Smaller bodies are allocated each time: the allocator caches memory of that size."""


class _Lease(np.ndarray):
    """Owner of a body's memory: the memory becomes free when the lease is collected.

    Callers get a memoryview of it only: an array made from the lease could refer to the memory directly.
    """


class BodyPool:
    """Pool of memory to receive into.

    Args:
        keep_bytes: limit of free memory in the pool; half of it for bodies of one size, because most streams have one
            size.

    Only one thread may call `take`; memory may return in any thread.
    """

    def __init__(self, keep_bytes: int = 16 << 20) -> None:
        self.keep_bytes = keep_bytes
        self._free: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def take(self, length: int) -> memoryview:
        """Return memory of `length` bytes with arbitrary content."""
        if length < LEAST_BYTES or length > self.keep_bytes // 2:
            return np.empty(length, np.uint8).data
        size = 1 << (length - 1).bit_length()
        free = self._free.get(size)
        if free is None:
            # Each size has a separate limit, because a count across threads that return memory would need a lock in a
            # finalizer.
            free = self._free[size] = deque(maxlen=max(1, self.keep_bytes // 2 // size))
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size, np.uint8)
            self._trim(size)
        lease = memory.view(_Lease)
        weakref.finalize(lease, free.append, memory).atexit = False
        return lease.data[:length]

    def _trim(self, wanted: int) -> None:
        """Discard bodies of other sizes if the total exceeds the limit."""
        if sum(len(free) * size for size, free in self._free.items()) > self.keep_bytes // 2:
            for size, free in self._free.items():
                if size != wanted:
                    free.clear()
