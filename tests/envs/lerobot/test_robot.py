"""Robots of lerobot as environments, over a stand-in with the interface of its `Robot` (0.4.4 and 0.6.1)."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.command_line import in_this_process
from tmrl_core.actor import ActorModule
from tmrl_core.envs.lerobot import RobotEnvironment, Task
from tmrl_core.errors import ConfigError, ContractError, EnvironmentFailedError
from tmrl_core.sessions import read_sessions
from tmrl_core.testing.environments import EnvironmentSuite

HERE = __name__
LIMITS = {"pan.pos": [-60, 60], "gripper.pos": [0, 100]}


class Arm:
    """Two motors and perhaps a camera: a driver that clips to `most` from the present position, as SO-101's does.

    The real classes raise if they are used while not connected, and so does this.
    """

    def __init__(self, camera: bool = False, most: float = 5.0, calibrated: bool = True, leave_out: str = "") -> None:
        self.camera, self.most, self.is_calibrated, self.leave_out = camera, most, calibrated, leave_out
        self.positions = {"pan.pos": 0.0, "gripper.pos": 50.0}
        self.is_connected, self.calls = False, list[Any]()

    @property
    def observation_features(self) -> dict[str, Any]:
        return {"pan.pos": float, "gripper.pos": float, **({"front": (4, 6, 3)} if self.camera else {})}

    @property
    def action_features(self) -> dict[str, Any]:
        return {"pan.pos": float, "gripper.pos": float}

    def connect(self, calibrate: bool = True) -> None:
        assert not self.is_connected
        self.is_connected = True
        self.calls.append(("connect", calibrate))

    def disconnect(self) -> None:
        assert self.is_connected
        self.is_connected = False
        self.calls.append("disconnect")

    def get_observation(self) -> dict[str, Any]:
        assert self.is_connected
        seen: dict[str, Any] = {**self.positions, "extra": np.zeros(3)}  # LeKiwi's has more than its features
        if self.camera:
            seen["front"] = np.full((4, 6, 3), 7, np.uint8)
        return {name: value for name, value in seen.items() if name != self.leave_out}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        assert self.is_connected
        assert all(type(value) is float for value in action.values())
        self.calls.append(action)
        for name, goal in action.items():
            self.positions[name] += float(np.clip(goal - self.positions[name], -self.most, self.most))
        return {name: value for name, value in self.positions.items() if f"sent {name}" != self.leave_out}


class AlwaysOne(ActorModule):
    def act(self, obs: Any, test: bool = False) -> Any:
        return np.ones(2, np.float32)


class Turn(Task):
    def __init__(self, goal: float = 10.0) -> None:
        self.goal = goal

    def reset(self, robot: Any, random: np.random.Generator) -> None:
        robot.positions = {"pan.pos": float(random.uniform(-5, 5)), "gripper.pos": 50.0}

    def judge(self, observation: Any, sent: Any) -> tuple[float, bool]:
        turned = observation["pan.pos"] >= self.goal
        return float(turned), turned


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMRL_CORE_HOME", str(tmp_path / "home"))


def environment(**changes: Any) -> RobotEnvironment:
    given = {"make": f"{HERE}:Arm", "limits": LIMITS, "task": f"{HERE}:Turn", "time_step_s": 0.0}
    return RobotEnvironment(**{**given, **changes})


def arm(env: RobotEnvironment) -> Arm:
    assert isinstance(env.robot, Arm)
    return env.robot


class TestRobotEnvironment(EnvironmentSuite):
    def make_environment(self) -> gymnasium.Env[Any, Any]:
        return environment(kwargs={"camera": True}, largest_step=5.0, max_steps=20)


def test_spaces_come_from_the_descriptions_without_a_connection() -> None:
    env = environment()
    assert env.observation_space.shape == (2,)
    assert env.action_space == spaces.Box(np.array([-60, 0], np.float32), np.array([60, 100], np.float32))
    assert environment(largest_step=2).action_space == spaces.Box(-1, 1, (2,), np.float32)
    with_camera = environment(kwargs={"camera": True}).observation_space
    assert isinstance(with_camera, spaces.Dict)
    assert with_camera["front"] == spaces.Box(0, 255, (4, 6, 3), np.uint8)
    assert with_camera["state"] == env.observation_space
    assert arm(env).calls == []


def test_what_was_really_sent_is_told() -> None:
    env = environment()
    env.reset(seed=1)
    arm(env).positions["pan.pos"] = 0.0
    obs, reward, terminated, truncated, info = env.step(np.array([40, 500], np.float32))
    assert arm(env).calls[-1] == {"pan.pos": 40.0, "gripper.pos": 100.0}, "beyond a limit nothing is sent"
    assert info["teleop_action"].tolist() == [5, 55]
    assert (obs.tolist(), reward, terminated, truncated) == ([5, 55], 0.0, False, False)
    assert env.step(np.array([40, 55], np.float32))[1:3] == (1.0, True)
    env.close()


def test_steps_begin_at_the_observed_position() -> None:
    env = environment(largest_step={"pan.pos": 10, "gripper.pos": 4}, kwargs={"most": 8.0})
    env.reset(seed=1)
    env._observed = {"pan.pos": 20.0, "gripper.pos": 50.0}
    arm(env).positions["pan.pos"] = 20.0
    info = env.step(np.array([1, -0.5], np.float32))[4]
    assert arm(env).calls[-1] == {"pan.pos": 30.0, "gripper.pos": 48.0}
    assert info["teleop_action"] == pytest.approx([0.8, -0.5])
    env.close()


def test_nothing_is_sent_before_a_reset() -> None:
    env = environment()
    with pytest.raises(EnvironmentFailedError, match="the robot was not connected or observed yet: a reset does both"):
        env.step(np.zeros(2, np.float32))
    assert arm(env).calls == []
    env = environment(kwargs={"leave_out": "pan.pos"}, largest_step=1.0)
    for _ in range(2):
        with pytest.raises(ContractError, match=r"left out pan\.pos"):
            env.reset()
    arm(env).leave_out = ""
    env.reset()
    env.step(np.zeros(2, np.float32))
    env.close()


def test_an_episode_is_cut_at_its_limit_and_a_time_step_lasts() -> None:
    env = environment(max_steps=3, time_step_s=0.01, task=None)
    env.reset()
    began = time.monotonic()
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert time.monotonic() - began >= 0.029
    env.close()
    assert arm(env).calls[-1] == "disconnect"


def test_calibration_is_never_done_here() -> None:
    env = environment(kwargs={"calibrated": False})
    with pytest.raises(ContractError, match=r"not calibrated.* Run lerobot-calibrate for it once, with the same id"):
        env.reset()
    assert arm(env).calls == [("connect", False), "disconnect"]


def test_a_robot_is_one_workers() -> None:
    first, second = environment(), environment()
    first.reset()
    with pytest.raises(ConfigError, match=r"the robot .*:Arm \{\} is in use by process \d+ .* a robot of its own"):
        second.reset()
    other = environment(kwargs={"most": 1.0})
    other.reset()
    first.close()
    second.reset()
    for env in (second, other):
        env.close()


def test_a_name_that_is_missing_is_told() -> None:
    env = environment(kwargs={"camera": True, "leave_out": "front"})
    with pytest.raises(ContractError, match="get_observation of the robot left out front, of its observation"):
        env.reset()
    env.close()
    env = environment(kwargs={"leave_out": "sent gripper.pos"})
    env.reset()
    with pytest.raises(ContractError, match=r"send_action of the robot left out gripper\.pos, of its action"):
        env.step(np.zeros(2, np.float32))
    env.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"make": "builtins:dict"}, r"kwargs\.make: builtins:dict made a dict; allowed: a robot of lerobot"),
        ({"task": "builtins:dict"}, r"kwargs\.task: builtins:dict made a dict; allowed: a class derived from Task"),
        ({"limits": {"pan.pos": [0, 1]}}, r"kwargs\.limits: found .* for each of pan\.pos, gripper\.pos"),
        ({"limits": {**LIMITS, "pan.pos": [1, 1]}}, r"kwargs\.limits: found"),
        ({"largest_step": 0}, r"kwargs\.largest_step: found 0, allowed: a number above 0, or one for each of pan\.pos"),
        ({"largest_step": {"pan.pos": 1}}, r"kwargs\.largest_step: found"),
        ({"max_steps": 0}, r"found time_step_s 0\.0 and max_steps 0, allowed: at least 0 seconds, and at least 1 step"),
        ({"time_step_s": -1}, r"found time_step_s -1"),
        ({"kwargs": {"arms": 2}}, r"kwargs\.make: .*arms"),
    ],
)
def test_what_does_not_fit_the_robot_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        environment(**changes)


def test_a_robot_that_is_not_calibrated_ends_the_worker_at_once(tmp_path: Path) -> None:
    done = recorded(tmp_path, kwargs={"calibrated": False})
    assert done.returncode == 2
    assert "Run lerobot-calibrate for it once" in done.stderr
    assert "times in a row" not in done.stderr


def test_a_worker_records_what_was_really_sent(tmp_path: Path) -> None:
    assert recorded(tmp_path).returncode == 0
    (session,) = read_sessions(tmp_path / "sessions")
    assert np.asarray(session.actions).tolist() == [[0.5, 0.5]] * 4
    assert np.asarray(session.extras["policy_action"]).tolist() == [[1.0, 1.0]] * 4


def recorded(folder: Path, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Record an episode on the command line."""
    kwargs = {"make": f"{HERE}:Arm", "limits": LIMITS, "largest_step": 10.0, "max_steps": 4, "time_step_s": 0.0}
    config = {
        "environment": {"cls": "tmrl_core.envs.lerobot:RobotEnvironment", "kwargs": {**kwargs, **changes}},
        "actor": {"cls": f"{HERE}:AlwaysOne"},
        "worker": {"interventions": {"cls": "tmrl_core.actor.interventions:EnvironmentTakesOver"}},
    }
    (folder / "arm.json").write_text(json.dumps(config), "utf-8")
    with in_this_process(folder) as run:
        return run("--expert", "--record", "sessions", "--episodes", "1", "-c", "arm.json")
