"""The Buffer: where the environment loop leaves its samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tmrl_core.samples.columns import Chunk
from tmrl_core.samples.records import EpisodeRecord, Version


class Buffer:
    """Samples in the order in which they were made, and the records of the episodes that finished."""

    def __init__(self, maxlen: Any = None) -> None:
        raise NotImplementedError("the Buffer is being written")

    def append_sample(self, sample: tuple[Any, ...], extras: dict[str, Any] | None = None) -> None:
        """Append `(act, new_obs, rew, terminated, truncated, info)`."""
        raise NotImplementedError("the Buffer is being written")

    def start_episode(self, episode: int, version: Version = (0, 0)) -> None:
        """Begin an episode: the next sample is its reset."""
        raise NotImplementedError("the Buffer is being written")

    def set_version(self, version: Version) -> None:
        """Say which policy version makes the samples from the next one on."""
        raise NotImplementedError("the Buffer is being written")

    def end_episode(self, record: EpisodeRecord) -> None:
        """Add the record of a finished episode."""
        raise NotImplementedError("the Buffer is being written")

    def drop_unsent(self) -> int:
        """Drop what the Buffer still holds of the open episode; return how many samples that were."""
        raise NotImplementedError("the Buffer is being written")

    def take(self) -> tuple[list[Chunk], list[EpisodeRecord]]:
        """Hand over what is here without copying it, and be empty."""
        raise NotImplementedError("the Buffer is being written")

    def extend(self, chunks: Iterable[Chunk], records: Iterable[EpisodeRecord] = ()) -> None:
        """Append chunks and records without copying rows."""
        raise NotImplementedError("the Buffer is being written")
