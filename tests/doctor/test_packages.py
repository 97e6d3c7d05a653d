"""Installed packages are named with their versions, and combinations that are known to break with their repair."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tmrl_core.doctor.packages import COMBINATIONS, Broken, packages


def installed(folder: Path, **versions: str) -> Path:
    """Write the metadata of packages, with one module each."""
    for name, version in versions.items():
        facts = folder / f"{name}-{version}.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
        (facts / "RECORD").write_text(f"{name}.py,,\n{facts.name}/METADATA,,\n")
        (folder / f"{name}.py").write_text("")
    return folder


def advice(folder: Path) -> tuple[str, str]:
    """Return finding and repair for the packages of a folder alone."""

    def find(name: str) -> Distribution:
        for found in Distribution.discover(name=name, path=[str(folder)]):
            return found
        raise PackageNotFoundError(name)

    step = packages(find)
    assert (step.name, step.state) == ("packages", "ok")
    return step.found, step.todo


def test_the_versions_of_this_machine_are_named() -> None:
    assert f"gymnasium {distribution('gymnasium').version}, numpy {distribution('numpy').version}" in packages().found


@pytest.mark.parametrize("broken", COMBINATIONS, ids=lambda broken: f"{broken.package} {broken.other}")
def test_each_combination_that_breaks_is_told_with_its_repair(tmp_path: Path, broken: Broken) -> None:
    package, other = broken.package.replace("-", "_"), broken.other.replace("-", "_")
    there = {package: broken.last} | ({} if broken.first is None else {other: f"{broken.first}.0"})
    found, todo = advice(installed(tmp_path / "broken", **there))
    assert f"known to break: {broken.package} {broken.last}" in found
    assert broken.what in found
    assert broken.repair in todo
    good = {package: broken.last, other: "1.0"}
    assert broken.what not in advice(installed(tmp_path / "good", **good))[0]
    newer = {package: "99.0"} | ({} if broken.first is None else {other: f"{broken.first}.0"})
    assert advice(installed(tmp_path / "newer", **newer))[1] == ""


def test_versions_are_compared_as_numbers(tmp_path: Path) -> None:
    assert advice(installed(tmp_path / "old", gymnasium_robotics="1.4.2", mujoco="3.9.0"))[1] == ""
    assert "mujoco<3.12" in advice(installed(tmp_path / "new", gymnasium_robotics="1.4.2", mujoco="3.17.0"))[1]


def test_files_that_an_upgrade_of_mujoco_removed_are_told(tmp_path: Path) -> None:
    folder = installed(tmp_path, mujoco="4.0.0", mujoco_core="4.0.0")
    with (folder / "mujoco-4.0.0.dist-info" / "RECORD").open("a") as record:
        record.write("__pycache__/mujoco.cpython-313.pyc,,\n")  # an image of a container has none
    assert advice(folder)[1] == ""
    (folder / "mujoco_core.py").unlink()
    found, todo = advice(folder)
    assert "mujoco 4.0.0: 1 of its files are missing" in found
    assert todo == "`pip install --force-reinstall --no-deps mujoco mujoco-core`"


def test_metadata_without_a_version_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mujoco-3.5.0.dist-info").mkdir()
    assert "mujoco" not in advice(tmp_path)[0]
