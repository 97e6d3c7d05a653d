"""The rules of conftest.py hold."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from tmrl_core.config import data_folder


def _nothing() -> None:
    """What the child process would run."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_fork_raises() -> None:
    with pytest.raises(RuntimeError, match="spawn"):
        multiprocessing.get_context("fork").Process(target=_nothing).start()


def test_data_folder_is_the_tests_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert tmp_path_factory.getbasetemp() in data_folder().parents
    assert data_folder() != Path.home()
