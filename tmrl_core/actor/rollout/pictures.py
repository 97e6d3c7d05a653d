"""Pictures of a worker for viewers: its camera, and the video of its latest evaluation."""

# Theory of operation
#
# `networking/protocol/pictures.py` says how pictures travel and who may ask for them. Here they are made, at the places
# where a worker looks at its link anyway: between two slices of an episode, about five times a second. So a worker that
# nobody looks at pays nothing, and no step has a picture in it.
#
# A picture of the camera is what `render()` returns if the environment's render mode is `rgb_array`; otherwise it is
# the largest picture of the latest observation, which is what a robot's camera gives anyway. The environment is asked
# in its own thread, since few renderers allow another one. JPEG, files and the encoder of videos are a second thread's
# matter.
#
# A video that is too large is encoded again, smaller, and cut at the end if it still is.

from __future__ import annotations

import io
import logging
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tmrl_core.envs.filmed import check_encoder
from tmrl_core.errors import MissingExtraError, TmrlError
from tmrl_core.networking.protocol.pictures import (
    CAMERA_S,
    FRAME_S,
    MAX_VIDEO_BYTES,
    PIECE_BYTES,
    Kind,
    Picture,
    Wanted,
)

logger = logging.getLogger(__name__)

MOST_PIXELS = 480
"""Maximum width and height of a camera picture."""
LEAST_PIXELS = 8
"""Width and height below which an array of bytes is no picture."""
_ENCODE_S = 30.0
"""Maximum time of the encoder, which a worker that ends meanwhile waits for."""

Frame = NDArray[np.uint8]


class NoPictureError(TmrlError):
    """A worker has nothing to show; the message says why and what to change."""


class Filming(Protocol):
    """Source of pictures. `Collector` is one."""

    def frame(self) -> Frame:
        """Return a picture [height, width, 3]; the caller does not change it.

        Raises:
            NoPictureError: there is none.
        """

    def latest_video(self) -> Path:
        """Return the file of the latest evaluation's video.

        Raises:
            NoPictureError: there is none.
        """


