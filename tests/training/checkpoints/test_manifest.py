from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoints.manifests import change_manifest
from tmrl_core.errors import CheckpointError
from tmrl_core.training.checkpoints.checked_files import FileEntry
from tmrl_core.training.checkpoints.manifest import Manifest, RowsEntry, RowsFile, read_manifest, write_manifest

ROWS = {"start": 0, "stop": 5, "dtypes": ["<f4"], "widths": [3], "segments": []}


def manifest() -> Manifest:
    return Manifest(
        files={"state.json": FileEntry(1, 2), "arrays.safetensors": FileEntry(3, 4)},
        rows={"memory": RowsEntry(0, 5, ("<f4",), (3,), (RowsFile("rows.seg", 9, 5),))},
        counter=7,
        score=-1.5,
        configuration={"run": {"seed": 1}},
        epoch=2,
    )


def test_written_data_is_read_back(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    assert read_manifest(tmp_path) == manifest()


@pytest.mark.parametrize("unknown", [0, 2, 99, "1", None])
def test_another_format_is_refused_with_both_numbers(tmp_path: Path, unknown: Any) -> None:
    write_manifest(tmp_path, manifest())
    change_manifest(tmp_path, format=unknown)
    said = rf"has format {unknown!r}; this release reads format 1\. Use the release that wrote it"
    with pytest.raises(CheckpointError, match=said):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 3}, "rows"),
        ({"rows": None}, "rows"),
        ({"rows": {"memory": {"start": 0, "stop": 5}}}, "missing required field"),
        ({"rows": {"memory": {**ROWS, "start": 6}}}, "rows of memory end before they begin"),
        ({"rows": {"memory": {**ROWS, "segments": [{"file": "../secrets", "bytes": 5}]}}}, "regex"),
        ({"rows": {"memory": {**ROWS, "stop": 1 << 63}}}, "stop"),
        ({"files": {}}, r"it names \[\], not both files"),
        ({"files": {"state.json": {"bytes": -1, "crc32": 0}}}, "bytes"),
        ({"files": {"code.py": {"bytes": 1, "crc32": 0}}}, "Invalid enum value"),
        ({"counter": "x"}, "counter"),
        ({"score": "high"}, "score"),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write_manifest(tmp_path, manifest())
    change_manifest(tmp_path, **change)
    with pytest.raises(CheckpointError, match=f"is not a valid manifest: .*{said}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("body", [b"3", b"[]", b"null", b"[" * 100_000])
def test_an_invalid_manifest_is_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(b'{"body": %s, "crc32": %d}' % (body, zlib.crc32(body)))
    with pytest.raises(CheckpointError, match="is cut short or damaged"):
        read_manifest(tmp_path)


def test_the_error_for_a_folder_without_manifest_lists_its_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: manifest\.json is missing$"):
        read_manifest(tmp_path)
    for name in ("checkpoint_000001", "checkpoint_000002"):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, manifest())
    with pytest.raises(CheckpointError, match=r"name one of them, such as .*checkpoint_000002$"):
        read_manifest(tmp_path)
