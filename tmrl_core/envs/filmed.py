"""Filmed: an environment whose pictures go to video files, while a file is named."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tmrl_core.errors import ConfigError, MissingExtraError

logger = logging.getLogger(__name__)

SUFFIXES = (".mp4", ".mkv")
"""Suffixes of video files; a path without a suffix is a folder."""


def rendering(reference: str, kwargs: Mapping[str, Any], mode: str, *, wraps_gymnasium: bool) -> dict[str, Any]:
    """Return an environment's keyword arguments with a render mode.

    Args:
        reference: the environment's class, for messages.
        kwargs: without it.
        mode: `human` or `rgb_array`.
        wraps_gymnasium: True: it hands `gym_kwargs` to `gymnasium.make`.

    Raises:
        ConfigError: they name another mode.
    """
    inner = kwargs.get("gym_kwargs") or {} if wraps_gymnasium else kwargs
    if inner.get("render_mode") not in (None, mode):
        raise ConfigError(
            f"environment.kwargs of {reference}: found render_mode {inner['render_mode']!r}, wanted here: {mode!r}; "
            "leave it out, it is set where it is needed"
        )
    made = {**inner, "render_mode": mode}
    return {**kwargs, "gym_kwargs": made} if wraps_gymnasium else made


def check_encoder(what: str) -> None:
    """See that videos can be written.

    Raises:
        MissingExtraError: imageio-ffmpeg is not installed.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise MissingExtraError("imageio-ffmpeg", "video", what)


class Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in render mode `rgb_array`, filmed between `start` and `stop`.

    Pictures that cannot be had or written end the film with one error in the log; the environment goes on.

    Args:
        env: what is filmed.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._path: Path | None = None
        self._writer: Generator[None, Any, None] | None = None
        self._shape: tuple[int, ...] = ()

    def start(self, path: Path) -> None:
        """Film into this file from the next reset on."""
        self.stop()
        self._path = path

    def stop(self) -> None:
        """End the film; its file is complete then."""
        self._path = None
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        result = self.env.reset(**kwargs)
        if self._path is not None:
            self._shoot(self._path)
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        result = self.env.step(action)
        if self._writer is not None and self._path is not None:
            self._shoot(self._path)
        return result

    def close(self) -> None:
        """End the film and close the environment."""
        self.stop()
        self.env.close()

    def _shoot(self, path: Path) -> None:
        try:
            picture: Any = self.env.render()
            if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3):
                raise TypeError(f"render() returns no picture [height, width, 3] of uint8, but {_told(picture)}")
            if self._writer is None:
                self._shape = picture.shape
                self._writer = _writer(path, picture, float(self.env.metadata.get("render_fps") or 30))
            # The encoder takes the bytes of a picture without its shape, and would show noise.
            if picture.shape != self._shape:
                raise ValueError(f"the pictures' shape changes from {self._shape} to {picture.shape}")
            self._writer.send(np.ascontiguousarray(picture[..., :3]))
        except Exception as exc:  # whatever a renderer or encoder raises, the evaluation goes on
            logger.error("no video %s: %s: %s", path, type(exc).__name__, str(exc).strip().partition("\n")[0])
            self.stop()


def _writer(path: Path, picture: Any, fps: float) -> Generator[None, Any, None]:
    import imageio_ffmpeg

    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = picture.shape[:2]
    # Most players want even sizes; imageio's default of 16 would change more than that.
    writer: Generator[None, Any, None] = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
    )
    writer.send(None)
    return writer


def _told(picture: Any) -> str:
    return f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
