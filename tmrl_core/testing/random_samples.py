"""Random samples and batches of given spaces, for the conformance suites."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Segment
from tmrl_core.training.interface import Delivery, LocalInterface

OBSERVATIONS: gym.Space[Any] = gym.spaces.Box(-10, 10, (3,), np.float32)
ACTIONS: gym.Space[Any] = gym.spaces.Box(-1, 1, (2,), np.float32)


def values_of(space: gym.Space[Any], count: int, seed: int) -> np.ndarray:
    """Return values [count, *shape] of a space of arrays or whole numbers."""
    space.seed(seed)
    return np.stack([np.asarray(space.sample()) for _ in range(count)])


def random_chunk(
    observations: gym.Space[Any] = OBSERVATIONS,
    actions: gym.Space[Any] = ACTIONS,
    rows: int = 10,
    *,
    stream: int = 1,
    episode: int = 0,
    first_step: int = 0,
    last: bool = True,
) -> Chunk:
    """Return neighbouring samples of one episode; step 0 is its reset.

    Args:
        observations, actions: spaces of the samples.
        rows: number of samples.
        stream: number of the worker.
        episode: number of the episode.
        first_step: step index of the first sample.
        last: the last sample ends the episode.
    """
    steps = np.arange(first_step, first_step + rows)
    return Chunk(
        rows=rows,
        action=values_of(actions, rows, stream + episode),
        action_present=steps > 0,
        observation=values_of(observations, rows, stream + episode + 1),
        reward=steps.astype(np.float64),
        terminated=np.zeros(rows, bool),
        truncated=(np.arange(rows) == rows - 1) & last,
        segments=(Segment(rows, episode, first_step, 1, 1),),
        stream=bytes([stream]) * 16,
    )


def buffer_of(*chunks: Chunk, records: tuple[EpisodeRecord, ...] = ()) -> Buffer:
    """Return a buffer of these chunks and episode records."""
    buffer = Buffer(maxlen=None)
    buffer.extend(chunks, records)
    return buffer


def random_batch(observations: gym.Space[Any], actions: gym.Space[Any], rows: int, seed: int) -> tuple[Any, ...]:
    """Return a batch of tensors `(prev_obs, new_act, rew, new_obs, terminated, truncated)`."""
    import torch

    rewards = np.random.default_rng(seed).standard_normal(rows).astype(np.float32)
    columns = (values_of(observations, rows, seed), values_of(actions, rows, seed), rewards)
    flags = (np.zeros(rows, np.float32), np.zeros(rows, np.float32))
    return tuple(map(torch.from_numpy, (*columns, values_of(observations, rows, seed + 1), *flags)))


class EndlessInterface(LocalInterface):
    """Interface that delivers an episode of random samples at each call of `receive`.

    Attributes:
        delivered: number of samples delivered so far.
    """

    def __init__(self, observations: gym.Space[Any] = OBSERVATIONS, actions: gym.Space[Any] = ACTIONS) -> None:
        super().__init__()
        self._spaces = observations, actions
        self._episode = 0
        self.delivered = 0

    def receive(self) -> list[Delivery]:
        """Return a new episode."""
        self.put(buffer_of(random_chunk(*self._spaces, episode=self._episode)))
        self._episode += 1
        deliveries = super().receive()
        self.delivered += sum(len(delivery.buffer) for delivery in deliveries)
        return deliveries
