"""Installed packages of environments, and combinations of versions that are known to break.

docs/environments.md says what was tried. Nothing is imported: a broken package could end the diagnosis.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from tmrl_core.doctor.steps import Step

NAMES = (
    "gymnasium",
    "numpy",
    "mujoco",
    "mujoco-core",
    "ale-py",
    "box2d",
    "minigrid",
    "shimmy",
    "dm-control",
    "metaworld",
    "gymnasium-robotics",
    "highway-env",
    "gym-hil",
    "panda-gym",
    "robosuite",
    "mani-skill",
    "mo-gymnasium",
    "envpool",
    "pettingzoo",
    "mpe2",
    "supersuit",
    "rtgym",
    "pybullet",
    "vizdoom",
)


class Broken(NamedTuple):
    """A combination that breaks: `package` up to `last`, with `other` from `first` on, or without it if it is None."""

    package: str
    last: str
    other: str
    first: str | None
    what: str
    repair: str


COMBINATIONS = (
    Broken(
        "gymnasium-robotics",
        "1.4.2",
        "mujoco",
        "3.12",
        "Fetch and Hand end in an empty AssertionError",
        'pip install "mujoco<3.12"',
    ),
    Broken("dm-control", "1.0.50", "mujoco", "4", "dm_control needs mujoco 3", 'pip install "mujoco<4"'),
    Broken("robosuite", "1.5.2", "mujoco", "3.10", "mj_fullM takes other arguments", 'pip install "mujoco<3.10"'),
    Broken("robosuite", "1.5.2", "numpy", "2", "robosuite needs numpy 1", 'pip install "numpy<2"'),
    Broken("robosuite", "1.5.2", "h5py", None, "robosuite.wrappers imports h5py", "pip install h5py"),
    Broken("metaworld", "3.1.1", "packaging", None, "importing metaworld needs packaging", "pip install packaging"),
    Broken("shimmy", "2.0.1", "packaging", None, "importing shimmy needs packaging", "pip install packaging"),
)
MUJOCO = ("mujoco", "mujoco-core", "mujoco-studio")
"""The packages of mujoco 4. An upgrade from mujoco 3 removes files that the new ones have already written."""

Find = Callable[[str], Distribution]


def packages(find: Find = distribution) -> Step:
    """Return the installed versions, and as advice the repair of each combination that is known to break.

    The step never fails: the run may not use the broken package.

    Args:
        find: finds an installed package by its name, as `importlib.metadata.distribution` does.
    """
    versions = {name: found.version for name in NAMES if (found := _found(name, find)) is not None}
    broken = list(_broken(find))
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Step(
        "packages",
        "ok",
        "; ".join([text, *(f"known to break: {what}" for what, _ in broken)]),
        " ".join(dict.fromkeys(f"`{repair}`" for _, repair in broken)),
    )


def _broken(find: Find) -> Iterator[tuple[str, str]]:
    """Yield each combination that breaks here, and its repair."""
    for each in COMBINATIONS:
        package, other = _found(each.package, find), _found(each.other, find)
        if package is None or _number(package.version) > _number(each.last):
            continue
        if each.first is None and other is None:
            yield f"{each.package} {package.version} without {each.other}: {each.what}", each.repair
        elif each.first is not None and other is not None and _number(other.version) >= _number(each.first):
            yield f"{each.package} {package.version} with {each.other} {other.version}: {each.what}", each.repair
    parts = [part for name in MUJOCO if (part := _found(name, find)) is not None]
    lost = [file for part in parts for file in _files(part) if not file.is_file()]
    if lost:
        repair = f"pip install --force-reinstall --no-deps {' '.join(part.metadata['Name'] for part in parts)}"
        yield f"mujoco {parts[0].version}: {len(lost)} of its files are missing", repair


def _found(name: str, find: Find) -> Distribution | None:
    try:
        found = find(name)
    except PackageNotFoundError:
        return None
    return found if "Version" in found.metadata else None  # what an interrupted installation leaves has none


def _files(package: Distribution) -> list[Path]:
    """Return the files that an installation wrote; `package.files` leaves out missing ones from Python 3.12 on.

    Compiled ones are no loss: images of containers leave them out, and Python writes them again.
    """
    record = csv.reader((package.read_text("RECORD") or "").splitlines())
    return [Path(str(package.locate_file(row[0]))) for row in record if row and not row[0].endswith(".pyc")]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
