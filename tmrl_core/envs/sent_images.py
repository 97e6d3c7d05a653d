"""Images of an environment, resized and encoded at the worker: the policy sees what is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_core.config.sections import ImagesSection
from tmrl_core.errors import ConfigError
from tmrl_core.samples.images import (
    LEAST_SIDE,
    ImageShape,
    Quality,
    decode_image,
    encode_image,
    images_of,
    leaf_at,
    need_pillow,
    resize,
    with_images,
)
from tmrl_core.space_tree import Path, with_leaves

logger = logging.getLogger(__name__)

KEY = "worker.images"


class ImageEncoder:
    """Resizes and encodes the images of observations, and remembers the files of the latest one.

    It outlives its environment, which a worker makes again after a failed reset.

    Args:
        size: height and width of all images; None: as they are.
        quality: 1 to 100 of a JPEG, or "lossless".

    Raises:
        MissingExtraError: Pillow is not installed.
    """

    def __init__(self, size: tuple[int, int] | None, quality: Quality) -> None:
        need_pillow(KEY)
        self._size = size
        self._quality = quality
        self._shapes: dict[Path, tuple[ImageShape, ImageShape]] = {}
        self._files: dict[Path, bytes] = {}

    def set_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """Return the space of the encoded observations of this one.

        Raises:
            ConfigError: it has no images, or a smaller one than `size`.
        """
        found = images_of(space)
        if not found:
            raise ConfigError(
                f"{KEY}: the observation space {space} has no image. Allowed: Boxes of uint8 with the bounds 0 and 255 "
                f"and the shape [height, width], with 1 or 3 channels first or last, or frames of these along a first "
                f"axis, each side at least {LEAST_SIDE}. Leave the key out, or correct the space"
            )
        self._shapes = {path: (shape, self._resized(shape)) for path, shape in found.items()}
        for path, (shape, made) in self._shapes.items():
            name = "/".join(map(str, path)) or "the observation"
            logger.info("%s: %s, %s, is sent as %s, %s", KEY, name, shape.shape, made.shape, self._quality)
        changed = with_leaves(space, self._leaf)
        assert changed is not None
        return changed

    def _resized(self, shape: ImageShape) -> ImageShape:
        height, width = self._size or (shape.height, shape.width)
        if height > shape.height or width > shape.width:
            raise ConfigError(
                f"{KEY}.size: found [{height}, {width}], and an image of the environment has {shape.height} rows and "
                f"{shape.width} columns; allowed: at most these"
            )
        return shape._replace(height=height, width=width)

    def _leaf(self, path: Path, leaf: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(0, 255, self._shapes[path][1].shape, np.uint8) if path in self._shapes else leaf

    def see(self, obs: Any) -> Any:
        """Return an observation with the images that a reader of the files will see. Other parts stay.

        Arrays of another shape or dtype than the space's stay too; the worker's check of observations refuses them.
        """
        self._files, seen = {}, {}
        for path, (shape, made) in self._shapes.items():
            array = leaf_at(obs, path)
            if isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape == shape.shape:
                self._files[path] = encode_image(resize(array, shape, made), made, self._quality)
                seen[path] = decode_image(self._files[path], made)
        return with_images(obs, seen)

    def compress(self, action: Any, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        """Return a sample with the files in place of the images; for `RolloutWorker(sample_compressor=...)`."""
        return action, with_images(obs, self._files), reward, terminated, truncated, info


class SentImages(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose images are those that an encoder's files hold.

    Args:
        env: the environment.
        encoder: encodes its images.

    Raises:
        ConfigError: it is no gymnasium.Env, or has no images of at least the encoder's size.
    """

    def __init__(self, env: Any, encoder: ImageEncoder) -> None:
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"{KEY}: found a {type(env).__name__}, allowed: a gymnasium.Env")
        super().__init__(env)
        self._encoder = encoder
        self.observation_space = encoder.set_space(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        obs, info = self.env.reset() if seed is None and options is None else self.env.reset(seed=seed, options=options)
        return self._encoder.see(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._encoder.see(obs), reward, terminated, truncated, info


def encoder_of(section: ImagesSection | None) -> ImageEncoder | None:
    """Return the configured encoder; None: images are sent as they are.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    if section is None:
        return None
    if section.size is None:
        return ImageEncoder(None, section.quality)
    height, width = (section.size, section.size) if isinstance(section.size, int) else section.size
    return ImageEncoder((height, width), section.quality)


def sending_images(make: Callable[[], Any], encoder: ImageEncoder | None) -> Callable[[], Any]:
    """Return a function that makes the environment with encoded images."""
    if encoder is None:
        return make

    def encoded() -> Any:
        env = make()
        try:
            return SentImages(env, encoder)
        except ConfigError:
            env.close()
            raise

    return encoded
