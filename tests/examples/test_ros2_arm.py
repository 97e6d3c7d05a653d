"""The recipe for ROS 2, over a stand-in of the calls of rclpy that it makes."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "robot"


class Future:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.answer is not None:
            callback(self)

    def result(self) -> Any:
        return self.answer


class Driver:
    """The other side of the topics: it moves at once, and publishes its joints after each command."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Callable[[Any], None]] = {}
        self.positions, self.answer = [0.25, -0.5], SimpleNamespace(success=True, message="")
        self.names, self.velocity, self.log = ["elbow", "shoulder"], [2.0, 1.0], list[Any]()
        self.speaks, self.served = True, True
        self.ended = threading.Event()

    def tell(self) -> None:
        if self.speaks:
            message = SimpleNamespace(name=self.names, position=self.positions, velocity=self.velocity)
            self.callbacks["/joint_states"](message)

    def publish(self, message: Any) -> None:
        self.log.append(message.data)
        self.positions = [message.data[1], message.data[0]]
        self.tell()

    def call_async(self, request: Any) -> Future:
        self.positions = [0.25, -0.5]
        self.tell()
        return Future(self.answer)

    # --- rclpy --------------------------------------------------------------------------------------------------------

    def create_subscription(self, kind: str, topic: str, callback: Callable[[Any], None], qos: Any) -> None:
        self.callbacks[topic] = callback

    def create_publisher(self, kind: Any, topic: str, qos: int) -> Any:
        return self

    def create_client(self, kind: Any, name: str) -> Any:
        return self

    def wait_for_service(self, timeout_sec: float) -> bool:
        return self.served

    def destroy_node(self) -> None:
        self.log.append("destroyed")

    def add_node(self, node: Any) -> None:
        assert node is self

    def spin(self) -> None:
        self.ended.wait(10)

    def shutdown(self) -> None:
        self.log.append("shutdown")
        self.ended.set()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()

    def init(context: Any, signal_handler_options: str) -> None:
        made.log.append(signal_handler_options)

    message = lambda **values: SimpleNamespace(**values)  # noqa: E731
    modules: dict[str, dict[str, Any]] = {
        "rclpy": {"Context": lambda: made, "init": init, "create_node": lambda name, context: made},
        "rclpy.executors": {"SingleThreadedExecutor": lambda context: made},
        "rclpy.qos": {"qos_profile_sensor_data": "sensor data"},
        "rclpy.signals": {"SignalHandlerOptions": SimpleNamespace(NO="no signals")},
        "sensor_msgs": {},
        "sensor_msgs.msg": {"JointState": message},
        "std_msgs": {},
        "std_msgs.msg": {"Bool": message, "Float64MultiArray": message},
        "std_srvs": {},
        "std_srvs.srv": {"Trigger": SimpleNamespace(Request=message)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("ros2_arm")
    sys.modules.pop("ros2_arm", None)


@pytest.fixture
def arm(driver: Driver, recipe: ModuleType) -> Iterator[Any]:
    limits = [[-1, 1], [-2, 0.5]]
    made = recipe.Arm(["shoulder", "elbow"], limits, time_step_s=0.001, max_steps=2, stale_s=0.2, reset_s=0.05)
    assert driver.log == [], "spaces need no ROS"
    yield made
    made.close()


def test_topics_become_an_environment(arm: Any, driver: Driver) -> None:
    obs, _ = arm.reset(seed=1)
    assert driver.log == ["no signals"], "the worker keeps its handlers"
    assert obs.tolist() == [-0.5, 0.25, 1.0, 2.0], "in the order of the joints, whatever the driver's is"
    obs, reward, terminated, truncated, info = arm.step(np.array([0.5, 3.0], np.float32))
    assert driver.log[-1] == [0.5, 0.5]
    assert obs[:2].tolist() == info["teleop_action"].tolist() == [0.5, 0.5]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert arm.step(np.zeros(2))[2:4] == (False, True)
    arm.reset()
    driver.callbacks["/arm/success"](SimpleNamespace(data=True))
    assert arm.step(np.zeros(2))[1:4] == (1.0, True, False)
    arm.close()
    assert driver.log[-3:] == ["shutdown", "destroyed", "shutdown"]


def test_a_driver_may_leave_velocities_out(arm: Any, driver: Driver) -> None:
    driver.velocity = []
    assert arm.reset()[0].tolist() == [-0.5, 0.25, 0, 0]


def test_a_silent_driver_ends_the_episode_with_an_error(arm: Any, driver: Driver) -> None:
    arm.reset()
    driver.speaks, arm.stale_s = False, 0.0
    with pytest.raises(TimeoutError, match="/joint_states is silent for more than 0 s: the arm's driver has died"):
        arm.step(np.zeros(2))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"served": False}, TimeoutError, "/arm/reset is not there after 0.05 s"),
        ({"answer": None}, TimeoutError, "/arm/reset did not answer within 0.05 s"),
        ({"answer": SimpleNamespace(success=False, message="stuck")}, RuntimeError, "/arm/reset failed: stuck"),
        ({"speaks": False}, TimeoutError, "/joint_states is silent"),
        ({"names": ["elbow", "wrist"]}, RuntimeError, "/joint_states has no shoulder; it has elbow, wrist"),
    ],
)
def test_a_reset_that_fails_says_why(arm: Any, driver: Driver, change: Any, error: Any, message: str) -> None:
    vars(driver).update(change)
    with pytest.raises(error, match=message):
        arm.reset()


def test_each_joint_has_limits(recipe: ModuleType) -> None:
    with pytest.raises(ValueError, match="found 1 limits for 2 joints"):
        recipe.Arm(["shoulder", "elbow"], [[-1, 1]])
