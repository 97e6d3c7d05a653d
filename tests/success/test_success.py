"""A classifier of success: from labels to the reward and the end of an episode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.success.reaching import PLACE, Reaching, camera, record, session
from tmrl_core.actor import NumpyCategoricalMLPActor
from tmrl_core.cli.main import main
from tmrl_core.errors import ConfigError, ContractError
from tmrl_core.success import SuccessClassifier, SuccessEnv
from tmrl_core.success.classifier import ACTIONS, file_content
from tmrl_core.success.examples import divided, read_examples
from tmrl_core.success.threshold import choose_threshold, confusion_at

pytest.importorskip("PIL")

EIGHT: list[bool | None] = [True, False] * 8


def classifier(path: Path, at: float = 0.85, **described: Any) -> Path:
    """A classifier of `place` that needs no training: success where it is above `at`."""
    space = spaces.Dict({"place": PLACE})
    policy = NumpyCategoricalMLPActor(space, ACTIONS, (2,), "relu", normalize_observations=True)
    for name, array in policy._weights.items():
        array[...] = 1.0 if name == "obs_std" else 0.0
    policy._weights["net.0.weight"][0, 0] = 1.0
    policy._weights["logits.weight"][1, 0] = 100.0
    policy._weights["logits.bias"][1] = -100.0 * at
    content = {"entries": ("place",), "hidden_sizes": (2,), "threshold": 0.5, "normalized": True, **described}
    path.write_bytes(file_content(policy.to_bytes(), space, **content))
    return path


def play(env: Any) -> list[tuple[Any, ...]]:
    """Return reward, flags and info of each step of an episode."""
    env.reset(seed=1)
    found: list[tuple[Any, ...]] = []
    while not found or not (found[-1][1] or found[-1][2]):
        found.append(env.step(np.zeros(1, np.float32))[1:])
    return found


@pytest.mark.parametrize("on", ["place", pytest.param("camera", marks=pytest.mark.full)])
def test_from_recorded_sessions_to_the_end_of_an_episode(on: str, tmp_path: Path, capsys: Any) -> None:
    folder = record(tmp_path / "sessions", [*EIGHT, None])
    file = tmp_path / "done.safetensors"
    assert main(["--label", str(folder), "--out", str(file), "--on", on, "--updates", "100"]) == 0
    out = capsys.readouterr().out
    assert "1 sessions without a label are left out" in out
    assert "trained on: 12 sessions, 6 successes, 120 failures" in out
    assert "held out: 4 sessions, 2 successes, 40 failures" in out
    assert "2 of 2 successes are found, and 0 of 40 failures are taken for one" in out
    assert file.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    steps = play(SuccessEnv(Reaching(), str(file), reward=5.0))
    assert 9 <= len(steps) <= 11
    assert steps[-1][:3] == (5.0, True, False)
    assert steps[-1][3]["is_success"] is True
    assert all(reward == 0.0 for reward, *_ in steps[:-1])


def test_a_worker_without_torch_computes_it(tmp_path: Path) -> None:
    file = classifier(tmp_path / "done.safetensors")
    code = f"""
