"""docs/architecture.md is a short map of every package and of files that exist, with a picture of the imports."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_it_is_read_in_ten_minutes() -> None:
    assert len(PAGE.split()) <= 4000


def test_it_names_files_that_exist() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE))
    folders = [ROOT, ROOT / "tmrl_core", *sorted((ROOT / "tmrl_core").rglob("*/"))]
    assert len(named) > 100
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_its_table_has_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "tmrl_core").glob("*/__init__.py")}
    parts = {
        path.parent.name for each in ("networking", "training") for path in ROOT.glob(f"tmrl_core/{each}/*/__init__.py")
    }
    assert [name for name in packages | parts if not re.search(rf"^\| .*\b{name}/`", PAGE, re.MULTILINE)] == [
        "networking"
    ]


def test_its_picture_shows_the_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    shown = (ROOT / "docs" / "packages.svg").read_text(encoding="utf-8")
    assert shown == importlib.import_module("package_picture").draw(), "run `python scripts/package_picture.py`"
