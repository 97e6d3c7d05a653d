"""Images of observations as JPEG or PNG: encoded once, stored and sent as bytes, and decoded alike at both ends."""

# Theory of operation
#
# A camera of 128x128 makes 49 kB a step, a JPEG of it 3 kB. A learner must see the pixels that the policy saw, and
# encoding decoded pixels again changes them. So the worker encodes once, its policy acts on the decoded image, and the
# *bytes* travel: through the Buffer, the codec, spools and recorded sessions, as a column with one value per row. Who
# reads them (a trainer, a reader of sessions) decodes them by the space of the observations, with the same function.
#
# One image is one file. Frames of a stack are put under each other, as one picture of frames x height rows. Channels
# may stand first or last. JPEG is the baseline kind with the usual halved colours, whose arithmetic is exact in all
# versions of libjpeg-turbo, which Pillow's wheels contain; a test holds a fixed file against its pixels.
#
# What a hostile sender can do, and what stops it before memory is allocated:
#
#     a file that promises other pixels    the size and the mode in its head are compared with the space
#     a small file of a large image        refused: each file has at least 1/64 of its image's bytes (zeros follow it)
#     many images in one message           their pixels are counted: 64 MiB, which 1 MiB of files cannot exceed
#     a thousand passes over one image     refused: progressive files
#     another format, such as TIFF         Pillow is told the two that are allowed
#
# The rule of 1/64 binds the honest sender too, so that its messages of about 1 MiB always fit: pictures of one colour
# are padded.
#
# Rejected: encoding in the codec (it would be lossy without the policy's knowledge), videos (frames depend on each
# other: a lost message would spoil the next), WebP (half the size of a JPEG of that quality, for 5 to 12 times the
# time at the worker; without gray images), simplejpeg and PyTurboJPEG (one more package, for a fraction of 0.1 ms).

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from tmrl_core.errors import CodecError, MissingExtraError
from tmrl_core.samples.columns import Chunk, Tree, leaves
from tmrl_core.space_tree import Path, space_leaves

Quality = int | Literal["lossless"]
Pixels = NDArray[np.uint8]

LEAST_SIDE = 16
"""Smallest side of an image. Smaller arrays of bytes are grids more often than pictures, and gain nothing."""
MOST_GAIN = 64
"""An encoded image has at least this part of the bytes of its pixels."""
MAX_DECODED_BYTES = 64 << 20
"""Maximum bytes of the pixels of one message of several samples."""


class ImageShape(NamedTuple):
    """Shape of an array of pixels, axis by axis.

    Attributes:
        frames: number of frames in a stack; 0: it is no stack.
        height, width: of one frame.
        channels: 1 or 3; 0: the array has no axis for them.
        channels_first: they stand before height and width.
    """

    frames: int
    height: int
    width: int
    channels: int
    channels_first: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        sides, channels = (self.height, self.width), (self.channels,) * bool(self.channels)
        one = (*channels, *sides) if self.channels_first else (*sides, *channels)
        return (self.frames, *one) if self.frames else one

    @property
    def nbytes(self) -> int:
        """Bytes of the pixels."""
        return math.prod(self.shape)

    def framed(self, array: Pixels) -> Pixels:
        """Return an array as frames [frames, height, width, channels]; gray ones have 1 channel."""
        frames, channels = max(1, self.frames), max(1, self.channels)
        if self.channels_first:
            channels_last: Pixels = array.reshape(frames, channels, self.height, self.width).transpose(0, 2, 3, 1)
            return channels_last
        return array.reshape(frames, self.height, self.width, channels)

    def unframed(self, frames: Pixels) -> Pixels:
        """Undo `framed`."""
        return (frames.transpose(0, 3, 1, 2) if self.channels_first else frames).reshape(self.shape)


def image_shape(space: Space[Any]) -> ImageShape | None:
    """Return the shape of a space's images; None: it has none.

    Images are bytes with the bounds 0 and 255 and a shape [height, width], with one or three channels last or first,
    or frames of these along the first axis; each side has at least `LEAST_SIDE` pixels.
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return None
    shape = space.shape
    if not 2 <= len(shape) <= 4 or not ((space.low == 0).all() and (space.high == 255).all()):
        return None
    frames = shape[0] if len(shape) == 4 else 0
    if len(shape) > 2 and shape[-1] in (1, 3):
        found = ImageShape(frames, shape[-3], shape[-2], shape[-1])
    elif len(shape) > 2 and shape[-3] in (1, 3):
        found = ImageShape(frames, shape[-2], shape[-1], shape[-3], True)
    elif len(shape) < 4:
        found = ImageShape(shape[0] if len(shape) == 3 else 0, shape[-2], shape[-1], 0)
    else:
        return None
    return found if min(found.height, found.width) >= LEAST_SIDE else None


def images_of(space: Space[Any]) -> dict[Path, ImageShape]:
    """Return the shapes of all images of an observation space, by path."""
    return {path: shape for path, leaf in space_leaves(space) if (shape := image_shape(leaf)) is not None}


def need_pillow(what: str) -> None:
    """See that images can be encoded and decoded.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("pillow", "images", what)


