"""Extras, constraints and docs/dependencies.md: each names what the package uses, and nothing else."""

from __future__ import annotations

import functools
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="reads pyproject.toml; Python 3.11 has it")

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
MODULES = {
    "pyyaml": "yaml",
    "imageio-ffmpeg": "imageio_ffmpeg",
    "stable-baselines3": "stable_baselines3",
    "sb3-contrib": "sb3_contrib",
    "pillow": "PIL",
    "rerun-sdk": "rerun",
    "pygame-ce": "pygame",
    "hidapi": "hid",
}
# Parts of the extra `gateway` that uvicorn loads by name.
BEHIND = {"httptools", "websockets"}
# For Gymnasium's own environments: its extra that names the same package.
GYMNASIUM = {"render": "classic-control", "mujoco": "mujoco", "box2d": "box2d"}
# For this checkout alone: each has a section of its own on the page.
FOR_DEVELOPMENT = {"dev", "docs"}
# Development packages that are programs, pytest plugins or types: the file and the text that use them.
TOOLS = {
    "ruff": ("scripts/_phases.py", "ruff"),
    "mypy": ("pyproject.toml", "[tool.mypy]"),
    "types-pyyaml": ("pyproject.toml", "pyyaml"),
    "build": ("scripts/release.py", '"build"'),
    "packaging": ("scripts/release.py", "from packaging"),
    "requests": ("examples/clients/client.py", "import requests"),
    "pytest-timeout": ("pyproject.toml", "\ntimeout = "),
    "pytest-cov": ("scripts/check.py", "--cov"),
    "pytest-xdist": ("scripts/test.py", '"-n"'),
}


def name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def names(requirements: list[str]) -> set[str]:
    return {name(requirement) for requirement in requirements}


def imported(*folders: str) -> set[str]:
    """Top-level names of all modules that the Python files of `folders` import, at module level or later."""
    return {name for folder in folders for name in _imported(folder)}


@functools.cache
def _imported(folder: str) -> set[str]:
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        found |= set(re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def modules(requirements: list[str]) -> set[str]:
    return {MODULES.get(one, one) for one in names(requirements)}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the page, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_imports_of_the_package_match_its_dependencies_and_extras() -> None:
    found = imported("tmrl_core")
    assert modules(PROJECT["project"]["dependencies"]) <= found
    for extra in EXTRAS.keys() - GYMNASIUM.keys() - {"all"} - FOR_DEVELOPMENT:
        assert modules(EXTRAS[extra]) - BEHIND <= found, extra


@pytest.mark.parametrize("extra", GYMNASIUM)
def test_the_extras_of_environments_match_those_of_gymnasium(extra: str) -> None:
    theirs = GYMNASIUM[extra]
    said = metadata.requires("gymnasium") or []
    assert any(re.search(rf"extra == ['\"]{theirs}['\"]", one) for one in said)
    for requirement in EXTRAS[extra]:
        if not requirement.startswith(f"gymnasium[{theirs}]"):
            assert any(name(one) == name(requirement) and theirs in one for one in said), requirement


def test_all_names_extras_that_exist() -> None:
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"tmrl_core\[(.*)\]", everything)
    assert named is not None
    assert (
        EXTRAS.keys() - set(named[1].split(","))
        == {
            "all",
            "mujoco",
            "box2d",
            "minari",
            "images",
            "lerobot",
            "lerobot-video",
            "marl",
            "realtime",
            "teleop",
            "trackio",
            "onnx",
            "rerun",
        }
        | FOR_DEVELOPMENT
    )
    (row,) = [row for row in rows("Extras") if row[0] == "`all`"]
    assert set(re.findall(r"\w+", row[2])) & EXTRAS.keys() == set(named[1].split(","))


def test_each_development_package_is_used() -> None:
    found = imported("tests", "benchmarks", "scripts")
    for package in names(EXTRAS["dev"]):
        if package in TOOLS:
            file, text = TOOLS[package]
            assert text in (ROOT / file).read_text(encoding="utf-8"), package
        else:
            assert MODULES.get(package, package) in found, package


def test_the_site_is_built_with_the_packages_of_its_extra() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "mkdocs" in imported("scripts")
    assert "name: material" in settings
    assert "mkdocstrings:" in settings


def test_the_page_lists_all_dependencies_and_extras() -> None:
    assert [row[0] for row in rows("Core")] == [name(one) for one in PROJECT["project"]["dependencies"]]
    listed = {extra: row[1] for row in rows("Extras") for extra in re.findall(r"`([\w-]+)`", row[0])}
    assert listed.keys() == EXTRAS.keys() - FOR_DEVELOPMENT
    for extra, packages in listed.items():
        assert names(re.sub(r"\(.*?\)", "", packages).split(", ")) == {
            "tmrl-core" if extra == "all" else one for one in names(EXTRAS[extra])
        }, extra
    development = names([one for row in rows("Development (`dev`)") for one in row[0].split(", ")])
    assert development == names([*EXTRAS["dev"], *PROJECT["build-system"]["requires"]])
    assert {name(row[0]) for row in rows("Documentation site (`docs`)")} == names(EXTRAS["docs"])


def test_constraints_pin_the_packages_that_scripts_install() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = names([line for line in lines if line and not line.startswith("#")])
    direct = [*PROJECT["project"]["dependencies"], *EXTRAS["dev"]]
    for extra in EXTRAS.keys() - {"all", "dev", "mujoco", "box2d", "teleop", "trackio", "rerun"}:
        direct += EXTRAS[extra]
    assert names(direct) <= pinned
