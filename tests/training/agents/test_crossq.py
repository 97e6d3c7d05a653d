from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib.common.torch_layers import BatchRenorm1d
from stable_baselines3.common.distributions import DiagGaussianDistribution, SquashedDiagGaussianDistribution
from torch import Tensor, nn
from torch.nn import functional

from tests.training.agents.test_tqc import ACTIONS, LAYERS, OBSERVATIONS, RATE, batch
from tmrl_core.actor import NumpyNormalizedSquashedGaussianMLPActor
from tmrl_core.actor.policies.torch.encoder import ConvolutionLayer
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.config.loading import from_values
from tmrl_core.errors import ConfigError, WeightsError
from tmrl_core.training.agents.batch_renorm import WARM_UP, BatchRenorm, batch_statistics, deviation
from tmrl_core.training.agents.crossq import CrossQAgent
from tmrl_core.training.agents.networks import EnsembleLinear

CRITICS = (48, 48)


def agent(**more: Any) -> CrossQAgent:
    torch.manual_seed(0)
    return CrossQAgent(
        OBSERVATIONS, ACTIONS, "cpu", **{"hidden_sizes": LAYERS, "critic_sizes": CRITICS, "compile": False, **more}
    )


def norms(module: nn.Module) -> list[BatchRenorm]:
    return [layer for layer in module.modules() if isinstance(layer, BatchRenorm)]


def convolutions(module: nn.Module) -> list[ConvolutionLayer]:
    return [layer for layer in module.modules() if isinstance(layer, ConvolutionLayer)]


def begun(learner: CrossQAgent, passes: int) -> CrossQAgent:
    """The agent with normalizations that have seen so many batches."""
    for norm in norms(learner.model):
        norm.passes.fill_(passes)
    return learner


