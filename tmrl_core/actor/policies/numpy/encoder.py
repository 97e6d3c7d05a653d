"""Features of images without torch: convolutions as one matrix product each, one image at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tmrl_core.actor.policies.convolutions import Convolution, Convolutions, convolutions_of, features_of
from tmrl_core.actor.policies.flattening import Leaf


class _Step:
    """One layer: the windows of its input are copied to the rows of a matrix.

    Args:
        image: the array [height, width, channels] that is its input, each time.
        layer: the layer.
    """

    def __init__(self, image: np.ndarray, layer: Convolution) -> None:
        height, width, channels = image.shape
        self._image = image
        padded = image
        if any(layer.padding):
            padded = np.zeros((height + layer.padding[0], width + layer.padding[1], channels), np.float32)
        self._inside = padded[:height, :width] if padded is not image else None
        windows = sliding_window_view(padded, layer.kernel, axis=(0, 1))
        self._windows = windows[:: layer.stride, :: layer.stride].transpose(0, 1, 3, 4, 2)
        self._columns = np.empty(self._windows.shape, np.float32)
        self._inputs = self._columns.reshape(math.prod(layer.size), -1)
        self.matrix = np.empty((self._inputs.shape[1], layer.outputs), np.float32)
        self.bias = np.empty(layer.outputs, np.float32)
        self.output = np.empty((*layer.size, layer.outputs), np.float32)
        self.rows = self.output.reshape(-1, layer.outputs)

    def compute(self) -> None:
        """Compute the output of the input."""
        if self._inside is not None:
            self._inside[...] = self._image
        self._columns[...] = self._windows
        np.dot(self._inputs, self.matrix, out=self.rows)
        self.rows += self.bias
        np.maximum(self.rows, 0.0, out=self.rows)


class NumpyImageEncoder:
    """Convolutions of one image, on the weights of `ObservationEncoder`.

    Images are [height, width, channels] here, so that a layer's output is the next one's input, and the rows of a
    window are contiguous. The scale of the pixels is a part of the first layer's weights. Intermediate results are in
    arrays that are allocated once.

    Args:
        leaf: the image.
        convolutions: as for `ObservationEncoder`.
        prefix: of the names of its weights.

    Attributes:
        features: number of features.

    Raises:
        ConfigError: the convolutions are not possible.
    """

    def __init__(self, leaf: Leaf, convolutions: Convolutions | None, prefix: str) -> None:
        self.leaf = leaf
        self._prefix = prefix
        self._layers = convolutions_of(convolutions, leaf.image_shape)
        self.features = features_of(self._layers)
        channels, *sides = leaf.image_shape
        image = np.empty((*sides, channels), np.float32)
        # The image with its channels still divided as in the observation.
        self._image = image.reshape(*sides, *(leaf.shape[axis] for axis in leaf.channels))
        self._axes = (*leaf.sides, *leaf.channels)
        self._steps: list[_Step] = []
        for layer in self._layers:
            self._steps.append(_Step(image, layer))
            image = self._steps[-1].output

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return weights as torch.nn.Conv2d begins with: uniform within 1/sqrt(inputs)."""
        weights = {}
        for index, layer in enumerate(self._layers):
            shape = (layer.outputs, layer.inputs, *layer.kernel)
            bound = 1.0 / math.sqrt(math.prod(shape[1:]))
            for name, size in (("weight", shape), ("bias", shape[:1])):
                weights[self._name(index, name)] = rng.uniform(-bound, bound, size).astype(np.float32)
        return weights

    def _name(self, index: int, name: str) -> str:
        return f"{self._prefix}.{index}.{name}"

    def take_over(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copy the weights from arrays by name."""
        for index, step in enumerate(self._steps):
            kernels = weights[self._name(index, "weight")].transpose(2, 3, 1, 0)
            np.multiply(kernels.reshape(step.matrix.shape), self.leaf.scale if index == 0 else 1.0, out=step.matrix)
            step.bias[:] = weights[self._name(index, "bias")]

    def encode(self, obs: object, features: np.ndarray) -> None:
        """Write the features of the image of one observation.

        Raises:
            ValueError: the image has another shape than the space.
        """
        pixels = np.asarray(self.leaf.of(obs))
        if pixels.shape != self.leaf.shape:
            raise ValueError(f"an image of the observation has the shape {pixels.shape}, not {self.leaf.shape}")
        if self.leaf.width is not None:
            elements = pixels.astype(np.float32).reshape(-1)
            self.leaf.scale_by_bounds(elements)
            pixels = elements.reshape(self.leaf.shape)
        self._image[...] = pixels.transpose(self._axes)
        for step in self._steps:
            step.compute()
        # torch flattens channels first.
        output = self._steps[-1].rows
        features.reshape(output.shape[::-1])[...] = output.T
