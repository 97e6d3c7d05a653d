from __future__ import annotations

from pathlib import Path

import pytest

from tests.plots.made_runs import make_run
from tmrl_core.errors import ConfigError
from tmrl_core.plots.runs import common_source, groups_of, read_run, run_folders


def test_a_folder_of_runs_stands_for_its_runs_and_each_counts_once(tmp_path: Path) -> None:
    made = [make_run(tmp_path / name) for name in ("a-1", "a-2")]
    assert run_folders([tmp_path, made[0]]) == [folder.resolve() for folder in made]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found neither metrics\.jsonl nor folders with one"):
        run_folders([tmp_path])


def test_seeds_of_one_setting_form_a_group_and_another_setting_another(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / f"pendulum-seed{seed}", about=f", seed: {seed}")
        make_run(tmp_path / f"pendulum-{seed}", about=f", seed: {seed}", settings="agent: {algorithm: td3}")
    groups = groups_of([read_run(folder) for folder in run_folders([tmp_path])])
    assert {group.label: len(group.runs) for group in groups} == {
        "pendulum (agent.algorithm='td3')": 3,
        "pendulum (agent.algorithm='sac')": 3,
    }


def test_the_group_of_the_configuration_decides(tmp_path: Path) -> None:
    make_run(tmp_path / "x", about=", group: mine")
    make_run(tmp_path / "y", about=", group: mine", settings="agent: {algorithm: td3}")
    (group,) = groups_of([read_run(folder) for folder in run_folders([tmp_path])])
    assert (group.label, len(group.runs)) == ("mine", 2)


def test_all_runs_are_drawn_from_one_source(tmp_path: Path) -> None:
    full = read_run(make_run(tmp_path / "full", episodes=30))
    bare = read_run(make_run(tmp_path / "bare", episodes=30, evaluations=1))
    assert common_source([full]) == "evaluation"
    assert common_source([full, bare]) == "train"
    with pytest.raises(ConfigError, match="no source of returns in common"):
        common_source([full, read_run(make_run(tmp_path / "empty", evaluations=0))])


def test_the_latest_run_of_a_file_counts(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a", level=0.0), make_run(tmp_path / "b", level=500.0, evaluations=3)
    with open(first / "metrics.jsonl", "ab") as file:
        file.write((second / "metrics.jsonl").read_bytes())
    curve = read_run(first).curves["evaluation"]
    assert curve.returns.tolist() == [500.0, 510.0, 520.0]
    assert curve.steps.tolist() == [0.0, 100.0, 200.0]
    assert curve.minutes.tolist() == [0.0, 0.1, 0.2]
