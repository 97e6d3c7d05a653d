"""Settings that differ from the defaults."""

from __future__ import annotations

from tmrl_core.config import Config, from_values
from tmrl_core.config.differing import MOST_CHARACTERS, differing


def test_the_defaults_differ_in_nothing() -> None:
    assert differing(Config()) == {}
    assert differing(from_values({})) == {}


def test_settings_are_named_by_their_keys() -> None:
    config = from_values(
        {
            "run": {"name": "run7", "seed": 3},
            "trainer": {"epochs": 3, "evaluation": {"target_return": -1.5, "every_updates": 500}},
            "environment": {"kwargs": {"id": "x" * 200, "size": [1, 2]}},
        }
    )
    assert differing(config) == {
        "run.name": "run7",
        "run.seed": "3",
        "trainer.epochs": "3",
        "trainer.evaluation.every_updates": "500",
        "trainer.evaluation.target_return": "-1.5",
        "environment.kwargs.id": "x" * (MOST_CHARACTERS - 3) + "...",
        "environment.kwargs.size": "[1,2]",
    }
