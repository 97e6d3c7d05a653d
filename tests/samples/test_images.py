"""Images as files: what is decoded, and what is refused."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import CodecError
from tmrl_core.networking.worker.outbox import PIECE_BYTES
from tmrl_core.samples import Buffer, split_chunk
from tmrl_core.samples.images import (
    MAX_DECODED_BYTES,
    MOST_GAIN,
    ImageDecoder,
    ImageShape,
    decode_image,
    encode_image,
    image_shape,
    resize,
)

PIL = pytest.importorskip("PIL.Image")

COLOUR = ImageShape(0, 32, 48, 3)


def picture(shape: ImageShape, seed: int = 0) -> np.ndarray:
    """A smooth picture, as of a camera: other values in each frame and channel."""
    frames, channels = max(1, shape.frames), max(1, shape.channels)
    f, y, x, c = np.ogrid[:frames, : shape.height, : shape.width, :channels]
    values = 127 + 60 * np.sin(0.2 * x + f + seed) + 60 * np.cos(0.15 * y + c)
    return shape.unframed(values.astype(np.uint8))


def file_of(array: np.ndarray, kind: str, **options: Any) -> bytes:
    made = io.BytesIO()
    PIL.fromarray(array).save(made, kind, **options)
    return made.getvalue()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 48), (0, 32, 48, 0, False)),
        ((32, 48, 3), (0, 32, 48, 3, False)),
        ((32, 48, 1), (0, 32, 48, 1, False)),
        ((3, 32, 48), (0, 32, 48, 3, True)),
        ((4, 32, 48), (4, 32, 48, 0, False)),
        ((4, 32, 48, 3), (4, 32, 48, 3, False)),
        ((4, 1, 32, 48), (4, 32, 48, 1, True)),
    ],
)
@pytest.mark.parametrize("quality", [75, "lossless"])
def test_pictures_of_each_shape_come_back(shape: tuple[int, ...], expected: tuple[Any, ...], quality: Any) -> None:
    found = image_shape(spaces.Box(0, 255, shape, np.uint8))
    assert found is not None
    assert (tuple(found), found.shape) == (expected, shape)
    array = picture(found)
    decoded = decode_image(encode_image(array, found, quality), found)
    assert decoded.shape == shape
    assert decoded.dtype == np.uint8
    difference = np.abs(decoded.astype(int) - array)
    assert difference.max() == 0 if quality == "lossless" else difference.mean() < 6
    smaller = found._replace(height=16, width=24)
    halved = resize(array, found, smaller)
    assert halved.shape == smaller.shape
    assert np.abs(halved.astype(int).mean() - array.mean()) < 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (32, 48, 3), np.uint8),  # a board
        spaces.Box(0, 255, (7, 7, 3), np.uint8),  # MiniGrid's codes of objects
        spaces.Box(0, 255, (32, 48, 3), np.float32),
        spaces.Box(0, 255, (4, 32, 48, 5), np.uint8),
        spaces.Box(0, 255, (128,), np.uint8),
        spaces.Discrete(3),
    ],
)
def test_other_arrays_are_no_images(space: Any) -> None:
    assert image_shape(space) is None


def test_a_fixed_file_has_the_same_pixels_with_each_decoder() -> None:
    # A policy's worker and its trainer may have different versions of Pillow.
    y, x, c = np.ogrid[:32, :48, :3]
    file = encode_image((5 * x + 3 * y + 60 * c).astype(np.uint8), COLOUR, 75)
    digest = hashlib.sha256(decode_image(file, COLOUR).tobytes()).hexdigest()[:16]
    assert (hashlib.sha256(file).hexdigest()[:16], digest) == ("5fb9395372779b06", "c7e91432703da636")


def test_a_picture_of_one_colour_is_padded_to_the_least_size() -> None:
    shape = ImageShape(0, 512, 512, 3)
    file = encode_image(np.zeros(shape.shape, np.uint8), shape, "lossless")
    assert len(file) == shape.nbytes // MOST_GAIN
    assert not decode_image(file, shape).any()


GOOD = picture(COLOUR)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (file_of(picture(ImageShape(0, 48, 32, 3)), "JPEG"), r"an image RGB of 32x48 \(JPEG\); .* RGB of 48x32"),
        (file_of(GOOD[..., 0], "JPEG"), "an image L of 48x32"),
        (file_of(GOOD, "JPEG", progressive=True), "wants a baseline JPEG"),
        (file_of(GOOD, "TIFF"), "UnidentifiedImageError"),
        (file_of(GOOD, "JPEG")[:-200], "cannot be read: OSError"),
        (b"\xff\xd8\xff" + bytes(200), "cannot be read"),
        (b"", r"less than 1/64"),
        (file_of(np.zeros((9000, 9000), np.uint8), "PNG"), "an image L of 9000x9000"),
    ],
)
def test_other_files_are_refused(file: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode_image(file, COLOUR)


def samples(rows: int, files: list[Any]) -> Any:
    buffer = Buffer()
    for row in range(rows):
        obs = {"camera": files[row % len(files)], "text": "a", "speed": np.full(1, row, np.float32)}
        buffer.append_sample((None if row == 0 else np.zeros(1, np.float32), obs, 0.0, False, False, {}))
    (chunk,) = buffer.chunks
    return chunk


SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, COLOUR.shape, np.uint8),
        "text": spaces.Text(9),
        "speed": spaces.Box(-9, 9, (1,), np.float32),
    }
)


def test_a_chunk_is_decoded_column_by_column() -> None:
    files = [encode_image(picture(COLOUR, seed), COLOUR, 75) for seed in range(3)]
    chunk = samples(7, files)
    ImageDecoder(SPACE, 1 << 20).decode(chunk)
    camera = chunk.observation["camera"]
    assert (camera.dtype, camera.shape) == (np.uint8, (7, *COLOUR.shape))
    assert all(np.array_equal(camera[row], decode_image(files[row % 3], COLOUR)) for row in range(7))
    assert chunk.observation["text"] == ["a"] * 7
    assert chunk.sample(2)[1]["speed"].item() == 2


def test_too_many_pixels_in_one_message_are_refused_before_they_are_decoded() -> None:
    chunk = samples(5, [encode_image(picture(COLOUR), COLOUR, 75)])
    with pytest.raises(CodecError, match="5 samples with images of 4608 bytes, more than 20000"):
        ImageDecoder(SPACE, 20_000).decode(chunk)
    # One sample always fits: its message has its files, of at least 1/64 of its pixels.
    one = samples(1, [encode_image(picture(COLOUR), COLOUR, 75)])
    ImageDecoder(SPACE, 1).decode(one)
    assert one.observation["camera"].shape == (1, *COLOUR.shape)


def test_messages_of_an_honest_sender_always_fit() -> None:
    # Pictures of one colour shrink most; a worker's messages have at most 1 MiB without compression.
    shape = ImageShape(0, 256, 256, 3)
    file = encode_image(np.zeros(shape.shape, np.uint8), shape, "lossless")
    buffer = Buffer()
    for _ in range(800):
        buffer.append_sample((np.zeros(1, np.float32), file, 0.0, False, False, {}))
    (chunk,) = buffer.chunks
    pieces = [piece.rows for piece in split_chunk(chunk, PIECE_BYTES)]
    assert sum(pieces) == 800
    assert len(pieces) == 3
    assert max(pieces) * shape.nbytes <= MAX_DECODED_BYTES


def test_pixels_and_other_values_stay_as_they_are() -> None:
    chunk = samples(3, [picture(COLOUR)])
    before = chunk.observation["camera"]
    ImageDecoder(SPACE).decode(chunk)
    assert chunk.observation["camera"] is before
    other = samples(3, [b"file", "text"])
    ImageDecoder(SPACE).decode(other)
    assert other.observation["camera"] == [b"file", "text", b"file"]
