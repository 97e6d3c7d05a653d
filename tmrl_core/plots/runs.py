"""Runs to compare: their returns, read from `metrics.jsonl`, and the groups of seeds that they form."""

# Theory of operation
#
# A run is a folder with `metrics.jsonl`; its `config.yaml` says which setting it is. Runs of one setting form a group,
# and a group becomes one line. `run.group` decides where it is set. Elsewhere runs are of one setting if their
# configurations are equal but for the section `run`, which holds the name, the seed and notes. Names decide nothing:
# `sac-1` and `sac-2` may be two seeds or two algorithms.
#
# A file of a long run has hundreds of megabytes, most of it records of rounds and of the network. They are recognized
# by their bytes and never decoded, which is the difference between half a minute and a second.
#
# Of a file that holds several runs, the latest counts (`metrics.curve.latest_run` does the same for one run). What a
# killed trainer wrote after its last checkpoint is not there any more: the resumed one has cut it.

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml

from tmrl_core.errors import ConfigError
from tmrl_core.metrics import names
from tmrl_core.metrics.curve import moving_average
from tmrl_core.metrics.reading import iter_records

Floats = npt.NDArray[np.float64]
Source = Literal["evaluation", "test", "train"]
SOURCES: dict[Source, tuple[str, str]] = {
    "evaluation": ("evaluation", names.RETURN_EVALUATION),
    "test": ("episode", names.RETURN_TEST),
    "train": ("episode", names.RETURN_TRAIN),
}
"""For each source of returns, the kind of its records and the name of the value."""
_BESIDE_RUN = ("run", "version")
MEAN_OF = names.MEAN_OF
MAX_LABELLED = 3
"""Most settings that a label names to tell two groups of one name apart."""


@dataclass(frozen=True)
class Curve:
    """Returns of one run, in order of steps.

    Args:
        steps: [points] environment steps; updates where a run has no counts of environment steps.
        minutes: [points] minutes since the run began.
        returns: [points] mean return of an evaluation, or of the latest episodes.
    """

    steps: Floats
    minutes: Floats
    returns: Floats

    def final(self) -> float:
        """Return the mean over the last tenth of the steps, which one lucky evaluation does not decide."""
        return float(self.returns[self.steps >= 0.9 * self.steps[-1]].mean())


@dataclass(frozen=True)
class Run:
    """One run: its folder, its settings and its curves by source. Sources without two points are left out."""

    folder: Path
    name: str
    group: str | None
    settings: Mapping[str, Any]
    curves: Mapping[Source, Curve]


@dataclass
class Group:
    """Runs of one setting.

    Args:
        label: name in the legend.
        runs: one for each seed.
    """

    label: str
    runs: list[Run] = field(default_factory=list)


def run_folders(given: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the folders of runs that are named, or that lie in a named folder, each once.

    Raises:
        ConfigError: a folder is no run and holds none.
    """
    found: dict[Path, None] = {}
    for one in map(Path, given):
        inner = (
            [one] if (one / "metrics.jsonl").is_file() else sorted(file.parent for file in one.glob("*/metrics.jsonl"))
        )
        if not inner:
            raise ConfigError(
                f"{one}: found neither metrics.jsonl nor folders with one. Name the folder of a run, which is "
                "run.folder and run.name, or the folder in which several runs are."
            )
        found.update(dict.fromkeys(folder.resolve() for folder in inner))
    return list(found)


def read_run(folder: Path) -> Run:
    """Read a run's returns. Missing and damaged lines of `metrics.jsonl` are left out.

    Raises:
        ConfigError: config.yaml is no YAML.
    """
    described: Any = {}
    if (folder / "config.yaml").is_file():
        try:
            described = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{folder / 'config.yaml'} is no YAML: {exc}") from exc
    described = described if isinstance(described, dict) else {}
    about = described.get("run") if isinstance(described.get("run"), dict) else {}
    points: dict[Source, list[tuple[float, float, float]]] = {source: [] for source in SOURCES}
    for record in iter_records(folder / "metrics.jsonl", without=("round", "network")):
        if record.kind == "event" and record.step == 0 and record.text(names.EVENT) == names.EVENT_START:
            points = {source: [] for source in SOURCES}
        for source, (kind, name) in SOURCES.items():
            if record.kind == kind and not record.is_cut and (value := record.number(name)) is not None:
                steps = record.step if record.env_steps is None else record.env_steps
                points[source].append((float(steps), record.elapsed_s / 60.0, value))
    return Run(
        folder=folder,
        name=str(about.get("name") or folder.name),
        group=about.get("group"),
        settings={key: value for key, value in described.items() if key not in _BESIDE_RUN},
        curves={source: _curve(source, found) for source, found in points.items() if len(found) > 1},
    )


def _curve(source: Source, points: list[tuple[float, float, float]]) -> Curve:
    table = np.array(sorted(points))
    returns = table[:, 2]
    if source != "evaluation":  # single episodes, which are too noisy for a line
        returns = moving_average(returns, int(np.clip(len(returns) // 20, 1, MEAN_OF)))
    return Curve(table[:, 0], table[:, 1], returns)


def common_source(runs: Sequence[Run]) -> Source:
    """Return the best source of returns that all runs have: evaluations, else test episodes, else training episodes.

    Raises:
        ConfigError: there is none.
    """
    for source in SOURCES:
        if all(source in run.curves for run in runs):
            return source
    bad = min(runs, key=lambda run: len(run.curves))
    raise ConfigError(
        f"{bad.folder}: found {' and '.join(bad.curves) or 'no two episodes or evaluations'}; the runs have no source "
        f"of returns in common. Leave this run out, or wait until it has two of: {', '.join(SOURCES)}."
    )


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Return the groups in order of their first runs, with labels that differ."""
    groups: dict[Any, Group] = {}
    for run in runs:
        key = run.group if run.group is not None else tuple(sorted(_flat(run.settings).items())) or run.folder
        groups.setdefault(key, Group(run.group or "")).runs.append(run)
    made = list(groups.values())
    for group in made:
        group.label = group.label or _common_name([run.name for run in group.runs])
    labels = [group.label for group in made]
    for group in made:
        if labels.count(group.label) > 1:
            alike = [other for other, label in zip(made, labels, strict=True) if label == group.label]
            group.label += f" ({_differences(group, alike) or group.runs[0].name})"
    return made


def _common_name(all_names: Sequence[str]) -> str:
    """Return what the names begin with, without the number of a seed."""
    if len(all_names) == 1:
        return all_names[0]
    lowest, highest = min(all_names), max(all_names)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(lowest, highest, strict=False))
    return re.sub(r"[-_. ]*(seed|s)?[-_. ]*\d*$", "", "".join(one for one, _ in alike)) or all_names[0]


def _differences(group: Group, alike: Sequence[Group]) -> str:
    """Return the settings in which a group differs from others of its label, as `key=value`."""
    flat = [_flat(other.runs[0].settings) for other in alike]
    own = _flat(group.runs[0].settings)
    keys = sorted({key for one in flat for key in one if any(one.get(key) != other.get(key) for other in flat)})
    return ", ".join(f"{key}={own.get(key, 'default')}" for key in keys[:MAX_LABELLED])


def _flat(settings: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(settings, dict) or not settings:
        return {prefix: repr(settings)} if prefix else {}
    found: dict[str, str] = {}
    for key, value in settings.items():
        found.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
    return found
