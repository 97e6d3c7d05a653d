"""The three examples for users of tmrl: Pendulum in one process, a drone in real time, a pipeline of one's own."""

from __future__ import annotations

import logging
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.samples import Buffer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tmrl"


def run(tmp_path: Path, *arguments: str) -> str:
    """Run an example in a process of its own, because the drone's threads never end."""
    name, *rest = arguments
    command = [sys.executable, "-B", str(EXAMPLE / name), *rest]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_pendulum_trains_in_turns_in_one_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(EXAMPLE / "pendulum.py"))
    with caplog.at_level(logging.INFO):
        script["main"](["--epochs", "1", "--rounds", "2", "--steps", "10"])
    shown = caplog.text + "".join(capsys.readouterr())
    assert "round 1" in shown
    assert "0 lost" in shown


@pytest.mark.full
def test_the_drone_trains_while_it_flies(tmp_path: Path) -> None:
    shown = run(tmp_path, "drone.py", "--epochs", "1", "--rounds", "1", "--steps", "30")
    assert "round 0" in shown
    assert "0 lost" in shown


@pytest.mark.full
def test_the_pipeline_rebuilds_what_the_worker_saw(tmp_path: Path) -> None:
    assert "rebuilt transitions equal the worker's" in run(tmp_path, "pipeline.py", "--check")


@pytest.mark.full
def test_the_pipeline_trains(tmp_path: Path) -> None:
    shown = run(tmp_path, "pipeline.py", "--epochs", "1", "--rounds", "1", "--steps", "20")
    assert "loss_critic" in shown


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import pipeline as module  # type: ignore[import-not-found, unused-ignore]

    yield module
    for name in ("pipeline", "drone"):
        del sys.modules[name]


def samples(stream: bytes, steps: range, end: int = -1) -> Buffer:
    """Samples of one episode, whose actions and observations are the step."""
    buffer = Buffer(None)
    buffer.start_episode(int.from_bytes(stream, "big"))
    for step in range(steps.stop):
        value = np.full(2, float(step), np.float32)
        buffer.append_sample((value, (value,), -1.0, step == end, False, {}))
    chunks, records = buffer.take()
    for chunk in chunks:
        chunk.stream = stream
    cut = Buffer(None)
    cut.extend([chunk.slice(steps.start, chunk.rows) for chunk in chunks], records)
    return cut


def test_actions_are_put_back_with_the_resets_before_them(pipeline: Any) -> None:
    memory = pipeline.DroneMemory("cpu", 1)
    memory.append(samples(b"a", range(0, 7)))
    assert len(memory) == 6
    before, act, _, obs, *_ = memory.get_transition(0)
    assert [part[0] for part in before] == [0, 0, 0, 0, 0]
    assert ([part[0] for part in obs], act[0]) == ([1, 0, 0, 0, 1], 1)
    before, act, _, obs, *_ = memory.get_transition(5)
    assert [part[0] for part in before] == [5, 2, 3, 4, 5]
    assert [part[0] for part in obs] == [6, 3, 4, 5, 6]


def test_samples_of_two_workers_are_never_mixed(pipeline: Any) -> None:
    memory = pipeline.DroneMemory("cpu", 1)
    for first in range(0, 9, 3):
        for stream in (b"a", b"b"):
            memory.append(samples(stream, range(first, first + 3)))
    assert len(memory) == 16
    for item in range(len(memory)):
        before, _, _, obs, *_ = memory.get_transition(item)
        assert obs[0][0] == before[0][0] + 1
        assert [part[0] for part in obs[1:]] == [max(0, obs[0][0] - back) for back in (3, 2, 1, 0)]


def test_lost_samples_cost_the_transitions_whose_actions_they_held(pipeline: Any) -> None:
    memory = pipeline.DroneMemory("cpu", 1)
    memory.append(samples(b"a", range(0, 3)))
    memory.append(samples(b"a", range(5, 12)))
    found = [memory.get_transition(item)[0][0][0] for item in range(len(memory))]
    assert found == [0, 1, 8, 9, 10]  # the actions of 5, 6, 7 and 8 are needed for 8


def test_old_samples_go_and_the_rest_stays_right(pipeline: Any) -> None:
    memory = pipeline.DroneMemory("cpu", 1, memory_size=32)
    for episode in range(1, 9):
        memory.append(samples(bytes([episode]), range(0, 8), end=7))
        assert len(memory.before) <= 32
    for item in range(len(memory)):
        _, _, _, obs, *_ = memory.get_transition(item)
        assert [part[0] for part in obs[1:]] == [max(0, obs[0][0] - back) for back in (3, 2, 1, 0)]
    assert len(memory) >= 16


def test_the_policy_is_saved_as_json(pipeline: Any, tmp_path: Path) -> None:
    box = gym.spaces.Box(-2, 2, (2,), np.float32)
    actor, other = (pipeline.DroneActor(None, box) for _ in range(2))
    actor.save(tmp_path / "policy.json")
    assert (tmp_path / "policy.json").read_text().startswith('{"net.0.weight"')
    tag, data = actor.to_blob()
    assert (tag, data[:1]) == ("file", b"{")
    other = other.from_blob(tag, data, "cpu")
    obs = tuple(np.full(2, value, np.float32) for value in range(5))
    assert np.array_equal(actor.act_(obs, test=True), other.act_(obs, test=True))
