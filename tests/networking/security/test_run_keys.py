"""The key of a run and its highest incarnation on the trainer's machine."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.run_keys import FOLDER, OLDER, RunKeyFiles


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first = RunKeyFiles(tmp_path, "run")
    assert len(first.private) == 32
    assert RunKeyFiles(tmp_path, "run").private == first.private


def test_each_run_has_a_key_of_its_own_also_with_strange_names(tmp_path: Path) -> None:
    names = ["run", "Run", "a/b", "../../run", ".", "", "é" * 300, "x" * 200, "x" * 201]
    keys = {RunKeyFiles(tmp_path, name).private for name in names}
    assert len(keys) == len(names)
    files = list((tmp_path / FOLDER).glob("*.key"))
    assert len({file.name.lower() for file in files}) == len(names)


def test_keys_of_the_run_from_other_machines_open_older_messages(tmp_path: Path) -> None:
    others = [RunKeyFiles(tmp_path / name, run) for name, run in (("a", "run"), ("b", "run"), ("c", "other"))]
    here = RunKeyFiles(tmp_path / "here", "run")
    assert here.older == []
    older = tmp_path / "here" / FOLDER / OLDER
    older.mkdir()
    for number, other in enumerate(others):
        (older / f"{number}.key").write_bytes(other.file.read_bytes())
        (older / f"{number}.key").chmod(0o600)
    assert here.older == [others[0].private, others[1].private]
    assert here.private not in here.older
    (older / "0.key").write_bytes(b"damaged")
    with pytest.raises(CredentialsError, match="Copy it again, or delete it"):
        _ = here.older


def test_simultaneous_trainers_get_the_same_key(tmp_path: Path) -> None:
    keys: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: keys.append(RunKeyFiles(tmp_path / "new", "run").private)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="modes mean nothing on Windows")
def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    earlier = os.umask(0)
    try:
        files = RunKeyFiles(tmp_path, "run")
        files.hold(3)
    finally:
        os.umask(earlier)
    assert stat.S_IMODE(files.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.file.parent.stat().st_mode) == 0o700


def test_neither_repr_nor_an_error_shows_the_key(tmp_path: Path) -> None:
    files = RunKeyFiles(tmp_path, "run")
    secret = files.file.read_text().split('"key": "')[1].split('"')[0]
    assert secret not in repr(files)
    files.file.write_text(files.file.read_text().replace("tmrl_core run key", "something else"))
    with pytest.raises(CredentialsError) as error:
        RunKeyFiles(tmp_path, "run")
    assert secret not in str(error.value)


@pytest.mark.parametrize(
    "content", ["", "{}", "no JSON", '{"format": "tmrl_core run key", "run": "run", "key": "AA=="}']
)
def test_a_damaged_key_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    files = RunKeyFiles(tmp_path, "run")
    files.file.write_text(content)
    with pytest.raises(CredentialsError, match=r"damaged .*Restore it from a copy.*delete the file"):
        RunKeyFiles(tmp_path, "run")
    assert files.file.read_text() == content


def test_the_key_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = RunKeyFiles(tmp_path, "one"), RunKeyFiles(tmp_path, "other")
    other.file.replace(one.file)
    with pytest.raises(CredentialsError, match="holds the key of run 'other', not of 'one'"):
        RunKeyFiles(tmp_path, "one")


def test_the_highest_incarnation_survives_and_no_other_trainer_uses_it(tmp_path: Path) -> None:
    files, other = RunKeyFiles(tmp_path, "run"), RunKeyFiles(tmp_path, "run")
    assert files.highest == 0
    files.hold(5)
    for used in (5, 4):
        with pytest.raises(CredentialsError, match=r"another trainer of run 'run' .* has used incarnation 5"):
            other.hold(used)
    assert RunKeyFiles(tmp_path, "run").highest == 5
    assert RunKeyFiles(tmp_path, "other").highest == 0


def test_processes_of_one_trainer_use_the_same_incarnation(tmp_path: Path) -> None:
    first, second = RunKeyFiles(tmp_path, "run"), RunKeyFiles(tmp_path, "run", part=1)
    assert second.private == first.private
    first.hold(5)
    second.hold(5)
    assert (first.highest, second.highest) == (5, 5)
    with pytest.raises(CredentialsError, match="has used incarnation 5"):
        RunKeyFiles(tmp_path, "run", part=1).hold(5)


def test_a_damaged_incarnation_is_refused_with_advice(tmp_path: Path) -> None:
    files = RunKeyFiles(tmp_path, "run")
    files.hold(5)
    files.file.with_suffix(".incarnation").write_text('{"incarnation": -1}')
    with pytest.raises(CredentialsError, match=r"damaged .*Delete it"):
        _ = files.highest


def test_beside_a_bundle_file_it_is_in_the_same_folder(tmp_path: Path) -> None:
    bundle = tmp_path / "hpc.trainer.bundle"
    bundle.write_text("{}")
    assert RunKeyFiles(bundle, "run").file.parent == tmp_path / FOLDER


def test_a_place_that_cannot_be_written_is_named_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file in place of the folder")
    with pytest.raises(CredentialsError, match=r"cannot be written.*network\.end_to_end: off"):
        RunKeyFiles(tmp_path, "run")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir(mode=0o500)
    with pytest.raises(CredentialsError, match=str(folder)):
        RunKeyFiles(folder, "run")
