"""Memories that put histories of images, lidar measurements and actions back, and their sample compressors.

A compressor keeps the newest element of a history and drops the actions, which the samples have anyway. Samples of
several workers arrive in any order, and some may be missing. Each sample therefore has a link to the one before it in
its episode. A transition whose history is not completely known is never returned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tmrl_core.compat.memory import SIZE, TorchMemory
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.memories.memory import MAX_STREAMS, Transition, Values
from tmrl_core.training.value_types import Device

LIDAR = 19
"""Beams of a lidar measurement."""
PIXEL = 256.0
"""Divisor of pixels."""


def get_local_buffer_sample_lidar(
    prev_act: Any, obs: Any, rew: Any, terminated: Any, truncated: Any, info: Any
) -> tuple[Any, ...]:
    """Compress a sample to speed and newest lidar measurement, for `MemoryTMLidar`."""
    return prev_act, (obs[0], obs[1][-LIDAR:]), np.float32(rew), terminated, truncated, info


def get_local_buffer_sample_lidar_progress(
    prev_act: Any, obs: Any, rew: Any, terminated: Any, truncated: Any, info: Any
) -> tuple[Any, ...]:
    """Compress a sample to speed, progress and newest lidar measurement, for `MemoryTMLidarProgress`."""
    return prev_act, (obs[0], obs[1], obs[2][-LIDAR:]), np.float32(rew), terminated, truncated, info


def get_local_buffer_sample_tm20_imgs(
    prev_act: Any, obs: Any, rew: Any, terminated: Any, truncated: Any, info: Any
) -> tuple[Any, ...]:
    """Compress a sample to speed, gear, engine speed and newest image in bytes, for `MemoryTMFull`."""
    image = (np.asarray(obs[3][-1]) * PIXEL).astype(np.uint8)
    return prev_act, (obs[0], obs[1], obs[2], image), rew, terminated, truncated, info


class MemoryTM(TorchMemory):
    """Base of memories of histories.

    A subclass implements `observation`. The other arguments are those of `tmrl_core.compat.memory.Memory`.

    Args:
        batch_size: transitions in a batch; None: 256.
        imgs_obs: number of images in an observation.
        act_buf_len: number of actions in an observation.

    Attributes:
        data: six lists of one value per sample: actions, observations, rewards, terminated, truncated, infos.
        before: index of the sample before each one in its episode; -1: the reset, or unknown.
        depth: number of samples known before each one, at most the length of a history; a reset has that length.
        transitions: indices of the samples that end a transition, ascending.
        latest: index, episode and step of each stream's last sample.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"imgs_obs", "act_buf_len", "min_samples"})

    def __init__(
        self,
        memory_size: float | None = None,
        batch_size: float | None = None,
        dataset_path: str | Path = "",
        imgs_obs: int = 4,
        act_buf_len: int = 1,
        nb_steps: float = 1,
        sample_preprocessor: Callable[..., Values] | None = None,
        crc_debug: bool = False,
        device: Device = "cpu",
    ) -> None:
        size, batch = SIZE if memory_size is None else memory_size, 256 if batch_size is None else batch_size
        super().__init__(device, nb_steps, sample_preprocessor, size, batch, dataset_path, crc_debug)
        self.imgs_obs = imgs_obs
        self.act_buf_len = act_buf_len
        self.min_samples = max(imgs_obs, act_buf_len)
        self.data = [[] for _ in range(6)]
        self.before: list[int] = []
        self.depth: list[int] = []
        self.transitions: list[int] = []
        self.latest: dict[bytes, tuple[int, int, int]] = {}

    @abstractmethod
    def observation(self, obs: Any, history: Sequence[Any], actions: Sequence[Any]) -> tuple[Any, ...]:
        """Return an observation as the worker saw it.

        Args:
            obs: as it was stored.
            history: observations as they were stored, `imgs_obs`, oldest first. The reset's is repeated.
            actions: `act_buf_len`, oldest first. The reset's is repeated.
        """

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return len(self.transitions)

    def append_buffer(self, buffer: Buffer) -> None:
        """Append a buffer's samples."""
        for chunk in buffer.chunks:
            self._append_chunk(chunk)
        excess = len(self.before) - self.memory_size
        if excess > 0:
            self._forget(excess + self.memory_size // 16)

    def _append_chunk(self, chunk: Chunk) -> None:
        last = self.latest.pop(chunk.stream, (-1, -1, -1))
        for row in range(chunk.rows):
            episode, step = int(chunk.episode[row]), int(chunk.step[row])
            before = last[0] if last[1:] == (episode, step - 1) else -1
            last = len(self.before), episode, step
            for values, value in zip(self.data, chunk.sample(row), strict=True):
                values.append(value)
            self.before.append(before)
            known = 0 if before < 0 else min(self.min_samples, self.depth[before] + 1)
            self.depth.append(self.min_samples if step == 0 else known)
            if before >= 0 and self.depth[before] >= self.min_samples - 1:
                self.transitions.append(last[0])
        if chunk.rows:
            self.latest[chunk.stream] = last
            if len(self.latest) > MAX_STREAMS:
                self.latest.pop(next(iter(self.latest)))

    def _forget(self, count: int) -> None:
        """Drop the oldest samples, and the transitions that need them."""
        oldest = [self._history(self.before[number], self.min_samples)[0] for number in self.transitions]
        self.transitions = [n - count for n, first in zip(self.transitions, oldest, strict=True) if first >= count]
        self.data = [values[count:] for values in self.data]
        self.before = [max(-1, number - count) for number in self.before[count:]]
        self.depth = self.depth[count:]
        moved = {stream: (number - count, *rest) for stream, (number, *rest) in self.latest.items()}
        self.latest = {stream: (n, episode, step) for stream, (n, episode, step) in moved.items() if n >= 0}

    def _history(self, number: int, length: int) -> list[int]:
        """Return the last samples up to `number`, oldest first; the reset is repeated."""
        numbers = [number]
        while len(numbers) < length:
            before = self.before[numbers[-1]]
            numbers.append(before if before >= 0 else numbers[-1])
        return numbers[::-1]

    def _rebuilt(self, number: int, like: Any) -> tuple[Any, ...]:
        actions, observations = self.data[0], self.data[1]
        acts = [actions[one] for one in self._history(number, self.act_buf_len)]
        # An environment without a default action has none at its reset.
        acts = [np.zeros_like(like) if act is None else act for act in acts]
        seen = [observations[one] for one in self._history(number, self.imgs_obs)]
        return self.observation(observations[number], seen, acts)

    def get_transition(self, item: int) -> Transition:
        """Return transition `item`; 0 is the oldest."""
        now = self.transitions[item]
        act, _, rew, terminated, truncated, info = (values[now] for values in self.data)
        before, obs = self._rebuilt(self.before[now], act), self._rebuilt(now, act)
        return before, act, np.float32(rew), obs, terminated, truncated, info


class MemoryTMLidar(MemoryTM):
    """Speed, history of lidar measurements and actions, of `get_local_buffer_sample_lidar`."""

    def observation(self, obs: Any, history: Sequence[Any], actions: Sequence[Any]) -> tuple[Any, ...]:
        """Return speed, flat lidar measurements and actions."""
        return obs[0], np.concatenate([one[1] for one in history]), *actions


class MemoryTMLidarProgress(MemoryTM):
    """Speed, progress, history of lidar measurements and actions, of `get_local_buffer_sample_lidar_progress`."""

    def observation(self, obs: Any, history: Sequence[Any], actions: Sequence[Any]) -> tuple[Any, ...]:
        """Return speed, progress, flat lidar measurements and actions."""
        return obs[0], obs[1], np.concatenate([one[2] for one in history]), *actions


class MemoryTMFull(MemoryTM):
    """Speed, gear, engine speed, history of images and actions, of `get_local_buffer_sample_tm20_imgs`."""

    def observation(self, obs: Any, history: Sequence[Any], actions: Sequence[Any]) -> tuple[Any, ...]:
        """Return speed, gear, engine speed, images [imgs_obs, ...] from 0 to 1 and actions."""
        images = np.stack([one[3] for one in history]).astype(np.float32) / PIXEL
        return obs[0], obs[1], obs[2], images, *actions
