"""Saves: atomic, bounded, without code, and shared by sessions."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CheckpointError
from tmrl_core.gateway.advice import saves as module
from tmrl_core.gateway.advice.saves import Save, Saves, read_save
from tmrl_core.storage.format import head_bytes, record_buffers
from tmrl_core.training.checkpoints.checked_files import safetensors_bytes


def save(steps: int, session: str = "a", **arrays: Any) -> Save:
    held = {name: np.asarray(value) for name, value in arrays.items()}
    return Save("dqn", steps, session, {"kind": "tree"}, held)


def written(path: Path, about: Any, tree: bytes = b"{}", arrays: bytes = b"") -> Path:
    """Write a file of one record with any content."""
    path.write_bytes(b"".join([head_bytes(module.FORMAT, about), *record_buffers(tree, [arrays])[0]]))
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


def test_the_newest_has_the_most_steps_and_old_ones_go(kept: Saves) -> None:
    assert kept.newest() is None
    for steps in (900, 1000, 20, 10_000, 5000):
        kept.write(save(steps, f"s{steps}"))
    newest = kept.newest()
    assert newest is not None
    assert newest.session_id == "s10000"
    assert [path.name for path in kept.paths()] == [
        "000000010000_s10000.save",
        "000000005000_s5000.save",
        "000000001000_s1000.save",
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
    assert [path.name for path in kept.paths()] == [f"0000000000{n}.save" for n in ("39_b", "39_a", "38_b")]


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
    (kept.folder / ".000000000009_a.save.0123456789abcdef").write_bytes(b"half")
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
    assert [path.name for path in kept.folder.iterdir()] == ["000000000001_a.save"]


ABOUT = {"version": module.VERSION, "algorithm": "dqn", "steps": 1, "session": "a"}
ARRAYS = safetensors_bytes({"weights": np.ones(4)})


@pytest.mark.parametrize(
    ("about", "tree", "arrays"),
    [
        (ABOUT, pickle.dumps(Path("x")), ARRAYS),
        (ABOUT, b"[" * 500_000, ARRAYS),
        (ABOUT, b"[]", ARRAYS),
        (ABOUT, b"{}", ARRAYS.replace(b"[4]", b"[9]")),
        (ABOUT, b"{}", pickle.dumps(Path("x"))),
        ({**ABOUT, "steps": "many"}, b"{}", ARRAYS),
        ("a text", b"{}", ARRAYS),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, about: Any, tree: bytes, arrays: bytes) -> None:
    path = written(tmp_path / "1_a.save", about, tree, arrays)
    with pytest.raises(CheckpointError, match=path.name):
        read_save(path)


def test_another_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "1_a.save", {"version": 99})
    with pytest.raises(CheckpointError, match=r"version 99; this release reads 'tmrl_core\.save', version 1"):
        read_save(path)


def test_a_file_that_is_too_large_is_not_opened(kept: Saves, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept.write(save(1))
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(CheckpointError, match="at most 100"):
        read_save(path)
