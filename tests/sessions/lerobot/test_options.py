"""Options of the command line that only lerobot's datasets have."""

from __future__ import annotations

import pytest

from tests.cli.test_help import check_help


def test_help_names_each_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check_help("--sessions export", "--fps --task", monkeypatch, capsys)
