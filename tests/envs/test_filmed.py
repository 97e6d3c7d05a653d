"""Films of environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.envs.filmed import Filmed, rendering
from tmrl_core.errors import ConfigError

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="the extra video")


class Squares(gym.Env[Any, Any]):
    """Shows one colour for each step."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, picture: Any = None) -> None:
        self.picture = picture
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return 0, 0.0, False, self.steps == 4, {}

    def render(self) -> Any:
        return np.full((33, 64, 3), 40 * self.steps, np.uint8) if self.picture is None else self.picture


def play(env: Filmed) -> None:
    env.reset()
    while not env.step(0)[3]:
        pass


def frames(path: Path) -> int:
    count, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    return int(count)


def test_the_video_holds_the_frames_between_start_and_stop(tmp_path: Path) -> None:
    env = Filmed(Squares())
    play(env)
    for name, episodes in (("one.mp4", 1), ("two.mp4", 2)):
        env.start(tmp_path / "deep" / name)
        for _ in range(episodes):
            play(env)
        env.stop()
        play(env)
        assert frames(tmp_path / "deep" / name) == 5 * episodes  # the reset is one
    env.close()


@pytest.mark.parametrize("picture", ["text", np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_an_environment_without_frames_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, picture: object
) -> None:
    env = Filmed(Squares(picture))
    env.start(tmp_path / "a.mp4")
    play(env)
    play(env)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "render() returns no picture [height, width, 3] of uint8, but" in message
    assert not list(tmp_path.iterdir())


def test_the_render_mode_goes_where_the_environment_takes_it() -> None:
    assert rendering("a:B", {"x": 1}, "human", wraps_gymnasium=False) == {"x": 1, "render_mode": "human"}
    assert rendering("a:B", {"id": "A-v0", "gym_kwargs": {"g": 9.0}}, "rgb_array", wraps_gymnasium=True) == {
        "id": "A-v0", "gym_kwargs": {"g": 9.0, "render_mode": "rgb_array"},
    }  # fmt: skip
    with pytest.raises(ConfigError, match="found render_mode 'human', wanted here: 'rgb_array'"):
        rendering("a:B", {"render_mode": "human"}, "rgb_array", wraps_gymnasium=False)
