"""Manifests that no release has written."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any


def change_manifest(folder: Path, **changes: Any) -> None:
    """Change keys of a checkpoint's manifest, and its checksum accordingly."""
    path = folder / "manifest.json"
    body = {**json.loads(path.read_bytes())["body"], **changes}
    crc = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    path.write_text(json.dumps({"body": body, "crc32": crc}), encoding="utf-8")
