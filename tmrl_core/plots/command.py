"""`python -m tmrl_core --plot`: runs side by side, as pictures and as statistics over their seeds."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tmrl_core.cli.main import set_up_logging, shown
from tmrl_core.errors import ConfigError
from tmrl_core.metrics.text import return_text
from tmrl_core.plots.comparison import compare
from tmrl_core.plots.runs import SOURCES, Group, Source, common_source, groups_of, read_run, run_folders
from tmrl_core.plots.statistics import INTERVAL_FROM, LEVEL, summary

EPILOG = """\
Runs with the same run.group form one line; without it, runs whose settings are equal but for the section `run`.
examples:
  python -m tmrl_core --plot runs/sac-0                  its learning curve, into runs/sac-0/
  python -m tmrl_core --plot runs --out sac              all runs below runs/: sac.png and sac.svg
  python -m tmrl_core --plot runs/sac-* runs/td3-* --stats
"""


def parser() -> argparse.ArgumentParser:
    """Return the grammar of a command line after `--plot`."""
    made = argparse.ArgumentParser(
        prog="python -m tmrl_core --plot",
        description="Draw the returns of runs by environment steps and by minutes, with intervals over their seeds.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or a folder of several")
    made.add_argument("--out", metavar="PATH", help="pictures PATH.png and PATH.svg (default: runs, in this folder)")
    made.add_argument(
        "--returns",
        choices=list(SOURCES),
        help="source of the returns (default: the first of these that all runs have)",
    )
    made.add_argument(
        "--stats",
        action="store_true",
        help="also print statistics of the final returns (mean over the last tenth of the steps) over the seeds",
    )
    return made


def run_plot(arguments: Sequence[str]) -> int:
    """Run a command line with `--plot`.

    Raises:
        ConfigError: a folder holds no run, the runs have no returns in common, or the pictures cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    options = parser().parse_args([word for word in arguments if word != "--plot"])
    set_up_logging("info")
    folders = run_folders(options.runs)
    if len(folders) == 1 and options.out is None and options.returns is None and not options.stats:
        from tmrl_core.metrics import draw

        with _writing(folders[0]):
            print(shown(str(draw(folders[0]))))
        return 0
    runs = [read_run(folder) for folder in folders]
    # One run that has only begun, or was stopped early, must not keep the others from being drawn.
    drawable = [run for run in runs if options.returns in run.curves or (options.returns is None and run.curves)]
    if drawable and len(drawable) < len(runs):
        wanted = options.returns or "any returns"
        missing = ", ".join(str(run.folder) for run in runs if run not in drawable)
        print(shown(f"left out, without two points of {wanted}: {missing}"))
    runs = drawable or runs
    source: Source = options.returns or common_source(runs)
    if not drawable:
        raise ConfigError(f"no run has two points of {source}; allowed for --returns: {', '.join(SOURCES)}")
    groups = groups_of(runs)
    target = Path(options.out or "runs")
    with _writing(target.parent):
        for path in compare(groups, source, target):
            print(shown(str(path)))
    if options.stats:
        for line in table(groups, source):
            print(shown(line))
    return 0


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise ConfigError(
            f"no picture can be written to {folder}: {exc.strerror or exc}. Name an existing folder that can be "
            "written: --out FOLDER/NAME"
        ) from exc


def table(groups: Sequence[Group], source: Source) -> list[str]:
    """Return the lines of the table of final returns, one for each group."""
    rows: list[tuple[str, ...]] = [
        ("group", "n", "IQM", f"{LEVEL:.0%} interval", "mean", "median", "lowest", "highest")
    ]
    for group in groups:
        found = summary(np.array([run.curves[source].final() for run in group.runs]))
        interval = " to ".join(map(return_text, found.interval)) if found.interval else f"n < {INTERVAL_FROM}: none"
        numbers = (found.mean, found.median, found.lowest, found.highest)
        rows.append((group.label, str(found.n), return_text(found.iqm), interval, *map(return_text, numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_aligned, row, widths, range(len(row)))) for row in rows]


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
