"""Frames of a LeRobot dataset's videos, decoded with PyAV (extra `lerobot-video`).

    videos/KEY/chunk-000/file-000.mp4   the frames of one or more episodes, one after another

A row of `meta/episodes` says in which file, and from which time on, an episode's frames are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_core.errors import MissingExtraError
from tmrl_core.samples.columns import Array

if TYPE_CHECKING:
    from typing_extensions import Self


def require_pyav() -> Any:
    """Return the module `av`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import av
    except ImportError as exc:
        raise MissingExtraError(exc.name or str(exc), "lerobot-video", "a LeRobot dataset with videos") from exc
    return av


class Videos:
    """The videos of a dataset. Each is decoded once, from its beginning, if episodes are asked for in their order.

    Seeking would be faster for a single episode, but its first frames may need the frames before a key frame.

    Args:
        folder: of the dataset.
        fps: frames per second.
    """

    def __init__(self, folder: Path, fps: float) -> None:
        self._folder = folder
        self._tolerance_s = 0.5 / fps  # half a frame: more would take a neighbour for the frame
        self._open: dict[str, _Video] = {}

    def frames(self, key: str, row: Mapping[str, Any], times_s: Array, shape: tuple[int, ...]) -> Array:
        """Return the frames of an episode, uint8 [T, height, width, 3]. Each is the one nearest to its time.

        Args:
            key: the feature.
            row: of `meta/episodes`.
            times_s: [T] of the frames, from the episode's beginning on, ascending.
            shape: [height, width, 3] of the feature.

        Raises:
            ValueError: the video cannot be decoded, has another size, or lacks a frame.
            OSError: there is no such file.
        """
        # The name comes from the dataset: "../.." would read other files of this machine.
        if Path(key).name != key or key == ".." or "\\" in key:
            raise ValueError(f"{key!r} cannot be the name of a folder")
        chunk, number = int(row[f"videos/{key}/chunk_index"]), int(row[f"videos/{key}/file_index"])
        file = self._folder / "videos" / key / f"chunk-{chunk:03d}" / f"file-{number:03d}.mp4"
        wanted = float(row[f"videos/{key}/from_timestamp"]) + np.asarray(times_s, np.float64)
        if not np.isfinite(wanted).all() or (np.diff(wanted) < 0).any():
            raise ValueError(f"the times of the frames of {key} do not ascend")
        # Taken out while it is used, so that a failure leaves no half-read video behind for the next episode.
        video = self._open.pop(key, None)
        if video is not None and not (video.file == file and video.time_s <= wanted[0]):
            video.close()
            video = None
        video = video or _Video(file)
        found = np.empty((len(wanted), *shape), np.uint8)
        try:
            for index, time_s in enumerate(wanted):
                found[index] = video.picture(float(time_s), self._tolerance_s, shape)
        except BaseException:
            video.close()
            raise
        self._open[key] = video
        return found

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Video:
    """One file, read forwards.

    Attributes:
        time_s: of the earliest frame that can still be asked for.
    """

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing")
        self.file = file
        self._av = require_pyav()
        self._before: Any = None
        self._ahead: Any = None
        self._ended = False
        try:
            # One demuxer: others read playlists, which name further files.
            self._container = self._av.open(str(file), format="mp4")
        except self._av.FFmpegError as exc:
            raise ValueError(f"{file} cannot be decoded: {exc}") from exc
        self._frames: Iterator[Any] | None = None

    @property
    def time_s(self) -> float:
        return -math.inf if self._before is None else float(self._before.time)

    def picture(self, time_s: float, tolerance_s: float, shape: tuple[int, ...]) -> Array:
        """Return the picture nearest to a time, which is not before that of the last call."""
        try:
            while not self._ended and (self._ahead is None or self._ahead.time < time_s):
                self._next(shape)
        except self._av.FFmpegError as exc:
            raise ValueError(f"{self.file} cannot be decoded: {exc}") from exc
        # The nearest may be the one before or the one after: times in containers are rounded.
        found = [frame for frame in (self._before, self._ahead) if frame is not None]
        if not found:
            raise ValueError(f"{self.file} has no frames")
        nearest = min(found, key=lambda frame: abs(frame.time - time_s))
        if abs(nearest.time - time_s) > tolerance_s:
            raise ValueError(f"{self.file} has no frame at {time_s:.4f} s; the nearest one is at {nearest.time:.4f} s")
        picture: Array = nearest.to_ndarray(format="rgb24")
        return picture

    def _next(self, shape: tuple[int, ...]) -> None:
        if self._frames is None:
            if not self._container.streams.video:
                raise ValueError(f"{self.file} has no video")
            stream = self._container.streams.video[0]
            self._check_size(stream, shape)
            self._frames = iter(self._container.decode(stream))
        frame = next(self._frames, None)
        if frame is None:
            self._ended = True
        elif frame.time is not None:  # a frame without a time cannot be asked for
            self._check_size(frame, shape)
            self._before, self._ahead = self._ahead, frame

    def _check_size(self, picture: Any, shape: tuple[int, ...]) -> None:
        # Before it is decoded or converted: a small file may hold huge frames.
        if (picture.height, picture.width) != shape[:2]:
            raise ValueError(
                f"{self.file} has frames of {picture.height}x{picture.width}; the feature states {list(shape)}"
            )

    def close(self) -> None:
        self._container.close()
