"""gym-hil's Panda arm that picks up a cube, in MuJoCo, with the expert and the person of `pick.py`.

The simulator is where the environment is stepped (`pip install gym-hil==0.1.14`); a trainer needs the spaces only.
"""

# Theory of operation
#
# Below is gym-hil's base environment, without its wrappers, and these things are different from `gym.make`:
#
#     cube            from this environment's generator. The option of gym-hil draws from NumPy's global generator, so
#                     that no seed repeats an episode, and without the option the cube is always at one place.
#     gripper         above 0.3 closes, below -0.3 opens, as in `pick.py`. gym-hil adds the command to the last one, and
#                     its devices send for "open" the number with which its environment closes.
#     time limit      100 steps, a truncation. A cube that has left its area is a failure, and ends the episode.
#     observation     positions in widths of the table (0.4 m), and how far the arm is behind the point that it was sent
#                     to: it follows with a delay, and actions move that point.
#     reset           does not wait.
#     pictures        without shadows and reflections, which cost most of the time of drawing.
#
# gym-hil makes a renderer even if nothing is drawn, so that a machine without a display needs EGL.

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np
import pick
from gymnasium import spaces

from tmrl_core.errors import ContractError

WIDTH, CORNER = 0.4, np.array([0.2, -0.2, 0.0])
"""Width of the table in metres, and where it begins."""
STEP, LIMIT = 0.025, 100
"""Longest step in each direction in metres, and steps of an episode: gym-hil's own."""
CUBE_LOW, CUBE_HIGH = (0.3, -0.15), (0.5, 0.15)
"""Corners of the area in which the cube is at first, in metres: gym-hil's own."""


class Panda(gymnasium.Env[Any, Any]):
    """The task of `pick.Pick` with a simulated arm.

    Observation [13]: as `pick.Pick`'s, and the way from the gripper to the point that it was sent to (3). Action [4]:
    as `pick.Pick`'s. Reward: 1 when the cube is lifted by 0.1 m, where the episode ends, and otherwise 0.
    """

    observation_space = spaces.Box(-5, 5, (13,), np.float32)
    action_space = spaces.Box(-1, 1, (4,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.pixels = 480 if render_mode else 0
        self._arm: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._arm is None:
            self._arm = self._make()
        import mujoco

        self._arm.reset()
        data = self._arm.unwrapped.data
        data.jnt("block").qpos[:2] = self.np_random.uniform(CUBE_LOW, CUBE_HIGH)
        mujoco.mj_forward(self._arm.unwrapped.model, data)
        self._closed, self._steps = False, 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        action = np.clip(np.asarray(action, np.float64), -1, 1)
        self._closed = bool(action[3] > 0.3) or (self._closed and bool(action[3] > -0.3))
        sent = np.array([*action[:3] * STEP, 0, 0, 0, 1.0 if self._closed else -1.0])
        _, reward, terminated, _, info = self._arm.step(sent)
        lifted = bool(info["succeed"])
        truncated = self._steps >= LIMIT and not terminated
        return self._observation(), float(reward), bool(terminated), truncated, {"is_success": lifted}

    def state(self) -> Any:
        """Return what a person sees, an observation of `Panda`."""
        return Panda._observation(self)

    def render(self) -> Any:
        return self._arm.render()[0]

    def close(self) -> None:
        if self._arm is not None:
            self._arm.close()

    def _observation(self) -> Any:
        data = self._arm.unwrapped.data
        gripper, cube = data.sensor("2f85/pinch_pos").data, data.sensor("block_pos").data
        behind = data.mocap_pos[0] - gripper
        parts = ((gripper - CORNER) / WIDTH, [float(self._closed)], (cube - CORNER) / WIDTH, (cube - gripper) / WIDTH)
        return np.clip(np.concatenate((*parts, behind / WIDTH)), -5, 5).astype(np.float32)

    def _make(self) -> Any:
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            os.environ.setdefault("MUJOCO_GL", "egl")  # before the first import of MuJoCo
        try:
            from gym_hil.envs import PandaPickCubeGymEnv
        except ModuleNotFoundError as exc:
            raise ContractError(
                f"{exc}: the arm needs gym-hil, `pip install gym-hil==0.1.14`, in an environment with MuJoCo below "
                "3.9. Without it, take the model: --set environment.cls=pick:Pick"
            ) from exc

        size = {"render_spec": _spec(self.pixels)} if self.pixels else {}
        return PandaPickCubeGymEnv(image_obs=False, reward_type="sparse", **size)


def _spec(pixels: int) -> Any:
    from gym_hil import GymRenderingSpec

    return GymRenderingSpec(height=pixels, width=pixels)


HAND = pick.Hand(over=0.03, down=0.075, held=0.075, lifted=0.3, area=((0.2, 0.07), (0.8, 0.93)))


class Expert(pick.Expert):
    """The expert of `pick.py` with this hand."""

    hand = HAND


class PersonByRule(pick.PersonByRule):
    """The person of `pick.py` with this hand."""

    hand = HAND


class SeenPanda(Panda):
    """The task seen by two cameras, without the place of the cube, with a person who sees the state and acts in it.

    Observation: `front` and `wrist` [64, 64, 3], pictures, and `arm` [7], the position of the gripper, closed or not,
    and the way to the point that it was sent to. The info of a step has `is_intervention`, and what the person did
    (`teleop_action`): `worker.interventions.cls` is `tmrl_core.actor.interventions:EnvironmentTakesOver`.

    Args:
        person: `rule` takes over as `PersonByRule` does, `shows` always acts as `Expert` does, `away` never acts.
    """

    SIDE = 64
    observation_space = spaces.Dict(
        {
            "front": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            "wrist": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            "arm": spaces.Box(-5, 5, (7,), np.float32),
        }
    )

    def __init__(self, person: str = "rule") -> None:
        super().__init__()
        self.pixels = self.SIDE
        self._person = PersonByRule()
        self._expert = Expert(Panda.observation_space, self.action_space)
        self._acts = {"rule": self._person.poll, "shows": self._expert.act, "away": lambda state: None}[person]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        self._expert.seed(int(self.np_random.integers(2**31)))
        self._person.begin_episode()
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        helps = self._acts(self.state())
        obs, reward, terminated, truncated, info = super().step(action if helps is None else helps)
        if helps is not None:
            info |= {"is_intervention": True, "teleop_action": np.asarray(helps, np.float32)}
        return obs, reward, terminated, truncated, info

    def _make(self) -> Any:
        arm = super()._make()
        import mujoco

        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            arm.unwrapped._viewer.scene.flags[flag] = False
        return arm

    def _observation(self) -> Any:
        front, wrist = self._arm.render()
        state = self.state()
        return {"front": front, "wrist": wrist, "arm": np.concatenate((state[:4], state[10:]))}