import sys
sys.modules["torch"] = sys.modules["PIL"] = None
import numpy as np
from tests.success.reaching import Reaching
from tmrl_core.success import SuccessEnv
env = SuccessEnv("tests.success.reaching:Reaching", {str(file)!r}, {{"speed": 0.3}})
env.reset()
print([env.step(np.zeros(1))[2] for _ in range(3)])
"""
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert ended.stdout == "[False, False, True]\n", ended.stderr


def test_an_episode_without_a_success_says_so(tmp_path: Path) -> None:
    file = classifier(tmp_path / "done.safetensors")
    steps = play(SuccessEnv(Reaching(speed=0.01), str(file)))
    assert len(steps) == 15
    assert steps[-1][:3] == (0.0, False, True)
    assert steps[-1][3]["is_success"] is False
    assert steps[-1][3]["success_probability"] < 0.01


def test_several_steps_in_a_row_and_another_threshold(tmp_path: Path) -> None:
    file = str(classifier(tmp_path / "done.safetensors"))
    assert len(play(SuccessEnv(Reaching(), file))) == 9
    assert len(play(SuccessEnv(Reaching(), file, steps=3))) == 11
    assert len(play(SuccessEnv(Reaching(), file, threshold=1 - 1e-6))) == 10


def test_a_trainer_needs_no_file_and_a_worker_is_told(tmp_path: Path) -> None:
    env = SuccessEnv("tests.success.reaching:Reaching", str(tmp_path / "none.safetensors"))
    assert env.observation_space == Reaching().observation_space
    with pytest.raises(ContractError, match=r"environment\.kwargs\.file: the success classifier .* cannot be read: No"):
        env.reset()


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"entries": ("wrist",)}, r"the entries \['wrist'\] are not in the observation space"),
        ({"threshold": 2.0}, "is no success classifier: .*threshold"),
        ({"version": 2}, "its version is 2, and this version of tmrl_core reads 1"),
        ({"hidden_sizes": (3,)}, "is no success classifier: .*hidden_sizes"),
    ],
)
def test_other_files_are_refused(described: dict[str, Any], message: str, tmp_path: Path) -> None:
    version = described.pop("version", None)
    file = classifier(tmp_path / "done.safetensors", **described)
    if version is not None:
        file.write_bytes(file.read_bytes().replace(b'\\"version\\":1', b'\\"version\\":%d' % version))
    with pytest.raises(ContractError, match=message):
        SuccessEnv(Reaching(), str(file)).reset()
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="other is no success classifier"):
        SuccessClassifier(tmp_path / "other")


def test_an_environment_with_larger_images_is_reduced_and_others_are_refused(tmp_path: Path) -> None:
    space = spaces.Dict({"camera": camera(16)})
    policy = NumpyCategoricalMLPActor(space, ACTIONS, (4,), "relu", seed=0)
    file = tmp_path / "done.safetensors"
    described = {"entries": ("camera",), "hidden_sizes": (4,), "threshold": 0.5, "normalized": False}
    file.write_bytes(file_content(policy.to_bytes(), space, **described))
    found = SuccessClassifier(file)
    found.fit(Reaching(16).observation_space)
    here = found.probability(Reaching(16).observe(0.5))
    found.fit(Reaching(32).observation_space)
    assert found.probability(Reaching(32).observe(0.5)) == pytest.approx(here, abs=0.02)
    gray = spaces.Dict({"camera": spaces.Box(0, 255, (32, 32, 1), np.uint8)})
    with pytest.raises(ConfigError, match="the success classifier takes observations of"):
        found.fit(gray)


def test_folders_of_images(tmp_path: Path) -> None:
    from PIL import Image

    for number, label in enumerate(EIGHT):
        folder = tmp_path / ("success" if label else "failure")
        folder.mkdir(exist_ok=True)
        shown = session(number, bool(label)).observations
        assert isinstance(shown, dict)
        Image.fromarray(np.asarray(shown["camera"])[-1]).save(folder / f"{number}.png")
    found = read_examples(tmp_path, ("camera",), 1, 16)
    assert len(found.groups) == 16
    assert found.space == spaces.Dict({"camera": spaces.Box(0, 255, (16, 16, 3), np.uint8)})
    training, held_out = divided(found.groups, 0)
    assert (len(training), len(held_out)) == (12, 4)
    Image.new("RGB", (9, 9)).save(tmp_path / "success" / "z.png")
    with pytest.raises(ConfigError, match=r"z\.png has 9 rows and 9 columns, and the first image 24 rows"):
        read_examples(tmp_path, (), 1, 64)


def test_no_session_is_on_both_sides_and_the_moment_before_a_success_is_left_out(tmp_path: Path) -> None:
    found = read_examples(record(tmp_path, EIGHT), (), 2, 64)
    first = found.groups[0]
    assert first.success.tolist() == [False] * 7 + [True] * 2  # of 11 observations, two before the success are left out
    short = read_examples(tmp_path, (), 8, 64).groups[0]
    assert short.success.tolist() == [True] * 8
    training, held_out = divided(found.groups, 3)
    assert not {group.name for group in training} & {group.name for group in held_out}
    assert len(training) + len(held_out) == 16
    assert all(any(group.success.any() for group in part) for part in (training, held_out))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([None] * 5, "none of 5 sessions has a label. Record with worker.interventions"),
        ([True] * 3 + [False] * 9, "found 3 sessions or groups of images with a success, and 12 in all; needed: 4"),
        ([False] * 9, "found 0 sessions or groups of images with a success"),
    ],
)
def test_too_little_to_learn_from(labels: list[bool | None], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        divided(read_examples(record(tmp_path, labels), (), 1, 64).groups, 0)


def test_entries_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the entries \['front'\] are not in the observation space .*Correct --on"):
        read_examples(record(tmp_path, EIGHT), ("front",), 1, 64)


def test_the_threshold_is_in_the_widest_gap_of_the_best() -> None:
    probability = np.array([0.05, 0.1, 0.2, 0.8, 0.9])
    success = np.array([False, False, False, True, True])
    assert choose_threshold(probability, success) == pytest.approx(0.5)
    mixed = np.array([False, True, False, True, True])
    threshold = choose_threshold(probability, mixed)
    assert confusion_at(threshold, probability, mixed) == (2, 1, 0, 2)


def test_a_classifier_that_cannot_tell_is_not_written(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("tmrl_core.success.command.LEAST_INFORMEDNESS", 1.1)
    file = tmp_path / "done.safetensors"
    assert (
        main(["--label", str(record(tmp_path / "s", EIGHT)), "--out", str(file), "--on", "place", "--updates", "1"])
        == 1
    )
    assert "No classifier was written: on held-out sessions it hardly tells" in capsys.readouterr().out
    assert not file.exists()
    assert file.with_suffix(".png").exists()


@pytest.mark.parametrize("out", ["missing/done.safetensors", ".", "done.png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_training(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--label", str(tmp_path / "none"), "--out", str(tmp_path / out)]) == 2
    assert "allowed: a file in an existing folder" in capsys.readouterr().err
