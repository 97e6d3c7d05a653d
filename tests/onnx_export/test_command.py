"""`--export`: each source of a policy, the spaces, and refusals that say what to do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces

import tmrl_core.actor
from tests.cli.test_help import COMMON, check_help
from tmrl_core.actor.policies.weights import decode_arrays
from tmrl_core.cli.main import main, parser
from tmrl_core.config import from_values
from tmrl_core.config.loading import resolved
from tmrl_core.errors import ConfigError, TmrlError
from tmrl_core.onnx_export.command import run_export
from tmrl_core.sessions import SessionWriter
from tmrl_core.training.checkpoints.checked_files import FileEntry
from tmrl_core.training.checkpoints.checkpoint_folder import save_training
from tmrl_core.training.checkpoints.manifest import Manifest, read_manifest, write_manifest

ROOT = Path(__file__).resolve().parents[2]
PENDULUM = (
    spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32)),
    spaces.Box(-2.0, 2.0, (1,), np.float32),
)
NONE = FileEntry(0, 0)
SAC: dict[str, Any] = {
    "actor": {"cls": "tmrl_core.actor:SquashedGaussianMLPActor", "kwargs": {"hidden_sizes": [8]}},
    "agent": {"cls": "tmrl_core.training:SacAgent"},
    "environment": {"cls": "tmrl_core.envs:GenericGymEnv", "kwargs": {"id": "Pendulum-v1"}},
}
FLASHSAC = SAC | {
    "actor": {"cls": "tmrl_core.actor:SquashedGaussianResidualActor", "kwargs": {"width": 8}},
    "agent": {"cls": "tmrl_core.training:FlashSACAgent", "kwargs": {"critic_width": 8, "bins": 5}},
}
CROSSQ = SAC | {
    "actor": {"cls": "tmrl_core.actor:NormalizedSquashedGaussianMLPActor", "kwargs": {"hidden_sizes": [8]}},
    "agent": {"cls": "tmrl_core.training:CrossQAgent"},
}


def make_run(folder: Path, values: dict[str, Any] = SAC, seed: int = 1) -> Any:
    """Write the configuration and the policy of a run, and return the policy."""
    config = from_values(values | {"run": {"name": folder.name, "folder": str(folder.parent)}})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(resolved(config))
    name = config.actor.cls.partition(":")[2]
    policy = getattr(tmrl_core.actor, f"Numpy{name}")(*PENDULUM, seed=seed, **config.actor.kwargs)
    policy.save(folder / "policy.tmod")
    return policy


def make_checkpoint(run: Path, number: int, score: float | None) -> bytes:
    """Write a checkpoint of a run's untrained agent, and return the weights that the agent publishes."""
    from tmrl_core.config import load
    from tmrl_core.roles.training_object import training_from_config

    training = training_from_config(load(run / "config.yaml", environ={}))()
    save_training(training, run / "checkpoint" / str(number))
    manifest = read_manifest(run / "checkpoint" / str(number))
    manifest.score = score
    write_manifest(run / "checkpoint" / str(number), manifest)
    data: bytes = training.agent.get_actor().to_blob()[1]
    return data


