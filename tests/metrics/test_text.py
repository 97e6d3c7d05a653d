from __future__ import annotations

import math

import pytest

from tmrl_core.metrics.text import milliseconds_text, return_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0.0, "0"), (0.8249, "0.825"), (-0.00012345, "-0.000123"), (15.25, "15.2"), (-187.25, "-187"),
        (-1234.5, "-1,234"), (1.5e10, "1.5e+10"), (math.nan, "nan"), (-math.inf, "-inf"),
    ],
)  # fmt: skip
def test_returns_have_three_significant_digits(value: float | None, text: str) -> None:
    assert return_text(value) == text


def test_a_return_differs_visibly_from_the_target() -> None:
    assert return_text(0.7996, 0.8) == "0.7996"
    assert return_text(-200.25, -200.0) == "-200.2"
    assert return_text(-200.0, -200.0) == "-200"
    assert return_text(-150.25, -200.0) == "-150"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 ms"), (0.004321, "4.3 ms"), (0.2164, "216 ms"), (67, "67,000 ms")]
)
def test_milliseconds_have_no_exponent(seconds: float, text: str) -> None:
    assert milliseconds_text(seconds) == text
