"""The example package as a user has it: installed, trained over TLS, restored in another process."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tmrl_core.envs import ExampleEnv

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "custom_environment"
LINE = re.compile(
    r" (\d) reward +-?\d+\.\d\d/ +-?\d+\.\d\d/ +-?\d+\.\d\d len \d+\.\d\d saved (\S+checkpoint_00000\1)", re.ASCII
)


def run(folder: Path, *command: str | Path) -> str:
    """Return what a script prints; it finds the example and writes into `folder`."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")},
        "PYTHONPATH": os.pathsep.join([str(folder / "installed"), str(EXAMPLE), str(ROOT)]),
        "TMRL_CORE_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert " joined, run " not in ended.stderr, "messages among the lines that the tutorial shows"
    return ended.stdout


@pytest.fixture
def line_walk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An environment made from the package beside this checkout; nothing of it stays."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield gymnasium.make("line_walk:LineWalk-v0").unwrapped
    gymnasium.registry.pop("LineWalk-v0", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "line_walk"]:
        del sys.modules[name]


def test_it_installs_and_needs_no_more_than_gymnasium(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="its build backend; there is no network to get it from")
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "runs"))
    run(
        tmp_path, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
        "--no-build-isolation", "--target", tmp_path / "installed", source,
    )  # fmt: skip
    code = """
import sys, gymnasium
from gymnasium.utils.env_checker import check_env
env = gymnasium.make("line_walk:LineWalk-v0")
check_env(env.unwrapped, skip_render_check=True)
print(sys.modules["line_walk"].__file__, "tmrl_core" in sys.modules)
"""
    file, imported = run(tmp_path, "-W", "error", "-c", code).split()
    assert Path(file).is_relative_to(tmp_path / "installed")
    assert imported == "False"


def test_it_is_the_environment_that_comes_with_the_package(line_walk: Any) -> None:
    check_env(line_walk, skip_render_check=True)
    ours, rng = ExampleEnv(), np.random.default_rng(2)
    assert ours.reset(seed=5) == line_walk.reset(seed=5)
    for _ in range(2000):
        action = int(rng.integers(2))
        found = line_walk.step(action)
        assert found == ours.step(action)
        if found[2] or found[3]:
            assert ours.reset() == line_walk.reset()
    ours.render_mode = line_walk.render_mode = "ansi"
    assert ours.render() == line_walk.render()


def test_the_random_baseline_prints_its_mean(tmp_path: Path) -> None:
    script = EXAMPLE / "scripts" / "random_baseline.py"
    said = run(tmp_path, script, "--episodes", "2000")
    classic = run(tmp_path, script, "--episodes", "2000", "--env", "tmrl_core.envs:example-v0", "--legacy")
    for text, exact in ((said, -5.163), (classic, -5.929)):
        found = re.fullmatch(r"random moves: mean return (\S+) \+- (\S+) over 2000 episodes\n", text)
        assert found is not None
        assert abs(float(found[1]) - exact) < 4 * float(found[2])


def in_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *command: str | Path
) -> str:
    """As `run`, without the time that a process takes to import everything."""
    script, *arguments = map(str, command)
    path = os.pathsep.join([str(EXAMPLE), str(ROOT)])
    with monkeypatch.context() as changed:
        changed.chdir(folder)
        changed.syspath_prepend(str(EXAMPLE))
        changed.setenv("PYTHONPATH", path)  # of the workers
        changed.setenv("TMRL_CORE_HOME", str(folder / "home"))
        changed.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(script, run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("line_walk")
def test_train_restore_and_roll_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--set", "trainer.lockstep.steps_per_round=200", "--set", "agent.kwargs.update_epochs=1"]
    train: list[str | Path] = [EXAMPLE / "scripts" / "train.py", *changes]

    old = tmp_path / "runs" / "line_walk" / "checkpoints" / "checkpoint_000009"
    old.mkdir(parents=True)
    with pytest.raises(SystemExit) as refused:
        in_this_process(tmp_path, monkeypatch, capsys, *train)
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "--restore" in said
    assert "--overwrite" in said
    assert old.exists()

    first = run(tmp_path, *train, "--iterations", "2", "--overwrite").splitlines()
    assert not old.exists()
    lines = [LINE.fullmatch(line) for line in first]
    assert [line and line[1] for line in lines] == ["1", "2"], first
    saved = lines[1][2] if lines[1] else ""
    assert list((tmp_path / "runs" / "line_walk" / "tensorboard").glob("events.out.tfevents.*"))

    second = in_this_process(tmp_path, monkeypatch, capsys, *train, "--iterations", "1", "--restore", saved)
    assert (found := LINE.fullmatch(second.rstrip("\n"))) is not None, second
    assert found[1] == "3"

    rollout = EXAMPLE / "scripts" / "rollout.py"
    told = in_this_process(tmp_path, monkeypatch, capsys, rollout, *changes).splitlines()
    steps = [line for line in told if line.startswith("position: ")]
    assert len(steps) == 20
    returns = [float(line.removeprefix("cumulative reward ")) for line in told if line not in steps]
    # Ten moves or the goal end an episode, so there were two at least.
    assert len(returns) >= 2
    total, sums = 0, []
    for line in told:
        if line in steps:
            total += int(line.split()[3])
        else:
            sums.append(total)
            total = 0
    assert sums == returns
    saved_now = sorted(path.name for path in (tmp_path / "runs" / "line_walk" / "checkpoints").iterdir())
    assert saved_now == [f"checkpoint_00000{number}" for number in (1, 2, 3)]


def test_the_tutorial_shows_the_present_code() -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "custom_environment.md").read_text(encoding="utf-8")
    files = [path.read_text(encoding="utf-8") for path in EXAMPLE.rglob("*.*") if path.suffix in (".py", ".yaml")]
    blocks = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", tutorial, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    for block in blocks:
        assert any(block in text for text in files), block
    assert (EXAMPLE / "line_walk" / "environment.py").read_text(encoding="utf-8") in blocks
