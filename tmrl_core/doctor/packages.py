"""Installed versions of the packages that are used with this one, and combinations of them that do not work.

The versions come from the packages' metadata: nothing is imported. The table holds what was seen to break; each entry
goes once a release of the package is known to work.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from typing import NamedTuple

from tmrl_core.doctor.steps import Step

PACKAGES = (
    *("numpy", "torch", "gymnasium", "mujoco", "mujoco-core", "mujoco-studio", "ale-py", "minigrid", "dm-control"),
    *("shimmy", "metaworld", "gymnasium-robotics", "highway-env", "gym-hil", "panda-gym", "robosuite", "mani-skill"),
    *("mo-gymnasium", "envpool", "pettingzoo", "mpe2", "supersuit", "rtgym", "gym-pybullet-drones", "pyflyt"),
    *("gym-pusht", "vizdoom", "nle", "minihack", "stable-baselines3", "minari", "lerobot", "safetensors"),
    *("onnxruntime", "wandb"),
)
"""Packages whose versions are shown, if they are installed."""


class Conflict(NamedTuple):
    """Versions that do not work together.

    Attributes:
        package: the one that breaks.
        until: its last version that is known to break; None: all.
        with_package: package that breaks it.
        since: first version of that one with which it breaks.
        found: consequence.
        repair: command.
    """

    package: str
    until: str | None
    with_package: str
    since: str
    found: str
    repair: str


CONFLICTS = (
    Conflict(
        *("gymnasium-robotics", "1.4.2", "mujoco", "4"),
        "its Fetch and Hand environments end in an AssertionError without a text",
        'pip install "mujoco<4"',
    ),
    Conflict(*("dm-control", "1.0.50", "mujoco", "4"), "it cannot be imported", 'pip install "mujoco<4"'),
    Conflict(*("robosuite", None, "mujoco", "4"), "it needs mujoco 3", 'pip install "mujoco<4" "numpy<2"'),
    Conflict(*("robosuite", None, "numpy", "2"), "it needs numpy 1", 'pip install "mujoco<4" "numpy<2"'),
)

_MUJOCO = ("mujoco", "mujoco-core", "mujoco-studio")
_MUJOCO_REPAIR = "pip install --force-reinstall --no-deps " + " ".join(_MUJOCO)


def packages(path: Sequence[str] | None = None) -> Step:
    """Return the installed versions, and the combinations that break as advice with the repair.

    Args:
        path: folders that are searched; None: `sys.path`.
    """
    found, versions = _installed(sys.path if path is None else path)
    problems = [*_conflicts(versions), *_incomplete(found, versions)]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Step("packages", "ok", shown or "none of those that this check knows", "\n".join(problems))


def _installed(path: Sequence[str]) -> tuple[dict[str, Distribution], dict[str, str]]:
    """Return the installed ones of the packages, and their versions."""
    found: dict[str, Distribution] = {}
    versions: dict[str, str] = {}
    for name in PACKAGES:
        for one in Distribution.discover(name=name, path=list(path)):
            # Read as text: `Distribution.version` fails in other ways in each Python if a package was half removed.
            about = one.read_text("METADATA") or one.read_text("PKG-INFO") or ""
            if version := re.search(r"^Version: *(\S+)", about, re.MULTILINE):
                found[name], versions[name] = one, version[1]
                break
    return found, versions


def _conflicts(versions: Mapping[str, str]) -> Iterator[str]:
    for one in CONFLICTS:
        broken, other = versions.get(one.package), versions.get(one.with_package)
        if broken is None or other is None or _release(other) < _release(one.since):
            continue
        if one.until is None or _release(broken) <= _release(one.until):
            yield f"{one.package} {broken} does not work with {one.with_package} {other}: {one.found}. {one.repair}"


def _incomplete(found: Mapping[str, Distribution], versions: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem if mujoco 4 was installed over mujoco 3, whose removal takes files of the new packages away."""
    mujoco = versions.get("mujoco")
    if mujoco is None or _release(mujoco) < (4,):
        return
    parts = [found.get(name) for name in _MUJOCO]
    if any(part is None or not all(os.path.exists(file.locate()) for file in part.files or ()) for part in parts):
        yield (
            f"mujoco {mujoco} lacks files and cannot be imported, as after `pip install -U` over mujoco 3. "
            f"{_MUJOCO_REPAIR}"
        )


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without a trailing zero, rc or local part."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    found = [int(number) for number in numbers[0].split(".")] if numbers else []
    while found and not found[-1]:
        found.pop()
    return tuple(found)
