"""The first part of networks: values of observations as they are, features of their images by convolutions.

Shape suffixes: B batch, D elements of a flattened observation, F features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.policies.convolutions import Convolution, Convolutions, convolutions_of, features_of
from tmrl_core.actor.policies.flattening import Leaf, images_of, values_of, vector_size


class ConvolutionLayer(nn.Conv2d):
    """A convolution with its padding and activation, and a normalization between the two.

    Args:
        layer: its sizes.
        norm: makes a normalization of so many features, over the rows of [rows, features]; None: none.

    Attributes:
        norm: of the channels, over all pixels of a batch; None: there is none.
    """

    def __init__(self, layer: Convolution, norm: Callable[[int], nn.Module] | None = None) -> None:
        # No bias where a mean is subtracted next: its gradient would be rounding, of which Adam makes whole steps.
        super().__init__(layer.inputs, layer.outputs, layer.kernel, layer.stride, bias=norm is None)
        below, right = layer.padding
        self._zeros = (0, right, 0, below)
        # Before the activation and behind the convolution, into which it folds exactly: in front of one, the zeros of
        # its padding would be no zeros any more, and no weights of a plain convolution could say so.
        self.norm = None if norm is None else norm(layer.outputs)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the features [B, outputs, *size]."""
        y_BCHW = super().forward(functional.pad(x_BCHW, self._zeros) if any(self._zeros) else x_BCHW)
        if self.norm is not None:
            y_BHWC = y_BCHW.permute(0, 2, 3, 1)
            y_BCHW = self.norm(y_BHWC.reshape(-1, self.out_channels)).reshape(y_BHWC.shape).permute(0, 3, 1, 2)
        return functional.relu(y_BCHW)


class ObservationEncoder(nn.Module):
    """Encode flattened observations. Without images, the features are the values themselves.

    Args:
        layout: of the flattened observations, without an action mask.
        convolutions: layers for images; None: the default ones.
        norm: of each convolution, see `ConvolutionLayer`; None: none.

    Attributes:
        values: number of values before the images.
        features: number of features.

    Raises:
        ConfigError: the convolutions are not possible.
    """

    def __init__(
        self,
        layout: tuple[Leaf, ...],
        convolutions: Convolutions | None,
        norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self._layout, self._convolutions, self._norm = layout, convolutions, norm
        self._leaves = images_of(layout)
        self.values = vector_size(values_of(layout))
        self.features = self.values
        self.images = nn.ModuleList()
        for leaf in self._leaves:
            layers = convolutions_of(convolutions, leaf.image_shape)
            self.images.append(nn.Sequential(*(ConvolutionLayer(layer, norm) for layer in layers)))
            self.features += features_of(layers)

    def convolutions(self) -> list[ConvolutionLayer]:
        """Return the layers of all images, in order."""
        return [layer for layer in self.images.modules() if isinstance(layer, ConvolutionLayer)]

    def another(self) -> ObservationEncoder:
        """Return an encoder of the same observations with weights of its own."""
        return ObservationEncoder(self._layout, self._convolutions, self._norm)

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
