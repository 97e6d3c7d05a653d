from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import tmrl_core.envs
from tmrl_core.envs import DelayedCue
from tmrl_core.errors import ConfigError


@pytest.mark.parametrize(("length", "cues"), [(10, 2), (2, 3)])
@pytest.mark.parametrize("right", [True, False])
def test_only_the_last_action_counts_and_only_the_first_observation_has_the_cue(
    length: int, cues: int, right: bool
) -> None:
    env = DelayedCue(length, cues)
    seen = set()
    for episode in range(30):
        obs, _ = env.reset(seed=3 if episode == 0 else None)
        cue = obs - 1
        seen.add(cue)
        for tick in range(length - 1):
            obs, reward, terminated, truncated, _ = env.step((cue + tick) % cues)
            assert (obs, reward, terminated, truncated) == (cues + 1 if tick == length - 2 else 0, 0.0, False, False)
        assert env.step(cue if right else (cue + 1) % cues)[1:4] == (1.0 if right else -1.0, True, False)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
    assert seen == set(range(cues))


def test_it_is_registered_and_keeps_gymnasiums_rules() -> None:
    assert tmrl_core.envs.DelayedCue is DelayedCue
    check_env(gymnasium.make("delayed-cue-v0", length=4, cues=3).unwrapped)


def test_arguments_below_two_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.length: found 1, allowed: at least 2"):
        DelayedCue(length=1)
    with pytest.raises(ConfigError, match="cues: found 0"):
        DelayedCue(cues=0)
