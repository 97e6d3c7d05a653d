"""The configurations of families of environments are accepted, and start where their packages are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tmrl_core.config import load

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "families"
NEEDS = {"halfcheetah_sac": ["mujoco"], "minigrid_ppo": ["minigrid"], "pong_dqn": ["ale_py", "cv2"]}


def test_each_configuration_is_accepted() -> None:
    files = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    assert files == sorted(NEEDS)
    for name in files:
        assert load(FOLDER / f"{name}.yaml", environ={}).run.name == name


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NEEDS)
def test_it_starts_to_learn(name: str, tmp_path: Path) -> None:
    if missing := [package for package in NEEDS[name] if find_spec(package) is None]:
        pytest.skip(f"needs {', '.join(missing)}, which are no extras of the tests")
    command = [sys.executable, "-m", "tmrl_core", "--local", "--small", "--workers", "1", "-c", str(FOLDER / name)]
    command[-1] += ".yaml"
    environment = {**os.environ, "TMRL_CORE_HOME": str(tmp_path / "home")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr[-2_000:]
    assert "updates" in ended.stdout.splitlines()[-1]
