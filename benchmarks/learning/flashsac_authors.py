"""Updates of our FlashSAC beside those of its authors' code: how far the weights are apart.

    git clone https://github.com/Holiday-Robot/FlashSAC && git -C FlashSAC checkout 87edc90
    python benchmarks/learning/flashsac_authors.py FlashSAC [--updates 1 10 100] [--width 64 --critic-width 128]

Both begin with our weights, get the same batches of random numbers, draw the same noise, and compute with float64: some
gradients are exactly 0 (a weight before a normalization has none along itself), and Adam makes whole steps of their
rounding. Neither is compiled, and theirs has no mixed precision. Learning rates are
constant: with a schedule, theirs counts the steps of each optimizer, so those of policy and temperature fall half as
fast as ours, which count updates. Printed is the largest difference of a weight, where each vector of weights has the
norm 1, and of a running moment, which are of the order of 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tmrl_core.training import FlashSACAgent

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)
RATE = 3e-4
BATCH = 256
Pair = tuple[str, Tensor, Tensor]
"""Name, ours in the layout of theirs, and theirs."""


def trunk_pairs(name: str, ours: Any, theirs: Any) -> Iterator[Pair]:
    """Yield the tensors of the layers from observations to features."""
    norm, first, *blocks, rms = ours
    embedder = theirs.embedder
    yield from norm_pairs(f"{name} input", norm, embedder.norm)
    yield linear_pair(f"{name} first", first, embedder.w)
    for number, (block, other) in enumerate(zip(blocks, theirs.encoder, strict=True)):
        yield linear_pair(f"{name} wide {number}", block.wide, other.w1)
        yield linear_pair(f"{name} narrow {number}", block.narrow, other.w2)
        yield from norm_pairs(f"{name} wide norm {number}", block.wide_norm, other.norm1)
        yield from norm_pairs(f"{name} norm {number}", block.norm, other.norm2)
    yield f"{name} rms", rms.scale.reshape(theirs.post_norm.weight.shape), theirs.post_norm.weight


def linear_pair(name: str, ours: Any, theirs: Any) -> Pair:
    weight = theirs.weight if isinstance(getattr(theirs, "weight", None), Tensor) else theirs.w.weight
    return name, ours.weight.transpose(-1, -2), weight


def norm_pairs(name: str, ours: Any, theirs: Any) -> Iterator[Pair]:
    for part, other in (
        ("scale", "weight"),
        ("bias", "bias"),
        ("mean", "running_mean"),
        ("variance", "running_var"),
    ):
        target = getattr(theirs, other)
        yield f"{name} {part}", getattr(ours, part).reshape(target.shape), target


def pairs(agent: Any, actor: Any, critics: Any, targets: Any, temperature: Any) -> Iterator[Pair]:
    """Yield all tensors of both."""
    policy, heads = agent.model.actor, actor.predictor
    yield from trunk_pairs("policy", policy.net, actor)
    yield "policy mean", policy.mu.weight, heads.mean_w.w.weight
    yield "policy mean bias", policy.mu.bias, heads.mean_bias
    yield "policy deviation", policy.log_std.weight, heads.std_w.w.weight
    yield "policy deviation bias", policy.log_std.bias, heads.std_bias
    for name, ours, theirs in (("critics", agent.critics, critics), ("targets", agent.target_critics, targets)):
        yield from trunk_pairs(name, ours.net, theirs)
        yield linear_pair(f"{name} head", ours.head, theirs.predictor.w)
        yield f"{name} head bias", ours.bias.reshape(theirs.predictor.bias.shape), theirs.predictor.bias
    yield "temperature", agent.log_alpha.reshape(1), temperature.log_temp


def in_float64(agent: Any) -> Any:
    """Return our agent with tensors of float64, and torch's plain Adam, whose rounding is theirs."""
    agent.model.double()
    agent.target_critics.double()
    agent.log_alpha.data = agent.log_alpha.data.double()
    for module in (agent.model.actor, agent.critics, agent.target_critics):
        module.net.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    for module in (agent.critics, agent.target_critics):
        module.scaled = lambda action: action
        module.values = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64)
    for name in ("optimizer_actor", "optimizer_critic", "optimizer_alpha"):
        setattr(agent, name, torch.optim.Adam(getattr(agent, name).param_groups[0]["params"], lr=RATE))
    return agent


