"""FlashSAC beside a slow implementation in float64, which shares no code with it."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.training.agents.test_tqc import ACTIONS, OBSERVATIONS, batch
from tmrl_core.actor import NumpySquashedGaussianResidualActor
from tmrl_core.config.loading import from_values
from tmrl_core.errors import ConfigError, WeightsError
from tmrl_core.training.agents.batch_renorm import batch_statistics
from tmrl_core.training.agents.flashsac import FlashSACAgent, projected
from tmrl_core.training.agents.unit_layers import UnitBatchNorm, UnitLinear, UnitRMSNorm, project

BINS, HIGHEST, HORIZON = 11, 2.0, 50
SMALL: dict[str, Any] = {
    "width": 8, "critic_width": 12, "bins": BINS, "highest_value": HIGHEST, "lr_horizon": HORIZON,
}  # fmt: skip


def agent(**more: Any) -> FlashSACAgent:
    torch.manual_seed(0)
    return FlashSACAgent(OBSERVATIONS, ACTIONS, "cpu", **{**SMALL, **more})


# --- a slow implementation --------------------------------------------------------------------------------------------


class SlowNetwork:
    """One network with a dict of its tensors: `w0` [in, out] etc., and moments that move when it is asked to train."""

    def __init__(self, trunk: Any, heads: dict[str, tuple[Tensor, Tensor]], critic: int | None) -> None:
        def own(tensor: Tensor) -> Tensor:
            part = tensor if critic is None else tensor[critic]
            return part.detach().clone().double()

        self.weights: list[Tensor] = []
        self.scales: list[tuple[Tensor, Tensor]] = []
        self.moments: list[list[Tensor]] = []
        for layer in trunk.modules():
            if isinstance(layer, UnitLinear):
                self.weights.append(own(layer.weight).requires_grad_())
            elif isinstance(layer, UnitBatchNorm):
                self.scales.append((own(layer.scale)[0].requires_grad_(), own(layer.bias)[0].requires_grad_()))
                self.moments.append([own(layer.mean)[0], own(layer.variance)[0]])
            elif isinstance(layer, UnitRMSNorm):
                self.rms = own(layer.scale)[0].requires_grad_()
        self.heads = {name: (own(w).requires_grad_(), own(b).requires_grad_()) for name, (w, b) in heads.items()}

    def parameters(self) -> list[Tensor]:
        found = [*self.weights, *(one for pair in self.scales for one in pair), self.rms]
        return found + [one for pair in self.heads.values() for one in pair]

    def norm(self, number: int, x: Tensor, training: bool) -> Tensor:
        scale, bias = self.scales[number]
        mean, variance = self.moments[number]
        if training:
            rows = len(x)
            mean = sum(x[i] for i in range(rows)) / rows  # type: ignore[assignment]
            squares: Any = sum((x[i] - mean) ** 2 for i in range(rows))
            variance = squares / rows
            with torch.no_grad():
                old_mean, old_variance = self.moments[number]
                self.moments[number] = [
                    0.99 * old_mean + 0.01 * mean, 0.99 * old_variance + 0.01 * squares / (rows - 1)
                ]  # fmt: skip
        return (x - mean) / torch.sqrt(variance + 1e-5) * scale + bias

    def features(self, x: Tensor, training: bool) -> Tensor:
        x = self.norm(0, x, training) @ self.weights[0]
        for block in range(2):
            inner = torch.relu(self.norm(1 + 2 * block, x @ self.weights[1 + 2 * block], training))
            x = x + torch.relu(self.norm(2 + 2 * block, inner @ self.weights[2 + 2 * block], training))
        return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-6) * self.rms

    def head(self, name: str, features: Tensor) -> Tensor:
        weight, bias = self.heads[name]
        return features @ weight + bias

    @torch.no_grad()
    def project(self) -> None:
        for weight in (*self.weights, *(weight for weight, _ in self.heads.values())):
            for output in range(weight.shape[1]):
                weight[:, output] /= max(float(weight[:, output].norm()), 1e-8)
        for scale, bias in self.scales:
            total = float((scale * scale).sum() + (bias * bias).sum())
            for one in (scale, bias):
                one *= math.sqrt(len(scale)) / math.sqrt(total + 1e-8)
        self.rms *= math.sqrt(len(self.rms)) / math.sqrt(float((self.rms * self.rms).sum()) + 1e-8)


class Slow:
    """The algorithm, row by row where that is clearer."""

    def __init__(self, fast: FlashSACAgent) -> None:
        actor, critics = fast.model.actor, fast.critics
        heads = {name: (getattr(actor, name).weight.T, getattr(actor, name).bias) for name in ("mu", "log_std")}
        self.actor = SlowNetwork(actor.net, heads, None)
        made = []
        for module in (critics, fast.target_critics):
            bias = module.bias[:, 0]
            made.append([SlowNetwork(module.net, {"logits": (module.head.weight, bias)}, k) for k in range(2)])
        self.critics, self.targets = made
        self.log_alpha = fast.log_alpha.detach().clone().double().requires_grad_()
        self.target_entropy = 2 * (0.5 * math.log(2 * math.pi * math.e * 0.15**2))
        critic_parameters = [one for critic in self.critics for one in critic.parameters()]
        self.optimizers = [
            torch.optim.Adam(one, lr=3e-4) for one in (self.actor.parameters(), critic_parameters, [self.log_alpha])
        ]
        self.updates = 0
        self.values = [-HIGHEST + 2 * HIGHEST * m / (BINS - 1) for m in range(BINS)]

    def policy(self, obs: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        features = self.actor.features(obs, training)
        mean, log_std = self.actor.head("mu", features), self.actor.head("log_std", features)
        log_std = -10 + 6 * (1 + torch.tanh(log_std))
        noise = torch.randn(mean.shape, dtype=torch.float64)
        u = mean + log_std.exp() * noise
        gaussian = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        return torch.tanh(u), (gaussian - torch.log(1 - torch.tanh(u) ** 2)).sum(dim=1)

    def distribution(self, critic: SlowNetwork, obs: Tensor, act: Tensor, training: bool) -> Tensor:
        logits = critic.head("logits", critic.features(torch.cat([obs, act], dim=1), training))
        return torch.log(torch.exp(logits) / torch.exp(logits).sum(dim=1, keepdim=True))

    def mean_of(self, log_prob: Tensor) -> Tensor:
        return torch.stack([sum(row[m].exp() * self.values[m] for m in range(BINS)) for row in log_prob])

    def step(self, number: int, loss: Tensor) -> None:
        self.optimizers[number].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers[number].step()

    def train(self, rows: Any) -> None:
        obs, act, reward, next_obs, terminated = (column.double() for column in rows[:5])
        count = len(obs)
        progress = 0.5 * (1 + math.cos(math.pi * min(1.0, self.updates / HORIZON)))
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = 3e-4 * (0.5 + 0.5 * progress)
        if self.updates % 2 == 0:
            action, log_prob = self.policy(torch.cat([obs, next_obs]), training=True)
            both = [self.mean_of(self.distribution(one, obs, action[:count], training=False)) for one in self.critics]
            alpha = float(self.log_alpha.detach().exp())
            self.step(0, (alpha * log_prob[:count] - torch.minimum(*both)).mean())
            self.actor.project()
            entropy = -float(log_prob[:count].detach().mean())
            self.step(2, self.log_alpha.exp() * (entropy - self.target_entropy))
        self.updates += 1
        with torch.no_grad():
            next_action, next_log_prob = self.policy(next_obs, training=False)
            all_obs, all_act = torch.cat([obs, next_obs]), torch.cat([act, next_action])
            found = [self.distribution(one, all_obs, all_act, training=True)[count:] for one in self.targets]
            means = [self.mean_of(one) for one in found]
            target = torch.zeros(count, BINS, dtype=torch.float64)
            for row in range(count):
                chosen = found[0 if means[0][row] <= means[1][row] else 1][row]
                for m in range(BINS):
                    soft = self.values[m] - float(self.log_alpha.exp() * next_log_prob[row])
                    moved = float(reward[row]) + 0.99 * (1 - float(terminated[row])) * soft
                    place = (min(max(moved, -HIGHEST), HIGHEST) + HIGHEST) / (2 * HIGHEST) * (BINS - 1)
                    below = math.floor(place)
                    target[row, below] += chosen[m].exp() * (1 - (place - below))
                    if below + 1 < BINS:
                        target[row, below + 1] += chosen[m].exp() * (place - below)
        losses = [-(target * self.distribution(one, all_obs, all_act, True)[:count]).sum(dim=1) for one in self.critics]
        self.step(1, torch.stack(losses).mean())
        for critic, slow in zip(self.critics, self.targets, strict=True):
            critic.project()
            with torch.no_grad():
                for one, other in zip(slow.parameters(), critic.parameters(), strict=True):
                    one.copy_(0.99 * one + 0.01 * other)


def in_float64(fast: FlashSACAgent) -> FlashSACAgent:
    """The agent with tensors of float64; its networks take float32 otherwise."""
    fast.model.double()
    fast.target_critics.double()
    fast.log_alpha.data = fast.log_alpha.data.double()
    fast.target_critics.load_state_dict(fast.critics.state_dict())
    for module in (fast.model.actor, fast.critics, fast.target_critics):
        module.net.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    for module in (fast.critics, fast.target_critics):
        module.scaled = lambda act: act  # type: ignore[method-assign]
    for module in (fast.critics, fast.target_critics):
        module.values = torch.linspace(-HIGHEST, HIGHEST, BINS, dtype=torch.float64)
    # torch's fused Adam divides in another order.
    for name in ("optimizer_actor", "optimizer_critic", "optimizer_alpha"):
        groups = getattr(fast, name).param_groups
        setattr(fast, name, torch.optim.Adam(groups[0]["params"], lr=groups[0]["lr"]))
    return fast


@pytest.mark.parametrize("updates", [1, 12, pytest.param(100, marks=pytest.mark.full)])
def test_updates_equal_those_of_a_slow_implementation(updates: int) -> None:
    fast = in_float64(agent())
    # Weights as they are after their projection in float64.
    project(fast.model)
    fast.target_critics.load_state_dict(fast.critics.state_dict())
    slow = Slow(fast)
    rows = [tuple(column.double() for column in batch(16, seed)) for seed in range(updates)]
    torch.manual_seed(7)
    for one in rows:
        fast.train(one)
    torch.manual_seed(7)
    for one in rows:
        slow.train(one)
    other = Slow(fast)
    nets = [
        (slow.actor, other.actor),
    ]
    nets += zip([*slow.critics, *slow.targets], [*other.critics, *other.targets], strict=True)
    for expected, found in nets:
        pairs = list(zip(expected.parameters(), found.parameters(), strict=True))
        pairs += [
            (a, b)
            for one, two in zip(expected.moments, found.moments, strict=True)
            for a, b in zip(one, two, strict=True)
        ]
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(slow.log_alpha, other.log_alpha, rtol=1e-10, atol=1e-10)


def test_a_projection_keeps_the_mean_within_the_bounds() -> None:
    values_M = torch.tensor([-1.0, 0.0, 1.0])
    prob_BM = torch.tensor([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    moved_BM = torch.tensor([[-0.75, 0.25, 1.25], [-1.0, 0.0, 1.0], [5.0, 6.0, 7.0]])
    expected = torch.tensor([[0.0, 0.75, 0.25], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(projected(prob_BM, moved_BM, values_M), expected)


def test_norms_are_restored_after_each_update() -> None:
    learner = agent()
    for seed in range(4):
        learner.train(batch(seed=seed))
        for layer in learner.model.modules():
            if isinstance(layer, UnitLinear):
                norms = layer.weight.norm(dim=-2)
                torch.testing.assert_close(norms, torch.ones_like(norms))
            elif isinstance(layer, UnitBatchNorm):
                total = (layer.scale.square() + layer.bias.square()).sum(dim=-1)
                torch.testing.assert_close(total, torch.full_like(total, layer.scale.shape[-1]))


def test_learning_rates_follow_a_cosine_of_the_updates() -> None:
    learner = agent(lr_final=0.5)
    rates = []
    for seed in range(HORIZON + 5):
        learner.train(batch(8, seed))
        rates.append(float(learner.optimizer_critic.param_groups[0]["lr"]))
    assert rates[0] == 3e-4
    assert rates[HORIZON // 2] == pytest.approx(2.25e-4)
    assert rates[HORIZON:] == pytest.approx([1.5e-4] * 5)


def test_updates_in_bfloat16_are_finite_and_keep_moments_in_float32() -> None:
    learner = agent(precision="bfloat16")
    for seed in range(3):
        metrics = learner.train(batch(seed=seed))
        assert math.isfinite(float(metrics["loss_critic"]))
    assert all(buffer.dtype == torch.float32 for buffer in learner.model.buffers())
    critics, (obs, action, *_) = learner.critics, batch()
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            log_prob = critics(obs, action)
            features = critics.net(torch.cat([obs, critics.scaled(action)], dim=-1).expand(critics.count, -1, -1))
        exact = torch.log_softmax(features.float() @ critics.head.weight + critics.bias, dim=-1)
    torch.testing.assert_close(log_prob, exact, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"bins": 1}, r"agent\.kwargs\.bins: found 1, allowed: at least 2"),
        ({"hidden_sizes": [8]}, r"agent\.kwargs\.hidden_sizes: FlashSACAgent takes no such keyword argument"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(kwargs: dict[str, Any], problem: str) -> None:
    settings = {
        "agent": {"cls": "tmrl_core.training:FlashSACAgent", "kwargs": kwargs},
        "actor": {"cls": "tmrl_core.actor:SquashedGaussianResidualActor"},
    }
    with pytest.raises(ConfigError, match=problem):
        from_values(settings)


# --- what workers get -------------------------------------------------------------------------------------------------


def test_torch_and_numpy_act_as_the_trained_policy() -> None:
    """With trained statistics, a column of mean 1,000 and deviation 0.1, and a constant one."""
    space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    torch.manual_seed(0)
    learner = FlashSACAgent(space, ACTIONS, "cpu", width=32, critic_width=16, bins=11)
    generator = torch.Generator().manual_seed(3)

    def observations(rows: int) -> Tensor:
        obs = torch.randn(rows, 3, generator=generator)
        obs[:, 0] = 1000 + 0.1 * obs[:, 0]
        obs[:, 1] = 1000.0
        return obs

    for seed in range(20):
        obs = observations(64)
        learner.train((obs, batch(seed=seed)[1], obs[:, 2], observations(64), *batch(seed=seed)[4:]))
    with torch.no_grad(), batch_statistics(learner.model.actor):
        for _ in range(2000):  # as many as it takes until the moments have arrived
            learner.model.actor.encode(observations(256))
    obs_B = observations(256)
    with torch.no_grad():
        trained = learner.model.actor.outputs_of(learner.model.actor.encode(obs_B))
    published = learner.get_actor()
    worker = NumpySquashedGaussianResidualActor(space, ACTIONS, width=32)
    worker.from_bytes(published.to_bytes())
    by_torch, _ = published.infer(obs_B.numpy(), {})
    by_numpy, _ = worker.infer(obs_B.numpy(), {})
    for name, value in trained.items():
        np.testing.assert_allclose(by_torch[name], value.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(by_numpy[name], value.numpy(), rtol=1e-5, atol=1e-5)


def test_images_are_normalized_behind_their_convolutions() -> None:
    torch.manual_seed(0)
    space = gym.spaces.Dict({"x": OBSERVATIONS, "frame": gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)})
    learner = FlashSACAgent(space, ACTIONS, "cpu", **SMALL)
    for seed in range(5):
        x, act, reward, next_x, terminated, truncated = batch(seed=seed)
        frames = torch.randint(0, 256, (2, 64, 8, 8, 1), generator=torch.Generator().manual_seed(seed)).byte()
        obs, next_obs = {"frame": frames[0], "x": x}, {"frame": frames[1], "x": next_x}
        learner.train((obs, act, reward, next_obs, terminated, truncated))
    worker = NumpySquashedGaussianResidualActor(space, ACTIONS, width=8)
    worker.from_bytes(learner.get_actor().to_bytes())
    with torch.no_grad():
        expected = learner.model.actor(obs, test=True, compute_logprob=False)[0]
    observed = {name: value.numpy() for name, value in obs.items()}
    found, _, _ = worker.act_batch(observed, worker.initial_state(64), np.random.default_rng(0), True)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


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
    learner = FlashSACAgent(
        space, gym.spaces.Box(-2, 2, (1,), np.float32), "cpu", lr_actor=1e-3, lr_critic=1e-3, width=32,
        critic_width=64, bins=21, highest_value=9.0, lr_horizon=1500, lr_final=0.02, learn_entropy_coef=False,
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
