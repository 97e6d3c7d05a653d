"""Each behaviour of the public classes that behaviour.md lists has tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).with_name("behaviour.md")
SECTIONS = {
    "Samples", "Buffer", "Server", "RolloutWorker", "Trainer", "TrainingOffline", "Memory", "TrainingAgent",
    "ActorModule", "Helpers",
}  # fmt: skip
MENDED = 13


def rows() -> list[tuple[str, str, list[str]]]:
    """Section, behaviour and tests of each row."""
    found: list[tuple[str, str, list[str]]] = []
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| ---", "| behaviour |")):
            behaviour, tests = line.strip("| ").split(" | ")
            found.append((section, behaviour, re.findall(r"`([^`]+)`", tests)))
    return found


@cache
def names_in(file: str) -> set[str]:
    """Names of a file's test functions."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_behaviour_has_tests() -> None:
    for section, behaviour, tests in rows():
        assert tests, f"{section}: {behaviour}"
        absent = [one for one in tests if one.partition("::")[2] not in names_in(one.partition("::")[0])]
        assert absent == [], f"{section}: {behaviour}"


def test_no_class_and_no_mended_place_is_missing() -> None:
    assert {section for section, _, _ in rows()} == SECTIONS
    assert sum("**Mended:**" in behaviour for _, behaviour, _ in rows()) == MENDED
