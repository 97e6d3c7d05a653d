"""Writing in folders that somebody else has prepared."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.cli.screens import TrainerDisplay
from tmrl_core.config import from_values
from tmrl_core.config.run_folder import run_id, write_in_force
from tmrl_core.errors import ConfigError, StorageError, TmrlError
from tmrl_core.gateway.advice.saves import read_save
from tmrl_core.gateway.episodes import EpisodeFiles
from tmrl_core.metrics import JsonLinesSink
from tmrl_core.metrics.reading import read_records
from tmrl_core.networking import Trainer
from tmrl_core.networking.security.secret_files import writing
from tmrl_core.sessions.lerobot.dataset import read_lerobot
from tmrl_core.sessions.session_files import read_spaces
from tmrl_core.storage import FolderLock, SegmentFile, SegmentReader, open_own, write_whole
from tmrl_core.training.checkpoints.checked_files import FileEntry, read_file
from tmrl_core.training.checkpoints.manifest import read_manifest
from tmrl_core.training.checkpoints.model_file import ModelFile

BOX = Box(-1.0, 1.0, (1,), np.float32)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused_and_its_target_untouched(tmp_path: Path, victim: Path, link: object) -> None:
    assert callable(link)
    (tmp_path / "run").mkdir()
    link(victim, tmp_path / "run" / "lock")
    with pytest.raises(StorageError, match=r"Remove it, or choose another folder"):
        FolderLock(tmp_path / "run", "the memory")
    assert victim.read_text() == "precious"


def test_a_dangling_link_creates_no_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "made")
    with pytest.raises(StorageError, match="symbolic link"):
        FolderLock(tmp_path / "run", "the memory")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("works", [True, False])
def test_with_sync_content_and_name_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    flushed: list[int] = []

    def fsync(descriptor: int) -> None:
        about = os.fstat(descriptor)
        flushed.append(about.st_ino)
        if stat.S_ISDIR(about.st_mode):
            assert (tmp_path / "whole").exists(), "its name is flushed after it has changed"
            if not works:
                raise OSError("as network file systems without this call")

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "whole", b"content", sync=True)
    assert flushed == [(tmp_path / "whole").stat().st_ino, tmp_path.stat().st_ino]


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk", target_is_directory=True)
    FolderLock(tmp_path / "run", "the memory").close()
    os.close(open_own(tmp_path / "run" / "records", os.O_WRONLY | os.O_CREAT))
    write_whole(tmp_path / "run" / "whole", b"")
    assert {path.name for path in (tmp_path / "disk").iterdir()} >= {"lock", "records", "whole"}


def test_a_lock_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FolderLock(tmp_path, "the memory").close()
    owner = os.stat(tmp_path / "lock").st_uid
    if owner == 0:  # root's are everybody's
        os.chown(tmp_path / "lock", 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(StorageError, match=r"belongs to another user \(\d+\)"):
        FolderLock(tmp_path, "the memory")


def test_the_configuration_of_a_run_replaces_a_link(tmp_path: Path, victim: Path) -> None:
    config = from_values({"run": {"name": "r", "folder": str(tmp_path / "runs" / "r")}})
    config.run_folder.mkdir(parents=True)
    (config.run_folder / "config.yaml").symlink_to(victim)
    path = write_in_force(config)
    assert victim.read_text() == "precious"
    assert not path.is_symlink()
    assert "run:" in path.read_text()


def test_records_are_not_appended_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        JsonLinesSink(tmp_path / "metrics.jsonl")
    assert victim.read_text() == "precious"


def test_a_file_of_records_is_not_written_through_a_link(tmp_path: Path) -> None:
    SegmentFile.create(tmp_path / "victim", "format", None).close()
    with (tmp_path / "victim").open("ab") as file:
        file.write(b"precious")
    before = (tmp_path / "victim").read_bytes()
    (tmp_path / "1.seg").symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError, match="symbolic link"):
        SegmentFile.open(tmp_path / "1.seg", good_bytes=len(before))
    assert (tmp_path / "victim").read_bytes() == before


def test_a_pipe_in_place_of_a_file_of_records_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1.seg")
    with pytest.raises(StorageError, match="not a regular file"):
        SegmentReader(tmp_path / "1.seg")


def lock_of(folder: Path) -> None:
    with writing(folder):
        raise AssertionError("it was locked")


def read_episodes(folder: Path) -> object:
    episodes = EpisodeFiles(folder)
    try:
        return episodes.read("pong")
    finally:
        episodes.close()


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lock of credentials": (".lock", lock_of),
    "manifest": ("manifest.json", read_manifest),
    "state": ("state.json", lambda folder: read_file(folder / "state.json", FileEntry(0, 0))),
    "policies": ("x", lambda folder: PolicyBundle.read(folder / "x")),
    "policy": ("x", lambda folder: SquashedGaussianMLPActor(BOX, BOX).load(folder / "x", "cpu")),
    "metrics": ("x", lambda folder: read_records(folder / "x")),
    "episodes": ("pong/episodes.csv", read_episodes),
    "save": ("1_x.save", lambda folder: read_save(folder / "1_x.save")),
    "spaces": ("spaces.json", read_spaces),
    "LeRobot": ("meta/info.json", read_lerobot),
}


@pytest.mark.parametrize("written_to", [False, True])
@pytest.mark.parametrize("part", READERS)
def test_a_pipe_in_place_of_any_file_is_an_error_and_does_not_block(
    tmp_path: Path, part: str, written_to: bool
) -> None:
    name, read = READERS[part]
    pipe = tmp_path / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    with ExitStack() as closing:
        if written_to:  # by a process that never writes
            closing.callback(os.close, os.open(pipe, os.O_RDWR))
        with pytest.raises((OSError, TmrlError)):
            read(tmp_path)


def test_the_weights_are_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".policy.tmod.tmp").symlink_to(victim)
    actor = SimpleNamespace(save=lambda path: path.write_text("weights"))
    training: Any = SimpleNamespace(agent=SimpleNamespace(actor=actor, get_actor=lambda: actor))
    assert ModelFile(tmp_path / "policy.tmod").write(training) == ""
    assert victim.read_text() == "precious"
    assert (tmp_path / "policy.tmod").read_text() == "weights"


def test_a_pipe_in_the_place_of_a_run_s_id_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run_id")
    made = run_id(tmp_path, "run")
    assert run_id(tmp_path, "run") == made
    assert stat.S_ISREG((tmp_path / "run_id").lstat().st_mode)


def test_a_trainer_refuses_a_folder_with_a_pipe_in_the_place_of_its_records(tmp_path: Path) -> None:
    config = from_values({"run": {"name": "r", "folder": str(tmp_path)}, "network": {"transport": "local"}})
    config.run_folder.mkdir()
    os.mkfifo(config.metrics_path)
    TrainerDisplay(config).refresh()
    training: Any = SimpleNamespace(elapsed_s=0.0, total_samples=0, total_updates=0, delivery={})
    with ExitStack() as closing, pytest.raises(ConfigError, match=r"no records can be written to .*metrics\.jsonl"):
        Trainer(config=config).open_recorder(training, closing)


def test_truncating_comes_after_the_checks(tmp_path: Path, victim: Path) -> None:
    os.link(victim, tmp_path / "second")
    with pytest.raises(OSError, match="second name"):
        open_own(tmp_path / "second", os.O_WRONLY | os.O_TRUNC)
    assert victim.read_text() == "precious"
    (tmp_path / "second").unlink()
    with open(victim, "w", opener=open_own) as file:
        file.write("x")
    assert victim.read_text() == "x"


def test_a_whole_file_has_its_mode_from_the_moment_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    really = os.replace

    def replace(source: Path, target: Path) -> None:
        modes.append(stat.S_IMODE(os.stat(source).st_mode))
        really(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_whole(tmp_path / "a", b"1", 0o600)
    assert modes == [0o600]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
