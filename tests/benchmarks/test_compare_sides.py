"""The comparison of two commits: each side runs its own code, and figures of one side only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COMPARE = Path(__file__).parents[2] / "benchmarks" / "compare.py"
SIDE = """
import sys
from pathlib import Path

import cost  # of the side's own folder
import tmrl_core

FIGURES = {figures!r}

if __name__ == "__main__":
    assert sys.argv[1] == "--serve" and sys.argv[2] in FIGURES
    for folder in (Path.cwd(), Path(sys.argv[3]), Path(tmrl_core.__file__).parents[1], Path(cost.__file__).parents[1]):
        assert folder == Path(__file__).parents[1]
    print("{{}}", flush=True)
    for _ in sys.stdin:
        print('{{"a step": [%g, "us"]}}' % (cost.COST * tmrl_core.FACTOR), flush=True)
"""


def side(folder: Path, figures: list[str], cost: float, factor: float) -> Path:
    """Make a checkout whose figures cost `cost`, which its benchmarks say, times `factor`, which its package says."""
    files = {
        "benchmarks/compare.py": SIDE.format(figures=figures),
        "benchmarks/cost.py": f"COST = {cost}",
        "tmrl_core/__init__.py": f"FACTOR = {factor}",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def compared(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COMPARE), *map(str, arguments), "--repetitions", "1"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_each_side_measures_with_its_own_code(tmp_path: Path) -> None:
    old = side(tmp_path / "old", ["loop", "gone"], cost=10, factor=2)
    new = side(tmp_path / "new", ["loop", "fresh"], cost=5, factor=3)
    found = compared(old, new)
    table = [line for line in found.stdout.splitlines() if line.startswith("|")][2:]
    assert table == [
        "| a step | 20 us | 15 us | 1.33 | 1.33 to 1.33 |  |",
        "| gone | | | | | only OLD has it |",
        "| fresh | | | | | only NEW has it |",
    ]
    assert found.returncode == 0, found.stderr


def test_a_loss_gives_status_one(tmp_path: Path) -> None:
    old = side(tmp_path / "old", ["loop"], cost=10, factor=1)
    assert compared(old, side(tmp_path / "new", ["loop"], cost=12, factor=1)).returncode == 1


def test_an_unknown_figure_and_a_folder_without_benchmarks_give_status_two(tmp_path: Path) -> None:
    old = side(tmp_path / "old", ["loop"], cost=10, factor=1)
    unknown = compared(old, old, "--only", "lop")
    assert (unknown.returncode, "lop is no figure of either side; they have loop" in unknown.stderr) == (2, True)
    (tmp_path / "bare" / "tmrl_core").mkdir(parents=True)
    bare = compared(old, tmp_path / "bare")
    assert (bare.returncode, "has no benchmarks/compare.py" in bare.stderr) == (2, True)
