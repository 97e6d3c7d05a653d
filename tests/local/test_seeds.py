from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import in_this_process
from tmrl_core.config import Config
from tmrl_core.errors import ConfigError
from tmrl_core.local.seeds import run_of_seed, seeds_of


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [3]), ("0-4", [0, 1, 2, 3, 4]), ("7, 1-2", [7, 1, 2]), ("0-999", list(range(1000)))]
)
def test_seeds_and_ranges(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "4-1", "-3", "1,,2", "1-2-3", "0-1000", "1,1", "0-3,2", "1.5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds: found"):
        seeds_of(text)


def test_each_seed_has_a_name_of_its_own_in_one_group() -> None:
    config = Config()
    made = [run_of_seed(config, seed) for seed in (0, 1)]
    assert [one.run.name for one in made] == [f"{config.run.name}-0", f"{config.run.name}-1"]
    assert {one.run.group for one in made} == {config.run.name}
    assert [one.run.seed for one in made] == [0, 1]


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    wrong = ("--set", "environment.cls=gymnasium:make", "--set", "environment.kwargs={id: Nothing-v0}")
    with in_this_process(tmp_path) as run:
        done = run("--local", "--seeds", "0-1", "--at-once", "2", *wrong)
    assert done.returncode == 1
    assert done.stderr.count("ConfigError") >= 2, done.stderr
    for seed in (0, 1):
        assert f"seed {seed}: status 2" in done.stderr


def test_a_number_of_runs_without_seeds_is_refused(tmp_path: Path) -> None:
    with in_this_process(tmp_path) as run:
        done = run("--local", "--at-once", "2")
    assert done.returncode == 2
    assert "add --seeds" in done.stderr


@pytest.mark.parametrize(
    "option", [("--seed", "1"), ("--new",), ("--quickstart",), ("--single-process",), ("--gateway",)]
)
def test_options_of_one_run_are_refused(option: tuple[str, ...], tmp_path: Path) -> None:
    with in_this_process(tmp_path) as run:
        done = run("--local", "--seeds", "0-1", *option)
    assert done.returncode == 2
    assert f"{option[0]} does not go with --seeds" in done.stderr
