"""Convolutions of policies that see images: their settings and sizes, the same for both backends.

Zeros are added at the right and at the bottom where a layer would otherwise leave out the last rows or columns. An
image that is smaller than a kernel makes the kernel smaller. Any size of image is therefore possible, and no pixel is
lost.
"""

# Theory of operation
#
# Sizes are computed here, once, for torch and NumPy alike; each backend makes its layers from the list. Nothing here
# sees a pixel.
#
# A layer of kernel k and stride s has ceil((side - k) / s) + 1 positions, and zeros are added at the right and at the
# bottom for the last one. In numbers: a side of 64 with k = 8 and s = 4 has 15 positions and needs no zeros; a side of
# 66 has 16 and needs 2. Without the padding, a stride leaves out the last rows, and in a small image these can be what
# the picture is about. The zeros are on one side only: NumPy's backend copies the image into a corner of an array whose
# rest stays zero.
#
# A kernel that is larger than the image becomes as large as it. So any size of image is possible with any layers, and a
# user who starts with a picture of 10 x 10 sees a policy that learns instead of an error of torch.
#
# `large` halves the sides four times. With two hidden layers of 256 and images of 4 x 64 x 64, policies have 0.29 and
# 0.63 million parameters. Below a side of 32 the first stride of 4 would leave seven positions or fewer, hence `tiny`.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tmrl_core.errors import ConfigError

Convolutions: TypeAlias = str | Sequence[Sequence[int]]
"""Name of layers in `LAYERS`, `(filters, kernel, stride)` of each layer, or `NO_CONVOLUTIONS`."""

NO_CONVOLUTIONS = "none"
"""Setting with which no observation is taken as an image."""

LAYERS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "tiny": ((16, 3, 1), (32, 3, 2), (32, 3, 2)),
    "small": ((16, 8, 4), (32, 4, 2), (32, 3, 1)),
    "large": ((32, 8, 2), (64, 4, 2), (128, 4, 2), (128, 4, 2)),
}
"""Known layers. With two hidden layers of 256 and images of 4x64x64, policies have 0.29 (`small`) and 0.63 (`large`)
million parameters."""

_TINY = 32
"""Side of images below which `tiny` is the default."""


@dataclass(frozen=True)
class Convolution:
    """One layer.

    Args:
        inputs, outputs: channels.
        kernel: height and width.
        stride: in both directions.
        size: height and width of the output.
        padding: rows of zeros below the input, and columns to the right of it.
    """

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: int
    size: tuple[int, int]
    padding: tuple[int, int]


def convolutions_of(setting: Convolutions | None, image_shape: tuple[int, int, int]) -> list[Convolution]:
    """Return the layers for images of a shape.

    Args:
        setting: None: `small`, or `tiny` for images with a side below 32.
        image_shape: channels, height and width.

    Raises:
        ConfigError: the name is unknown, or a layer is not three positive whole numbers.
    """
    if setting is None:
        setting = "tiny" if min(image_shape[1:]) < _TINY else "small"
    layers = LAYERS.get(setting) if isinstance(setting, str) else setting
    if not layers or not all(_is_layer(layer) for layer in layers):
        raise ConfigError(
            f"actor.kwargs.convolutions: found {setting!r:.200}, allowed: {', '.join(LAYERS)}, or a list with "
            "[filters, kernel, stride] of each layer, such as [[32, 8, 4], [64, 4, 2], [64, 3, 1]]; or "
            f"{NO_CONVOLUTIONS}: no images"
        )
    channels, *sides = image_shape
    made = []
    for filters, length, stride in layers:
        (rows, below), (columns, right) = (_steps(side, min(length, side), stride) for side in sides)
        kernel = min(length, sides[0]), min(length, sides[1])
        made.append(Convolution(channels, filters, kernel, stride, (rows, columns), (below, right)))
        channels, sides = filters, [rows, columns]
    return made


def _steps(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the number of a kernel's positions along a side, and the zeros to add for the last one."""
    steps = -(-(side - kernel) // stride)
    return steps + 1, steps * stride + kernel - side


def _is_layer(layer: object) -> bool:
    return (
        isinstance(layer, Sequence)
        and len(layer) == 3
        # YAML's `true` is an int to Python.
        and all(isinstance(number, int) and not isinstance(number, bool) and number >= 1 for number in layer)
    )


def features_of(layers: Sequence[Convolution]) -> int:
    """Return the number of outputs of the last layer."""
    height, width = layers[-1].size
    return layers[-1].outputs * height * width
