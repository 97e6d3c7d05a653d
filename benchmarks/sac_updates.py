"""Updates a second of SacAgent on Pendulum-sized batches, beside a plain SAC update of separate critics.

    python benchmarks/sac_updates.py [--updates N] [--repetitions N] [--threads N] [--batch N]

The plain one has two critics as modules of their own, unfused Adam, and a loop for the target's average: what one
writes first. Both do the same arithmetic on the same batches, in turn.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.training import SacAgent

OBSERVATIONS = spaces.Box(-8, 8, (3,), np.float32)
ACTIONS = spaces.Box(-2, 2, (1,), np.float32)


class PlainSac:
    """SAC without any of the measures that make ours faster."""

    def __init__(self) -> None:
        self.actor: Any = SquashedGaussianMLPActor(OBSERVATIONS, ACTIONS)

        def critic() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

        self.critics = nn.ModuleList([critic(), critic()])
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.tensor(-1.6, requires_grad=True)
        self.optimizers = [
            torch.optim.Adam(parameters, lr=1e-3, foreach=False)
            for parameters in (self.actor.parameters(), self.critics.parameters(), [self.log_alpha])
        ]

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    def train(self, batch: Any) -> dict[str, float]:
        """One update, with its metrics as numbers."""
        obs, act, reward, next_obs, terminated, _ = batch
        action, log_prob = self.actor(obs)
        entropy = self._step(self.optimizers[2], -(self.log_alpha * (log_prob.detach() - 1.0)).mean())
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.actor(next_obs)
            next_x = torch.cat([next_obs, next_action], 1)
            q = torch.minimum(*(target(next_x).squeeze(1) for target in self.targets))
            y = reward + 0.99 * (1 - terminated) * (q - alpha * next_log_prob)
        x = torch.cat([obs, act], 1)
        losses = [0.5 * (critic(x).squeeze(1) - y).square().mean() for critic in self.critics]
        critic_loss = self._step(self.optimizers[1], losses[0] + losses[1])
        self.critics.requires_grad_(False)
        x = torch.cat([obs, action], 1)
        q = torch.minimum(*(critic(x).squeeze(1) for critic in self.critics))
        policy_loss = self._step(self.optimizers[0], (alpha * log_prob - q).mean())
        self.critics.requires_grad_(True)
        with torch.no_grad():
            for target, source in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.mul_(0.995).add_(0.005 * source)
        return {"loss_entropy": entropy, "loss_critic": critic_loss, "loss_actor": policy_loss}


def main() -> None:
    """Run both, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    size = options.batch
    batch = (
        torch.randn(size, 3),
        torch.rand(size, 1) * 4 - 2,
        torch.randn(size),
        torch.randn(size, 3),
        torch.zeros(size),
        torch.zeros(size),
    )
    plain = PlainSac()
    agents: dict[str, Callable[[Any], Any]] = {
        "tmrl_core.training.SacAgent": SacAgent(OBSERVATIONS, ACTIONS, "cpu").train,
        "plain": plain.train,
    }
    rates: dict[str, list[float]] = {name: [] for name in agents}
    for repetition in range(options.repetitions + 1):
        for name, train in agents.items():
            started = time.perf_counter()
            for _ in range(options.updates):
                train(batch)
            if repetition:  # the first is to warm up
                rates[name].append(options.updates / (time.perf_counter() - started))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"{options.threads} thread(s), batches of {size}, 2 x 256 MLPs"
    )
    for name, found in rates.items():
        print(
            f"{name:28} {statistics.median(found):8.1f} updates/s (median of {len(found)}; {min(found):.1f} to "
            f"{max(found):.1f})"
        )
    mine, other = (statistics.median(found) for found in rates.values())
    print(f"ratio: {mine / other:.2f}")


if __name__ == "__main__":
    main()
