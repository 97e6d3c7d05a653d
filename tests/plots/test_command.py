from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.plots.made_runs import make_run
from tmrl_core.cli.main import parser
from tmrl_core.errors import ConfigError
from tmrl_core.plots.command import run_plot, table
from tmrl_core.plots.runs import groups_of, read_run, run_folders
from tmrl_core.plots.statistics import summary


def test_few_seeds_get_no_interval_and_n_is_said(tmp_path: Path) -> None:
    for seed in range(4):
        make_run(tmp_path / f"a{seed}", about=f", seed: {seed}", level=float(seed))
    groups = groups_of([read_run(folder) for folder in run_folders([tmp_path])])
    head, row = table(groups, "evaluation")
    assert head.split()[:3] == ["group", "n", "IQM"]
    assert row.split()[:2] == ["a", "4"]
    assert "n < 5: none" in row
    assert summary(np.arange(4.0)).interval is None
    assert summary(np.arange(5.0)).interval is not None


def test_the_command_writes_both_pictures_and_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(5):
        make_run(tmp_path / "runs" / f"sac-{seed}", about=f", seed: {seed}", level=float(seed))
    make_run(tmp_path / "runs" / "broken", evaluations=1, settings="agent: {algorithm: td3}")
    monkeypatch.chdir(tmp_path)
    assert run_plot(["--plot", "runs", "--out", "sac", "--stats", "--returns", "evaluation"]) == 0
    out = capsys.readouterr().out
    assert "left out, without two points of evaluation" in out
    assert "52" in out.splitlines()[-1], "the last evaluations are 50 to 54"
    assert imread(tmp_path / "sac.png").std() > 0.05
    assert (tmp_path / "sac.svg").read_text().startswith("<?xml")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs", "sac.png", "sac.svg"]


def test_one_run_alone_gets_its_learning_curve(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    assert run_plot(["--plot", str(folder)]) == 0
    assert (folder / "learning_curve.png").exists()
    assert not (folder.parent / "runs.png").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one")
    with pytest.raises(ConfigError, match=r"no picture can be written to .*missing: .*--out FOLDER/NAME"):
        run_plot(["--plot", str(folder), "--out", str(tmp_path / "missing" / "sac")])
    (folder / ".learning_curve.partial.png").mkdir()
    with pytest.raises(ConfigError, match=r"no picture can be written to .*one: "):
        run_plot(["--plot", str(folder)])


def test_the_command_is_in_the_help() -> None:
    assert "--plot RUN" in parser().format_help()


def test_a_run_that_has_only_begun_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs" / "done")
    make_run(tmp_path / "runs" / "begun", evaluations=0)
    monkeypatch.chdir(tmp_path)
    assert run_plot(["--plot", "runs"]) == 0
    assert "left out, without two points of any returns" in capsys.readouterr().out
    for returns in ([], ["--returns", "test"]):
        with pytest.raises(ConfigError, match=r"no source of returns in common|no run has two points of test"):
            run_plot(["--plot", "runs/begun", "--out", "x", *returns])