class WorkerPictures:
    """Show a worker to those that have asked for it. One thread calls every method.

    Args:
        source: makes the pictures. It is not kept alive.
        show: sends a picture; safe from any thread.
        clock: seconds, monotonic.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        source: Filming,
        show: Callable[[Picture], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = weakref.ref(source)
        self._show = show
        self._clock = clock
        self._wall_clock = wall_clock
        self._seen = Wanted("")
        self._until = self._next = 0.0
        self._number = 0
        self._second: ThreadPoolExecutor | None = None
        self._encoding: Future[None] | None = None

    def look(self, wanted: Wanted) -> None:
        """Show what is wanted now. It returns at once when nothing is due."""
        now, source = self._clock(), self._source()
        if source is None:
            return
        seen, self._seen = self._seen, wanted
        if wanted.camera != seen.camera:
            self._until = now + CAMERA_S
        if wanted.video != seen.video:
            try:
                path = source.latest_video()
            except NoPictureError as exc:
                self._answer(wanted.label, "video", b"", str(exc))
            else:
                self._later(wanted.label, "video", lambda: video_file(path), path.name)
        if self._next <= now < self._until and (self._encoding is None or self._encoding.done()):
            self._next = now + FRAME_S
            try:
                frame = np.array(source.frame())  # the environment may write the next one into the same memory
            except Exception as exc:  # whatever a renderer raises, the episode goes on
                self._until = now
                why = str(exc) if isinstance(exc, NoPictureError) else f"no picture: {type(exc).__name__}: {exc}"
                self._answer(wanted.label, "camera", b"", why)
            else:
                self._encoding = self._later(wanted.label, "camera", lambda: jpeg(frame))

    def _later(self, label: str, kind: Kind, make: Callable[[], bytes], text: str = "") -> Future[None]:
        def answer() -> None:
            try:
                content, said = make(), text
            except Exception as exc:  # of a library, a disk or a program
                content, said = b"", str(exc) if isinstance(exc, TmrlError) else f"{type(exc).__name__}: {exc}"
            self._answer(label, kind, content, said)

        if self._second is None:
            self._second = ThreadPoolExecutor(1, "tmrl-pictures")
        return self._second.submit(answer)

    def _answer(self, label: str, kind: Kind, content: bytes, text: str) -> None:
        if not content:
            logger.info("viewers see no %s of this worker: %s", kind, text)
        self._number = max(self._number + 1, int(1e6 * self._wall_clock()))
        self._show(Picture(label, kind, self._number, content, text))

    def close(self) -> None:
        """End the second thread, after what it is doing."""
        if self._second is not None:
            self._second.shutdown(wait=False, cancel_futures=True)


def rendered(env: Any) -> Frame:
    """Return a picture of an environment in render mode `rgb_array`; of several environments, the first one's.

    Raises:
        NoPictureError: it returns something else.
    """
    picture: object = env.render()
    if isinstance(picture, (tuple, list)) and picture:
        picture = picture[0]
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] >= 3:
        return picture[..., :3]
    raise NoPictureError(f"render() of the environment returns no picture but {type(picture).__name__}")


def picture_in(observation: object) -> Frame:
    """Return the largest picture of an observation; of several frames, or several environments, the last.

    Raises:
        NoPictureError: it has none.
    """
    found = max(_pictures(observation), key=lambda picture: picture.size, default=None)
    if found is None:
        raise NoPictureError(
            "this worker has no camera: its observations have no picture, and its environment has no render mode "
            "`rgb_array`. Set environment.kwargs.render_mode: rgb_array, or worker.evaluation_videos: true"
        )
    if found.ndim == 4:  # frames
        found = found[-1]
    if found.ndim == 2:
        found = found[..., None]
    elif found.shape[0] < found.shape[2]:  # channels first
        found = found.transpose(1, 2, 0)
    channels = found.shape[2]
    # Frames of a stack are further channels. One channel is grey.
    return found[..., -3:] if channels % 3 == 0 else np.repeat(found[..., -1:], 3, axis=2)


def _pictures(observation: object) -> list[Frame]:
    if isinstance(observation, np.ndarray):
        large = [size for size in observation.shape if size >= LEAST_PIXELS]
        return [observation] if observation.dtype == np.uint8 and 2 <= observation.ndim <= 4 and len(large) >= 2 else []
    if isinstance(observation, Mapping):
        observation = tuple(observation.values())
    return (
        [found for part in observation for found in _pictures(part)] if isinstance(observation, (tuple, list)) else []
    )


def jpeg(frame: Frame) -> bytes:
    """Return a picture as JPEG, made smaller until it is one piece.

    Raises:
        MissingExtraError: pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as exc:
        raise MissingExtraError("pillow", "video", "the picture of a camera") from exc
    image = Image.fromarray(np.ascontiguousarray(frame))
    size, quality = MOST_PIXELS, 70
    while True:
        image.thumbnail((size, size))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        if file.tell() <= PIECE_BYTES:
            return file.getvalue()
        size, quality = size // 2, 50


def video_file(path: Path) -> bytes:
    """Return a video, encoded again if it is larger than what is shown.

    Raises:
        MissingExtraError: imageio-ffmpeg is not installed, and the video is too large.
        OSError: it cannot be read.
        NoPictureError: it cannot be encoded.
    """
    if path.stat().st_size <= MAX_VIDEO_BYTES:
        return path.read_bytes()
    check_encoder(f"a video of more than {MAX_VIDEO_BYTES // 1000} kB ({path})")
    import imageio_ffmpeg

    with tempfile.TemporaryDirectory() as folder:
        smaller = Path(folder) / path.with_suffix(".mp4").name
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-r", "15"]
        command += ["-threads", "1"]  # the environment has the other cores
        command += ["-vf", "scale=320:-2", "-crf", "32", "-preset", "veryfast", "-pix_fmt", "yuv420p"]
        command += ["-fs", str(MAX_VIDEO_BYTES * 9 // 10), str(smaller)]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ENCODE_S, check=False
        )
        content = smaller.read_bytes() if ended.returncode == 0 else b""
    if not 0 < len(content) <= MAX_VIDEO_BYTES:
        raise NoPictureError(f"{path} on the worker's machine could not be made smaller: {ended.stderr.strip()[-200:]}")
    return content
