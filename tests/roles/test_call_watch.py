from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.config import environment_maker
from tmrl_core.long_calls import remarks
from tmrl_core.roles.call_watch import ENDED, CallWatch


class Stuck:
    """An environment one of whose calls waits for `gate`."""

    gate = threading.Event()
    entered = threading.Event()

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
        self.obs = np.zeros(1, np.float32)
        self.wait("constructor")

    def wait(self, name: str) -> None:
        if name == self.where:
            Stuck.entered.set()
            Stuck.gate.wait(60)

    def reset(self, seed: int | None = None) -> Any:
        self.wait("reset")
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.wait("step")
        return self.obs, 0.0, False, False, {}

    def close(self) -> None:
        self.wait("close")


def play(where: str) -> None:
    make = environment_maker("tests.roles.test_call_watch:Stuck", {"where": where})
    environment = CheckedEnvironment(make, safe_action=1 if where == "safe action" else None)
    environment.reset()
    if where == "safe action":
        environment.env.where = "step"
    else:
        environment.step(0)
    environment.close()


@pytest.fixture(params=["constructor", "reset", "step", "safe action", "close"])
def stuck(request: pytest.FixtureRequest) -> Iterator[str]:
    Stuck.gate.clear()
    Stuck.entered.clear()
    thread = threading.Thread(target=play, args=(request.param,), daemon=True)
    thread.start()
    assert Stuck.entered.wait(30)
    yield f"the environment's {request.param}"
    Stuck.gate.set()
    thread.join(30)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_call_that_does_not_return_is_logged_and_shown(
    stuck: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now, ends = Time(), list[int]()
    file = tmp_path / "worker-1.remarks"
    watch = CallWatch(10.0, file=file, clock=now, end=ends.append)
    for now.now in (0.0, 29.0):
        watch.look()
    assert warnings(caplog) == []
    assert not file.exists()
    for now.now in (30.0, 31.0, 59.0):
        watch.look()
    (said,) = warnings(caplog)
    assert said.startswith(f"{stuck} has lasted 30 s ({__file__}, line ")
    assert "Ctrl-C ends the role, in 10 s" in said
    assert file.read_text().startswith(f"{stuck} has lasted 59 s (")
    now.now = 60.0
    watch.look()
    assert len(warnings(caplog)) == 2
    assert ends == []
    Stuck.gate.set()
    for _ in range(100):
        watch.look()
        if not remarks:
            break
        threading.Event().wait(0.02)
    assert remarks == {}
    assert file.read_text() == ""


@pytest.mark.parametrize("stuck", ["step"], indirect=True)
def test_an_end_waits_for_a_call_as_long_as_it_drains(
    stuck: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    now, ends = Time(), list[int]()
    watch = CallWatch(10.0, clock=now, end=ends.append)
    for now.now in (0.0, 5.0):
        watch.look()
    watch.ending()
    now.now = 5.5
    watch.look()
    (said,) = warnings(caplog)
    assert said.startswith(f"the end waits: {stuck} has lasted 6 s (")
    assert said.endswith("; at most 10 s")
    now.now = 14.9
    watch.look()
    assert ends == []
    now.now = 15.0
    watch.look()
    assert ends == [ENDED]
    assert capsys.readouterr().err.startswith(f"EnvironmentFailedError: {stuck} has lasted 15 s (")
    remarks.clear()


@pytest.mark.parametrize("stuck", ["step"], indirect=True)
def test_a_process_whose_main_thread_goes_on_is_not_ended(stuck: str, caplog: pytest.LogCaptureFixture) -> None:
    now, ends = Time(), list[int]()
    watch = CallWatch(10.0, main_only=True, clock=now, end=ends.append)
    watch.ending()
    for now.now in (0.0, 5.0, 50.0):
        watch.look()
    assert warnings(caplog)[0].startswith(f"the end waits: {stuck} has lasted 5 s")
    assert ends == []
    remarks.clear()


@pytest.mark.parametrize("stuck", ["reset"], indirect=True)
def test_a_call_ends_the_process_at_its_limit(stuck: str, capsys: pytest.CaptureFixture[str]) -> None:
    now, ends = Time(), list[int]()
    watch = CallWatch(10.0, limit_s=60.0, clock=now, end=ends.append)
    for now.now in (0.0, 59.0):
        watch.look()
    assert ends == []
    now.now = 60.0
    watch.look()
    assert ends == [ENDED]
    assert f"{stuck} has lasted 60 s" in capsys.readouterr().err
    remarks.clear()


@pytest.mark.parametrize("stuck", ["step"], indirect=True)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_long_before_a_call_is_not_its_cause(stuck: str) -> None:
    now, ends = Time(), list[int]()
    watch = CallWatch(10.0, clock=now, end=ends.append)
    with watch:
        thread = threading.Thread(target=lambda: 1 / 0, name="joystick")
        thread.start()
        thread.join()
    for now.now in (10.0, 50.0):
        watch.look()
    assert ends == []
    remarks.clear()
