"""The built site: one title a page, and a search that works from a folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `scripts/docs.py` does."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"}, check=True)
    return folder


@pytest.mark.full
@pytest.mark.timeout(600)
def test_each_page_has_one_title_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(r"<h1[ >]", text)) == 1, page
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]+)", text)
        assert loaded + re.findall(r"<link rel=\"stylesheet\" href=\"(https?:[^\"]+)", text) == [], page


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_search_works_from_a_folder(site: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    command += ["--virtual-time-budget=30000", "--dump-dom", f"{(site / 'index.html').as_uri()}?q=spool"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert re.search(r"[1-9]\d* matching documents", page)
    assert "<h1>Security</h1>" in page
