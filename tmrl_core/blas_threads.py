"""One thread for NumPy's linear algebra while a worker or a policy acts.

A policy acts on one observation at a time. Further threads of BLAS then cost more than they compute: on a busy machine,
each product waits until the operating system has run them all. The command line limits them by environment variables,
which a library reads once. A worker or a policy that is used from Python limits them for the time that it acts.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables in which a user has set a number of threads, which then stays."""
MIN_VALUES = 9_216
"""Number of values of a matrix from which on OpenBLAS multiplies a vector with several threads."""
_NAMES = (
    *(
        (f"{prefix}openblas_get_num_threads{suffix}", f"{prefix}openblas_set_num_threads{suffix}")
        for prefix in ("scipy_", "")
        for suffix in ("64_", "")
    ),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)
"""Functions of the libraries that NumPy may be linked with: OpenBLAS under the names of its wheels and others, MKL."""


class OneThread:
    """Limit of BLAS to one thread, as a context, in the whole process. Blocks may be nested, also in several threads.

    The last block to end restores the number. Nothing is done with an unknown library (Accelerate on macOS, BLIS), or
    if one of `THREAD_VARIABLES` is set.

    Attributes:
        wanted: False: a further block changes nothing, since another one is entered, or BLAS cannot or must not be
            limited. A function that acts asks this first, because a block costs a microsecond.
    """

    def __init__(self) -> None:
        self.wanted = True
        self._depth = 0
        self._lock = threading.Lock()
        self._before = 1
        self._functions: tuple[Callable[[], int], Callable[[int], object]] | None = None
        self._looked = False

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            self.wanted = False
            if not self._looked:
                self._looked = True
                if not any(name in os.environ for name in THREAD_VARIABLES):
                    self._functions = thread_functions()
            if self._functions is not None:
                get, put = self._functions
                self._before = get()
                if self._before > 1:
                    put(1)

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth or self._functions is None:
                return
            self.wanted = True
            if self._before > 1:
                self._functions[1](self._before)
                self._before = 1


one_blas_thread = OneThread()
"""`with one_blas_thread:` limits BLAS in a loop that steps a worker or a policy itself."""


def thread_functions() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return the functions that get and set the number of threads of NumPy's BLAS; None: it is another library."""
    for library in _libraries():
        for get, put in _NAMES:
            try:
                return getattr(library, get), getattr(library, put)
            except AttributeError:
                continue
    return None


def _libraries() -> Iterator[ctypes.CDLL]:
    """Yield the loaded libraries that may have the functions."""
    # Symbols of a module are also looked up in the libraries that it is linked with, but for Windows.
    modules = [sys.modules.get(f"numpy.{core}._multiarray_umath") for core in ("_core", "core")]
    paths = [Path(str(module.__file__)) for module in modules if module is not None]
    for folder in [path.parents[2] / "numpy.libs" for path in paths]:
        paths += folder.glob("*openblas*.dll")
    for path in paths:
        try:
            yield ctypes.CDLL(str(path))
        except OSError:
            continue