def action_of(file: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    action: np.ndarray = session.run(["action"], {"observation": np.array([[0.6, -0.8, 2.0]], np.float32)})[0]
    return action


def assert_acts_like(file: Path, policy: Any) -> None:
    wanted = policy.act(np.array([0.6, -0.8, 2.0], np.float32), test=True)
    np.testing.assert_allclose(action_of(file)[0], wanted, atol=1e-5)


def test_the_newest_policy_of_a_run_that_was_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "moved")
    run = tmp_path / "moved"
    os.utime(run / "policy.tmod", (1, 1))
    newer = tmrl_core.actor.NumpySquashedGaussianMLPActor(*PENDULUM, hidden_sizes=[8], seed=7)
    (run / "worker").mkdir()
    newer.save(run / "worker" / "policy.tmod")
    (run / "run_id").write_text("first-12345678\n")
    assert run_export(["--export", str(run), str(tmp_path / "policy.onnx")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith(f"kB, the policy of {run / 'worker' / 'policy.tmod'}")
    assert out[1:3] == [
        "inputs:  observation float32[batch, 3]",
        "outputs: mean float32[batch, 1], log_std float32[batch, 1], action float32[batch, 1]",
    ]
    assert out[3].startswith("largest difference to the policy on sampled observations: ")
    assert_acts_like(tmp_path / "policy.onnx", newer)
    told = {each.key: each.value for each in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert (told["tmrl_core.run"], told["tmrl_core.weights"]) == ("first-12345678", "policy.tmod")


def test_a_dated_copy_and_a_file_elsewhere(tmp_path: Path) -> None:
    policy = make_run(tmp_path / "run")
    copy = tmp_path / "run" / "worker" / "history" / "policy_1.tmod"
    copy.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "run" / "policy.tmod", copy)
    assert run_export(["--export", str(copy), str(tmp_path / "a.onnx")]) == 0
    elsewhere = shutil.copy(copy, tmp_path / "mine.tmod")
    config = ["-c", str(tmp_path / "run" / "config.yaml")]
    assert run_export(["--export", str(elsewhere), str(tmp_path / "b.onnx"), *config]) == 0
    for name in ("a", "b"):
        assert_acts_like(tmp_path / f"{name}.onnx", policy)


@pytest.mark.parametrize("values", [FLASHSAC, CROSSQ], ids=["FlashSAC", "CrossQ"])
def test_a_checkpoint_gives_what_its_agent_publishes(tmp_path: Path, values: dict[str, Any]) -> None:
    run = tmp_path / "run"
    policy = make_run(run, values)
    weights = {number: make_checkpoint(run, number, score) for number, score in ((1, -3.0), (2, None))}
    for which, number in (("best", 1), ("last", 2), ("1", 1)):
        assert run_export(["--export", str(run), str(tmp_path / "policy.onnx"), "--checkpoint", which]) == 0
        assert_acts_like(tmp_path / "policy.onnx", policy.from_bytes(weights[number]))
    told = {each.key: each.value for each in onnx.load(tmp_path / "policy.onnx").metadata_props}
    assert (told["tmrl_core.weights"], told["tmrl_core.return"]) == ("checkpoint/1", "-3.0")
    assert run_export(["--export", str(run / "checkpoint" / "2"), str(tmp_path / "policy.onnx")]) == 0
    assert_acts_like(tmp_path / "policy.onnx", policy.from_bytes(weights[2]))
    assert "obs_mean" in decode_arrays(weights[2])[0], "folded: no statistics of the hidden layers"


def test_spaces_of_a_recording_replace_the_environment(tmp_path: Path) -> None:
    missing = SAC | {"environment": {"cls": "a_robot_that_is_elsewhere:Robot"}}
    policy = make_run(tmp_path / "run", missing)
    with SessionWriter(tmp_path / "recorded", *PENDULUM):
        pass
    given = ["--spaces", str(tmp_path / "recorded" / "spaces.json")]
    assert run_export(["--export", str(tmp_path / "run"), str(tmp_path / "policy.onnx"), *given]) == 0
    assert_acts_like(tmp_path / "policy.onnx", policy)


def test_a_preprocessor_is_said_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", SAC | {"worker": {"obs_preprocessor": "numpy:asarray"}})
    assert run_export(["--export", str(tmp_path / "run"), str(tmp_path / "policy.onnx")]) == 0
    assert "worker.obs_preprocessor: numpy:asarray is not in the file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere not found: name the folder of a run"),
        (["lost.tmod"], "does not lie in the folder of a run.* Name the run's configuration with -c FILE"),
        (["run/checkpoint"], "is neither the folder of a run .*, nor of a checkpoint .*, nor a file of weights"),
        (["run", "--checkpoint", "3"], "--checkpoint: found 3, allowed: best, last, 1"),
        (["run", "--checkpoint", "best"], "no checkpoint in .* has an evaluation .*Allowed: last, 1"),
        (["run/policy.tmod", "--checkpoint", "1"], "--checkpoint: only with the folder of a run"),
        (["begun"], "begun has no saved policy: neither .*policy.tmod nor .* take the policy of a checkpoint"),
        (["begun", "--checkpoint", "last"], "begun/checkpoint has no checkpoint"),
        (["own"], "actor.cls: my_robot:Policy is a policy of your own.* Allowed for an export: Cat"),
        (["other"], "the weights are not for SquashedGaussianMLPActor: hidden_sizes: .8. here, .4. in them"),
    ],
)
def test_refusals_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"))
    Path("run/checkpoint/1").mkdir(parents=True)
    write_manifest(Path("run/checkpoint/1"), Manifest(files={"state.json": NONE, "arrays.safetensors": NONE}))
    make_run(Path("own"))
    Path("own/config.yaml").write_text("{actor: {cls: 'my_robot:Policy'}, agent: {cls: 'my_robot:Agent'}}")
    make_run(Path("begun"))
    Path("begun/policy.tmod").unlink()
    make_run(Path("other"), SAC | {"actor": SAC["actor"] | {"kwargs": {"hidden_sizes": [4]}}})
    shutil.copy("run/config.yaml", "other/config.yaml")
    shutil.copy("run/policy.tmod", "lost.tmod")
    with pytest.raises(TmrlError, match=message):
        run_export(["--export", *words, "policy.onnx"])
    assert not Path("policy.onnx").exists()


def test_a_run_of_many_agents_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tmrl_core.multiagent")
    make_run(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text((ROOT / "examples" / "tictactoe" / "tictactoe.yaml").read_text())
    with pytest.raises(ConfigError, match="multiagent: such a run has policies of its own kind"):
        run_export(["--export", str(tmp_path / "run"), str(tmp_path / "policy.onnx")])


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "policy.onnx").mkdir()
    assert main(["--export", str(tmp_path / "run"), str(tmp_path / "policy.onnx")]) == 2
    assert "policy.onnx cannot be written: " in capsys.readouterr().err


def test_help_names_each_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check_help("--export", f"SOURCE FILE {COMMON} --checkpoint --spaces", monkeypatch, capsys)


def test_the_command_is_in_the_help() -> None:
    assert "--export SOURCE" in parser().format_help()
