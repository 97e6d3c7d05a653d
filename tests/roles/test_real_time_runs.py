"""A worker at a fixed rate: it goes on while the network pauses, and ends when the robot's thread has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rtgym
from gymnasium import spaces

from tests.command_line import ROOT, Start, announced, starting
from tests.waiting import until
from tmrl_core.actor.module import ActorModule
from tmrl_core.config import from_values
from tmrl_core.envs import real_time_env
from tmrl_core.envs.real_time import ONE_THREAD, THREAD_PER_STEP
from tmrl_core.networking import RolloutWorker
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.roles.call_watch import ENDED
from tmrl_core.samples import decode_message

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP"),
    pytest.mark.filterwarnings("ignore:.*[Tt]ime-step.*"),  # a busy machine
]

PAUSE_S = 2.0
SAMPLES = 20_000
"""Bytes of a sample: a pause holds more than the buffers of the sockets."""


class Robot(rtgym.RealTimeGymInterface):  # type: ignore[misc]
    """Note the times of actions."""

    def __init__(self, ticks: list[float]) -> None:
        self.ticks = ticks

    def get_observation_space(self) -> Any:
        return spaces.Tuple([spaces.Box(0, 255, (SAMPLES,), np.uint8)])

    def get_action_space(self) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def get_default_action(self) -> Any:
        return np.zeros(1, np.float32)

    def send_control(self, control: Any) -> None:
        self.ticks.append(time.perf_counter())

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return self._observation(), {}

    def wait(self) -> None:
        pass

    def get_obs_rew_terminated_info(self) -> Any:
        return self._observation(), 0.0, False, {}

    def _observation(self) -> list[Any]:
        return [np.random.default_rng(len(self.ticks)).integers(0, 255, SAMPLES, np.uint8)]


class Still(ActorModule):
    def act(self, obs: Any, test: bool = False) -> Any:
        return np.zeros(1, np.float32)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, "network: {security: null}\nserver: {port: 0}\n") as call:
        yield call


def test_a_pause_of_the_network_costs_no_control_step_and_no_sample(start: Start) -> None:
    server = start("--server", "--announce")
    port = announced(server)
    ticks: list[float] = []
    steps: list[int] = []
    step = {"time_step_duration": 0.02, "start_obs_capture": 0.02, "ep_max_length": 20}
    trainer = TrainerLink(LinkSettings(port=port, security=None), name="trainer", run="default")
    trainer.start()
    worker = RolloutWorker(
        lambda: real_time_env(Robot, {"ticks": ticks}, step),
        Still,
        server_port=port,
        security=None,
        model_path=None,
        max_env_steps_per_update=None,
        send_every=5,
        config=from_values({}),
    )
    running = threading.Thread(target=worker.run, kwargs={"verbose": False})
    running.start()

    def take() -> bool:
        received = trainer.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=1 << 30).chunk
            if chunk is not None:
                steps.extend(chunk.step.tolist())
        trainer.acknowledge(received)
        return len(steps) > 20

    try:
        until(take, limit_s=100)
        os.kill(server.pid, signal.SIGSTOP)
        begun = time.perf_counter()
        threading.Event().wait(PAUSE_S)
        ended = time.perf_counter()
        os.kill(server.pid, signal.SIGCONT)
        during = [begun, *(tick for tick in ticks if begun < tick < ended), ended]
        # On a busy machine ticks are late, but none of them waits for the end of the pause.
        assert max(later - earlier for earlier, later in pairwise(during)) < PAUSE_S / 2
        until(lambda: take() and trainer.lateness, limit_s=100)
        worker.stop()
        running.join()
        until(lambda: take() and len(steps) == worker.steps_collected, limit_s=100)
        assert steps == [number % 21 for number in range(len(steps))]
        assert worker.lateness is not None
        (reported,) = trainer.lateness.values()
        assert 0 < reported.steps <= worker.lateness.steps
    finally:
        worker.close()
        trainer.close(0.1)


class Unplugged(rtgym.RealTimeGymInterface):  # type: ignore[misc]
    """Lose contact at the third observation, in rtgym's thread."""

    calls = 0

    def get_observation_space(self) -> Any:
        return spaces.Tuple([spaces.Box(-1, 1, (1,), np.float32)])

    def get_action_space(self) -> Any:
        return spaces.Box(-1, 1, (1,), np.float32)

    def get_default_action(self) -> Any:
        return np.zeros(1, np.float32)

    def send_control(self, control: Any) -> None:
        pass

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return [np.zeros(1, np.float32)], {}

    def get_obs_rew_terminated_info(self) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise OSError("no contact")
        return [np.zeros(1, np.float32)], 0.0, False, {}


@pytest.mark.parametrize("id_", [THREAD_PER_STEP, ONE_THREAD])
def test_a_call_that_waits_for_a_dead_thread_ends_the_process(id_: str) -> None:
    code = (
        "import sys, gymnasium, rtgym; from tests.roles.test_real_time_runs import Unplugged;"
        "from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment;"
        "from tmrl_core.roles import call_watch; call_watch.LONG_S = 1.0;"
        "rate = {'interface': Unplugged, 'time_step_duration': 0.02, 'start_obs_capture': 0.02};"
        "make = lambda: gymnasium.make(sys.argv[1], config={**rtgym.DEFAULT_CONFIG_DICT, **rate});"
        "environment = CheckedEnvironment(make); environment.reset()\n"
        "with call_watch.CallWatch(10.0):\n"
        "    while True: environment.step(environment.default_action)"
    )
    done = subprocess.run([sys.executable, "-c", code, id_], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == ENDED
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("EnvironmentFailedError: ")]
    assert "the environment's step has lasted 1 s (" in said
    assert "has ended by OSError: no contact, and the process ends without it" in said