# --- the normalization ------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_running_moments_move_in_training_mode_alone() -> None:
    norm = BatchRenorm(3).eval()
    x_BF = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) * 3 + 5
    assert torch.allclose(norm(x_BF), x_BF, atol=1e-2)
    assert norm.passes.item() == 0
    with batch_statistics(norm):
        y_BF = norm(x_BF)
    assert not norm.training
    assert y_BF.mean(dim=0).abs().max() < 1e-5
    torch.testing.assert_close(y_BF.std(dim=0), torch.ones(3), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(norm.mean[0], 0.01 * x_BF.mean(dim=0))
    torch.testing.assert_close(norm.variance[0], 0.99 + 0.01 * x_BF.var(dim=0))


@torch.no_grad()
@pytest.mark.parametrize(("deviations", "kept"), [(2.0, 2.0), (9.0, 3.0)])
def test_renormalization_follows_the_running_moments_within_its_bounds(deviations: float, kept: float) -> None:
    """The examples of the theory of operation, with running moments of 0 and 1."""
    norm = BatchRenorm(1).train()
    norm.passes.fill_(WARM_UP + 1)
    unit_BF = torch.linspace(-1, 1, 50).reshape(-1, 1)
    unit_BF /= unit_BF.std()
    y_BF = norm(unit_BF * deviations + 0.5)
    torch.testing.assert_close(y_BF, unit_BF * kept + 0.5, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("passes", [0, WARM_UP + 1])
def test_a_constant_feature_has_finite_gradients(passes: int) -> None:
    norm = BatchRenorm(2).train()
    norm.passes.fill_(passes)
    x_BF = torch.cat([torch.randn(8, 1), torch.full((8, 1), 7.0)], dim=1).requires_grad_()
    norm(x_BF).square().sum().backward()
    assert x_BF.grad is not None
    assert x_BF.grad.isfinite().all()


# --- the update -------------------------------------------------------------------------------------------------------


def test_the_policy_moves_with_each_third_update() -> None:
    learner = agent()
    before = learner.model.actor.mu.weight.detach().clone()
    moved = []
    for seed in range(6):
        learner.train(batch(seed=seed))
        now = learner.model.actor.mu.weight.detach().clone()
        moved.append(not torch.equal(before, now))
        before = now
    assert moved == [False, False, True, False, False, True]
    assert {norm.passes.item() for norm in norms(learner.critics)} == {6}
    assert {norm.passes.item() for norm in norms(learner.model.actor)} == {2}
    assert not any(module.training for module in learner.model.modules())


def test_an_update_with_nan_leaves_the_moments_as_they_are() -> None:
    learner = agent()
    learner.train(batch())
    before = [norm.mean.clone() for norm in norms(learner.model)]
    learner.train((*batch()[:2], torch.full((64,), torch.nan), *batch()[3:]))
    assert all(torch.equal(a, norm.mean) for a, norm in zip(before, norms(learner.model), strict=True))


def test_there_is_no_setting_of_target_networks() -> None:
    with pytest.raises(TypeError, match="polyak"):
        agent(polyak=0.9)
    settings = {"agent": {"cls": "tmrl_core.training:CrossQAgent", "kwargs": {"polyak": 0.9}}}
    settings["actor"] = {"cls": "tmrl_core.actor:NormalizedSquashedGaussianMLPActor"}
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.polyak: CrossQAgent takes no such keyword argument"):
        from_values(settings)
    assert agent().target_pairs() == []


def copied_to(peer: Any, ours: CrossQAgent) -> None:
    """Copy our weights into the networks of sb3-contrib's CrossQ, whose moments are as new as ours."""
    actor = [*ours.model.actor.net, ours.model.actor.mu, ours.model.actor.log_std]
    pairs = list(zip([*peer.actor.latent_pi, peer.actor.mu, peer.actor.log_std], actor, strict=True))
    with torch.no_grad():
        for there, here in pairs:
            if isinstance(here, nn.Linear):
                there.weight.copy_(here.weight)
                there.bias.copy_(here.bias)
        layers = list(ours.model.critics.net)
        for k, net in enumerate(peer.critic.q_networks):
            for there, layer in zip(net, layers, strict=True):
                if isinstance(layer, EnsembleLinear):
                    there.weight.copy_(layer.weight[k].T)
                    there.bias.copy_(layer.bias[k, 0])


def values_of(peer: Any, ours: CrossQAgent) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of results that show all weights and moments, and the temperatures."""
    obs, act = batch(seed=99)[:2]
    with torch.no_grad():
        outputs = ours.model.actor.outputs_of(ours.model.actor.encode(obs))
        mean, log_std, _ = peer.actor.get_action_dist_params(obs)
        pairs = [
            (mean, outputs["mu"]),
            (log_std, outputs["log_std"]),
            (torch.cat(peer.critic(obs, act), dim=1).T, ours.critics(obs, act)),
            (peer.log_ent_coef.exp(), ours.log_alpha.exp().reshape(1)),
        ]
    theirs = [one for one in peer.actor.modules() if isinstance(one, BatchRenorm1d)]
    pairs += [(there.ra_mean, here.mean[0]) for there, here in zip(theirs, norms(ours.model.actor), strict=True)]
    return pairs + [
        (there.ra_var, here.variance[0]) for there, here in zip(theirs, norms(ours.model.actor), strict=True)
    ]


class ExactSquashedGaussian(SquashedDiagGaussianDistribution):
    def log_prob(self, actions: Tensor, gaussian_actions: Tensor | None = None) -> Tensor:
        assert gaussian_actions is not None
        squashing = 2.0 * (math.log(2.0) - gaussian_actions - functional.softplus(-2.0 * gaussian_actions))
        return DiagGaussianDistribution.log_prob(self, gaussian_actions) - squashing.sum(dim=1)


@pytest.mark.parametrize("passes", [0, WARM_UP + 1])
@pytest.mark.parametrize(("updates", "optimizer"), [(20, "adam"), (20, "sgd")])
def test_updates_equal_those_of_sb3_contrib(updates: int, optimizer: str, passes: int) -> None:
    """The same weights, batches and noise lead to the same weights, on both sides of renormalization's beginning.

    Adam divides by the size of gradients, so differences of rounding grow with each update; those of SGD do not.
    """
    from sb3_contrib import CrossQ
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    class Still(gym.Env[Any, Any]):
        observation_space, action_space = OBSERVATIONS, ACTIONS

    rates = {"lr_actor": RATE, "lr_critic": RATE, "lr_entropy": RATE}
    ours = begun(agent(optimizer_actor=optimizer, optimizer_critic=optimizer, **rates), passes)
    peer = CrossQ(
        "MlpPolicy", Still(), learning_rate=RATE, gamma=0.99, ent_coef="auto_1.0", device="cpu", buffer_size=10,
        policy_kwargs={
            "net_arch": {"pi": list(LAYERS), "qf": list(CRITICS)}, "n_critics": 2,
            "optimizer_class": {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer],
        },
    )  # fmt: skip
    # Its correction of the density for tanh adds a number to what may round to 0; ours has a form that keeps all
    # digits.
    peer.actor.action_dist = ExactSquashedGaussian(2)  # type: ignore[assignment]
    peer.set_logger(Logger(None, []))
    peer.policy.set_training_mode(False)
    for one in peer.policy.modules():
        if isinstance(one, BatchRenorm1d):
            one.steps.fill_(passes)  # type: ignore[operator]  # a buffer
    learners: list[Any] = [peer.actor, peer.critic, ours]
    for one in learners:
        for name in ("optimizer", "optimizer_actor", "optimizer_critic"):
            # The bias of a unit that is on in every row has no gradient but that of rounding, which Adam makes a step.
            for group in getattr(one, name).param_groups if hasattr(one, name) and optimizer == "adam" else ():
                group["eps"] = 1e-4
    copied_to(peer, ours)
    for there, here in values_of(peer, ours):
        torch.testing.assert_close(there, here, rtol=1e-6, atol=1e-6)

    class Batches:
        def __init__(self) -> None:
            self.seed = -1

        def sample(self, size: int, env: Any = None) -> Any:
            self.seed += 1
            obs, act, reward, next_obs, terminated, _ = batch(size, self.seed)
            columns = (obs, act, next_obs, terminated.reshape(-1, 1), reward.reshape(-1, 1))
            return ReplayBufferSamples(*columns)

    peer.replay_buffer = Batches()  # type: ignore[assignment]  # no more than it uses
    torch.manual_seed(7)
    peer.train(updates, 64)
    peer.policy.set_training_mode(False)
    torch.manual_seed(7)
    for seed in range(updates):
        ours.train(batch(seed=seed))
    for there, here in values_of(peer, ours):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-5)


# --- publication ------------------------------------------------------------------------------------------------------


def test_a_published_policy_acts_as_the_trained_one_on_both_backends() -> None:
    """With an observation of mean 1,000 and deviation 0.1, and one that is constant."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    learner = CrossQAgent(space, ACTIONS, "cpu", hidden_sizes=(64, 64), critic_sizes=(16,), compile=False)
    generator = torch.Generator().manual_seed(5)

    def observations(rows: int) -> Tensor:
        obs = torch.randn(rows, 3, generator=generator)
        obs[:, 0] = 1000 + 0.1 * obs[:, 0]
        obs[:, 1] = 1000.0
        return obs

    for seed in range(30):
        obs = observations(64)
        learner.train((obs, batch(seed=seed)[1], obs[:, 2], observations(64), *batch(seed=seed)[4:]))
    with torch.no_grad(), batch_statistics(learner.model.actor):
        for _ in range(300):  # as many as it takes until the moments have arrived
            learner.model.actor.encode(observations(64))
    obs_B = observations(256)
    with torch.no_grad():
        trained = learner.model.actor.outputs_of(learner.model.actor.encode(obs_B))
    assert deviation(norms(learner.model.actor)[0])[1] < 0.4  # the constant column's moments have arrived
    published = learner.get_actor()
    worker = NumpyNormalizedSquashedGaussianMLPActor(space, ACTIONS, hidden_sizes=(64, 64))
    worker.from_bytes(published.to_bytes())
    by_torch, _ = published.infer(obs_B.numpy(), {})
    by_numpy, _ = worker.infer(obs_B.numpy(), {})
    one_by_one = np.stack([worker.act(row, test=True) for row in obs_B.numpy()])
    for name, value in trained.items():
        np.testing.assert_allclose(by_torch[name], value.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(by_numpy[name], value.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(one_by_one, np.tanh(trained["mu"].numpy()), rtol=1e-5, atol=1e-5)


SEEN = gym.spaces.Dict({"x": OBSERVATIONS, "frame": gym.spaces.Box(0, 255, (11, 9, 1), np.uint8)})
"""Sides of which the convolutions' strides leave rests, so that zeros are added."""


def seen(seed: int) -> tuple[Any, ...]:
    x, act, reward, next_x, terminated, truncated = batch(seed=seed)
    frames = torch.randint(0, 256, (2, len(x), 11, 9, 1), generator=torch.Generator().manual_seed(seed)).byte()
    obs, next_obs = {"frame": frames[0], "x": x}, {"frame": frames[1], "x": next_x}
    return obs, act, reward, next_obs, terminated, truncated


def test_images_of_both_observations_are_normalized_together() -> None:
    torch.manual_seed(0)
    learner = CrossQAgent(SEEN, ACTIONS, "cpu", hidden_sizes=(16,), critic_sizes=(16,), compile=False)
    first = convolutions(learner.critics)[0]
    rows = seen(0)
    pixels = torch.cat([rows[0]["frame"], rows[3]["frame"]]).permute(0, 3, 1, 2) / 255.0
    with torch.no_grad():
        plain = functional.conv2d(pixels, first.weight, first.bias, first.stride)
    learner.train(rows)
    assert isinstance(first.norm, BatchRenorm)
    torch.testing.assert_close(first.norm.mean[0], 0.01 * plain.mean(dim=(0, 2, 3)))
    torch.testing.assert_close(first.norm.variance[0], 0.99 + 0.01 * plain.transpose(0, 1).flatten(1).var(dim=1))
    for update in range(1, 3):
        learner.train(seen(update))
    image_norms = [layer.norm for layer in convolutions(learner.critics)]
    assert {norm.passes.item() for norm in image_norms if isinstance(norm, BatchRenorm)} == {3}
    assert {norm.passes.item() for norm in norms(learner.model.actor.encoder)} == {1}


def test_normalizations_of_images_fold_into_their_convolutions() -> None:
    torch.manual_seed(0)
    learner = CrossQAgent(SEEN, ACTIONS, "cpu", hidden_sizes=(16,), critic_sizes=(16,), compile=False)
    for seed in range(5):
        learner.train(seen(seed))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for norm in norms(learner.model.actor.encoder):  # as after many updates
            norm.mean.uniform_(-1, 1, generator=generator)
            norm.variance.uniform_(0.01, 2, generator=generator)
            norm.scale.uniform_(0.5, 2, generator=generator)
            norm.bias.uniform_(-1, 1, generator=generator)
    published = learner.get_actor()
    assert not norms(published)
    worker = NumpyNormalizedSquashedGaussianMLPActor(SEEN, ACTIONS, hidden_sizes=(16,))
    worker.from_bytes(published.to_bytes())
    obs = seen(9)[0]
    with torch.no_grad():
        expected = learner.model.actor.outputs_at(flatten_batch(learner.model.actor.layout, obs))
    numbers = {key: value.numpy() for key, value in obs.items()}
    for found, _ in (published.infer(numbers, {}), worker.infer(numbers, {})):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-5, atol=1e-5)


def test_the_published_policy_takes_no_weights() -> None:
    learner = agent()
    before = learner.get_actor().to_blob()
    with pytest.raises(WeightsError, match="cannot take over a policy"):
        learner.get_actor().from_blob(*before, device="cpu")
    assert learner.get_actor().to_blob() == before


@pytest.mark.full
def test_it_solves_a_toy_task() -> None:
    """One step, reward -(a - target(obs))^2: the policy has to find the target, whose sign the observation says."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    learner = CrossQAgent(
        space, gym.spaces.Box(-2, 2, (1,), np.float32), "cpu", lr_actor=3e-3, lr_critic=3e-3, alpha=0.01,
        learn_entropy_coef=False, hidden_sizes=(32, 32), critic_sizes=(32, 32), compile=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for _ in range(1500):
        obs = torch.sign(torch.randn(64, 1, generator=generator))
        act = torch.rand(64, 1, generator=generator) * 4 - 2
        reward = -(act - obs).square().squeeze(1)
        learner.train((obs, act, reward, obs, torch.ones(64), torch.zeros(64)))
    actor = learner.get_actor()
    for sign in (-1.0, 1.0):
        action, _ = actor(torch.tensor([[sign]]), test=True)
        assert float(action.detach()) == pytest.approx(sign, abs=0.15)
