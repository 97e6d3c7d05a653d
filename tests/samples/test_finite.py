from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.samples.finite import is_finite


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        (np.array([0.5]), True),
        (np.array([0.5, np.nan]), False),
        (np.array([[np.inf]]), False),
        (np.array([3e38, 3e38], np.float32), True),
        (np.int64(3), True),
        (float("nan"), False),
        ({"a": 1, "b": (np.zeros(2), [np.nan])}, False),
        ({"a": 1, "b": (np.zeros(2), [1.0])}, True),
        ("left", True),
    ],
)
def test_values_are_finite_or_not_however_they_are_nested(value: Any, finite: bool) -> None:
    assert is_finite(value) is finite
