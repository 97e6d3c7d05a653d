"""The models of tmrl: attributes, weights and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.actor import SquashedGaussianMLPActor as Native
from tmrl_core.compat.custom import custom_models as models
from tmrl_core.errors import WeightsError

OBS = gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-1, 1, (3,), np.float32)])
ACT = gym.spaces.Box(-2, 2, (2,), np.float32)
LIMITS = gym.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))


def batch(rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 2), torch.randn(rows, 3)


def tmrl_weights() -> dict[str, torch.Tensor]:
    """The state_dict of tmrl's policy for OBS and ACT with hidden layers of 8 and 6."""
    torch.manual_seed(0)
    made = {"net.0": nn.Linear(5, 8), "net.2": nn.Linear(8, 6), "mu_layer": nn.Linear(6, 2)}
    made["log_std_layer"] = nn.Linear(6, 2)
    return {f"{name}.{key}": value for name, layer in made.items() for key, value in layer.state_dict().items()}


def tmrl_action(state: dict[str, torch.Tensor], obs: tuple[torch.Tensor, ...], limit: float = 2.0) -> torch.Tensor:
    x = torch.cat(obs, -1)
    for name in ("net.0", "net.2"):
        x = torch.relu(x @ state[f"{name}.weight"].T + state[f"{name}.bias"])
    return limit * torch.tanh(x @ state["mu_layer.weight"].T + state["mu_layer.bias"])


def test_layers_are_made_as_tmrl_does() -> None:
    made = models.mlp([3, 5, 2], nn.ReLU, nn.Tanh)
    assert [type(layer) for layer in made] == [nn.Linear, nn.ReLU, nn.Linear, nn.Tanh]
    assert models.count_vars(made) == 3 * 5 + 5 + 5 * 2 + 2
    assert (models.combined_shape(3), models.combined_shape(3, 2), models.combined_shape(3, (4, 5))) == (
        (3,),
        (3, 2),
        (3, 4, 5),
    )


def test_the_policy_has_tmrls_attributes_and_arguments() -> None:
    actor = models.SquashedGaussianMLPActor(OBS, LIMITS, (8,), nn.Tanh)
    assert (actor.mu_layer, actor.log_std_layer, actor.act_limit) == (actor.mu, actor.log_std, 1.0)
    action, logp = actor(batch(), True, False)
    assert (tuple(action.shape), logp) == ((4, 2), None)
    action, logp = actor(batch(), test=False, with_logprob=True)
    assert logp is not None
    assert logp.shape == (4,)


def test_each_action_element_has_its_own_bounds() -> None:
    actor = models.SquashedGaussianMLPActor(OBS, LIMITS, (8,))
    action, _ = actor(batch(1000))
    assert action.min(dim=0).values[1] >= 0.0
    assert action.max(dim=0).values[1] > 1.0


def test_weights_are_exchanged_with_the_projects_policy() -> None:
    actor = models.SquashedGaussianMLPActor(OBS, ACT, (8,))
    tag, data = actor.to_blob()
    obs = batch(1)
    expected = actor(obs, test=True)[0]
    native = Native(OBS, ACT, (8,)).from_blob(tag, data, "cpu")
    assert torch.equal(native(obs, test=True)[0], expected)  # type: ignore[operator]
    backend: Any = NumpySquashedGaussianMLPActor(OBS, ACT, (8,)).from_blob(tag, data, "cpu")
    assert np.allclose(backend.act(tuple(part[0].numpy() for part in obs), test=True), expected.detach(), atol=1e-5)


def test_a_file_of_tmrl_is_loaded(tmp_path: Path) -> None:
    path, obs = tmp_path / "policy.tmod", batch(1)
    torch.save(tmrl_weights(), path)
    actor = models.SquashedGaussianMLPActor(OBS, ACT, (8, 6)).load(path, "cpu")
    expected = tmrl_action(tmrl_weights(), obs)[0]
    assert np.allclose(actor.act_(tuple(part[0].numpy() for part in obs), test=True), expected, atol=1e-6)


def test_a_file_of_another_shape_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.tmod"
    torch.save(tmrl_weights(), path)
    actor = models.SquashedGaussianMLPActor(OBS, ACT, (8, 8))
    before = actor.to_bytes()
    with pytest.raises(WeightsError, match="hidden_sizes"):
        actor.load(path, "cpu")
    assert actor.to_bytes() == before


def test_published_weights_are_never_read_in_torchs_format(tmp_path: Path) -> None:
    path = tmp_path / "policy.tmod"
    torch.save(tmrl_weights(), path)
    actor = models.SquashedGaussianMLPActor(OBS, ACT, (8, 6))
    with pytest.raises(WeightsError, match="files only"):
        actor.from_blob(actor.weights_format, path.read_bytes(), "cpu")


def test_models_have_critics_that_are_called_with_observations_and_actions() -> None:
    model = models.MLPActorCritic(OBS, ACT, (8,))
    q = model.q1(batch(), torch.zeros(4, 2))
    assert q.shape == model.q2(batch(), torch.zeros(4, 2)).shape == (4,)
    many = models.REDQMLPActorCritic(OBS, ACT, (8,), n=3)
    assert [q(batch(), torch.zeros(4, 2)).shape for q in many.qs] == [(4,)] * 3
    assert len(list(many.qs)) == many.n


def test_a_model_acts() -> None:
    obs = batch(1)
    for model in (models.MLPActorCritic(OBS, ACT, (8,)), models.REDQMLPActorCritic(OBS, ACT, (8,), n=2)):
        assert model.act(obs, test=True) in ACT


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize(("shape", "colors"), [((4, 64, 64), False), ((2, 20, 33), False), ((4, 32, 32, 3), True)])
def test_models_of_images_take_any_size_in_gray_and_in_colors(shape: tuple[int, ...], colors: bool, dtype: Any) -> None:
    image = gym.spaces.Box(0, 255, shape, dtype)
    space = gym.spaces.Tuple([gym.spaces.Box(0, 1, (1,), np.float32), image, ACT])
    model: Any = (models.VanillaColorCNNActorCritic if colors else models.VanillaCNNActorCritic)(space, ACT)
    obs = torch.rand(3, 1), torch.rand(3, *shape), torch.rand(3, 2)
    action, logp = model.actor(obs, False, True)
    assert (tuple(action.shape), tuple(logp.shape)) == ((3, 2), (3,))
    assert model.q1(obs, action).shape == model.q2(obs, action).shape == (3,)
    assert model.act(tuple(part[:1] for part in obs), test=True) in ACT
    model.q1(obs, action).sum().backward()
    assert all(parameter.grad is not None for parameter in model.actor.parameters() if parameter.requires_grad)


def test_the_policy_of_images_has_the_size_of_tmrls() -> None:
    image = gym.spaces.Box(0, 255, (4, 64, 64), np.float32)
    actor = models.SquashedGaussianVanillaCNNActor(gym.spaces.Tuple([image, ACT]), ACT)
    assert 0.55e6 < models.count_vars(actor) < 0.7e6


def test_pixels_are_taken_as_they_are() -> None:
    obs = torch.rand(1, 4, 32, 32), torch.rand(1, 2)
    torch.manual_seed(0)
    floats, bytes_ = (
        models.SquashedGaussianVanillaCNNActor(gym.spaces.Tuple([gym.spaces.Box(0, 255, (4, 32, 32), dtype), ACT]), ACT)
        for dtype in (np.float32, np.uint8)
    )
    bytes_.load_state_dict(floats.state_dict())
    assert torch.equal(floats(obs, True, False)[0], bytes_(obs, True, False)[0])
