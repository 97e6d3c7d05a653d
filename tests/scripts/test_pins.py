"""Pins, hashes and pyproject.toml: the repository's agree, and each kind of disagreement is found."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HASH = f"--hash=sha256:{'a' * 64}"


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`scripts/pins.py`."""
    pytest.importorskip("tomllib", reason="reads pyproject.toml; Python 3.11 has it")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("pins")


class Repository:
    """Copies of this repository's pins, to change."""

    def __init__(self, pins: ModuleType) -> None:
        self.pins = pins
        self.project: dict[str, Any] = copy.deepcopy(pins.read_project())
        self.extras: dict[str, list[str]] = self.project["project"]["optional-dependencies"]
        self.constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
        self.files = {path.stem: path.read_text(encoding="utf-8") for path in pins.FOLDER.glob("*.txt")}

    def change(self, file: str, old: str, new: str) -> None:
        changed = re.sub(old, new, self.files[file], flags=re.MULTILINE)
        assert changed != self.files[file]
        self.files[file] = changed

    def errors(self, **needs: list[str]) -> list[str]:
        """Return the disagreements; `needs` are the requirements of packages, instead of those installed here."""

        def of_package(name: str, version: str) -> Sequence[str]:
            return needs.get(name.replace("-", "_"), [])

        found: list[str] = self.pins.check(self.project, self.constraints, self.files, of_package)
        return found


@pytest.fixture
def repository(pins: ModuleType) -> Repository:
    return Repository(pins)


def test_pins_hashes_and_project_agree(repository: Repository) -> None:
    assert repository.pins.check(repository.project, repository.constraints, repository.files) == []


def test_a_pin_that_the_project_does_not_allow_is_found(repository: Repository) -> None:
    repository.project["project"]["dependencies"].append("msgspec>=99")
    assert any("requires msgspec>=99, and constraints.txt pins 0." in error for error in repository.errors())


def test_a_requirement_without_a_pin_is_found(repository: Repository) -> None:
    repository.extras["gateway"].append("aiohttp>=3")
    errors = repository.errors()
    assert any("(extra gateway) requires aiohttp>=3, and constraints.txt has no pin" in error for error in errors)
    assert any("requirements/all.txt lacks aiohttp>=3 of pyproject.toml" in error for error in errors)


def test_a_pin_that_is_missing_on_one_system_is_found(repository: Repository) -> None:
    repository.constraints = re.sub(
        "^(msgspec==.*)$", r"\1 ; sys_platform != 'win32'", repository.constraints, flags=re.M
    )
    errors = repository.errors()
    assert any("msgspec" in error and "Windows" in error for error in errors)
    assert not any("Linux" in error for error in errors)


def test_an_extra_that_no_file_covers_is_found(repository: Repository) -> None:
    repository.extras["telemetry"] = ["aiohttp>=3"]
    assert any("(extra telemetry) requires aiohttp" in error for error in repository.errors())
    del repository.files["docs"]
    assert repository.errors() == ["requirements/docs.txt is missing"]


def test_core_pins_are_complete_without_those_of_extras(repository: Repository) -> None:
    repository.project["project"]["dependencies"].append("starlette>=0.40")  # only all.txt has it
    assert {"requirements/core.txt lacks starlette>=0.40 of pyproject.toml for Python 3.11.0 on Linux"} <= set(
        repository.errors()
    )


def test_another_version_of_the_build_backend_is_found(repository: Repository) -> None:
    repository.project["build-system"]["requires"] = ["hatchling==0.1"]
    assert any("(build-system) requires hatchling==0.1" in error for error in repository.errors())


def test_an_unpinned_build_backend_is_found(repository: Repository) -> None:
    requirements = ["hatchling", "hatchling>=1", "hatchling==1.*"]
    repository.project["build-system"]["requires"] = requirements
    errors = repository.errors()
    assert {f"pyproject.toml (build-system): {one} is not pinned" for one in requirements} <= set(errors)


def test_a_line_that_allows_other_files_is_found(repository: Repository) -> None:
    before = repository.files["dev"]
    for line, expected in (
        ("six==1.17.0", "has no hash"),
        (f"six>=1.17.0 {HASH}", "is not pinned to one version"),
        (f"six==1.* {HASH}", "is not pinned to one version"),
        ("six==1.17.0 --hash=sha256:abc", "which is no SHA-256"),
        (f"six==1.17.0 --hash=md5:{'a' * 32}", "which is no SHA-256"),
        (f"six== {HASH}", "is not a pin"),
    ):
        repository.files["dev"] = f"{before}{line}\n"
        assert any(expected in error for error in repository.errors()), line


def test_another_version_than_the_pin_is_found(repository: Repository) -> None:
    repository.change("core", r"^msgspec==\S+", "msgspec==0.1")
    assert any(
        "requirements/core.txt has msgspec 0.1, and constraints.txt 0." in error for error in repository.errors()
    )


@pytest.mark.parametrize("file", ["core", "all", "torch", "source"])
def test_a_missing_package_is_found(repository: Repository, file: str) -> None:
    package = {"core": "msgspec", "all": "uvicorn", "torch": "torch", "source": "tlspyo"}[file]
    repository.change(file, rf"^{package}==.*\n(?: .*\n)*", "")
    assert any(f"requirements/all.txt lacks {package}" in error for error in repository.errors())


def test_requirements_of_pinned_packages_are_pinned_too(repository: Repository) -> None:
    assert repository.errors(msgspec=["numpy>=1", "mpmath; extra == 'other'"]) == []
    assert repository.errors(gymnasium=["aiohttp; extra == 'other'"]) == []
    found = repository.errors(msgspec=["aiohttp>=3", "numpy<1"])
    assert any("lacks aiohttp, which msgspec " in error for error in found)
    assert any("has numpy 2" in error and "requires numpy<1" in error for error in found)


def test_requirements_of_named_extras_are_pinned_too(repository: Repository) -> None:
    found = repository.errors(minari=["aiohttp; extra == 'hdf5'"])
    assert any("requirements/dev.txt lacks aiohttp, which minari " in error for error in found)
