"""--import-config and --import-weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.cli.main import main
from tmrl_core.config import load
from tmrl_core.envs import GenericGymEnv


def test_a_configuration_is_printed_and_the_rest_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"RUN_NAME": "x", "PASSWORD": "hunter2", "PORT": 70_000}))
    assert main(["--import-config", str(tmp_path / "config.json")]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {"run": {"name": "x"}}
    assert [line.split(":")[0] for line in err.splitlines()] == ["PORT", "ENV", "PASSWORD"]
    assert "hunter2" not in out + err


@pytest.mark.parametrize("option", ["--import-config", "--import-weights"])
def test_help_needs_no_file(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([option, "--help"])
    assert "Nothing in the files is run." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["my.yaml", "my.json"])
def test_a_configuration_is_written_to_a_new_file_that_loads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"MAX_EPOCHS": 3}), encoding="utf-8-sig")
    arguments = [f"--import-config={tmp_path / 'config.json'}", "-o", str(tmp_path / name)]
    assert main(arguments) == 0
    assert load(tmp_path / name).trainer.epochs == 3
    assert f"start the roles with -c {tmp_path / name}" in capsys.readouterr().out
    assert main(arguments) == 1
    assert "exists; name a new file" in capsys.readouterr().err


def test_a_file_that_no_role_would_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["--import-config", str(tmp_path / "config.json"), "-o", str(tmp_path / "my.txt")]) == 2
    assert "ends in .yaml, .yml, .json, not in '.txt'" in capsys.readouterr().err
    assert not (tmp_path / "my.txt").exists()


@pytest.mark.parametrize(("content", "problem"), [("{", "not valid JSON"), ("[]", "json: this is not a conf")])
def test_other_files_are_refused(
    content: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content)
    assert main(["--import-config", str(tmp_path / "config.json")]) == 2
    assert problem in capsys.readouterr().err
    assert main(["--import-config", str(tmp_path / "none.json")]) == 2
    assert "TmrlData/config/config.json" in capsys.readouterr().err


def test_a_policy_is_converted_and_acts_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = GenericGymEnv(id="Pendulum-v1", to_float32=True)
    shapes = {"net.0": (8, 3), "net.2": (4, 8), "mu_layer": (1, 4), "log_std_layer": (1, 4)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    torch.save(state, tmp_path / "model.tmod")
    arguments = ["--import-weights", str(tmp_path / "model.tmod")]
    assert main(arguments) == 2
    assert "add -o FILE" in capsys.readouterr().err
    assert main([*arguments, "-o", str(tmp_path / "policy.tmod")]) == 0
    assert "hidden_sizes: [8, 4]" in capsys.readouterr().out
    actor = NumpySquashedGaussianMLPActor(env.observation_space, env.action_space, hidden_sizes=(8, 4))
    obs, _ = env.reset(seed=1)
    x = torch.as_tensor(obs)
    for name in ("net.0", "net.2"):
        x = torch.relu(state[f"{name}.weight"] @ x + state[f"{name}.bias"])
    expected = 2.0 * torch.tanh(state["mu_layer.weight"] @ x + state["mu_layer.bias"])
    found = actor.load(tmp_path / "policy.tmod", "cpu").act(obs, test=True)
    assert np.allclose(found, expected, atol=1e-5)
    env.close()


def test_other_weights_are_refused_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.tmod").write_bytes(b"\x80\x04.")
    assert main(["--import-weights", str(tmp_path / "model.tmod"), "-o", str(tmp_path / "policy.tmod")]) == 1
    assert "model.tmod: this is not a file of named tensors" in capsys.readouterr().err
    assert not (tmp_path / "policy.tmod").exists()
    assert main(["--import-weights", str(tmp_path / "none"), "-o", "x"]) == 1
    assert "cannot be read" in capsys.readouterr().err
