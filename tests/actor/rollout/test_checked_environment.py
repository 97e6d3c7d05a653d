from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.actor.rollout.step_checks import StepCheck
from tmrl_core.errors import ConfigError, ContractError, EnvironmentFailedError

ACT = np.full(1, 0.5, np.float32)


def test_results_are_unchanged_and_the_environment_gets_a_copy_of_the_action(counting_env: Any) -> None:
    class Writing(counting_env):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            result = super().step(action)
            action[:] = 77
            return result

    environment = CheckedEnvironment(Writing)
    obs, info = environment.reset(seed=4)
    assert (obs.tolist(), info, environment.env.seeds) == ([0, 0, 0], {"fresh": 0}, [4])
    action = ACT.copy()
    obs, reward, terminated, truncated, info = environment.step(action, keep=True)
    assert (obs.tolist(), reward, terminated, truncated, info) == ([0, 1, 0.5], 1.0, False, False, {})
    assert action.tolist() == [0.5]
    environment.step(action)
    assert action.tolist() == [77]
    assert environment.fault is None


def test_exceptions_propagate_and_are_recorded_as_fault(counting_env: Any) -> None:
    error = ZeroDivisionError("mine")
    environment = CheckedEnvironment(lambda: counting_env(script={(0, 1): error, (1, 2): np.zeros(2, np.float32)}))
    environment.reset()
    with pytest.raises(ZeroDivisionError, match="mine"):
        environment.step(ACT)
    assert environment.fault is error
    environment.reset()
    environment.step(ACT)
    with pytest.raises(EnvironmentFailedError, match=r"shape \(2,\)"):
        environment.step(ACT)
    assert isinstance(environment.fault, EnvironmentFailedError)


def test_the_environment_is_recreated_only_after_a_failed_reset(counting_env: Any) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(counting_env(script={(0, 0): OSError("no contact"), (0, 1): OSError("hot")} if not made else {}))
        return made[-1]

    environment = CheckedEnvironment(make)
    with pytest.raises(OSError, match="no contact"):
        environment.reset()
    assert len(made) == 1
    environment.reset(seed=2)
    assert len(made) == 2
    assert made[0].is_closed
    assert environment.env is made[1]
    assert made[1].seeds == [2]
    environment.reset()
    assert len(made) == 2
    environment.close()
    assert made[1].is_closed


def test_a_factory_without_an_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="env_cls: found 3 of type int; wanted: what makes one"):
        CheckedEnvironment(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="made a dict, which is not an environment"):
        CheckedEnvironment(dict)


@pytest.mark.parametrize("number", [int, bool, np.int64, np.float16, np.float32, np.float64, np.array, lambda x: [x]])
@pytest.mark.parametrize("values", [3, 20], ids=["few", "many"])
def test_a_reward_of_any_type_is_one_float(number: Any, values: int) -> None:
    class Paying(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-1, 1, (values,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return np.zeros(values, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(values, np.float32), number(1), False, False, {}

    environment = CheckedEnvironment(Paying)
    environment.reset()
    rewards = [environment.step(0)[1] for _ in range(3)]
    assert [(type(reward), reward) for reward in rewards] == [(float, 1.0)] * 3


def test_an_integer_beyond_the_floats_is_an_invalid_reward() -> None:
    with pytest.raises(EnvironmentFailedError, match="beyond the range of floats"):
        StepCheck(spaces.Discrete(3)).step(1, 10**400)


@pytest.mark.parametrize("strict", [False, True])
def test_a_check_accepts_exactly_the_values_that_step_leaves_unchanged(strict: bool) -> None:
    check = StepCheck(spaces.Box(-1, 1, (3,), np.float32), strict)
    good = np.zeros(3, np.float32)
    assert check.fits(good, 1.0)
    assert check.step(good, 1.0) == (good, 1.0)
    assert not check.fits(good, np.float32(1))
    check.step(good, np.float32(1))
    assert check.fits(good, np.float32(2)), "rewards of the type that was the latest"
    assert not check.fits(good.astype(np.float64), np.float32(1))
    assert not check.fits(np.array([0, np.nan, 0], np.float32), np.float32(1))
    for bad in (np.array([0, np.nan, 0], np.float32), "text"):
        with pytest.raises(EnvironmentFailedError):
            check.step(bad, 1.0)
    with pytest.raises(EnvironmentFailedError, match="the reward is nan"):
        check.step(good, float("nan"))
    if strict:
        with pytest.raises(EnvironmentFailedError, match="float64"):
            check.step(np.zeros(3), 1.0)
    else:
        assert check.step(np.zeros(3), 1.0)[0].dtype == np.float32
        assert check.step([0, 0, 0], 1.0)[0].dtype == np.float32


class Turning(gymnasium.Env[Any, Any]):
    """Resets and steps return what `resets` and `steps` hold, one after another."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, resets: list[Any], steps: list[Any]) -> None:
        self.resets, self.steps = resets, steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.resets.pop(0)

    def step(self, action: Any) -> Any:
        return self.steps.pop(0)


GOOD = np.zeros(2, np.float32)
RESET: Any = (GOOD, {})
STEP: Any = (GOOD, 1.0, False, False, {})
VECTOR: Any = (GOOD, np.ones(2), False, False, {})


@pytest.mark.parametrize(
    ("resets", "steps", "said"),
    [
        ([GOOD], [], "reset returned a ndarray"),
        ([(np.zeros((1, 2), np.float32), {})], [], r"the shape \(1, 2\), its space wants \(2,\), after a reset"),
        ([RESET], [(GOOD, 1.0, True, {})], r"ValueError.*step returns five"),
        ([RESET], [VECTOR], r"the reward is array\(\[1\., 1\.\]\) of type ndarray.*several objectives need a wrapper"),
        ([RESET], [(GOOD[:1], 1.0, False, False, {})], r"the shape \(1,\)"),
    ],
)
def test_a_breach_of_contract_is_no_fault_that_a_reset_repairs(resets: Any, steps: Any, said: str) -> None:
    environment = CheckedEnvironment(lambda: Turning(resets, steps))
    if steps:
        environment.reset()
    with pytest.raises(ContractError, match=said):
        environment.step(0) if steps else environment.reset()
    assert environment.fault is None


def test_a_result_that_was_valid_before_is_a_failure_later() -> None:
    environment = CheckedEnvironment(lambda: Turning([RESET, None], [STEP, VECTOR]))
    environment.reset()
    environment.step(0)
    for call in (lambda: environment.step(0), environment.reset):
        environment.fault = None
        with pytest.raises(EnvironmentFailedError):
            call()
        assert environment.fault is not None


def test_numbers_that_are_not_finite_are_failures_from_the_first_result_on() -> None:
    nan = np.full(2, np.nan, np.float32)
    environment = CheckedEnvironment(lambda: Turning([(nan, {})], [(GOOD, np.inf, False, False, {})]))
    for call in (environment.reset, lambda: environment.step(0)):
        with pytest.raises(EnvironmentFailedError) as caught:
            call()
        assert environment.fault is caught.value


def test_a_wrapped_batch_of_environments_is_named() -> None:
    env = Turning([(np.zeros((8, 2), np.float32), {})], [])
    env.num_envs = 8  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match=r"the shape \(8, 2\).*a batch of 8 \(its num_envs\)"):
        CheckedEnvironment(lambda: gymnasium.wrappers.TimeLimit(env, 9)).reset()
