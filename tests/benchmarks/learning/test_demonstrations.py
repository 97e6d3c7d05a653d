"""`benchmarks/learning/demonstrations.py` with few steps, and the pictures that its task shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.benchmarks.scripts import imported

ROOT = Path(__file__).resolve().parents[3]
FOLDER, TASK = ROOT / "benchmarks" / "learning", ROOT / "examples" / "demonstrations"


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """The scripts' modules, imported as when they are run."""
    with (
        imported(TASK, ("two_rooms",)) as task,
        imported(FOLDER, ("curves", "run", "one_process", "demonstrations")) as found,
    ):
        yield {**task, **found}


def test_a_picture_shows_where_the_point_is(modules: dict[str, Any]) -> None:
    env = modules["two_rooms"].SeenTwoRooms()
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    pictures = []
    for position in ((0.1, 0.1), (0.11, 0.1), (0.1, 0.9)):
        env.position = np.array(position, np.float32)
        pictures.append(env.picture().astype(int))
    changed = [np.argwhere((pictures[0] != other).any(axis=2)) for other in pictures[1:]]
    assert len(changed[0]), "a move of a third of a pixel is seen"
    low, high = (rows.mean() for rows in (changed[0][:, 0], changed[1][changed[1][:, 0] < 16][:, 0]))
    assert low > 24
    assert high < 8


@pytest.mark.full
def test_a_planned_run_is_kept_and_not_made_again(
    modules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = modules["demonstrations"]
    for name, value in (
        ("STEPS", 1_010),
        ("EVERY", 1_010),
        ("EPISODES", 2),
        ("DEMONSTRATIONS", 2),
        ("PICTURES", tmp_path),
    ):
        monkeypatch.setattr(script, name, value)
    arguments = ["demonstrations.py", "--pictures", "--seeds", "1", "--kinds", "unshifted"]
    monkeypatch.setattr("sys.argv", arguments)
    assert script.main() == 0
    kept = json.loads((tmp_path / "unshifted_1.json").read_text())
    assert (kept["kind"], kept["seed"], [point[0] for point in kept["curve"]]) == ("unshifted", 1, [1_010])
    assert "unshifted seed 1:   1010 steps" in capsys.readouterr().out
    assert script.main() == 0
    assert "steps" not in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*arguments[:-1], "mixed", "--set", "memory.batch_size=8"])
    assert script.main() == 0
    assert not (tmp_path / "mixed_1.json").exists(), "changed settings are no result"
