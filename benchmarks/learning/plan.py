"""The planned learning curves (`plan.yaml`) and their results, a small file for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import curves
import msgspec
from run import HERE

PLAN = HERE / "plan.yaml"
RESULTS = HERE / "results"
PEER = "sb3"
OURS = "ours"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A comparison: one task in one environment, ours beside another side.

    Args:
        task: name of a configuration in this folder.
        environment: id of Gymnasium's.
        steps: environment steps of each run.
        seeds: of each side.
        beside: `sb3`, or another task of ours.
    """

    task: str
    environment: str
    steps: int
    seeds: tuple[int, ...]
    beside: str


class Run(msgspec.Struct, frozen=True):
    """One run of a plan; `side` is `ours` or `sb3`."""

    task: str
    environment: str
    steps: int
    side: str
    seed: int

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.environment}_{self.task}_{self.side}_{self.seed}"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run.

    Args:
        run: what ran.
        curve: its evaluations.
        wall_s: seconds from the start of the command to its end.
        core_s: seconds of processor time of all its processes, evaluations and compiling included; None: the run was
            resumed, and an earlier part was not counted.
        ended: UTC date of the end.
        versions: of packages and of Python, and the processor's name.
    """

    run: Run
    curve: list[curves.Point]
    wall_s: float
    core_s: float | None
    ended: str
    versions: dict[str, str]


def read_plan(path: Path = PLAN) -> list[Row]:
    """Return the rows of a plan.

    Raises:
        SystemExit: the file is no plan, or names a task without a configuration.
    """
    try:
        rows = msgspec.yaml.decode(path.read_bytes(), type=list[Row])
    except msgspec.DecodeError as exc:
        raise SystemExit(f"{path}: {exc}") from exc
    for row in rows:
        if not (HERE / f"{row.task}.yaml").is_file():
            raise SystemExit(f"{path}: found task {row.task}, of which there is no {row.task}.yaml in {HERE}")
        if row.beside != PEER and not any(
            (one.task, one.environment) == (row.beside, row.environment) and set(row.seeds) <= set(one.seeds)
            for one in rows
        ):
            raise SystemExit(
                f"{path}: {row.task} in {row.environment} is beside {row.beside}, which is neither {PEER} nor a row "
                "with this environment and these seeds"
            )
    return rows


def planned(rows: Sequence[Row]) -> Iterator[Run]:
    """Yield the runs of a plan in the order in which they are made: the first seed of all rows, then the second."""
    for seed in sorted({seed for row in rows for seed in row.seeds}):
        for row in rows:
            if seed in row.seeds:
                for side in (OURS, PEER) if row.beside == PEER else (OURS,):
                    yield Run(row.task, row.environment, row.steps, side, seed)


def path_of(run: Run, folder: Path = RESULTS) -> Path:
    """Return the file of a run's result."""
    return folder / f"{run.name}.json"


def missing(rows: Sequence[Row], folder: Path = RESULTS) -> list[Run]:
    """Return the runs without a result, in order."""
    return [run for run in planned(rows) if not path_of(run, folder).exists()]


def write(result: Result, folder: Path = RESULTS) -> Path:
    """Write a result, all at once: a file that is there is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(result.run, folder)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    partial.replace(path)
    return path


def read(path: Path) -> Result:
    """Return a result that `write` wrote.

    Raises:
        ValueError: it is something else.
    """
    return msgspec.json.decode(path.read_bytes(), type=Result)


def results(rows: Sequence[Row], folder: Path = RESULTS) -> Mapping[Run, Result]:
    """Return the results that are there, by run."""
    return {run: read(path) for run in planned(rows) if (path := path_of(run, folder)).exists()}
