"""RobotEnvironment: a robot of lerobot as an environment, with the user's reward, reset and limits."""

# Theory of operation
#
# A Robot has two descriptions, `observation_features` and `action_features`, flat dicts from a name to `float` or to
# the shape of a picture, and two methods, `get_observation` and `send_action`, which take and return flat dicts of
# these names. Both descriptions are there before `connect`. So a trainer, which asks for the spaces only, connects
# nothing; the robot is connected at the first reset. Nothing of lerobot is imported: the user's function makes the
# robot, since its class takes a configuration object of lerobot's own.
#
# One step:
#
#     goal      the action as numbers by name, within `limits`
#     send      `send_action` returns what it has really sent: drivers clip, for example to the largest step from the
#               present position. This is `info["teleop_action"]`, which a worker records in place of the request.
#     wait      until the time step is over, counted from the end of the one before; one that is late begins anew
#     observe   `get_observation`; a name of the description that is missing is an error
#     judge     the task says the reward, and whether the episode has ended
#
# With `largest_step` an action is a step from the observed position, in parts of the largest one: for S = 5 degrees,
# 0.5 at 20 degrees sends 22.5, and if 21 was sent, 0.2 is what was executed. Zeros then mean "stay", which is a safe
# action, and exploring moves the arm by small steps and not from one end to the other.
#
# Calibration asks at the terminal and moves the arm by hand, so it is never done here: a robot that is not calibrated
# is refused with lerobot's own command. That, a robot of another worker and a description that does not hold are
# ContractErrors, because each further reset would end in the same way.
#
# Descriptions have no types of numbers: a shape [height, width, 3] is a picture of bytes, as lerobot's cameras give it;
# any other shape becomes float32.

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.config import resolve_with
from tmrl_core.config.devices import hold_device
from tmrl_core.errors import ConfigError, ContractError, EnvironmentFailedError
from tmrl_core.storage import FolderLock

KEY = "environment.kwargs"
STATE = "state"
"""Entry of a Dict observation with all numbers of the robot."""


@runtime_checkable
class Robot(Protocol):
    """Part of lerobot's `Robot` that an environment needs."""

    @property
    def observation_features(self) -> Mapping[str, Any]:
        """Names of observations, with `float` or a shape."""

    @property
    def action_features(self) -> Mapping[str, Any]:
        """Names of actions, with `float`."""

    @property
    def is_calibrated(self) -> bool:
        """True: calibrated, or needs no calibration."""

    def connect(self, calibrate: bool = True) -> object:
        """Connect motors and cameras."""

    def disconnect(self) -> object:
        """Disconnect them."""

    def get_observation(self) -> Mapping[str, Any]:
        """Return the present observation, by name."""

    def send_action(self, action: dict[str, Any]) -> Mapping[str, Any]:
        """Send goals by name, and return those that were really sent."""


class Task:
    """Reset, reward and end of a task. Derive from it what the task needs; as it is, a person says what succeeds."""

    def reset(self, robot: Robot, random: np.random.Generator) -> None:
        """Bring robot and objects to where an episode begins. May wait for a person. Default: do nothing.

        Args:
            robot: connected.
            random: the environment's generator, for places that differ between episodes.
        """

    def judge(self, observation: Mapping[str, Any], sent: Mapping[str, float]) -> tuple[float, bool]:
        """Return the reward of a step, and True if the episode has ended. Default: 0 and False.

        Args:
            observation: the robot's, by name.
            sent: the action that was really sent, by name.
        """
        return 0.0, False


