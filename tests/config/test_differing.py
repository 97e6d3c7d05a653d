"""Settings as text: those that differ from the defaults, and all."""

from __future__ import annotations

from tmrl_core.config import Config, from_values
from tmrl_core.config.differing import MOST_CHARACTERS, differing, every_setting


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


def test_every_setting_has_a_text() -> None:
    config = from_values({"run": {"name": "run7"}, "environment": {"kwargs": {"id": "x" * 200, "empty": {}}}})
    found = every_setting(config)
    assert list(found)[:2] == ["run.name", "run.seed"]
    assert (found["run.name"], found["run.seed"], found["run.tags"]) == ("run7", "null", "[]")
    assert found["environment.kwargs.empty"] == "{}"
    assert len(found["environment.kwargs.id"]) == MOST_CHARACTERS
    assert {"trainer.epochs", "network.weights", "worker.queue_bytes"} <= set(found)
    assert differing(config).items() <= found.items()
