"""The safe action and the end of an environment, on every way out of a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actor.rollout.composing import compose
from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.errors import ConfigError

SAFE = [0.25]


@pytest.mark.parametrize("value", [[3.0], [0.1, 0.2], "stop", [None], {"x": 1}, [float("nan")]])
def test_a_safe_action_outside_of_the_action_space_is_refused(counting_env: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"worker\.safe_action: found"):
        CheckedEnvironment(counting_env, safe_action=value)


@pytest.mark.parametrize("value", [SAFE, np.array(SAFE, np.float32)])
def test_it_is_executed_once_after_a_reset_and_before_the_environment_is_closed(counting_env: Any, value: Any) -> None:
    environment = CheckedEnvironment(counting_env, safe_action=value)
    environment.make_safe()
    assert environment.env.actions == []
    environment.reset()
    environment.make_safe()
    environment.make_safe()
    assert environment.env.actions == SAFE
    environment.reset()
    environment.close()
    environment.close()
    assert environment.env.actions == SAFE * 2


def test_a_safe_action_that_fails_still_closes_the_environment(
    counting_env: Any, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[bool] = []

    class Stuck(counting_env):  # type: ignore[misc]
        def close(self) -> None:
            closed.append(True)

    environment = CheckedEnvironment(lambda: Stuck(script={(0, 1): OSError("no contact")}), safe_action=SAFE)
    environment.reset()
    environment.close()
    assert closed == [True]
    assert "worker.safe_action failed" in caplog.text


def test_the_environment_is_closed_before_the_worker_waits_for_its_link(
    counting_env: Any, constant_actor: Any, link: Any
) -> None:
    order: list[str] = []

    class Noting(counting_env):  # type: ignore[misc]
        def close(self) -> None:
            order.append("environment")
            raise OSError("it cannot be closed")

    class Link(type(link)):  # type: ignore[misc]
        def close(self) -> Any:
            order.append("link")
            return super().close()

    link.__class__ = Link
    worker = compose(Noting, constant_actor, link=link, safe_action=SAFE)
    worker.run(nb_episodes=1, verbose=False)
    assert worker.env.actions[-1] == SAFE[0]
    with pytest.raises(OSError, match="cannot be closed"):
        worker.close()
    assert order == ["environment", "link"]


CODE = """
import json, os, signal, sys, time
import numpy as np
from gymnasium import Env, spaces
from tmrl_core.networking import RolloutWorker

end = sys.argv[1]

def note(what):
    print(json.dumps([what, time.monotonic()]), flush=True)

class Motor(Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if action.tolist() == [0.25]:
            note("safe")
        self.steps += 1
        if self.steps == 20:
            note("end")
            if end == "sigterm":
                os.kill(os.getpid(), signal.SIGTERM)
            elif end == "error":
                raise RuntimeError("the motor is hot")
            elif end == "exit":
                sys.exit(3)
        time.sleep(0.01)
        return np.zeros(2, np.float32), 0.0, False, end == "forgotten" and self.steps == 20, {}

    def close(self):
        note("closed")

from tmrl_core.roles.shutdown import ShutdownSignal
worker = RolloutWorker(
    Motor, "tmrl_core.actor:SquashedGaussianMLPActor", transport="local", server_port=1, drain_timeout_s=1.0,
    max_env_steps_per_update=None, safe_action=[0.25], max_failures=0, model_path=None,
)
with ShutdownSignal() as shutdown:
    shutdown.calls(worker.stop)
    worker.run(nb_episodes=1, verbose=False)
if end == "sigterm":
    worker.close()
"""


@pytest.mark.parametrize("end", ["sigterm", "error", "exit", "forgotten"])
def test_motors_stop_when_a_program_ends(tmp_path: Path, end: str) -> None:
    # The example of a script that forgets to close its worker, by an error or at all, is meant too.
    done = subprocess.run(
        [sys.executable, "-c", CODE, end], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, timeout=60
    )
    notes = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert {"end", "safe", "closed"} <= notes.keys(), done.stderr
    assert notes["end"] <= notes["safe"] <= notes["closed"]
    assert done.returncode == {"error": 1, "exit": 3}.get(end, 0), done.stderr
