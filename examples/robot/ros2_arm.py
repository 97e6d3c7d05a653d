"""A recipe: an arm of ROS 2 as an environment, from topics and a service. Untried on a robot: adapt it to yours.

    environment:
      cls: ros2_arm:Arm
      kwargs: {joints: [shoulder, elbow], limits: [[-1.5, 1.5], [-2.0, 0.5]], time_step_s: 0.05}

It was written for rclpy of Jazzy, and is tested with a stand-in of the calls below. Start the worker in a terminal in
which ROS's `setup.bash` was sourced; the trainer needs no ROS.
"""

# Theory of operation
#
#     /joint_states           sensor_msgs/JointState       observation: positions and velocities of `joints`
#     /arm/commands           std_msgs/Float64MultiArray   action: goal positions, in the order of `joints`
#     /arm/reset              std_srvs/Trigger             brings the arm to where an episode begins
#     /arm/success            std_msgs/Bool                reward 1 and the end, if something says so
#
# rclpy calls back in a thread of its own executor, which never does more than store the latest message; `step` reads
# it. So neither waits for the other, and a slow policy loses old messages instead of collecting them.
#
# What can go wrong, and what happens: a topic that is silent for `stale_s` means that the driver has died, and raises,
# so that the worker ends after its `worker.safe_action` instead of acting on an old picture of the world. The time of
# arrival decides, not the header's stamp: clocks of two machines differ. A service that does not answer within
# `reset_s` raises too. Order of joints: a JointState names them, in any order, and this file sorts.
#
# rclpy.init would take SIGINT and SIGTERM for itself, and the worker could not end in order: it is told not to. A
# context of its own keeps other uses of rclpy in the process apart.

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Arm(gymnasium.Env[Any, Any]):
    """An arm of ROS 2.

    Observation [2 * joints]: positions, velocities. Action [joints]: goal positions within the limits.

    Args:
        joints: names, as in JointState.
        limits: [low, high] of each goal position.
        time_step_s: seconds from one observation to the next.
        max_steps: steps after which an episode is truncated.
        stale_s: longest silence of the joints' topic.
        reset_s: longest time of a reset.
    """

    def __init__(
        self,
        joints: Sequence[str],
        limits: Sequence[Sequence[float]],
        time_step_s: float = 0.05,
        max_steps: int = 200,
        stale_s: float = 0.5,
        reset_s: float = 30.0,
    ) -> None:
        if len(limits) != len(joints):
            raise ValueError(f"found {len(limits)} limits for {len(joints)} joints; give [low, high] for each joint")
        self.joints, self.time_step_s, self.max_steps = list(joints), time_step_s, max_steps
        self.stale_s, self.reset_s = stale_s, reset_s
        low, high = np.array(limits, np.float32).T
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2 * len(joints),), np.float32)
        self._node: Any = None
        self._latest: tuple[float, Any] | None = None
        self._succeeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._node is None:
            self._start()
        self._call(self._trigger.Request())
        self._steps, self._succeeded = 0, False
        observation = self._observation(wait_s=self.reset_s)
        self._due = time.monotonic() + self.time_step_s
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        goals = np.clip(action, self.action_space.low, self.action_space.high)
        self._commands.publish(self._array(data=[float(goal) for goal in goals]))
        now = time.monotonic()
        if now < self._due:
            time.sleep(self._due - now)
        self._due = max(self._due, now) + self.time_step_s
        self._steps += 1
        observation, succeeded = self._observation(), self._succeeded
        truncated = self._steps >= self.max_steps and not succeeded
        info = {"teleop_action": goals, "is_success": succeeded}
        return observation, float(succeeded), succeeded, truncated, info

    def close(self) -> None:
        if self._node is not None:
            self._executor.shutdown()
            self._thread.join(5)
            self._node.destroy_node()
            self._context.shutdown()
            self._node = None

    def _start(self) -> None:
        import rclpy
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.qos import qos_profile_sensor_data
        from rclpy.signals import SignalHandlerOptions
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Bool, Float64MultiArray
        from std_srvs.srv import Trigger

        self._context = rclpy.Context()
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        node = self._node = rclpy.create_node("tmrl_core_worker", context=self._context)
        node.create_subscription(JointState, "/joint_states", self._take, qos_profile_sensor_data)
        node.create_subscription(Bool, "/arm/success", self._take_success, 10)
        self._array, self._trigger = Float64MultiArray, Trigger
        self._commands = node.create_publisher(Float64MultiArray, "/arm/commands", 10)
        self._reset = node.create_client(Trigger, "/arm/reset")
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._executor.spin, name="rclpy", daemon=True)
        self._thread.start()

    def _take(self, message: Any) -> None:
        self._latest = time.monotonic(), message  # one assignment: the thread that steps sees both or neither

    def _take_success(self, message: Any) -> None:
        self._succeeded = self._succeeded or bool(message.data)

    def _call(self, request: Any) -> None:
        if not self._reset.wait_for_service(timeout_sec=self.reset_s):
            raise TimeoutError(f"/arm/reset is not there after {self.reset_s:g} s: start the arm's driver")
        answered = threading.Event()
        future = self._reset.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(self.reset_s):
            raise TimeoutError(f"/arm/reset did not answer within {self.reset_s:g} s")
        answer = future.result()
        if not answer.success:
            raise RuntimeError(f"/arm/reset failed: {answer.message}")

    def _observation(self, wait_s: float = 0.0) -> Any:
        end = time.monotonic() + wait_s
        while self._latest is None and time.monotonic() < end:
            time.sleep(0.005)
        latest = self._latest
        if latest is None or time.monotonic() - latest[0] > self.stale_s:
            raise TimeoutError(f"/joint_states is silent for more than {self.stale_s:g} s: the arm's driver has died")
        message = latest[1]
        places = {name: place for place, name in enumerate(message.name)}
        missing = [name for name in self.joints if name not in places]
        if missing:
            raise RuntimeError(f"/joint_states has no {', '.join(missing)}; it has {', '.join(message.name)}")
        order = [places[name] for name in self.joints]
        velocities = message.velocity or [0.0] * len(message.name)  # a driver may leave them out
        return np.array([values[i] for values in (message.position, velocities) for i in order], np.float32)
