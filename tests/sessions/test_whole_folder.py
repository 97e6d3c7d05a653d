"""A folder appears completely or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tmrl_core.errors import StorageError
from tmrl_core.sessions.whole_folder import whole_folder


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "in" / "target"
    with whole_folder(target) as folder:
        (folder / "file").write_text("text")
        assert not target.exists()
    assert (target / "file").read_text() == "text"
    assert list(target.parent.iterdir()) == [target]


def test_after_an_exception_nothing_is_left(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), whole_folder(tmp_path / "target") as folder:
        (folder / "file").write_text("text")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="exists already"), whole_folder(tmp_path):
        pass


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be made"), whole_folder(tmp_path / "file" / "target"):
        pass
