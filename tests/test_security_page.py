"""The page that says what is promised names tests that there are, for each promise."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "security.md"


def promises() -> list[list[str]]:
    """The last cell of each promise: the tests in it."""
    rows: list[list[str]] = []
    in_table = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        in_table = line.startswith("|") and (in_table or "| tested in |" in line)
        if in_table and "---" not in line and "| tested in |" not in line:
            rows.append(re.findall(r"`([^`]+)`", line.rstrip("|").rpartition("|")[2]))
    return rows


def test_each_promise_names_existing_tests() -> None:
    rows = promises()
    assert len(rows) > 20
    assert all(rows), "a promise without a test"
    assert [name for row in rows for name in row if not (TESTS / name).exists()] == []