def resize(array: Pixels, shape: ImageShape, to: ImageShape) -> Pixels:
    """Return an image, or a stack of frames, with other sides. Each new pixel is a mean of those that it covers."""
    from PIL import Image

    if (shape.height, shape.width) == (to.height, to.width):
        return array
    size, made = (to.width, to.height), []
    for frame in shape.framed(array):
        image = Image.fromarray(np.ascontiguousarray(frame if frame.shape[-1] == 3 else frame[..., 0]))
        made.append(np.asarray(image.resize(size, Image.Resampling.BILINEAR)).reshape(to.height, to.width, -1))
    return to.unframed(np.stack(made))


def encode_image(array: Pixels, shape: ImageShape, quality: Quality) -> bytes:
    """Return an image, or a stack of frames, as one file.

    Args:
        array: uint8 of `shape`.
        shape: of the array.
        quality: 1 to 100 of a JPEG, or "lossless" for a PNG.
    """
    from PIL import Image

    frames = shape.framed(array)
    rows = frames.reshape(-1, shape.width, frames.shape[-1])
    image = Image.fromarray(np.ascontiguousarray(rows if rows.shape[-1] == 3 else rows[..., 0]))
    file = io.BytesIO()
    if quality == "lossless":
        image.save(file, "PNG", compress_level=1)
    else:
        image.save(file, "JPEG", quality=quality)
    return file.getvalue().ljust(-(-shape.nbytes // MOST_GAIN), b"\0")


def decode_image(file: bytes, shape: ImageShape) -> Pixels:
    """Return the pixels of `encode_image`'s result, uint8 of `shape`.

    Raises:
        CodecError: the file is no image of this shape, or is damaged or suspiciously small.
    """
    from PIL import Image

    if len(file) * MOST_GAIN < shape.nbytes:
        raise CodecError(f"an image of {shape.nbytes} bytes in a file of {len(file)}, less than 1/{MOST_GAIN}")
    wanted = ("RGB" if shape.channels == 3 else "L", (shape.width, max(1, shape.frames) * shape.height))
    try:
        with Image.open(io.BytesIO(file), formats=("JPEG", "PNG")) as image:
            found = (image.mode, image.size)
            if found == wanted and image.format in ("JPEG", "PNG") and "progressive" not in image.info:
                frames = np.asarray(image).reshape(-1, shape.height, shape.width, max(1, shape.channels))
                return shape.unframed(frames)
    except Exception as exc:  # Pillow raises many kinds for damaged files
        raise CodecError(f"an image that cannot be read: {type(exc).__name__}: {exc!s:.200}") from exc
    raise CodecError(
        f"an image {found[0]} of {found[1][0]}x{found[1][1]} ({image.format}); the observation space wants a baseline "
        f"JPEG or a PNG {wanted[0]} of {wanted[1][0]}x{wanted[1][1]}. Workers and trainer need the same worker.images"
    )


def with_images(tree: Tree, images: Mapping[Path, Any], path: Path = ()) -> Any:
    """Return a tree with other leaves at some paths."""
    if isinstance(tree, dict):
        return {key: with_images(child, images, (*path, key)) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(with_images(child, images, (*path, index)) for index, child in enumerate(tree))
    return images.get(path, tree)


def leaf_at(tree: Any, path: Path) -> Any:
    """Return the leaf at a path; None: there is none."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, tuple) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree


class ImageDecoder:
    """Turn columns of encoded images into columns of pixels.

    Args:
        space: observation space of the samples.
        max_bytes: maximum bytes of pixels of a chunk with several rows; None: what its files allow.
    """

    def __init__(self, space: Space[Any], max_bytes: int | None = None) -> None:
        self._images = images_of(space)
        self._max_bytes = max_bytes

    def decode(self, chunk: Chunk) -> None:
        """Replace the encoded images of a chunk's observations by [rows, *shape] uint8. Other columns stay.

        Raises:
            CodecError: an image is damaged or of another shape, or there are too many.
            MissingExtraError: there are images, and Pillow is not installed.
        """
        if not self._images or not any(isinstance(column, list) for column in leaves(chunk.observation)):
            return
        found: dict[Path, list[bytes]] = {}
        for path in self._images:
            column = leaf_at(chunk.observation, path)
            if isinstance(column, list) and all(isinstance(file, bytes) for file in column):
                found[path] = column
        row_bytes = sum(self._images[path].nbytes for path in found)
        if self._max_bytes is not None and chunk.rows > 1 and chunk.rows * row_bytes > self._max_bytes:
            raise CodecError(f"{chunk.rows} samples with images of {row_bytes} bytes, more than {self._max_bytes}")
        if found:
            need_pillow("encoded images")
        made: dict[Path, Pixels] = {}
        for path, column in found.items():
            shape = self._images[path]
            if any(len(file) * MOST_GAIN < shape.nbytes for file in column):
                raise CodecError(f"an image of {shape.nbytes} bytes in a file of less than 1/{MOST_GAIN}")
            pixels = made[path] = np.empty((chunk.rows, *shape.shape), np.uint8)
            for row, file in enumerate(column):
                pixels[row] = decode_image(file, shape)
        chunk.observation = with_images(chunk.observation, made)
