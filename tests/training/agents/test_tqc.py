from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.losses import lowest_quantiles, quantile_loss
from tmrl_core.training.agents.networks import EnsembleLinear
from tmrl_core.training.agents.tqc import TQCAgent
from tmrl_core.training.batches import Transitions

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
LAYERS = (32, 32)
RATE = 1e-3


def batch(size: int = 64, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(size, generator=generator) < 0.3).float()
    return (
        torch.randn(size, 3, generator=generator),
        torch.rand(size, 2, generator=generator) * 2 - 1,
        torch.randn(size, generator=generator),
        torch.randn(size, 3, generator=generator),
        terminated,
        1 - terminated,  # truncation, which does not count
    )


def agent(**more: Any) -> TQCAgent:
    torch.manual_seed(0)
    settings: Any = {"hidden_sizes": LAYERS, "alpha": 1.0, "compile": False, **more}
    return TQCAgent(OBSERVATIONS, ACTIONS, "cpu", **settings)


def test_the_highest_quantiles_of_all_critics_together_are_left_out() -> None:
    quantiles_KBM = torch.tensor([[[5.0, 1.0, 9.0]], [[2.0, 8.0, 7.0]]])
    assert lowest_quantiles(quantiles_KBM, 0).tolist() == [[1.0, 2.0, 5.0, 7.0, 8.0, 9.0]]
    assert lowest_quantiles(quantiles_KBM, 1).tolist() == [[1.0, 2.0, 5.0, 7.0]]


def test_the_loss_is_that_of_quantile_regression() -> None:
    generator = torch.Generator().manual_seed(1)
    quantiles_KBM = torch.randn(2, 3, 4, generator=generator) * 2
    target_BN = torch.randn(3, 5, generator=generator) * 2
    for row in range(3):
        total = 0.0
        for k in range(2):
            for m in range(4):
                for n in range(5):
                    error = float(target_BN[row, n] - quantiles_KBM[k, row, m])
                    huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                    total += abs((m + 0.5) / 4 - (error < 0)) * huber
        assert quantile_loss(quantiles_KBM, target_BN)[row].item() == pytest.approx(total / 40, rel=1e-5)


def test_critics_learn_the_quantiles_of_a_reward_that_varies() -> None:
    learner = agent(lr_critic=1e-2, gamma=0.0, quantiles=5, dropped_quantiles=0)
    generator = torch.Generator().manual_seed(2)
    obs, act = torch.zeros(64, 3), torch.zeros(64, 2)
    for _ in range(150):
        reward = torch.rand(64, generator=generator) * 4
        learner.train((obs, act, reward, obs, torch.ones(64), torch.zeros(64)))
    found = learner.critics(obs[:1], act[:1])[0, 0].detach()
    # Not the exact quantiles of 0.4, 1.2, ...: within an error of 1 the loss is quadratic, which draws them together.
    assert found.tolist() == sorted(found.tolist())
    assert found[2].item() == pytest.approx(2.0, abs=0.25)
    assert found[0].item() < 1.4
    assert found[4].item() > 2.6


def test_priorities_are_the_errors_of_the_means() -> None:
    learner = agent(gamma=0.0)
    obs, act, reward, next_obs, terminated, _ = batch()
    before = learner.critics(obs, act).mean(dim=-1)
    learner.update(Transitions(obs, act, reward, next_obs, terminated, 0.0, torch.ones(64)))
    assert learner.td_error_B is not None
    assert torch.allclose(learner.td_error_B, (before - reward).abs().mean(dim=0), atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"quantiles": 1, "dropped_quantiles": 0}, {"quantiles": 4, "dropped_quantiles": 4}]
)
def test_settings_without_a_distribution_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="quantiles: found"):
        agent(**settings)


def copied_to(peer: Any, ours: TQCAgent) -> None:
    """Copy our weights into the networks of sb3-contrib's TQC."""
    own = ours.model.actor
    pairs = [(peer.actor.latent_pi[0], own.net[0]), (peer.actor.latent_pi[2], own.net[2])]
    pairs += [(peer.actor.mu, own.mu), (peer.actor.log_std, own.log_std)]
    with torch.no_grad():
        for theirs, layer in pairs:
            theirs.weight.copy_(layer.weight)
            theirs.bias.copy_(layer.bias)
        for critics, ensemble in ((peer.critic, ours.critics), (peer.critic_target, ours.target_critics)):
            layers = [layer for layer in ensemble.modules() if isinstance(layer, EnsembleLinear)]
            for k, net in enumerate(critics.q_networks):
                for theirs, layer in zip((net[0], net[2], net[4]), layers, strict=True):
                    theirs.weight.copy_(layer.weight[k].T)
                    theirs.bias.copy_(layer.bias[k, 0])


def values_of(peer: Any, ours: TQCAgent) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of results that show all weights: of policies, critics, target critics, and temperatures."""
    obs, act = batch(seed=99)[:2]
    with torch.no_grad():
        outputs = ours.model.actor.outputs_of(ours.model.actor.encode(obs))
        mean, log_std, _ = peer.actor.get_action_dist_params(obs)
        return [
            (mean, outputs["mu"]),
            (log_std, outputs["log_std"]),
            (peer.critic(obs, act).transpose(0, 1), ours.critics(obs, act)),
            (peer.critic_target(obs, act).transpose(0, 1), ours.target_critics(obs, act)),
            (peer.log_ent_coef.exp(), ours.log_alpha.exp().reshape(1)),
        ]


@pytest.mark.parametrize(("updates", "optimizer"), [(1, "adam"), (20, "sgd")])
def test_updates_equal_those_of_sb3_contrib(updates: int, optimizer: str) -> None:
    """The same weights, batches and noise lead to the same weights.

    Adam divides by the size of gradients, so differences of rounding grow with each update; those of SGD do not.
    """
    from sb3_contrib import TQC
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    class Still(gym.Env[Any, Any]):
        observation_space, action_space = OBSERVATIONS, ACTIONS

    rates = {"lr_actor": RATE, "lr_critic": RATE, "lr_entropy": RATE}
    ours = agent(optimizer_actor=optimizer, optimizer_critic=optimizer, **rates)
    peer = TQC(
        "MlpPolicy", Still(), learning_rate=RATE, gamma=0.99, tau=0.005, ent_coef="auto_1.0", device="cpu",
        buffer_size=10, top_quantiles_to_drop_per_net=2,
        policy_kwargs={
            "net_arch": list(LAYERS), "n_critics": 2,
            "optimizer_class": {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer],
        },
    )  # fmt: skip
    # It adds this number to the density's correction for tanh, which ours computes in a form that needs none.
    peer.actor.action_dist.epsilon = 0.0
    peer.set_logger(Logger(None, []))
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
    torch.manual_seed(7)
    for seed in range(updates):
        ours.train(batch(seed=seed))
    for there, here in values_of(peer, ours):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-5)
