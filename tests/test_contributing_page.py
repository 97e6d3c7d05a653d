"""CONTRIBUTING.md names files, folders and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.layers import LAYERS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TOP = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"))
NAMED = sorted(
    {*re.findall(rf"`((?:{TOP}|\.ci|\.github)/[^\s`*:]*)", PAGE), *re.findall(r"`([\w.]+\.(?:md|toml|txt))`", PAGE)}
)


def test_what_it_names_exists() -> None:
    assert [name for name in NAMED if not name.startswith("build/") and not (ROOT / name).exists()] == []
    assert len(NAMED) > 20


def test_its_commands_name_scripts_that_exist() -> None:
    scripts = set(re.findall(r"python (scripts/\w+\.py)", PAGE))
    assert len(scripts) >= 5
    assert [name for name in scripts if not (ROOT / name).exists()] == []


def test_it_names_every_layer_of_tests() -> None:
    assert [layer for layer in ("unit", "full", *LAYERS) if f"| `{layer}` |" not in PAGE] == []
