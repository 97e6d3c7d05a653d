"""The count of entered functions: all threads of a window, and the package's own functions only."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from entered_functions import Calls, name_of, package_of, published

from tmrl_core.rate_limit import RateLimit


def call(times: int) -> None:
    for _ in range(times):
        RateLimit(1.0).allows(1, 1)


def test_the_calls_of_a_window_are_counted_in_each_thread() -> None:
    calls = Calls()
    before = sys.getprofile()

    def body(times: int) -> None:
        sys.setprofile(calls.watch)
        try:
            call(times)
        finally:
            sys.setprofile(before)

    def both(times: int) -> None:
        thread = threading.Thread(target=body, args=(times,))
        thread.start()
        thread.join()
        body(times)

    both(5)
    calls.begin()
    both(3)
    assert calls.entries()["rate_limit.py", name_of(RateLimit.allows.__code__)] == 6
    assert {file for file, _ in calls.entries()} == {"rate_limit.py"}, "the test's own calls count too"


def test_the_published_policies_are_those_of_the_interface() -> None:
    entries = {("a.py", "Interface.broadcast_model"): 7, ("a.py", "Interface.broadcast_model.<locals>.<listcomp>"): 9}
    assert published(entries) == 7
    assert published(Counter()) == 0


def test_a_file_belongs_to_the_two_uppermost_folders() -> None:
    files = ("errors.py", "samples/codec.py", "actor/policies/numpy/mlp.py")
    assert [package_of(file) for file in files] == ["errors.py", "samples", "actor/policies"]
