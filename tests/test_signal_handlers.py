"""Signal handlers of a role: set again after environments have installed theirs, which are called too."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tests.waiting import until
from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.config import from_values
from tmrl_core.multiagent.collector import RestartedEnvironment
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.networking import Trainer
from tmrl_core.roles.shutdown import ShutdownSignal
from tmrl_core.signal_handlers import take_back
from tmrl_core.training import ReplayMemory
from tmrl_core.training.loops.training_loop import TrainingOffline

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no os.kill with these signals")
TAKEN = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], Any]


class Requests:
    """Requests that a ShutdownSignal has received."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.stopped = threading.Event()
        self.shutdown = ShutdownSignal(now=self.ended.append)
        self.shutdown.calls(self.stopped.set)


@pytest.fixture
def requests() -> Iterator[Requests]:
    before = [signal.getsignal(number) for number in TAKEN]
    made = Requests()
    with made.shutdown:
        yield made
    assert [signal.getsignal(number) for number in TAKEN] == before


def take(handler: Any) -> None:
    for number in TAKEN:
        signal.signal(number, handler)


class Taking(gym.Env[Any, Any]):
    """Installs its handler at one of its calls."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, at: str, handler: Any) -> None:
        self.at, self.handler = at, handler
        self.called("made")

    def called(self, name: str) -> None:
        if name == self.at:
            take(self.handler)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.called("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.called("step")
        return np.zeros(3, np.float32), 1.0, False, False, {}

    def close(self) -> None:
        self.called("close")


@pytest.mark.parametrize("number", TAKEN)
@pytest.mark.parametrize("at", ["made", "reset", "step", "close"])
@pytest.mark.parametrize(
    "handler", [lambda number, frame: None, signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler]
)
def test_an_environment_cannot_take_the_signals_of_a_role(
    at: str, handler: Any, number: int, requests: Requests
) -> None:
    environment = CheckedEnvironment(lambda: Taking(at, handler))
    for _ in range(2):
        environment.reset()
        environment.step(0)
    environment.close()
    os.kill(os.getpid(), number)
    assert requests.stopped.wait(10)
    assert requests.ended == []


def test_an_environment_that_fails_cannot_take_them_either(requests: Requests) -> None:
    def fail() -> Any:
        take(signal.SIG_IGN)
        raise RuntimeError("no simulator")

    with pytest.raises(RuntimeError, match="no simulator"):
        CheckedEnvironment(fail)
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.stopped.wait(10)


def test_a_handler_of_an_environment_is_called_too_and_told_once(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    seen: list[int] = []
    environment = CheckedEnvironment(lambda: Taking("reset", lambda number, frame: seen.append(number)))
    environment.reset()
    environment.reset()
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.stopped.wait(10)
    assert seen == [signal.SIGTERM]
    told = [record.getMessage() for record in caplog.records if "has replaced" in record.getMessage()]
    assert told == [
        "the environment has replaced the handlers of SIGINT, SIGTERM: they end this role in order again, and the "
        "environment's handlers are called too"
    ]


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_an_exception_of_such_a_handler_is_logged(
    kind: type[BaseException], requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int, frame: FrameType | None) -> None:
        raise kind("the simulator's end")

    take(fail)
    take_back()
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.stopped.wait(10)
    until(lambda: "a signal handler of the environment has failed" in caplog.text)
    assert "the simulator's end" in caplog.text


def test_such_a_handler_may_call_the_one_that_it_replaced(requests: Requests) -> None:
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)

    def chain(number: int, frame: FrameType | None) -> None:
        ours(number, frame)
        ours(number, None)

    take(chain)
    take_back()
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.stopped.wait(10)
    os.kill(os.getpid(), signal.SIGINT)  # the second request
    until(lambda: requests.ended != [])
    assert len(requests.ended) == 1


def test_a_second_signal_ends_a_role_whose_environments_handler_does_not_return(requests: Requests) -> None:
    seen: list[int] = []

    def hang(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:  # `stopped` may be set before
            assert requests.stopped.wait(10)
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: requests.ended != [])

    take(hang)
    take_back()
    os.kill(os.getpid(), signal.SIGTERM)
    # The system may hand the signal to another thread, and the handler then runs in this one a little later.
    until(lambda: requests.ended != [])
    assert len(requests.ended) == 1


def test_such_a_handler_cannot_set_the_default_for_a_second_signal(requests: Requests) -> None:
    take(lambda number, frame: take(signal.SIG_DFL))
    take_back()
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.stopped.wait(10)
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: requests.ended != [])


def test_a_wait_takes_the_signals_back(requests: Requests) -> None:
    take(signal.SIG_IGN)
    assert not requests.shutdown.wait(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert requests.stopped.wait(10)


def test_other_threads_set_nothing(requests: Requests) -> None:
    take(signal.SIG_IGN)
    thread = threading.Thread(target=take_back)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_without_a_role_handlers_stay() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        CheckedEnvironment(lambda: Taking("none", None)).reset()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_training_loop_takes_the_signals_back_from_its_environment(requests: Requests) -> None:
    ours = signal.getsignal(signal.SIGTERM)
    found: list[Any] = []

    def make_agent(**kwargs: Any) -> Any:
        found.append(signal.getsignal(signal.SIGTERM))
        raise RuntimeError("far enough")

    for at in ("made", "close"):
        with pytest.raises(RuntimeError, match="far enough"):
            TrainingOffline(
                env_cls=lambda at=at: Taking(at, signal.SIG_IGN), memory_cls=ReplayMemory, training_agent_cls=make_agent
            )
    assert found == [ours, ours]


def test_a_trainer_takes_the_signals_back_from_a_loop_of_a_user(requests: Requests, tmp_path: Path) -> None:
    ours = signal.getsignal(signal.SIGTERM)

    def make_loop() -> Any:
        take(signal.SIG_IGN)
        raise RuntimeError("far enough")

    config = from_values({"run": {"folder": str(tmp_path)}, "network": {"transport": "local"}})
    with Trainer(make_loop, config=config) as trainer, pytest.raises(RuntimeError, match="far enough"):
        trainer.run()
    assert signal.getsignal(signal.SIGTERM) == ours


class TakingEvents(EventEnvironment):
    """The same for many agents."""

    metrics: Any = None
    snapshot_list: Any = None

    def __init__(self, at: str) -> None:
        self._taking = Taking(at, signal.SIG_IGN)

    def reset(self) -> None:
        self._taking.called("reset")

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        self._taking.called("step")
        return {}, None, False

    def set_seed(self, seed: int) -> None:
        pass

    def close(self) -> None:
        self._taking.called("close")


@pytest.mark.parametrize("at", ["made", "reset", "step", "close"])
def test_an_environment_of_many_agents_cannot_take_them_either(at: str, requests: Requests) -> None:
    ours = signal.getsignal(signal.SIGTERM)
    environment = RestartedEnvironment(lambda: TakingEvents(at))
    for _ in range(2):
        environment.reset()
        environment.step(None)
    environment.close()
    assert signal.getsignal(signal.SIGTERM) == ours
