from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import tmrl_core.actor
from tmrl_core.actor.policies.flattening import layout_metadata, layout_of
from tmrl_core.actor.policies.numpy.encoder import NumpyImageEncoder
from tmrl_core.actor.policies.weights import difference
from tmrl_core.config.algorithms import POLICIES
from tmrl_core.errors import WeightsError

ACTIONS = {"box": spaces.Box(-2, 1, (3,), np.float32), "discrete": spaces.Discrete(4, start=1)}
GRAY, COLOR = spaces.Box(0, 255, (4, 24, 20), np.uint8), spaces.Box(0, 255, (20, 24, 3), np.uint8)
SPEED = spaces.Box(-1, 1, (2,), np.float32)
FLOATS = spaces.Box(0, 1, (2, 16, 16), np.float32)
SPACES: dict[str, tuple[Any, Any]] = {
    "frames": (GRAY, None),
    "colour frames": (spaces.Box(0, 255, (2, 20, 24, 3), np.uint8), "large"),
    "one plane": (spaces.Box(0, 255, (10, 10), np.uint8), None),
    "planes": (spaces.Box(0, 1, (6, 6, 2), np.uint8), None),
    "planes as an image": (spaces.Box(0, 1, (6, 6, 2), np.uint8), "tiny"),
    "board as an image": (spaces.Box(1, 4, (5, 6), np.uint8), "tiny"),
    "bounds of each channel, as an image": (
        spaces.Box(np.zeros((7, 7, 3), np.uint8), np.full((7, 7, 3), (10, 5, 2), np.uint8), dtype=np.uint8),
        [[8, 3, 1]],
    ),
    "stacked memory": (spaces.Box(0, 7, (4, 16), np.uint8), None),
    "bytes": (spaces.Box(0, 255, (16,), np.uint8), None),
    "image as numbers": (COLOR, "none"),
    "image, board and values": (
        spaces.Dict(a=COLOR, board=spaces.Box(0, 3, (4, 4), np.uint8), speed=SPEED, z=spaces.Box(2, 9, (3,), np.uint8)),
        None,
    ),
    "one pixel": (spaces.Box(0, 255, (1, 1), np.uint8), None),
    "floats": (FLOATS, [[8, 4, 2]]),
    "images and values": (spaces.Dict(a=COLOR, gear=spaces.Discrete(3), speed=SPEED, z=GRAY), None),
    "nested": (spaces.Tuple((SPEED, spaces.Dict(view=COLOR))), "large"),
}


def outputs(policy: Any, obs: Any) -> list[float]:
    """Numbers that an action depends on."""
    if "QValue" in type(policy).__name__:
        policy.set_exploration({"epsilon": 0.0})
    action, extras = policy.act_with_extras(obs, test=True)
    return [*np.ravel(action).tolist(), *np.ravel(extras.get("logp", 0.0)).tolist()]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
def test_both_backends_see_the_same(policy: Any) -> None:
    for name, (observations, convolutions) in SPACES.items():
        check_both_see_the_same(policy, name, observations, convolutions)


def check_both_see_the_same(policy: Any, space: str, observations: spaces.Space[Any], convolutions: Any) -> None:
    torch.manual_seed(3)
    observations.seed(1)
    sizes: dict[str, Any] = {"width": 16} if "Residual" in policy.name else {"hidden_sizes": (16,)}
    kwargs: dict[str, Any] = {**sizes, "convolutions": convolutions}
    arguments = observations, ACTIONS["box" if "box" in policy.action_spaces else "discrete"]
    trained = getattr(tmrl_core.actor, policy.name)(*arguments, **kwargs)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter *= 2.0  # the actions of new policies are too much alike
    acting = getattr(tmrl_core.actor, policy.numpy_name)(*arguments, **kwargs)
    assert acting.architecture() == trained.architecture(), space
    acting.from_bytes(trained.to_bytes())
    assert acting.to_bytes() == trained.to_bytes(), space
    seen = []
    for _ in range(5):
        obs = observations.sample()
        seen.append(outputs(acting, obs))
        assert seen[-1] == pytest.approx(outputs(trained, obs), abs=1e-5), space
    if "box" in policy.action_spaces:
        assert len({tuple(one) for one in seen}) == 5, space


