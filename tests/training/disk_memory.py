"""A replay memory on disk in small files, and a look at what it holds."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tmrl_core.storage import SegmentReader
from tmrl_core.training import ReplayMemory

STREAM = bytes([1]) * 16


def make(folder: Path, **kwargs: Any) -> ReplayMemory:
    return ReplayMemory(**{"memory_size": 100, "batch_size": 8, "seed": 4, **kwargs}, storage="disk", folder=folder)


def steps(memory: ReplayMemory) -> list[tuple[int, ...]]:
    """(stream, episode, step) of every transition's end, oldest first; each must belong to what came before it."""
    found = []
    for item in range(len(memory)):
        prev_obs, _, _, obs, _, _, _ = memory.get_transition(item)
        assert prev_obs[:2].tolist() == obs[:2].tolist()
        assert prev_obs[2] + 1 == obs[2]
        found.append(tuple(obs.astype(int).tolist()))
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def whole(folder: Path) -> bool:
    """Read every byte of every file."""
    readers = [SegmentReader(path) for path in segments(folder)]
    for reader in readers:
        deque(reader.records(), maxlen=0)
    return not any(reader.torn_bytes for reader in readers)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in segments(folder))


def damage_some(folder: Path, data: st.DataObject) -> None:
    """Write a few bytes over others in up to three of the files."""
    for path in data.draw(st.lists(st.sampled_from(segments(folder)), max_size=3)):
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + 2] = data.draw(st.binary(max_size=4))
        path.write_bytes(content)
