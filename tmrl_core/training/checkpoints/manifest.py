"""The manifest of a checkpoint: its files with sizes and checksums, its replay rows, and its progress.

The manifest has a checksum of itself. A checksum shows damage only, so every field is checked when it is read.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import CheckpointError
from tmrl_core.storage import read_whole
from tmrl_core.training.checkpoints.checked_files import FileEntry, write_file

FORMAT = 1
"""Format of the whole checkpoint. No other one is read."""
MANIFEST = "manifest.json"

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class RowsFile(msgspec.Struct, frozen=True):
    """A file of rows.

    Attributes:
        file: its name in the folder of rows, without a path.
        bytes: length of the part that belongs to the checkpoint.
        stop: index after its last row.
    """

    file: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=200)]
    bytes: _Count
    stop: _Count = 0


class RowsEntry(msgspec.Struct, frozen=True):
    """The rows [start, stop) of one memory, of these dtypes and widths, and the files that hold them, oldest first."""

    start: _Count
    stop: _Count
    dtypes: tuple[str, ...]
    widths: tuple[int, ...]
    segments: tuple[RowsFile, ...]


@decodable
class Manifest(msgspec.Struct, kw_only=True):
    """The content of a manifest.

    Attributes:
        files: by name.
        rows: by the memory's path in the training object.
        counter: number of the checkpoint in its run.
        score: mean return of the latest evaluation.
        configuration: configuration of the training object.
        epoch, updates, samples: counters of the training object, if it has them.
    """

    format: int = FORMAT
    files: dict[Literal["state.json", "arrays.safetensors"], FileEntry] = {}
    rows: dict[str, RowsEntry] = {}
    counter: _Count = 0
    score: float | None = None
    written_at_s: float | None = None
    configuration: dict[str, Any] | None = None
    epoch: int | None = None
    updates: int | None = None
    samples: int | None = None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest, with a checksum of itself."""
    body = msgspec.to_builtins(manifest)
    crc = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    write_file(folder / MANIFEST, json.dumps({"body": body, "crc32": crc}, sort_keys=True, indent=1).encode())


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a checkpoint's folder.

    Raises:
        CheckpointError: the manifest is missing, cut short, damaged, or of another format.
    """
    path = folder / MANIFEST
    try:
        whole = json.loads(read_whole(path))
        body, crc = whole["body"], whole["crc32"]
        if not isinstance(body, dict):
            raise TypeError(f"it holds a {type(body).__name__}")
    except (FileNotFoundError, NotADirectoryError) as exc:
        inside = sorted(str(found.parent) for found in folder.glob(f"*/{MANIFEST}"))
        advice = f". It contains checkpoints: name one of them, such as {inside[-1]}" if inside else ""
        raise CheckpointError(f"{folder} is not a checkpoint: {MANIFEST} is missing{advice}") from exc
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        raise CheckpointError(f"{path} is cut short or damaged: {exc}") from exc
    if zlib.crc32(json.dumps(body, sort_keys=True).encode()) != crc:
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    if (found := body.get("format")) != FORMAT:
        raise CheckpointError(
            f"{path} has format {found!r}; this release reads format {FORMAT}. Use the release that wrote it."
        )
    try:
        manifest = msgspec.convert(body, Manifest)
    except msgspec.ValidationError as exc:
        raise CheckpointError(f"{path} is not a valid manifest: {exc}") from exc
    if len(manifest.files) != 2:
        raise CheckpointError(f"{path} is not a valid manifest: it names {sorted(manifest.files)}, not both files")
    for name, rows in manifest.rows.items():
        if rows.stop < rows.start:
            raise CheckpointError(f"{path} is not a valid manifest: the rows of {name} end before they begin")
    return manifest
