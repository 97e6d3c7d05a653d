"""Formats of datasets: a format of another package, and a dataset that no format recognizes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from tests.sessions.made_sessions import make_session
from tmrl_core import rooms
from tmrl_core.cli import sessions as command
from tmrl_core.errors import ConfigError, StorageError
from tmrl_core.sessions import Session, SessionWriter, read_sessions
from tmrl_core.sessions.formats import SessionFormat, format_of, session_formats
from tmrl_core.sessions.session_files import Spaces

BOX = spaces.Box(-1, 1, (2,), np.float32)


def made() -> SessionFormat:
    """Return a format whose datasets are empty files. What is read has as many ticks as the option says."""

    def read(path: str, *, of: Spaces | None, skip_bad: bool, ticks: int = 1) -> tuple[Spaces, Iterator[Session]]:
        assert (of, skip_bad) == (None, True)
        return (BOX, BOX), iter([make_session((BOX, BOX), ticks, 1, terminated=True)])

    def write(path: str, sessions: Iterable[Session], of: Spaces) -> int:
        Path(path).write_bytes(b"")
        return len(list(sessions))

    return SessionFormat(
        title="Bag",
        sign="a file *.bag",
        needs="nothing",
        recognizes=lambda path: str(path).endswith(".bag"),
        read=read,
        write=write,
        read_options={"--ticks": {"type": int, "help": "in each session"}},
    )


def run(known: SessionFormat, *words: str) -> int:
    formats = {"bag": known}
    options: argparse.Namespace = command.parser(formats).parse_args(words)
    return (command.export if options.command == "export" else command.import_)(options, formats)


def test_a_format_is_written_and_read_with_its_options(tmp_path: Path) -> None:
    with SessionWriter(tmp_path / "recording", BOX, BOX) as writer:
        writer.write(make_session((BOX, BOX), 4, 2, truncated=True))
    bag = str(tmp_path / "a.bag")
    assert run(made(), "export", str(tmp_path / "recording"), bag, "--format", "bag") == 0
    assert run(made(), "import", bag, str(tmp_path / "back"), "--ticks", "7", "--skip-bad-episodes") == 0
    (session,) = read_sessions(tmp_path / "back")
    assert len(session) == 7


def test_an_option_of_another_format_is_refused(tmp_path: Path) -> None:
    options = argparse.Namespace(command="import", dataset="a.bag", folder="b", fps=3)
    with pytest.raises(ConfigError, match=r"--fps: not for datasets of Bag, and a\.bag is one"):
        command._further(options, made(), made().read_options, "a.bag")


def test_a_dataset_of_no_format_lists_the_signs_of_all(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no known format \(Bag: a file \*\.bag\)\. Check the path"):
        format_of(tmp_path, {"bag": made()})
    with pytest.raises(StorageError, match="none: no room adds one"):
        format_of(tmp_path, {})


def test_formats_come_from_rooms_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = rooms.Entry("session_formats", "bag", "tests.sessions.test_formats:made", "bags")
    monkeypatch.setattr(rooms, "added", lambda kind: [entry])
    assert set(session_formats()) == {"bag", *rooms.entries("session_formats")}
