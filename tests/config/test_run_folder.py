from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from tmrl_core.config import from_values, load
from tmrl_core.config.run_folder import check_run_folder, run_id, write_in_force
from tmrl_core.errors import ConfigError


def test_an_id_is_a_folder_s_own_and_kept_for_resumes(tmp_path: Path) -> None:
    first, second = (tmp_path / name / "run7" for name in "ab")
    found = run_id(first, "run7")
    assert found.startswith("run7-")
    assert run_id(first, "run7") == found
    assert run_id(second, "run7") != found
    (first / "run_id").write_text("no id/\n")
    assert run_id(first, "run7") not in (found, "no id/")


NOW = datetime.datetime(2031, 2, 3, 4, 5, 6)


def test_each_start_leaves_the_configuration_and_a_dated_copy(tmp_path: Path) -> None:
    first, second = (
        from_values({"run": {"name": "x", "folder": str(tmp_path)}, "server": {"port": p}}) for p in (4, 5)
    )
    assert write_in_force(first, NOW) == tmp_path / "x" / "config.yaml"
    write_in_force(second, NOW)
    copies = tmp_path / "x" / "configs"
    assert load(tmp_path / "x" / "config.yaml", environ={}) == second
    assert load(copies / "2031-02-03_04-05-06.yaml", environ={}) == first
    assert load(copies / "2031-02-03_04-05-06_2.yaml", environ={}) == second


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege there")
def test_no_link_is_followed(tmp_path: Path) -> None:
    config = from_values({"run": {"name": "x", "folder": str(tmp_path)}})
    (tmp_path / "x" / "configs").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "x" / "config.yaml").symlink_to(victim)
    (tmp_path / "x" / "configs" / "2031-02-03_04-05-06.yaml").symlink_to(victim)
    write_in_force(config, NOW)
    assert victim.read_text() == "mine"
    assert load(tmp_path / "x" / "config.yaml", environ={}) == config


def test_an_unwritable_run_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"run\.folder.*cannot be written"):
        check_run_folder(from_values({"run": {"folder": str(tmp_path / "file")}}))
    check_run_folder(from_values({"run": {"folder": str(tmp_path), "name": "new"}}))
    assert list((tmp_path / "new").iterdir()) == []
