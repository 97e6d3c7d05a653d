"""Saves: atomic, bounded, without code, and shared by sessions."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CheckpointError
from tmrl_core.gateway.advice import saves as module
from tmrl_core.gateway.advice.saves import Save, Saves, read_save
from tmrl_core.training.checkpoints.checked_files import safetensors_bytes


def save(steps: int, session: str = "a", **arrays: Any) -> Save:
    held = {name: np.asarray(value) for name, value in arrays.items()}
    return Save("dqn", steps, session, {"kind": "tree"}, held)


def entries_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_zip(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return path


@pytest.fixture
def kept(tmp_path: Path) -> Saves:
    return Saves(tmp_path / "saves", keep=3)


def test_a_save_is_read_as_it_was_written(kept: Saves) -> None:
    written = save(7, weights=np.arange(6, dtype=np.float32).reshape(2, 3), count=np.int64(5))
    path = kept.write(written)
    found = read_save(path)
    assert (found.algorithm, found.steps, found.session_id, found.tree) == ("dqn", 7, "a", {"kind": "tree"})
    assert found.arrays.keys() == written.arrays.keys()
    for name, array in written.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert (found.arrays[name] == array).all()
    assert sorted(entries_of(path)) == ["arrays.safetensors", "save.json"]


def test_the_newest_has_the_most_steps_and_old_ones_go(kept: Saves) -> None:
    assert kept.newest() is None
    for steps in (900, 1000, 20, 10_000, 5000):
        kept.write(save(steps, f"s{steps}"))
    newest = kept.newest()
    assert newest is not None
    assert newest.session_id == "s10000"
    assert [path.name for path in kept.paths()] == [
        "000000010000_s10000.zip",
        "000000005000_s5000.zip",
        "000000001000_s1000.zip",
    ]


def test_strange_session_ids_stay_in_the_folder(kept: Saves) -> None:
    path = kept.write(save(1, "../../x y"))
    assert path.parent == kept.folder
    assert kept.paths() == [path]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_newest_save_is_skipped(kept: Saves, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    kept.write(save(1, weights=np.ones(100)))
    newest = kept.write(save(2, weights=np.ones(100)))
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    damaged = {"cut": data[:-200], "flipped": data, "empty": bytearray(), "text": bytearray(1000)}
    newest.write_bytes(damaged[damage])
    with caplog.at_level(logging.WARNING):
        found = kept.newest()
    assert found is not None
    assert found.steps == 1
    assert "a save is skipped" in caplog.text
    assert newest.name in caplog.text


def test_two_sessions_share_the_folder(kept: Saves) -> None:
    problems: list[BaseException] = []

    def session(name: str) -> None:
        try:
            for steps in range(1, 40):
                kept.write(save(steps, name, weights=np.full(1000, steps)))
                found = kept.newest()
                assert found is not None
                assert found.steps >= steps - 1
                assert (found.arrays["weights"] == found.steps).all()
        except BaseException as exc:  # handed to the test's thread
            problems.append(exc)

    threads = [threading.Thread(target=session, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert [path.name for path in kept.paths()] == [f"0000000000{n}.zip" for n in ("39_b", "39_a", "38_b")]


def test_a_killed_writer_leaves_whole_saves(kept: Saves) -> None:
    code = """
import sys
from pathlib import Path
import numpy as np
from tmrl_core.gateway.advice.saves import Save, Saves
saves = Saves(Path(sys.argv[1]), keep=3)
steps = 0
while True:
    steps += 1
    saves.write(Save("dqn", steps, "a", {}, {"weights": np.full(200_000, steps)}))
    print(steps, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(kept.folder)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    written = 0
    deadline = time.monotonic() + 60
    while written < 5 and time.monotonic() < deadline:
        written = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
    process.communicate(timeout=60)
    (kept.folder / ".000000000009_a.zip.0123456789abcdef").write_bytes(b"half")
    kept.remove_unfinished()
    assert [path for path in kept.folder.iterdir() if path.name.startswith(".")] == []
    for path in kept.paths():
        found = read_save(path)
        assert (found.arrays["weights"] == found.steps).all()
    newest = kept.newest()
    assert newest is not None
    assert newest.steps >= 5


def test_a_failed_write_leaves_the_others(kept: Saves, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write(save(1))

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        kept.write(save(2))
    assert [path.name for path in kept.folder.iterdir()] == ["000000000001_a.zip"]


def bomb(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, {**good, "arrays.safetensors": b"\0" * 50_000_000}, zipfile.ZIP_DEFLATED)


def many_entries(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, {**good, **{f"x{number}": b"" for number in range(1000)}})


def understated_count(path: Path, good: dict[str, bytes]) -> None:
    """A zip64 record behind a small end record names another directory."""
    many_entries(path, good)
    data = path.read_bytes()
    end = struct.Struct("<4s4H2LH")
    fields = list(end.unpack(data[-end.size :]))
    fields[3] = fields[4] = 2
    path.write_bytes(data[: -end.size] + b"PK\6\7" + b"\0" * 16 + end.pack(*fields))


def compressed_size_differs(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, good)
    data = path.read_bytes()
    at = data.index(b"PK\1\2")
    path.write_bytes(data[: at + 24] + (1 << 31).to_bytes(4, "little") + data[at + 28 :])


def pickled(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, {**good, "save.json": pickle.dumps(Path("x"))})


def wrong_names(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, {"data.pkl": b"x", "save.json": good["save.json"]})


def newer_version(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, {**good, "save.json": json.dumps({"format": module.FORMAT, "version": 99}).encode()})


def no_steps(path: Path, good: dict[str, bytes]) -> None:
    state = {**json.loads(good["save.json"]), "steps": "many"}
    write_zip(path, {**good, "save.json": json.dumps(state).encode()})


def deep(path: Path, good: dict[str, bytes]) -> None:
    write_zip(path, {**good, "save.json": b"[" * 500_000})


def lying_arrays(path: Path, good: dict[str, bytes]) -> None:
    parts = safetensors_bytes({"weights": np.ones(4)})
    write_zip(path, {**good, "arrays.safetensors": parts.replace(b"[4]", b"[9]")})


@pytest.mark.parametrize(
    "make",
    [
        bomb,
        many_entries,
        understated_count,
        compressed_size_differs,
        pickled,
        wrong_names,
        newer_version,
        no_steps,
        deep,
        lying_arrays,
    ],
)
def test_anything_else_is_refused(kept: Saves, make: Any) -> None:
    path = kept.write(save(1, weights=np.ones(4)))
    good = entries_of(path)
    make(path, good)
    with pytest.raises(CheckpointError, match=path.name):
        read_save(path)


def test_another_version_is_refused_with_both_numbers(kept: Saves) -> None:
    path = kept.write(save(1))
    newer_version(path, entries_of(path))
    with pytest.raises(CheckpointError, match=r"version 99; this release reads 'tmrl_core\.save', version 1"):
        read_save(path)


def test_a_file_that_is_too_large_is_not_opened(kept: Saves, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept.write(save(1))
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(CheckpointError, match="at most 100"):
        read_save(path)
