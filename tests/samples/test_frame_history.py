from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer, encode_message
from tmrl_core.samples.frame_history import NewestFrame


def stacks(frames: np.ndarray, count: int = 4) -> list[np.ndarray]:
    padded = np.concatenate([np.repeat(frames[:1], count - 1, axis=0), frames])
    return [padded[at : at + count] for at in range(len(frames))]


def compressed(compressor: NewestFrame, obs: Any, ends: bool = False) -> Any:
    return compressor(None, obs, 0.0, ends, False, {})[1]


def noise(steps: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (steps, *shape)).astype(np.uint8)


def test_the_newest_frame_is_sent_after_a_whole_stack() -> None:
    compressor = NewestFrame()
    frames = noise(6, 3, 3)
    found = [compressed(compressor, {"camera": stack, "speed": np.ones(2)}) for stack in stacks(frames)]
    assert [one["camera"].shape for one in found] == [(4, 3, 3)] + [(1, 1, 3, 3)] * 5
    assert all(
        np.array_equal(one["camera"].reshape(-1, 3, 3)[-1], frame) for one, frame in zip(found, frames, strict=True)
    )
    assert found[3]["speed"].tolist() == [1, 1]


def test_an_episode_and_a_jump_begin_with_whole_stacks() -> None:
    compressor = NewestFrame()
    still = np.zeros((4, 2, 2), np.uint8)
    assert compressed(compressor, still).shape == (4, 2, 2)
    assert compressed(compressor, still, ends=True).shape == (1, 1, 2, 2)
    assert compressed(compressor, still).shape == (4, 2, 2)
    assert compressed(compressor, still + 7).shape == (4, 2, 2)


def test_an_environment_may_write_over_its_observation() -> None:
    compressor = NewestFrame()
    obs = np.arange(16, dtype=np.uint8).reshape(4, 2, 2)
    compressed(compressor, obs)
    obs[:-1] = obs[1:]
    obs[-1] = 9
    assert compressed(compressor, obs).tolist() == [[[[9, 9], [9, 9]]]]


@pytest.mark.parametrize("obs", [np.zeros(4), np.zeros((3, 2, 2)), (np.zeros((4, 2)), np.zeros((1, 1, 2)))])
def test_observations_that_cannot_be_restored_are_refused(obs: Any) -> None:
    with pytest.raises(ConfigError, match=r"sends the newest of 4 frames, .* Allowed: at least one stack"):
        compressed(NewestFrame(), obs)


def test_a_derived_class_has_another_number_of_frames() -> None:
    class NewestOfTwo(NewestFrame):
        frames = 2

    compressor = NewestOfTwo()
    found = [compressed(compressor, stack).shape for stack in stacks(noise(3, 5), 2)]
    assert found == [(2, 5), (1, 1, 5), (1, 1, 5)]


def test_each_recorder_has_a_compressor_of_its_own() -> None:
    made = [StepRecorder(Buffer(maxlen=None), sample_compressor=NewestFrame).sample_compressor for _ in range(2)]
    assert isinstance(made[0], NewestFrame)
    assert made[0] is not made[1]


def test_a_sample_is_hardly_longer_than_its_newest_frame() -> None:
    """Random pixels, which compression does not shorten, in messages of 50 samples."""
    recorder = StepRecorder(Buffer(maxlen=None), sample_compressor=NewestFrame)
    sent = 0
    for episode in range(3):
        observations = stacks(noise(200, 64, 64, seed=episode))
        recorder.begin(observations[0], {})
        for step, obs in enumerate(observations[1:], 1):
            recorder.step(np.zeros(3, np.float32), obs, 1.0, False, step == 199, {})
            if step % 50 == 49:
                chunks, records = recorder.buffer.take()
                sent += sum(len(encode_message(chunk, records)) for chunk in chunks)
    assert sent / (600 * 64 * 64) < 1.05


def test_columns_of_short_episodes_stay_arrays() -> None:
    recorder = StepRecorder(Buffer(maxlen=None), sample_compressor=NewestFrame)
    for episode in range(20):
        recorder.begin(stacks(noise(3, 4, 4, seed=episode))[0], {})
        for obs in stacks(noise(3, 4, 4, seed=episode))[1:]:
            recorder.step(np.zeros(1, np.float32), obs, 0.0, False, False, {})
        recorder.end()
    chunks, _ = recorder.buffer.take()
    assert all(isinstance(chunk.observation, np.ndarray) for chunk in chunks)
