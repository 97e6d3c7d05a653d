"""real_time_env: rtgym's environment from plain values."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
import rtgym

from tmrl_core.config import environment_maker
from tmrl_core.envs import real_time_env
from tmrl_core.envs.identity import differences, identity_of
from tmrl_core.envs.real_time import ONE_THREAD, THREAD_PER_STEP
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


def test_a_robot_on_windows_has_the_environment_of_a_trainer_on_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in (THREAD_PER_STEP, ONE_THREAD):
        monkeypatch.setattr("tmrl_core.envs.real_time.RTGYM_ID", name)
        env = real_time_env(Counter, config=FAST)
        found.append(identity_of(env))
        env.close()
    assert differences(*found) == differences(*reversed(found)) == ""
    assert found[0]["environment_id"] == THREAD_PER_STEP


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


class Failing(Counter):
    """Fail in one method, at its second call (or the first one of those that are called once)."""

    def __init__(self, method: str, closed: list[bool]) -> None:
        super().__init__()
        self.method, self.closed, self.calls = method, closed, 0
        self.fail("__init__", 1)

    def fail(self, method: str, at: int = 2) -> None:
        if method == self.method:
            self.calls += 1
            if self.calls == at:
                raise OSError(f"no contact in {method}")

    def get_observation_space(self) -> Any:
        self.fail("get_observation_space", 1)
        return super().get_observation_space()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.fail("reset")
        return super().reset(seed, options)

    def send_control(self, control: Any) -> None:
        self.fail("send_control")

    def get_obs_rew_terminated_info(self) -> Any:
        self.fail("get_obs_rew_terminated_info")
        return super().get_obs_rew_terminated_info()

    def wait(self) -> None:
        self.fail("wait", 1)

    def close(self) -> None:
        self.closed.append(True)


@pytest.mark.parametrize("method", ["__init__", "get_observation_space"])
def test_an_interface_that_cannot_be_made_raises_its_exception(method: str) -> None:
    with pytest.raises(OSError, match=f"no contact in {method}"):
        real_time_env(Failing, {"method": method, "closed": []}, FAST)


@pytest.mark.parametrize("method", ["reset", "send_control", "get_obs_rew_terminated_info"])
def test_an_exception_of_the_interface_is_raised_and_a_reset_goes_on(method: str) -> None:
    env = real_time_env(Failing, {"method": method, "closed": []}, FAST)

    def go_on() -> None:
        for _ in range(2):
            env.reset()
            env.step(env.action_space.sample())

    with pytest.raises(OSError, match=f"no contact in {method}"):
        go_on()
    env.reset()
    assert env.step(env.action_space.sample())[0][0].tolist() == [1.0]
    env.close()


class Malformed(Counter):
    """Return something else than an observation, a reward, terminated and an info."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def get_obs_rew_terminated_info(self) -> Any:
        return self.result


@pytest.mark.timeout(60)
@pytest.mark.parametrize("result", [([0.0], 1.0, False), (0.5, 1.0, False, {}), None])
def test_a_malformed_result_of_the_interface_is_an_error(result: Any) -> None:
    env = real_time_env(Malformed, {"result": result}, FAST)
    env.reset()
    with pytest.raises(TypeError, match=r"get_obs_rew_terminated_info of Malformed returned .*; it returns a list of"):
        env.step(env.action_space.sample())
    env.close()


def test_a_wait_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    env = real_time_env(Failing, {"method": "wait", "closed": []}, FAST)
    env.reset()
    env.unwrapped.wait()  # type: ignore[attr-defined]
    assert "wait of Failing failed" in caplog.text
    env.close()


def test_closing_ends_the_thread_and_closes_the_interface() -> None:
    before = threading.active_count()
    closed: list[bool] = []
    env = real_time_env(Failing, {"method": "", "closed": closed}, FAST)
    env.reset()
    env.close()
    assert closed == [True]
    assert threading.active_count() == before
