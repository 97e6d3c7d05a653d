"""The first part of networks: values of observations as they are, features of their images by convolutions.

Shape suffixes: B batch, D elements of a flattened observation, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.policies.convolutions import Convolution, Convolutions, convolutions_of, features_of
from tmrl_core.actor.policies.flattening import Leaf, images_of, values_of, vector_size


class _Layer(nn.Conv2d):
    """A convolution with its padding and activation."""

    def __init__(self, layer: Convolution) -> None:
        super().__init__(layer.inputs, layer.outputs, layer.kernel, layer.stride)
        below, right = layer.padding
        self._zeros = (0, right, 0, below)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return functional.relu(super().forward(functional.pad(x_BCHW, self._zeros) if any(self._zeros) else x_BCHW))


class ObservationEncoder(nn.Module):
    """Encode flattened observations. Without images, the features are the values themselves.

    Args:
        layout: of the flattened observations, without an action mask.
        convolutions: layers for images; None: the default ones.

    Attributes:
        values: number of values before the images.
        features: number of features.

    Raises:
        ConfigError: the convolutions are not possible.
    """

    def __init__(self, layout: tuple[Leaf, ...], convolutions: Convolutions | None) -> None:
        super().__init__()
        self._layout, self._convolutions = layout, convolutions
        self._leaves = images_of(layout)
        self.values = vector_size(values_of(layout))
        self.features = self.values
        self.images = nn.ModuleList()
        for leaf in self._leaves:
            layers = convolutions_of(convolutions, leaf.image_shape)
            self.images.append(nn.Sequential(*map(_Layer, layers)))
            self.features += features_of(layers)

    def another(self) -> ObservationEncoder:
        """Return an encoder of the same observations with weights of its own."""
        return ObservationEncoder(self._layout, self._convolutions)

    def forward(self, flat_BD: Tensor) -> Tensor:
        """Return [..., F] float32 features of flattened observations [..., D]."""
        if not self._leaves:
            return flat_BD
        parts = [flat_BD[..., : self.values].float()]
        for leaf, layers in zip(self._leaves, self.images, strict=True):
            pixels = flat_BD[..., leaf.start : leaf.start + leaf.size].reshape(-1, *leaf.shape)
            pixels = pixels.permute(0, *(1 + axis for axis in (*leaf.channels, *leaf.sides)))
            image_BCHW = pixels.reshape(-1, *leaf.image_shape).float() * leaf.scale
            parts.append(layers(image_BCHW).float().reshape(*flat_BD.shape[:-1], -1))
        return torch.cat(parts, dim=-1)
