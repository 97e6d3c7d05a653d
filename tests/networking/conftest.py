"""Fixtures of the tests of the network."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def collect_garbage() -> Iterator[Callable[[], object]]:
    """Return a function that collects the garbage of this test.

    Older objects are left out: in a process that has run thousands of tests, visiting them takes a second of processor
    time for each call.
    """
    gc.freeze()
    yield gc.collect
    gc.unfreeze()
