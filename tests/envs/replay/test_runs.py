"""Runs of rows: placement, reuse, growth, gathering, and what a failure leaves."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tmrl_core.envs.replay.runs import Runs
from tmrl_core.errors import StorageFullError
from tmrl_core.samples.columns import Array

Run = tuple[Array, Array]


@pytest.fixture(params=["ram", "mapped"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "mapped" else None


def make_run(length: int, number: int) -> Run:
    values = np.arange(length) + 1000.0 * number + 1
    return np.stack([values, -values], axis=1).astype(np.float32), values.astype(np.int64)


def joined(runs: Sequence[Run]) -> tuple[Array, list[Array]]:
    lengths = np.array([len(run[1]) for run in runs], np.int64)
    empty = make_run(0, 0)
    return lengths, [np.concatenate([empty[column], *(run[column] for run in runs)]) for column in range(2)]


def check_equal(runs: Runs, expected: Sequence[Run], length: int) -> None:
    pairs, numbers = runs.gather(np.arange(len(expected)), length)
    assert pairs.shape == (len(expected), length, 2)
    assert numbers.shape == (len(expected), length)
    for row, (pair, number) in enumerate(expected):
        np.testing.assert_array_equal(pairs[row, : len(pair)], pair)
        np.testing.assert_array_equal(numbers[row, : len(number)], number)
        assert not pairs[row, len(pair) :].any()
        assert not numbers[row, len(number) :].any()


def test_runs_come_back_with_zeros_behind_them(folder: Path | None) -> None:
    expected = [make_run(length, number) for number, length in enumerate([3, 1, 5, 2])]
    check_equal(Runs.of(*joined(expected), folder), expected, 5)
    check_equal(Runs.of(*joined(expected), folder), expected, 8)


def test_the_selector_decides_the_order(folder: Path | None) -> None:
    expected = [make_run(length, number) for number, length in enumerate([3, 1, 5])]
    pairs, numbers = Runs.of(*joined(expected), folder).gather(np.array([2, 0, 2]), 5)
    np.testing.assert_array_equal(numbers[0], expected[2][1])
    np.testing.assert_array_equal(pairs[2], expected[2][0])
    np.testing.assert_array_equal(numbers[1, :3], expected[0][1])


def test_no_runs_are_no_rows(folder: Path | None) -> None:
    runs = Runs.of(*joined([]), folder)
    check_equal(runs, [], 4)
    expected = [make_run(2, 1)]
    check_equal(runs.extended(*joined(expected)), expected, 2)
    check_equal(runs.extended(*joined([])), [], 2)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("longest", [1, 2, 30])
def test_they_are_the_last_ones_whatever_was_appended(folder: Path | None, seed: int, longest: int) -> None:
    draw = random.Random(seed)
    keep = draw.choice([1, 2, 7, 20])
    expected = [make_run(draw.randint(1, longest), number) for number in range(draw.randint(0, 10))]
    runs = Runs.of(*joined(expected), folder)
    for step in range(30):
        limit = None if draw.random() < 0.2 else keep
        count = min(draw.choice([0, 1, 1, 3, 9]), keep)
        new = [make_run(draw.randint(1, longest), 100 * step + number) for number in range(count)]
        before, held = runs, list(expected)
        runs = runs.extended(*joined(new), limit)
        expected = (expected + new)[-keep if limit else 0 :]
        assert len(runs.starts) == len(expected)
        check_equal(runs, expected, longest)
        check_equal(before, held, longest)


def test_a_pool_of_constant_size_copies_nothing() -> None:
    runs = Runs.of(*joined([make_run(10, number) for number in range(200)]))
    moved = []
    for number in range(2000):
        columns = runs.columns
        runs = runs.extended(*joined([make_run(10, number)]), 200)
        moved.append(runs.columns is not columns)
    assert sum(moved) == 1
    used = int(runs.starts.max()) + 10
    assert used <= 10 * (200 + 200 // 64 + 2)


def test_what_was_loaded_at_once_has_no_spare_rows() -> None:
    runs = Runs.of(*joined([make_run(10, number) for number in range(50)]))
    assert [len(column.rows) for column in runs.columns] == [500, 500]


def test_a_failed_write_leaves_the_runs_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [make_run(4, number) for number in range(3)]
    runs = Runs.of(*joined(expected), tmp_path)

    def full(descriptor: int, content: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageFullError, match="Make room"):
            runs.extended(*joined([make_run(4, 9)]), 3)
    check_equal(runs, expected, 4)
    check_equal(runs.extended(*joined([make_run(4, 9)]), 3), [*expected[1:], make_run(4, 9)], 4)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no files without names")
def test_its_files_have_no_names_and_close_with_it(tmp_path: Path) -> None:
    runs = Runs.of(*joined([make_run(4, 1)]), tmp_path)
    assert list(tmp_path.iterdir()) == []
    opened = {column._descriptor: os.fstat(column._descriptor).st_ino for column in runs.columns}
    del runs
    gc.collect()
    for descriptor, file in opened.items():
        with contextlib.suppress(OSError):  # EBADF, unless somebody else has the number by now
            assert os.fstat(descriptor).st_ino != file
