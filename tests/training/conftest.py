"""Recorded rows whose values say where they come from, so that every joined pair can be checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Segment


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small are faster with one thread, and many times so where processors are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a memory on disk begin a new file every few records."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", 2000)
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 2000)


def _rows(
    stream: int,
    episode: int,
    first_step: int,
    rows: int,
    *,
    end: str | None = None,
    version: tuple[int, int] = (1, 1),
    dtype: Any = np.float32,
    observation: Callable[[int], Any] | None = None,
) -> Chunk:
    """`rows` rows of one episode. An observation is (stream, episode, step); an action and a reward are the step."""
    steps = np.arange(first_step, first_step + rows)
    terminated, truncated = np.zeros(rows, bool), np.zeros(rows, bool)
    if end is not None:
        (terminated if end == "terminated" else truncated)[-1] = True
    present = steps > 0
    columns = np.stack([np.full(rows, stream), np.full(rows, episode), steps], 1).astype(dtype)
    return Chunk(
        rows=rows,
        action=np.where(present, steps, 0)[:, None].astype(np.float32) if present.any() else (),
        action_present=present,
        observation=columns if observation is None else observation(rows),
        reward=steps.astype(np.float64),
        terminated=terminated,
        truncated=truncated,
        segments=(Segment(rows, episode, first_step, *version),),
        stream=bytes([stream]) * 16,
    )


def _buffer(chunks: Iterable[Chunk], records: Iterable[EpisodeRecord] = ()) -> Buffer:
    buffer = Buffer(maxlen=10**9)
    buffer.extend(list(chunks), list(records))
    return buffer


@pytest.fixture
def make_rows() -> Callable[..., Chunk]:
    """Makes a chunk of one episode's rows."""
    return _rows


@pytest.fixture
def make_buffer() -> Callable[..., Buffer]:
    """Makes a Buffer of chunks."""
    return _buffer
