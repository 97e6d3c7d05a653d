"""real_time_env: rtgym's environment from plain values."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import rtgym

from tmrl_core.config import environment_maker
from tmrl_core.envs import real_time_env
from tmrl_core.errors import ConfigError, MissingExtraError

pytestmark = pytest.mark.filterwarnings("ignore:.*time-step.*")  # a busy machine

FAST = {"time_step_duration": 0.005, "start_obs_capture": 0.005, "time_step_timeout_factor": 1e6, "ep_max_length": 5}


class Counter(rtgym.RealTimeGymInterface):  # type: ignore[misc]
    """Count the steps since the reset."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def get_observation_space(self) -> Any:
        import gymnasium

        return gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 1e6, (1,), np.float32)])

    def get_action_space(self) -> Any:
        import gymnasium

        return gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def get_default_action(self) -> Any:
        return np.zeros(2, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.count = self.first
        return [np.array([self.count], np.float32)], {}

    def wait(self) -> None:
        pass

    def send_control(self, control: Any) -> None:
        pass

    def get_obs_rew_terminated_info(self) -> Any:
        self.count += 1
        return [np.array([self.count], np.float32)], 1.0, False, {}


def test_an_interface_is_named_with_its_arguments_and_settings() -> None:
    env = environment_maker(
        "tmrl_core.envs:real_time_env",
        {
            "interface": f"{__name__}:Counter",
            "interface_kwargs": {"first": 7},
            "config": {**FAST, "act_buf_len": 2},
        },
    )()
    obs, _ = env.reset()
    assert [part.tolist() for part in obs] == [[7.0], [0.0, 0.0], [0.0, 0.0]]
    steps = 0
    truncated = False
    while not truncated:
        obs, _, _, truncated, _ = env.step(np.full(2, 0.5, np.float32))
        steps += 1
    assert obs[-1].tolist() == [0.5, 0.5]
    assert steps == FAST["ep_max_length"]
    env.close()


def test_a_class_may_be_given_as_it_is() -> None:
    env = real_time_env(Counter, config=FAST)
    assert env.action_space.shape == (2,)
    env.close()


def test_unknown_settings_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"found time_step, allowed: .*time_step_duration"):
        real_time_env(Counter, config={"time_step": 0.1})


def test_without_rtgym_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rtgym", None)
    with pytest.raises(MissingExtraError, match="realtime"):
        real_time_env(Counter)
