"""The menu of the documentation site has each document once, and API pages of modules that exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in pages(each)]


PAGES = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def test_each_document_is_in_the_menu_once() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "credentials" / "README.md"]
    written = sorted(page for page in PAGES if not page.startswith(("api/", "benchmarks/")))
    assert written == sorted(path.relative_to(ROOT).as_posix() for path in documents)


def test_api_pages_are_of_modules_that_exist() -> None:
    modules = [page.removeprefix("api/").removesuffix(".md") for page in PAGES if page.startswith("api/")]
    assert len(modules) > 5
    assert [name for name in modules if find_spec("tmrl_core." + name.replace("/", ".")) is None] == []


DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "benchmarks", "tmrl_core") for page in (ROOT / folder).rglob("*.md")),
    ROOT / "credentials" / "README.md",
]


def test_each_document_has_one_heading_of_the_first_level() -> None:
    """It is the title of the page; a second one hides what follows from the table of contents."""
    wrong = []
    for page in DOCUMENTS:
        if "node_modules" in page.parts:  # packages of the example in JavaScript
            continue
        text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        if len(re.findall(r"^# ", text, re.MULTILINE)) != 1:
            wrong.append(page.relative_to(ROOT).as_posix())
    assert wrong == []
