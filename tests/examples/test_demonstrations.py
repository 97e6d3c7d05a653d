from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.command_line import in_this_process
from tmrl_core.config import load
from tmrl_core.sessions import SessionWriter, read_sessions, read_spaces

FOLDER = Path(__file__).parents[2] / "examples" / "demonstrations"


def test_an_expert_is_recorded_without_a_server_and_cloned(tmp_path: Path) -> None:
    recording = ("--record", "demonstrations", "--episodes", "3")
    short = ("--set", "trainer.steps=20", "--set", "trainer.rounds=1")
    with in_this_process(tmp_path) as run:
        done = run("--expert", *recording, "-c", f"{FOLDER / 'expert.yaml'}")
        assert "mean return of 3 episodes: 1" in done.stdout, done.stderr
        found = list(read_sessions(tmp_path / "demonstrations"))
        assert [(session.terminated, session.episode_return) for session in found] == [(True, 1.0)] * 3
        cloned = run("--trainer", "-c", f"{FOLDER / 'cloning.yaml'}", *short)
    assert cloned.returncode == 0, cloned.stderr
    assert "3 sessions" in cloned.stderr
    assert "end: all epochs are done" in cloned.stderr
    assert (tmp_path / "runs" / "cloning" / "policy.tmod").is_file()
    assert (tmp_path / "runs" / "cloning" / "learning_curve.png").is_file(), "a trainer of its own draws it too"
    assert not list(tmp_path.rglob("credentials"))


def test_a_killed_process_leaves_whole_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = ("--record", "demonstrations", "--episodes", "1000000")
    command = [sys.executable, "-m", "tmrl_core", "--expert", *recording, "-c", str(FOLDER / "expert.yaml")]
    deadline, pause = time.monotonic() + 60, threading.Event()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while sum(file.stat().st_size for file in tmp_path.glob("demonstrations/*/*.seg")) < 200_000:
                assert process.poll() is None
                assert time.monotonic() < deadline, "nothing is recorded"
                pause.wait(0.01)
        finally:
            process.kill()
    (folder,) = (tmp_path / "demonstrations").iterdir()
    with caplog.at_level(logging.WARNING):
        *found, last = read_sessions(folder)
    assert all("are an incomplete record" in message for message in caplog.messages)
    assert len(caplog.messages) <= 1
    assert len(found) > 50
    assert all(session.terminated != session.truncated for session in found), "only the last one is unfinished"
    assert {session.first_step for session in [*found, last]} == {0}
    with SessionWriter(folder, *read_spaces(folder)) as writer:
        writer.write(found[0])
    assert len(list(read_sessions(folder))) == len(found) + 2


@pytest.mark.parametrize("name", ["cloning", "expert", "two_rooms"])
def test_the_configurations_are_valid(name: str) -> None:
    load(FOLDER / f"{name}.yaml", environ={})
