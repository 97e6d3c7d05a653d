"""Versions of installed packages, and combinations that break, from metadata alone."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tmrl_core.doctor.packages import packages


def install(folder: Path, name: str, number: str, *files: str) -> None:
    """Leave what pip leaves of a package; it cannot be imported."""
    about = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("raise AssertionError('it was imported')")
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_installed_versions_are_shown_and_others_left_out() -> None:
    step = packages()
    assert f"numpy {version('numpy')}, " in step.found
    assert f"gymnasium {version('gymnasium')}" in step.found
    assert step.state == "ok"
    assert packages([]).found == "none of those that this check knows"


@pytest.mark.parametrize(
    ("installed", "said", "repair"),
    [
        (
            {"gymnasium-robotics": "1.4.2", "mujoco": "4.0.0"},
            "gymnasium-robotics 1.4.2 does not work with mujoco 4",
            "<4",
        ),
        ({"Gymnasium_Robotics": "1.4.0", "mujoco": "4.1.0rc1"}, "gymnasium-robotics 1.4.0 does not work", "<4"),
        ({"gymnasium-robotics": "1.4.3", "mujoco": "4.0.0"}, "", ""),
        ({"gymnasium-robotics": "1.4.2", "mujoco": "3.10.1"}, "", ""),
        ({"dm_control": "1.0.50", "mujoco": "4.0"}, "dm-control 1.0.50 does not work with mujoco 4", "<4"),
        ({"dm-control": "1.0.51", "mujoco": "4.0.0"}, "", ""),
        (
            {"robosuite": "1.6.0", "mujoco": "4.0.0", "numpy": "1.26.4"},
            "robosuite 1.6.0 does not work with mujoco",
            "<4",
        ),
        ({"robosuite": "1.5.1", "mujoco": "3.5.0", "numpy": "2.0.0"}, "robosuite 1.5.1 does not work with numpy", "<2"),
        ({"robosuite": "1.5.1", "mujoco": "3.5.0", "numpy": "1.26.4"}, "", ""),
        ({"robosuite": "1.5.1"}, "", ""),
        ({"numpy": "2.4.0", "mujoco": "3.3"}, "", ""),
    ],
)
def test_combinations_that_break_are_advice_with_the_repair(
    tmp_path: Path, installed: dict[str, str], said: str, repair: str
) -> None:
    for name, number in installed.items():
        install(tmp_path, name, number)
    for part in ("mujoco-core", "mujoco-studio"):
        install(tmp_path, part, "4.0.0")
    step = packages([str(tmp_path)])
    assert step.state == "ok", "a package that the run does not use keeps no machine from connecting"
    assert said in step.todo
    assert bool(step.todo) is bool(said)
    assert repair in step.todo
    for number in installed.values():
        assert number in step.found


@pytest.mark.parametrize("lost", ["a file", "a package", "nothing", "mujoco 3"])
def test_an_incomplete_mujoco_is_told(tmp_path: Path, lost: str) -> None:
    install(tmp_path, "mujoco", "3.5.0" if lost == "mujoco 3" else "4.0.0", "mujoco/extra.py")
    install(tmp_path, "mujoco-core", "4.0.0", "mujoco/__init__.py", "mujoco/bindings.py")
    if lost != "a package":
        install(tmp_path, "mujoco-studio", "4.0.0")
    if lost in ("a file", "mujoco 3"):
        (tmp_path / "mujoco" / "bindings.py").unlink()
    todo = packages([str(tmp_path)]).todo
    if lost in ("nothing", "mujoco 3"):
        assert todo == ""
    else:
        assert "mujoco 4.0.0 lacks files" in todo
        assert "pip install --force-reinstall --no-deps mujoco mujoco-core mujoco-studio" in todo


def test_metadata_without_a_version_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mujoco-3.5.0.dist-info").mkdir()
    assert packages([str(tmp_path)]).todo == ""