@pytest.mark.parametrize("name", ["GaussianMLPActor", "CategoricalRNNActor"])
def test_values_beside_images_are_normalized(name: str) -> None:
    space = spaces.Dict(speed=SPEED, view=COLOR)
    kwargs: dict[str, Any] = {"hidden_sizes": (16,), "normalize_observations": True}
    actions = ACTIONS["box" if name == "GaussianMLPActor" else "discrete"]
    trained = getattr(tmrl_core.actor, name)(space, actions, **kwargs)
    with torch.no_grad():
        trained.obs_mean += torch.tensor([0.3, -0.2])
        trained.obs_std *= 0.5
    acting = getattr(tmrl_core.actor, f"Numpy{name}")(space, actions, **kwargs).from_bytes(trained.to_bytes())
    obs = space.sample()
    assert outputs(acting, obs) == pytest.approx(outputs(trained, obs), abs=1e-5), space


def test_an_image_of_another_shape_is_refused() -> None:
    encoder = NumpyImageEncoder(layout_of(GRAY)[0], None, "encoder")
    with pytest.raises(ValueError, match=r"an image of the observation has the shape \(4, 24, 24\), not \(4, 24, 20\)"):
        encoder.encode(np.zeros((4, 24, 24), np.uint8), np.zeros(encoder.features, np.float32))


OTHER_LAYOUTS = {
    "bounds": ((6, 6), 1, None, (6, 6), 9, None),
    "bounds of images": ((6, 6), 255, "tiny", (6, 6), 9, "tiny"),
}


@pytest.mark.parametrize("there", ["QValueMLPActor", "NumpyQValueMLPActor"])
@pytest.mark.parametrize("here", ["QValueMLPActor", "NumpyQValueMLPActor"])
@pytest.mark.parametrize("name", OTHER_LAYOUTS)
def test_weights_for_another_layout_of_bytes_are_refused(name: str, here: str, there: str) -> None:
    shape, high, layers, other_shape, other_high, other_layers = OTHER_LAYOUTS[name]

    def policy(cls: str, shape: tuple[int, ...], high: int, layers: Any) -> Any:
        space = spaces.Box(0, high, shape, np.uint8)
        return getattr(tmrl_core.actor, cls)(space, ACTIONS["discrete"], hidden_sizes=(8,), convolutions=layers)

    own, other = policy(here, shape, high, layers), policy(there, other_shape, other_high, other_layers)
    own.from_bytes(policy(there, shape, high, layers).to_bytes(), "cpu")
    with pytest.raises(WeightsError, match=f"their layout is itself .* 0 to {other_high}, not itself .* 0 to {high}"):
        own.from_bytes(other.to_bytes(), "cpu")
    assert difference(own.architecture(), other.architecture()).startswith("layout: itself ")


def test_weights_with_several_metadata_are_the_same_bytes_each_time() -> None:
    policy = tmrl_core.actor.QValueMLPActor(GRAY, ACTIONS["discrete"], hidden_sizes=(8,))
    assert len({policy.to_bytes() for _ in range(20)}) == 1


def test_the_layout_of_many_bounds_is_short() -> None:
    high = np.arange(1, 201, dtype=np.uint8)
    space = spaces.Dict({str(n): spaces.Box(np.uint8(0) * high, high, dtype=np.uint8) for n in range(20)})
    layout = layout_metadata(layout_of(space))["layout"]
    assert len(layout) < 600
    other = spaces.Dict({**space.spaces, "19": spaces.Box(np.uint8(0) * high, high + 1, dtype=np.uint8)})
    assert layout_metadata(layout_of(other))["layout"] != layout
