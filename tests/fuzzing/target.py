"""What is fuzzed: something that takes bytes, and what may come of any bytes."""

from __future__ import annotations

import tracemalloc
from abc import ABC, abstractmethod

from tests.fuzzing.mutation import Mutator


class Target(ABC):
    """Something that takes bytes of strangers.

    A case is a string of bytes; all that happens follows from it, so that it can be kept in a file and tried again.
    """

    name = ""
    allowed: tuple[type[Exception], ...] = ()
    """The documented errors."""

    @abstractmethod
    def make(self, mutator: Mutator) -> bytes:
        """A new case."""

    @abstractmethod
    def run(self, case: bytes) -> None:
        """Have the case taken; checks what comes of it.

        Raises:
            AssertionError: it is not what should come of it.
        """

    @abstractmethod
    def limit_bytes(self, case: bytes) -> int:
        """Most memory that this case may take at any time."""

    def close(self) -> None:  # noqa: B027  # most leave nothing
        """Remove what was left on the disk."""

    def attempt(self, case: bytes, *, traced: bool = False) -> bool:
        """Run a case; whether it was taken, not refused with a documented error.

        Raises:
            AssertionError: it took more memory than it may, or `run` found fault.
            Exception: another error than the documented ones.
        """
        if not traced:
            try:
                self.run(case)
            except self.allowed:
                return False
            return True
        tracemalloc.start()
        try:
            taken = self.attempt(case)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        limit = self.limit_bytes(case)
        assert peak <= limit, f"{peak} bytes of memory for a case of {len(case)} bytes; {limit} are allowed"
        return taken
