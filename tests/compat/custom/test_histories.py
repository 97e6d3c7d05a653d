"""Memories of histories: what compressors leave out comes back as the worker saw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.compat.custom import custom_memories as memories
from tmrl_core.compat.custom.custom_algorithms import SpinupSacAgent
from tmrl_core.compat.custom.custom_models import VanillaCNNActorCritic, VanillaColorCNNActorCritic
from tmrl_core.compat.custom.tm.tm_preprocessors import obs_preprocessor_tm_act_in_obs
from tmrl_core.samples import Buffer
from tmrl_core.training.memories.memory import compare_with_original
from tmrl_core.training.memories.trees import leaves_of

HISTORY, ACTIONS = 4, 3
KINDS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "lidar": (memories.MemoryTMLidar, memories.get_local_buffer_sample_lidar),
    "progress": (memories.MemoryTMLidarProgress, memories.get_local_buffer_sample_lidar_progress),
    "gray": (memories.MemoryTMFull, memories.get_local_buffer_sample_tm20_imgs),
    "color": (memories.MemoryTMFull, memories.get_local_buffer_sample_tm20_imgs),
}


class Game:
    """A game with histories of measurements and actions, as rtgym and tmrl's interfaces make them."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, self.rng = kind, np.random.default_rng(seed)

    def _measured(self) -> Any:
        if self.kind in ("lidar", "progress"):
            return self.rng.random(19, np.float32)
        shape = (6, 5) if self.kind == "gray" else (6, 5, 3)
        return self.rng.integers(0, 256, shape).astype(np.uint8)

    def reset(self) -> Any:
        self.seen = [self._measured()] * HISTORY
        self.actions = [np.zeros(2, np.float32)] * ACTIONS
        return self._observation()

    def step(self, action: Any) -> Any:
        self.seen = [*self.seen[1:], self._measured()]
        self.actions = [*self.actions[1:], action]
        return self._observation()

    def _observation(self) -> Any:
        speed = self.rng.random(1, np.float32)
        if self.kind == "lidar":
            return speed, np.concatenate(self.seen), *self.actions
        if self.kind == "progress":
            return speed, self.rng.random(1, np.float32), np.concatenate(self.seen), *self.actions
        return obs_preprocessor_tm_act_in_obs((speed, speed + 1, speed + 2, np.stack(self.seen), *self.actions))


def played(kind: str, stream: bytes, lengths: list[int]) -> Buffer:
    """Compressed samples of some episodes, each with its original."""
    game, buffer = Game(kind, stream[0]), Buffer(None)
    recorder = StepRecorder(buffer, sample_compressor=KINDS[kind][1], crc_debug=True)
    for length in lengths:
        recorder.begin(game.reset(), {}, action=np.zeros(2, np.float32))
        for step in range(length):
            action = game.rng.random(2, np.float32)
            recorder.step(action, game.step(action), 1.0, step == length - 1, False, {})
    return labelled(buffer, stream)


def labelled(buffer: Buffer, stream: bytes) -> Buffer:
    chunks, records = buffer.take()
    for chunk in chunks:
        chunk.stream = stream
    buffer.extend(chunks, records)
    return buffer


def pieces(buffer: Buffer, size: int) -> list[Buffer]:
    found = []
    for chunk in buffer.chunks:
        for start in range(0, chunk.rows, size):
            found.append(Buffer(None))
            found[-1].extend([chunk.slice(start, min(start + size, chunk.rows))])
    return found


def make(kind: str, **kwargs: Any) -> Any:
    return KINDS[kind][0](**{"batch_size": 4, "imgs_obs": HISTORY, "act_buf_len": ACTIONS, **kwargs})


def check(memory: Any) -> None:
    for item in range(len(memory)):
        *transition, info = memory.get_transition(item)
        compare_with_original(info["crc_sample"], transition)


@pytest.mark.parametrize("kind", KINDS)
def test_every_transition_is_as_the_worker_saw_it(kind: str) -> None:
    memory = make(kind, crc_debug=True)
    memory.append(played(kind, b"a", [7, 1, 3, 12]))
    assert len(memory) == 7 + 1 + 3 + 12
    check(memory)
    assert len(memory.sample()) == 6


def test_samples_of_workers_that_arrive_in_turns_are_never_mixed() -> None:
    memory = make("gray")
    parts = [pieces(played("gray", stream, [9, 9]), 4) for stream in (b"a", b"b", b"c")]
    for turn in zip(*parts, strict=True):
        for part in turn:
            memory.append(part)
    assert len(memory) == 3 * 18
    check(memory)


def test_lost_samples_cost_only_the_transitions_that_need_them() -> None:
    memory = make("lidar")
    parts = pieces(played("lidar", b"a", [19]), 5)
    for part in (parts[0], parts[2], parts[3]):
        memory.append(part)
    # 4 of the first five samples; of the other ten, those with four samples before them.
    assert len(memory) == 4 + 6
    check(memory)


def test_old_samples_go_and_the_rest_stays_right() -> None:
    memory = make("progress", memory_size=64)
    for number in range(12):
        memory.append(played("progress", bytes([97 + number % 3]), [10]))
        assert len(memory.before) <= 64
    assert len(memory) >= 40
    check(memory)


def test_an_environment_without_a_default_action_begins_with_zeros() -> None:
    memory = make("lidar", imgs_obs=1, act_buf_len=2)
    recorder = StepRecorder(Buffer(None), sample_compressor=memories.get_local_buffer_sample_lidar)
    obs = (np.ones(1), np.ones(19))
    recorder.begin(obs, {})
    recorder.step(np.ones(2), obs, 1.0, False, False, {})
    memory.append(recorder.buffer)
    before, _, _, after, *_ = memory.get_transition(0)
    assert [part.tolist() for part in before[2:]] == [[0.0, 0.0], [0.0, 0.0]]
    assert [part.tolist() for part in after[2:]] == [[0.0, 0.0], [1.0, 1.0]]


def test_an_image_travels_once_and_in_bytes() -> None:
    (chunk,) = played("gray", b"a", [5]).chunks
    image: Any = leaves_of(chunk.observation)[3]
    assert (image.dtype, image.shape[1:]) == (np.uint8, (6, 5))


@pytest.mark.parametrize("kind", ["gray", "color"])
def test_a_model_of_images_learns_from_the_memory(kind: str) -> None:
    memory = make(kind, batch_size=8)
    memory.append(played(kind, b"a", [12]))
    one = gym.spaces.Box(0, 10, (1,), np.float32)
    image = gym.spaces.Box(0, 255, (HISTORY, 6, 5) if kind == "gray" else (HISTORY, 6, 5, 3), np.float32)
    act = gym.spaces.Box(0, 1, (2,), np.float32)
    space = gym.spaces.Tuple([one, one, one, image, *[act] * ACTIONS])
    agent = SpinupSacAgent(space, act, "cpu", VanillaCNNActorCritic if kind == "gray" else VanillaColorCNNActorCritic)
    before = [parameter.clone() for parameter in agent.model.parameters()]
    metrics = agent.train(memory.sample())
    assert np.isfinite([float(value) for value in metrics.values()]).all()
    assert not any(torch.equal(a, b) for a, b in zip(before, agent.model.parameters(), strict=True))
