from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tmrl_core.config import load
from tmrl_core.sessions import read_sessions

FOLDER = Path(__file__).parents[2] / "examples" / "demonstrations"


def run(*arguments: str, folder: Path) -> str:
    """Run a role to its end; return its output."""
    command = [sys.executable, "-m", "tmrl_core", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_an_expert_is_recorded_without_a_server_and_cloned(tmp_path: Path) -> None:
    recording = ("--record", "demonstrations", "--episodes", "3")
    assert "mean return of 3 episodes: 1" in run(
        "--expert", *recording, "-c", f"{FOLDER / 'expert.yaml'}", folder=tmp_path
    )
    found = list(read_sessions(tmp_path / "demonstrations"))
    assert [(session.terminated, session.episode_return) for session in found] == [(True, 1.0)] * 3
    short = ("--set", "trainer.steps=20", "--set", "trainer.rounds=1")
    cloned = run("--trainer", "-c", f"{FOLDER / 'cloning.yaml'}", *short, folder=tmp_path)
    assert "3 sessions" in cloned
    assert "end: all epochs are done" in cloned
    assert (tmp_path / "runs" / "cloning" / "policy.tmod").is_file()
    assert not (tmp_path / "credentials").exists()


@pytest.mark.parametrize("name", ["cloning", "expert", "two_rooms"])
def test_the_configurations_are_valid(name: str) -> None:
    load(FOLDER / f"{name}.yaml", environ={})
