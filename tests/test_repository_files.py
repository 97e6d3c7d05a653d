"""Files for those who host, cite or report: they parse, and they agree with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import tmrl_core

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_citation_names_this_version() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == tmrl_core.__version__


def test_the_workflow_runs_the_fast_tests_on_three_systems() -> None:
    path = ROOT / ".github" / "workflows" / "tests.yml"
    (job,) = read(path)["jobs"].values()
    systems = {name.partition("-")[0] for name in job["strategy"]["matrix"]["os"]}
    assert systems == {"ubuntu", "macos", "windows"}
    assert job["steps"][-1]["run"] == "python scripts/test.py --fast"
    assert path.read_text(encoding="utf-8").startswith("# Untried")


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_has_a_name_and_fields_with_labels(form: Path) -> None:
    content = read(form)
    assert content["name"]
    assert content["description"]
    fields = [each for each in content["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in fields}) == len(fields) > 0
    assert all(each["attributes"]["label"] for each in fields)
