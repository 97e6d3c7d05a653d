"""The environment's trial in a child process, before roles start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import ROOT
from tests.waiting import until
from tmrl_core.config import Config, from_values, with_changes
from tmrl_core.errors import ConfigError, EnvironmentFailedError
from tmrl_core.local.probe_process import Probe
from tmrl_core.roles.shutdown import ShutdownSignal

SOURCE = """
import os, subprocess, sys, time
import gymnasium as gym, numpy as np
from gymnasium import spaces
class Env(gym.Env):
    observation_space, action_space = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
    def __init__(self):
        print("lathe")
        {constructor}
    def reset(self, *, seed=None, options=None):
        {reset}
        return np.zeros(3, np.float32), {{}}
    def step(self, action):
        {step}
    def close(self):
        {close}
"""


def changes(
    folder: Path, constructor: str = "pass", reset: str = "pass", step: str = "pass", close: str = "pass"
) -> list[str]:
    source = SOURCE.format(constructor=constructor, reset=reset, step=step, close=close)
    (folder / "lathe.py").write_text(source)
    return ["environment.cls=lathe:Env", "environment.kwargs={}", "environment.probe=true"]


def tried(folder: Path, *more: str, **code: str) -> bool:
    """Return the result of a trial."""
    made = [*changes(folder, **code), *more]
    config = from_values({})
    config = with_changes(config, made)
    with Probe(config, [word for change in made for word in ("--set", change)]) as probe:
        return probe.wait(ShutdownSignal())


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_what_an_environment_prints_or_leaves_behind_does_not_matter(tmp_path: Path) -> None:
    assert tried(
        tmp_path,
        constructor="self.child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        reset="open('pid', 'w').write(str(self.child.pid))",
        close="import threading; threading.Thread(target=time.sleep, args=(600,)).start()",
    )
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ({"reset": "return 7"}, ConfigError, "^the environment's reset returned a int; wanted: obs, info"),
        ({"constructor": "self.action_space = 3"}, ConfigError, "its action_space, 3, is a builtins.int"),
        ({"constructor": "1 / 0"}, EnvironmentFailedError, r"lathe\.py, line 9: ZeroDivisionError: division by zero"),
        ({"reset": "raise OSError('no contact')"}, EnvironmentFailedError, r"lathe\.py, line 11: OSError: no contact"),
        ({"close": "raise OSError('stuck')"}, EnvironmentFailedError, "^OSError: stuck\n"),
        ({"constructor": "os._exit(0)"}, EnvironmentFailedError, "process ended with exit status 0 .* last: .*lathe"),
        ({"reset": "os.abort()"}, EnvironmentFailedError, "process ended with exit status -6"),
        ({"constructor": "sys.exit('no licence')"}, EnvironmentFailedError, "exit status 1 .*no licence"),
    ],
)
def test_the_error_names_the_cause(code: dict[str, str], kind: type[Exception], said: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=said) as caught:
        tried(tmp_path, **code)
    assert isinstance(caught.value, ConfigError) == (kind is ConfigError)
    assert len(str(caught.value).splitlines()) <= 6


def test_a_call_that_does_not_return_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentFailedError, match=r"constructor has lasted 1 s \(.*lathe\.py, line 9, in __init__\)"
    ):
        tried(tmp_path, "environment.probe_timeout_s=0.7", constructor="time.sleep(600)")


def test_a_request_to_end_ends_the_trial(tmp_path: Path) -> None:
    shutdown = ShutdownSignal()
    shutdown._requested.set()
    config = with_changes(Config(), changes(tmp_path, constructor="time.sleep(600)"))
    with Probe(config, ["--set", "environment.cls=lathe:Env"]) as probe:
        assert not probe.wait(shutdown)


def test_a_breach_of_contract_ends_the_command_before_any_role_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tmrl_core", "--local", "--log-level", "error"]
        + [word for change in changes(tmp_path, reset="return 7") for word in ("--set", change)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: the environment's reset returned a int")
    assert len((done.stdout + done.stderr).splitlines()) <= 6
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ({"reset": "return 7"}, "the environment's reset returned a int"),
        # Of the same check: `test_the_error_names_the_cause` and tests of the environment's contract.
        *(
            pytest.param(code, said, marks=pytest.mark.full)
            for code, said in (
                ({"step": "return self.reset()[0], [0.0, 1.0], False, False, {}"}, "the reward is [0.0, 1.0] of type"),
                ({"constructor": "self.num_envs = 4"}, "it is a vector environment, a batch of 4 environments"),
            )
        ),
    ],
)
def test_without_a_trial_a_breach_of_contract_is_found_before_other_roles_start(
    code: dict[str, str], said: str, tmp_path: Path
) -> None:
    made = changes(tmp_path, **{"constructor": "pass", **code})
    done = subprocess.run(
        [sys.executable, "-m", "tmrl_core", "--local", "--log-level", "error"]
        + [word for change in [*made, "environment.probe=null", "server.port=0"] for word in ("--set", change)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 6
    logs = tmp_path / "runs" / "default" / "logs"
    assert sorted(log.name for log in logs.iterdir()) == ["server.log", "worker-1.log"]
    assert (logs / "worker-1.log").read_text().count("lathe\n") == 1, "the machine was started once"
