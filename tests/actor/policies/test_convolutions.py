from __future__ import annotations

from typing import Any

import pytest
import torch

from tmrl_core.actor.policies.convolutions import LAYERS, convolutions_of, features_of
from tmrl_core.errors import ConfigError


@pytest.mark.parametrize("setting", [*LAYERS, None, [[4, 5, 2], [6, 3, 1]]])
@pytest.mark.parametrize("shape", [(4, 64, 64), (3, 84, 96), (1, 30, 9), (12, 1, 1)])
def test_sizes_are_those_of_torch_and_any_image_has_features(setting: Any, shape: tuple[int, int, int]) -> None:
    layers = convolutions_of(setting, shape)
    x = torch.zeros(1, *shape)
    for layer in layers:
        below, right = layer.padding
        assert below < layer.stride > right
        x = torch.nn.functional.pad(x, (0, right, 0, below))
        x = torch.nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride)(x)
        assert x.shape[1:] == (layer.outputs, *layer.size)
    assert features_of(layers) == x.numel() > 0


def test_small_images_have_small_kernels_by_default() -> None:
    assert convolutions_of(None, (3, 64, 31)) == convolutions_of("tiny", (3, 64, 31))
    assert convolutions_of(None, (3, 64, 32)) == convolutions_of("small", (3, 64, 32))


@pytest.mark.parametrize("setting", ["huge", [], [[32, 8]], [[32, 8, 0]], [[32, 8.0, 4]], [[32, True, 4]]])
def test_impossible_layers_are_refused(setting: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"actor\.kwargs\.convolutions: found .*allowed: tiny, small, large, or a list"
    ):
        convolutions_of(setting, (4, 64, 64))
