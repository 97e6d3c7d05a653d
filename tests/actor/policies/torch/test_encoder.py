from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.flattening import layout_of
from tmrl_core.actor.policies.torch.encoder import ObservationEncoder
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.actor.policies.torch.module import collate_one
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor


def image(*shape: int, dtype: Any = np.uint8) -> Any:
    return spaces.Box(0, 255, shape, dtype)


def features(encoder: ObservationEncoder, space: Any, obs: Any, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = encoder(flatten_batch(layout_of(space, **kwargs), collate_one(obs, "cpu")))
    return found


def encoder_of(space: Any, like: ObservationEncoder | None = None) -> ObservationEncoder:
    made = ObservationEncoder(layout_of(space), None)
    if like is not None:
        made.load_state_dict(like.state_dict())
    return made


def test_the_order_of_axes_changes_no_feature() -> None:
    first, last, frames = image(6, 20, 30), image(20, 30, 6), image(2, 20, 30, 3)
    pixels = first.sample()
    encoder = encoder_of(first)
    expected = features(encoder, first, pixels)
    assert expected.shape == (1, encoder.features)
    assert torch.equal(features(encoder_of(last, encoder), last, np.moveaxis(pixels, 0, 2)), expected)
    stacked = np.moveaxis(pixels.reshape(2, 3, 20, 30), 1, 3)
    assert torch.equal(features(encoder_of(frames, encoder), frames, stacked), expected)


def test_bytes_are_scaled_and_floats_are_not() -> None:
    of_bytes, of_floats = image(16, 16, 3), spaces.Box(0, 1, (16, 16, 3), np.float32)
    pixels = of_bytes.sample()
    encoder = encoder_of(of_bytes)
    taken = ObservationEncoder(layout_of(of_floats, convolutions="tiny"), "tiny")
    taken.load_state_dict(encoder.state_dict())
    scaled = features(taken, of_floats, np.float32(pixels / 255), convolutions="tiny")
    torch.testing.assert_close(scaled, features(encoder, of_bytes, pixels))


def test_values_pass_and_each_image_has_layers_of_its_own() -> None:
    space = spaces.Dict(a=image(9, 9), speed=spaces.Box(-1, 1, (2,), np.float32), z=image(12, 12, 3))
    obs = space.sample()
    encoder = encoder_of(space)
    assert len(encoder.images) == 2
    assert features(encoder, space, obs)[0, :2].tolist() == obs["speed"].tolist()


def test_every_pixel_changes_the_features() -> None:
    for shape in ((10, 10), (7, 33), (64, 64, 3)):
        space = image(*shape)
        encoder = encoder_of(space)
        for layer in encoder.modules():
            if isinstance(layer, torch.nn.Conv2d):  # no unit is dead
                torch.nn.init.ones_(layer.weight)
        black = np.zeros(shape, np.uint8)
        for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
            white = black.copy()
            white[corner] = 255
            assert not torch.equal(features(encoder, space, white), features(encoder, space, black))


def test_values_alone_have_no_layers() -> None:
    encoder = encoder_of(spaces.Box(-1, 1, (3,), np.float32))
    assert not encoder.state_dict()
    assert encoder.features == 3


def test_the_large_policy_for_four_frames_has_about_600_000_parameters() -> None:
    actions = spaces.Box(-1, 1, (3,), np.float32)
    large = SquashedGaussianMLPActor(image(4, 64, 64), actions, convolutions="large")
    small = SquashedGaussianMLPActor(image(4, 64, 64), actions)
    assert sum(p.numel() for p in large.parameters()) == 633_190
    assert sum(p.numel() for p in small.parameters()) == 293_974
