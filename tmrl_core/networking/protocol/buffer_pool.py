"""Memory for the bodies of received messages, used again as soon as nobody looks at it any more.

Fresh memory costs more than filling it: the system hands it out page by page, zeroed, at a third of what receiving a
message takes in all. A body goes back into the pool when the last view of it, a decoded column for instance, is gone.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

LEAST_BYTES = 65_536
"""Smaller bodies are made fresh: the allocator keeps memory of that size by itself."""


class _Lease(np.ndarray):
    """Owner of a body's memory: the memory becomes free when the lease is collected.

    Callers get a memoryview of it only: an array made from the lease could refer to the memory directly.
    """


class BodyPool:
    """Memory to receive into.

    Args:
        keep_bytes: most bytes of free memory kept; half of it for bodies of one size, which is what most streams have.

    `take` belongs to one thread; memory may come back in any.
    """

    def __init__(self, keep_bytes: int = 16 << 20) -> None:
        self.keep_bytes = keep_bytes
        self._free: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def take(self, length: int) -> memoryview:
        """Memory of `length` bytes with any content."""
        if length < LEAST_BYTES or length > self.keep_bytes // 2:
            return np.empty(length, np.uint8).data
        size = 1 << (length - 1).bit_length()
        free = self._free.get(size)
        if free is None:
            # A bound of its own, since counting across threads that return memory would take a lock in a finalizer.
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
        """Give up what other sizes keep, if all together keep too much."""
        if sum(len(free) * size for size, free in self._free.items()) > self.keep_bytes // 2:
            for size, free in self._free.items():
                if size != wanted:
                    free.clear()