class RobotEnvironment(gymnasium.Env[Any, Any]):
    """A robot of lerobot as an environment.

    Observation: a Box of all numbers, in the order of the robot's `observation_features`; with pictures a Dict of
    `state` and the pictures by name. Action: a Box with an element for each of the robot's `action_features`, in their
    order: goals within `limits`, or, with `largest_step`, steps in [-1, 1].

    Args:
        make: reference `package.module:Name` of a function that makes the robot; not connected.
        limits: for each action, `[low, high]` in the robot's units. Nothing beyond them is sent.
        kwargs: keyword arguments of `make`.
        task: reference of a class derived from `Task`; None: no reward, no end.
        task_kwargs: its keyword arguments.
        largest_step: actions are steps from the observed position, in parts of this, in the robot's units: one number,
            or one for each action. None: actions are goals.
        time_step_s: seconds from one observation to the next; 0: as fast as the robot answers.
        max_steps: steps after which an episode is truncated; None: no limit.

    Raises:
        ConfigError: an argument does not fit the robot; the message has its key.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(
        self,
        make: str,
        limits: Mapping[str, Sequence[float]],
        kwargs: Mapping[str, Any] | None = None,
        task: str | None = None,
        task_kwargs: Mapping[str, Any] | None = None,
        largest_step: float | Mapping[str, float] | None = None,
        time_step_s: float = 0.1,
        max_steps: int | None = None,
    ) -> None:
        robot = resolve_with(make, kwargs or {}, f"{KEY}.make")()
        if not isinstance(robot, Robot):
            raise ConfigError(f"{KEY}.make: {make} made a {type(robot).__name__}; allowed: a robot of lerobot")
        self.robot: Robot = robot
        made = Task() if task is None else resolve_with(task, task_kwargs or {}, f"{KEY}.task")()
        if not isinstance(made, Task):
            raise ConfigError(f"{KEY}.task: {task} made a {type(made).__name__}; allowed: a class derived from Task")
        self.task: Task = made
        if time_step_s < 0 or (max_steps is not None and max_steps < 1):
            raise ConfigError(
                f"{KEY}: found time_step_s {time_step_s!r:.50} and max_steps {max_steps!r:.50}, allowed: at least 0 "
                "seconds, and at least 1 step or null"
            )
        self._device = f"the robot {make} {json.dumps(kwargs or {}, default=str)}"
        self._time_step_s, self._max_steps = time_step_s, max_steps
        self._pictures: dict[str, spaces.Box] = {}
        self._numbers: list[str] = []
        for name, feature in robot.observation_features.items():
            if isinstance(feature, tuple):
                is_picture = len(feature) == 3 and feature[2] == 3
                self._pictures[name] = (
                    spaces.Box(0, 255, feature, np.uint8)
                    if is_picture
                    else spaces.Box(-np.inf, np.inf, feature, np.float32)
                )
            else:
                self._numbers.append(name)
        if STATE in self._pictures:
            raise ConfigError(f"{KEY}.make: a camera of the robot is named {STATE!r}, as the numbers are; rename it")
        self._actions = [*robot.action_features]
        self._low, self._high = self._bounds(limits)
        self._step = self._steps_of(largest_step)
        size = (len(self._actions),)
        low, high = (self._low, self._high) if self._step is None else (-np.ones(size), np.ones(size))
        self._box = spaces.Box(low.astype(np.float32), high.astype(np.float32), size, np.float32)
        self.action_space = self._box
        numbers = spaces.Box(-np.inf, np.inf, (len(self._numbers),), np.float32)
        self.observation_space = spaces.Dict({STATE: numbers, **self._pictures}) if self._pictures else numbers
        self._held: FolderLock | None = None
        self._connected = False
        self._observed: Mapping[str, Any] = {}
        self._taken, self._due = 0, 0.0

    # --- Gymnasium's methods ------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with a connected robot. The first call connects it.

        Raises:
            ContractError: the robot is not calibrated, another worker has it, or its observation misses a name.
        """
        super().reset(seed=seed)
        if not self._connected:
            self._connect()
        self.task.reset(self.robot, self.np_random)
        observation = self._observe()
        self._taken, self._due = 0, time.monotonic() + self._time_step_s
        return observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send an action, wait for the end of the time step, and observe.

        Raises:
            ContractError: an observation or what was sent misses a name.
            EnvironmentFailedError: no reset has connected and observed the robot.
        """
        if not self._connected or (self._step is not None and not self._observed):
            raise EnvironmentFailedError("the robot was not connected or observed yet: a reset does both")
        chosen = np.asarray(action, np.float64)
        begin = np.zeros_like(chosen) if self._step is None else self._values(self._observed, "get_observation")
        scale = 1.0 if self._step is None else self._step
        goals = np.clip(begin + chosen * scale, self._low, self._high)
        sent = self.robot.send_action(dict(zip(self._actions, map(float, goals), strict=True)))
        executed = (self._values(sent, "send_action") - begin) / scale
        now = time.monotonic()
        if now < self._due:
            time.sleep(self._due - now)
        self._due = max(self._due, now) + self._time_step_s
        observation = self._observe()
        reward, terminated = self.task.judge(self._observed, {name: float(sent[name]) for name in self._actions})
        self._taken += 1
        truncated = self._max_steps is not None and self._taken >= self._max_steps and not terminated
        executed = np.clip(executed, self._box.low, self._box.high).astype(np.float32)
        return observation, float(reward), bool(terminated), truncated, {"teleop_action": executed}

    def close(self) -> None:
        """Disconnect the robot."""
        if self._connected:
            self._connected = False
            self.robot.disconnect()
        if self._held is not None:
            self._held.close()
            self._held = None

    # --- parts --------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._held is None:
            try:
                self._held = hold_device(self._device, "environment", "Give each worker a robot of its own, by kwargs")
            except ConfigError as exc:
                raise ContractError(str(exc)) from exc
        self.robot.connect(calibrate=False)
        self._connected = True
        if not self.robot.is_calibrated:
            self.close()
            raise ContractError(
                "environment: the robot is not calibrated, and calibration asks at the terminal. Run lerobot-calibrate "
                "for it once, with the same id"
            )

    def _observe(self) -> Any:
        observed = self.robot.get_observation()
        missing = [name for name in (*self._numbers, *self._pictures) if observed.get(name) is None]
        if missing:
            raise ContractError(
                f"get_observation of the robot left out {', '.join(missing)}, of its observation_features"
            )
        self._observed = observed
        state = np.array([observed[name] for name in self._numbers], np.float32)
        if not self._pictures:
            return state
        pictures = {name: np.array(observed[name], box.dtype) for name, box in self._pictures.items()}
        return {STATE: state, **pictures}

    def _values(self, values: Mapping[str, Any], method: str) -> Any:
        """Return [actions] float64: values by name as an array."""
        missing = [name for name in self._actions if name not in values]
        if missing:
            raise ContractError(f"{method} of the robot left out {', '.join(missing)}, of its action_features")
        return np.array([float(values[name]) for name in self._actions])

    def _bounds(self, limits: Mapping[str, Sequence[float]]) -> tuple[Any, Any]:
        """Return low and high, [actions] float64 each."""
        wanted = {*self._actions}
        if {*limits} != wanted or any(
            len(pair) != 2 or not -np.inf < pair[0] < pair[1] < np.inf for pair in limits.values()
        ):
            raise ConfigError(
                f"{KEY}.limits: found {dict(limits)!r:.300}, allowed: [low, high] for each of "
                f"{', '.join(self._actions)}"
            )
        low, high = np.array([limits[name] for name in self._actions], np.float64).T
        return low, high

    def _steps_of(self, largest: float | Mapping[str, float] | None) -> Any:
        """Return the largest step of each action, [actions] float64, or None."""
        if largest is None:
            return None
        unseen = [name for name in self._actions if name not in self._numbers]
        if unseen:
            raise ConfigError(
                f"{KEY}.largest_step: the robot does not observe {', '.join(unseen)}, so there is no position to step "
                "from; leave largest_step out"
            )
        by_name = largest if isinstance(largest, Mapping) else dict.fromkeys(self._actions, largest)
        if {*by_name} != {*self._actions} or not all(0 < step < np.inf for step in by_name.values()):
            raise ConfigError(
                f"{KEY}.largest_step: found {largest!r:.300}, allowed: a number above 0, or one for each of "
                f"{', '.join(self._actions)}"
            )
        return np.array([by_name[name] for name in self._actions], np.float64)
