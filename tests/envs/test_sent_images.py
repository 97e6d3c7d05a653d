"""`worker.images`: one file for each image, which the policy sees, and which is sent, recorded and trained on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.config import from_values, use
from tmrl_core.envs.sent_images import ImageEncoder, SentImages
from tmrl_core.errors import CodecError, ConfigError, MissingExtraError
from tmrl_core.networking import RolloutWorker
from tmrl_core.roles import from_config as roles
from tmrl_core.samples import decode_message, encode_message
from tmrl_core.samples.images import ImageDecoder
from tmrl_core.sessions import read_sessions

pytest.importorskip("PIL")


class Cameras(gymnasium.Env[Any, Any]):
    """Two cameras with smooth pictures, and a speed; three steps an episode, the second reset fails."""

    def __init__(self, side: int = 64, fails: bool = False) -> None:
        camera = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {"front": camera, "wrist": camera, "speed": spaces.Box(-9, 9, (2,), np.float32)}
        )
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.side, self.fails, self.resets = side, fails, 0

    def _obs(self) -> Any:
        y, x, c = np.ogrid[: self.side, : self.side, :3]
        front = (127 + 90 * np.sin(0.1 * x + 0.07 * y + c + self.steps)).astype(np.uint8)
        return {"front": front, "wrist": front[::-1].copy(), "speed": np.full(2, self.steps, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        self.resets += 1
        if self.fails and self.resets == 2:
            raise OSError("the camera does not answer")
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._obs(), 1.0, False, self.steps == 3, {}


def values(images: Any, **section: Any) -> dict[str, Any]:
    return {
        "run": {"seed": 1},
        "environment": {"cls": f"{__name__}:Cameras"},
        "actor": {"kwargs": {"hidden_sizes": [8]}},
        "worker": {"images": images, **section},
    }


@contextlib.contextmanager
def worker(images: Any, kwargs: dict[str, Any] | None = None, **section: Any) -> Iterator[RolloutWorker]:
    given = values(images, **section)
    given["environment"]["kwargs"] = kwargs or {}
    use(config := from_values(given))
    try:
        with roles.make_worker(config, standalone=True) as made:
            yield made
    finally:
        use(None)


def acting_observations(made: RolloutWorker) -> list[Any]:
    """Collect an episode; return the observations that the policy acts on, and the last one."""
    seen: list[Any] = []
    plain = made.actor.act_

    def act(obs: Any, test: bool = False) -> Any:
        seen.append({key: value.copy() for key, value in obs.items()})
        return plain(obs, test)

    made.actor.act_ = act  # type: ignore[method-assign]
    made.collect_train_episode()
    return seen


@pytest.mark.parametrize("images", [{"size": 32}, {"size": [16, 32], "quality": 40}, {"quality": "lossless"}])
def test_what_is_stored_is_what_the_policy_saw(images: dict[str, Any]) -> None:
    with worker(images) as made:
        seen = acting_observations(made)
        assert len(seen) == 3
        (chunk,) = made.buffer.chunks
        assert isinstance(chunk.observation, dict)
        assert all(isinstance(file, bytes) for file in chunk.observation["front"])
        space = made.env.observation_space
        raw = made.env.unwrapped.observation_space["front"].shape
        expected = {"size": raw[:2], **images}["size"]
        expected = (expected, expected) if isinstance(expected, int) else tuple(expected)
        assert space["wrist"].shape == (*expected, 3)
        message = decode_message(encode_message(chunk, []), max_bytes=1 << 20)
        assert message.chunk is not None
        ImageDecoder(space).decode(message.chunk)
        for row, obs in enumerate(seen):
            stored = message.chunk.sample(row)[1]
            assert list(stored) == list(obs)
            assert all(np.array_equal(stored[key], obs[key]) for key in obs)
            assert space.contains(stored)


def test_lossless_images_of_the_same_size_are_the_environments_own() -> None:
    env = SentImages(Cameras(), ImageEncoder(None, "lossless"))
    obs, _ = env.reset(seed=1)
    plain, _ = Cameras().reset()
    assert all(np.array_equal(obs[key], plain[key]) for key in plain)


def test_recorded_sessions_hold_the_pixels_that_the_policy_saw(tmp_path: Path) -> None:
    with worker({"size": 32}, record=str(tmp_path)) as made:
        seen = acting_observations(made)
        made.send_and_clear_buffer()
    (session,) = read_sessions(tmp_path)
    assert isinstance(session.observations, dict)
    assert np.asarray(session.observations["front"]).shape == (4, 32, 32, 3)
    for row, obs in enumerate(seen):
        assert np.array_equal(np.asarray(session.observations["wrist"])[row], obs["wrist"])


def test_the_encoder_outlives_an_environment_that_is_made_again() -> None:
    with worker({"size": 32}, {"fails": True}) as made:
        for _ in range(3):
            made.collect_train_episode()
        assert {type(sample[1]["front"]) for sample in made.buffer.memory} == {bytes}
        assert sum(chunk.rows for chunk in made.buffer.chunks) == 12


def test_an_observation_that_is_not_of_the_space_is_refused_as_ever() -> None:
    env = SentImages(Cameras(), ImageEncoder((32, 32), 75))
    env.reset()
    wrong = np.zeros((64, 64, 4), np.uint8)
    assert env._encoder.see({"front": wrong, "wrist": None})["front"] is wrong


@pytest.mark.parametrize(
    ("images", "section", "message"),
    [
        ({"quality": 0}, {}, r"worker\.images\.quality: .*1 to 100|worker\.images\.quality"),
        ({"quality": "best"}, {}, r"worker\.images\.quality: found .*'best'"),
        ({"size": 8}, {}, r"worker\.images\.size"),
        ({"size": [32]}, {}, r"worker\.images\.size"),
        ({}, {"envs": 2}, r"worker\.images: found with worker\.envs: 2; allowed: one environment"),
        ({}, {"obs_preprocessor": "builtins:dict"}, r"worker\.images: found with worker\.obs_preprocessor"),
        ({}, {"sample_compressor": "builtins:dict"}, r"worker\.images: found with worker\.sample_compressor"),
    ],
)
def test_settings_that_cannot_be_are_refused(images: Any, section: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_values(values(images, **section))


def test_an_environment_without_such_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"worker\.images\.size: found \[128, 128\], .* has 64 rows and 64 columns"):
        SentImages(Cameras(), ImageEncoder((128, 128), 75))
    with pytest.raises(ConfigError, match=r"worker\.images: the observation space Box.* has no image\. Allowed"):
        SentImages(gymnasium.make("Pendulum-v1"), ImageEncoder(None, 75))
    with pytest.raises(ConfigError, match=r"worker\.images: found a dict, allowed: a gymnasium\.Env"):
        SentImages({}, ImageEncoder(None, 75))


def test_without_pillow_the_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[images\]"):
        ImageEncoder(None, 75)


def test_a_gateway_refuses_it() -> None:
    from tmrl_core.gateway.from_config import check_central

    with pytest.raises(ConfigError, match=r"worker\.images: workers encode"):
        check_central(from_values(values({})))


def test_a_trainer_refuses_images_of_another_size() -> None:
    with worker({"size": 32}) as made:
        made.collect_train_episode()
        (chunk,) = made.buffer.chunks
    with pytest.raises(CodecError, match=r"an image RGB of 32x32 .*Workers and trainer need the same worker\.images"):
        ImageDecoder(Cameras().observation_space).decode(chunk)