class Authors:
    """The authors' networks and their update."""

    def __init__(self, width: int, critic_width: int) -> None:
        from flash_rl.agents.flashSAC import network, update
        from flash_rl.agents.utils.network import Network

        sizes = {"input_dim": 23, "hidden_dim": critic_width, "num_bins": 101, "min_v": -5.0, "max_v": 5.0}
        self.actor = network.FlashSACActor(2, 17, width, 6)
        self.critics, self.targets = (network.FlashSACDoubleCritic(2, **sizes) for _ in range(2))
        self.temperature = network.FlashSACTemperature(0.01)
        for module in (self.actor, self.critics, self.targets, self.temperature):
            module.double()
        self.targets.predictor.bin_values = torch.linspace(-5.0, 5.0, 101, dtype=torch.float64).reshape(1, 1, -1)
        self.critics.predictor.bin_values = self.targets.predictor.bin_values

        def trained(module: Any, projected: bool = True) -> Any:
            return Network(module, torch.optim.Adam(module.parameters(), lr=RATE), use_weight_normalization=projected)

        self._actor, self._critics = trained(self.actor), trained(self.critics)
        self._temperature = trained(self.temperature, projected=False)
        self._targets = Network(self.targets, ema_source=self._critics, ema_tau=0.01)
        self._update, self._updates = update, 0

    def train(self, rows: tuple[Tensor, ...], target_entropy: float) -> None:
        obs, action, reward, next_obs, terminated, _ = rows
        batch = {
            "observation": obs, "actor_observation": obs, "next_observation": next_obs,
            "actor_next_observation": next_obs, "action": action, "reward": reward, "terminated": terminated,
        }  # fmt: skip
        common: dict[str, Any] = {"device": torch.device("cpu"), "use_amp": False, "grad_scaler": None}
        if self._updates % 2 == 0:
            found = self._update.update_actor(
                self._actor, self._critics, self._temperature, batch, bc_alpha=0.0, **common
            )
            self._update.update_temperature(self._temperature, found["actor/entropy"], target_entropy)
        self._updates += 1
        self._update.update_critic(
            self._actor, self._critics, self._targets, self._temperature, batch,
            min_v=-5.0, max_v=5.0, num_bins=101, gamma=0.99, n_step=1, **common,
        )  # fmt: skip
        self._update.update_target_network(self._targets)


def batch(number: int) -> tuple[Tensor, ...]:
    """Return transitions of random numbers, of which a tenth are terminal."""
    generator = torch.Generator().manual_seed(number)
    obs, next_obs = torch.randn(2, BATCH, 17, generator=generator)
    action = torch.rand(BATCH, 6, generator=generator) * 2 - 1
    reward = torch.randn(BATCH, generator=generator)
    terminated = (torch.rand(BATCH, generator=generator) < 0.1).float()
    rows = obs, action, reward, next_obs, terminated, torch.zeros(BATCH)
    return tuple(column.double() for column in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("authors", type=Path, help="a checkout of the authors' repository")
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--critic-width", type=int, default=128)
    options = parser.parse_args()
    if not (options.authors / "flash_rl").is_dir():
        raise SystemExit(f"{options.authors}: found no folder flash_rl. Name a checkout of the authors' repository.")
    # Their packages without what these import on their own: readers of configurations, simulators.
    for name in ("flash_rl", "flash_rl.agents", "flash_rl.agents.flashSAC"):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(options.authors.joinpath(*name.split(".")))]
    buffers: Any = ModuleType("flash_rl.buffers")
    buffers.Batch = dict  # the only name that their update takes from there
    sys.modules["flash_rl.buffers"] = buffers
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"width": options.width, "critic_width": options.critic_width}
    ours = in_float64(FlashSACAgent(OBSERVATIONS, ACTIONS, "cpu", lr_final=1.0, compile=False, **sizes))
    theirs = Authors(options.width, options.critic_width)
    modules = theirs.actor, theirs.critics, theirs.targets, theirs.temperature
    with torch.no_grad():
        for _, source, target in pairs(ours, *modules):
            target.copy_(source)
    print("| updates | weights | running moments | temperature (logarithm) |\n| --- | --- | --- | --- |")
    for number in range(max(options.updates)):
        rows = batch(number)
        torch.manual_seed(1000 + number)
        ours.train(rows)
        torch.manual_seed(1000 + number)
        with mock.patch.object(Tensor, "float", Tensor.double):  # theirs casts moments
            theirs.train(rows, ours.target_entropy)
        if number + 1 in options.updates:
            worst = {"weights": 0.0, "moments": 0.0, "temperature": 0.0}
            for name, one, other in pairs(ours, *modules):
                apart = float((one - other).detach().abs().max())
                if name.endswith((" mean", " variance")) and not name.startswith("policy mean"):
                    worst["moments"] = max(worst["moments"], apart)
                else:
                    kind = "temperature" if name == "temperature" else "weights"
                    worst[kind] = max(worst[kind], apart)
            print(f"| {number + 1} | {' | '.join(f'{value:.1e}' for value in worst.values())} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
