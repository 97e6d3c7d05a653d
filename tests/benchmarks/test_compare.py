"""The comparison of two commits: the ratios that are losses, and costs of one side only."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from compare import Costs, rows


def measured(*values: float) -> list[Costs]:
    return [{"a step": (value, "us")} for value in values]


@pytest.mark.parametrize(
    ("old", "new", "good"),
    [
        ((10, 10, 10, 10, 10), (10, 10, 10, 10, 10), True),
        ((10, 10, 10, 10, 10), (8, 8, 8, 8, 8), True),
        ((10, 10, 10, 10, 10), (12, 12, 12, 12, 12), False),
        # One pair in which the old side was disturbed says nothing of the others.
        ((10, 10, 90, 10, 10), (12, 12, 12, 12, 12), False),
        # As many pairs above as below: within the spread.
        ((10, 10, 10, 10, 10), (8, 8, 12, 12, 12), True),
        # A machine that becomes slower does so for both.
        ((10, 20, 30, 40, 50), (10, 20, 30, 40, 50), True),
        ((10, 20, 30, 40, 50), (12, 24, 36, 48, 60), False),
    ],
)
def test_a_loss_is_a_ratio_with_its_complete_spread_below_the_limit(
    old: tuple[float, ...], new: tuple[float, ...], good: bool
) -> None:
    ((_, found),) = rows(measured(*old), measured(*new))
    assert found is good


def test_a_row_gives_both_costs_and_the_ratio_above_one_where_the_new_side_is_better() -> None:
    ((row, _),) = rows(measured(10, 12, 14), measured(5, 6, 7))
    assert row == "| a step | 12 us | 6 us | 2.00 | 2.00 to 2.00 |  |"


def test_a_cost_of_one_side_is_a_row_of_its_own_and_no_loss() -> None:
    old, new = {"a": (1.0, "us"), "b": (1.0, "us")}, {"b": (1.0, "us"), "c": (1.0, "us")}
    found = list(rows([old, old], [new, new]))
    assert [(row.split("|")[1].strip(), row.split("|")[6].strip(), good) for row, good in found] == [
        ("a", "only OLD has it", True),
        ("b", "", True),
        ("c", "only NEW has it", True),
    ]
