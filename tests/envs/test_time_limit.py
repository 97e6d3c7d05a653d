from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from tmrl_core.compat.envs import get_environment
from tmrl_core.config import from_values, use
from tmrl_core.envs import TimeLimitAsTruncation
from tmrl_core.errors import ConfigError
from tmrl_core.roles.from_config import environment_of, make_worker, run_worker


class Cut(gymnasium.Env[Any, Any]):
    """Reports its limit of four steps as an end. `fail_at` is a real one."""

    observation_space, action_space = spaces.Discrete(9), spaces.Box(-1, 1, (1,))

    def __init__(self, both: bool = False, fail_at: int = 0) -> None:
        self.both, self.fail_at = both, fail_at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == 4
        return self.steps, 1.0, over or self.steps == self.fail_at, over and self.both, {}


def flags(env: Any) -> list[tuple[bool, bool]]:
    """Return both flags of each step of an episode."""
    env.reset()
    found: list[tuple[bool, bool]] = []
    while not found or found[-1] == (False, False):
        _, _, terminated, truncated, _ = env.step(0)
        found.append((terminated, truncated))
    return found


@pytest.mark.parametrize("both", [False, True])
def test_an_end_at_the_limit_becomes_a_truncation_in_each_episode(both: bool) -> None:
    env = TimeLimitAsTruncation(Cut(both), 4)
    for _ in range(2):
        assert flags(env) == [(False, False)] * 3 + [(False, True)]


def test_an_earlier_end_stays_one() -> None:
    assert flags(TimeLimitAsTruncation(Cut(fail_at=2), 4)) == [(False, False), (True, False)]
    assert flags(TimeLimitAsTruncation(Cut(), 5))[-1] == (True, False)


def test_the_class_makes_the_environment_too() -> None:
    env = TimeLimitAsTruncation("tests.envs.test_time_limit:Cut", 4, {"both": True})
    assert flags(env)[-1] == (False, True)


@pytest.mark.parametrize(("env", "steps"), [(Cut(), 0), (object(), 4), ("builtins:dict", 4)])
def test_the_error_names_the_setting(env: Any, steps: int) -> None:
    with pytest.raises(ConfigError, match=r"environment\.time_limit: found"):
        TimeLimitAsTruncation(env, steps)


def test_the_setting_reaches_workers_and_scripts() -> None:
    config = from_values(
        {
            "environment": {"cls": "tests.envs.test_time_limit:Cut", "kwargs": {}, "time_limit": 4},
            "worker": {"nb_episodes": 2},
        }
    )
    assert flags(environment_of(config)())[-1] == (False, True)
    use(config)
    try:
        assert flags(get_environment())[-1] == (False, True)
        with make_worker(config, standalone=True) as worker:
            ends: list[str] = []
            worker.run_episode()
            ends += [record.end for record in worker.buffer.episodes]
            run_worker(worker, config)
        assert ends == ["truncated"]
    finally:
        use(None)
