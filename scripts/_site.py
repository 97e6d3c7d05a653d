"""A hook of MkDocs: the pages of the site under the paths that they have in the repository, and the API reference.

Same paths, same relative links: a link that works on a code host works in the site. An API page lists the names that a
package exports, from the package itself, so that no list of classes has to be kept.
"""

# Theory of operation
#
# The site has the documents of the repository under the paths that they have there, so one relative link works on a
# code host and in the site. MkDocs expects all pages below one folder; this hook replaces its list of files by the
# repository's. Rejected: a folder of pages written for the site (each text twice), links into the repository for
# everything outside `docs/` (dead in a copy without network), and a list of documented classes (it would have to follow
# every change). Pages of the API come from the exports of each package; a class that several packages export is
# described on the first page, and others link there, because mkdocstrings refuses an anchor twice.

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "config", "examples", "benchmarks")
SUFFIXES = {".md", ".png", ".svg", ".py", ".yaml", ".json", ".toml", ".mjs"}
ROOMS = "docs/rooms.md"
SEARCH = ROOT / "scripts" / "iframe-worker.js"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the rooms that are there below their index in the menu."""
    assert config.nav is not None
    for entry in config.nav:
        for pages in entry.values():
            if isinstance(pages, list) and ROOMS in pages:
                pages.extend(path.relative_to(ROOT).as_posix() for path in _room_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of `docs/` by those of the repository."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in _pages():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, SEARCH.name, abs_src_path=str(SEARCH)))
    shown: set[str] = set()
    for name in _api_pages(config.nav):
        module = "tmrl_core." + name.removeprefix("api/").removesuffix(".md").replace("/", ".")
        files.append(File.generated(config, name, content=_api_page(module, shown)))
    return files


def _pages() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    yield ROOT / "credentials" / "README.md"
    yield from _room_pages()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and not {"runs", "node_modules"} & set(path.parts):
                yield path


def _room_pages() -> list[Path]:
    return sorted((ROOT / "tmrl_core").rglob("*.md"))


def _api_pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        if nav.startswith("api/"):
            yield nav
    elif nav is not None:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _api_pages(entry)


def _api_page(name: str, shown: set[str]) -> str:
    """Return Markdown that asks mkdocstrings for each class and function that a module exports.

    Args:
        name: the module.
        shown: paths on earlier pages, which this page links to; updated.
    """
    module = import_module(name)
    names = getattr(module, "__all__", None) or [
        each for each, value in vars(module).items() if getattr(value, "__module__", None) == name and each[0] != "_"
    ]
    lines = [f"# {name}", "", inspect.getdoc(module) or ""]
    for each in names:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isfunction(value):
            path = f"{value.__module__}.{value.__qualname__}"
            lines += ["", f"[`{each}`][{path}]" if path in shown else f"::: {path}"]
            shown.add(path)
    return "\n".join(lines) + "\n"
