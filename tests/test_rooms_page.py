"""docs/rooms.md is the only document that links into rooms, so a room can be deleted without a dead link."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import pytest

from tests.test_removable_rooms import ROOMS

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "docs" / "rooms.md"
FOLDERS = [ROOT / "tmrl_core" / path for room in ROOMS.values() for path in room.paths]


def documents() -> list[Path]:
    """Every document of the repository that people read, but the index."""
    folders = ("docs", "examples", "credentials", "benchmarks", "tmrl_core")
    found = [*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]
    return [page for page in found if page != INDEX]


def room_of(path: Path) -> Path | None:
    """The folder of the room in which a file is."""
    return next((folder for folder in FOLDERS if folder in path.parents), None)


def test_documents_link_into_rooms_only_through_the_index() -> None:
    wrong = []
    for page in documents():
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if (room := room_of(target)) is not None and room != room_of(page):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == [], "link to docs/rooms.md instead"


def test_the_index_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    rooms_page = importlib.import_module("rooms_page")
    assert INDEX.read_text(encoding="utf-8") == rooms_page.page(), "run `python scripts/rooms_page.py`"


def test_every_page_in_the_package_is_of_a_room() -> None:
    pages = [*(ROOT / "tmrl_core").rglob("*.md")]
    assert pages
    assert [page for page in pages if page.parent not in FOLDERS] == []


def test_each_room_has_a_page() -> None:
    assert [folder for folder in FOLDERS if not (folder / "README.md").is_file()] == []


def test_the_index_of_a_tree_without_a_room_lacks_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    rooms_page = importlib.import_module("rooms_page")
    for page in rooms_page.room_pages():
        copy = tmp_path / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    monkeypatch.setattr(rooms_page, "ROOT", tmp_path)
    assert "tmrl_core/gateway/README.md" in rooms_page.page()
    shutil.rmtree(tmp_path / "tmrl_core" / "gateway")
    left = rooms_page.page()
    links = re.findall(r"\]\(\.\./([^)]+)\)", left)
    assert len(links) > 5
    assert [link for link in links if not (tmp_path / link).exists()] == []
