"""Updates a second of SacAgent on Pendulum-sized batches, beside others, in turn in one process; sampling included.

    python benchmarks/sac_updates.py [--updates N] [--repetitions N] [--threads N ...] [--batch N] [--no-compile]
                                     [--device cuda]

Beside it: stable-baselines3's SAC where that is installed, and a plain SAC update with two critics as modules of their
own, unfused Adam, and a loop for the target's average: what one writes first. All have two hidden layers of 256 and
sample from a replay memory of 20,000 transitions. Each side's best number of threads counts. Processor time is given
beside wall time, as it says more on a machine that others use too. With `--device cuda`, each waits for the device
before the clock is read.
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
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory, SacAgent

OBSERVATIONS = spaces.Box(-8, 8, (3,), np.float32)
ACTIONS = spaces.Box(-2, 2, (1,), np.float32)
ROWS = 20_000
OURS = "tmrl_core"
Timed = Callable[[int], tuple[float, float]]
"""Seconds, and seconds of processor time, of so many updates."""


class PlainSac:
    """SAC without any of the measures that make ours faster."""

    def __init__(self, device: str) -> None:
        self.actor: Any = SquashedGaussianMLPActor(OBSERVATIONS, ACTIONS).to(device)

        def critic() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

        self.critics = nn.ModuleList([critic(), critic()]).to(device)
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.tensor(-1.6, device=device, requires_grad=True)
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


def memory(batch_size: int, device: str) -> ReplayMemory:
    """A full replay memory."""
    generator = np.random.default_rng(0)
    rows = ROWS + 1
    present = np.arange(rows) > 0
    filled = ReplayMemory(device, ROWS, memory_size=ROWS, batch_size=batch_size, seed=0)
    filled.append_chunk(
        Chunk(
            rows=rows,
            action=generator.uniform(-2, 2, (rows, 1)).astype(np.float32),
            action_present=present,
            observation=generator.standard_normal((rows, 3)).astype(np.float32),
            reward=generator.standard_normal(rows),
            terminated=np.zeros(rows, bool),
            truncated=np.zeros(rows, bool),
            segments=(Segment(rows, 0, 0, 1, 1),),
            stream=bytes(16),
        )
    )
    return filled


def timed(run: Callable[[int], None]) -> Timed:
    """What so many updates in this process take."""

    def measure(updates: int) -> tuple[float, float]:
        started, used = time.perf_counter(), time.process_time()
        run(updates)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started, time.process_time() - used

    return measure


def from_memory(train: Callable[[Any], Any], batch_size: int, device: str) -> Timed:
    """Updates, each with a batch of its own."""
    filled = memory(batch_size, device)

    def run(updates: int) -> None:
        for _ in range(updates):
            train(filled.sample())

    return timed(run)


def stable_baselines3(batch_size: int, device: str) -> Timed | None:
    """The same of stable-baselines3; None: it is not installed."""
    try:
        from stable_baselines3 import SAC
        from stable_baselines3.common.logger import Logger
    except ModuleNotFoundError:
        return None
    model = SAC("MlpPolicy", "Pendulum-v1", learning_rate=1e-3, batch_size=batch_size, buffer_size=ROWS, device=device)
    model.set_logger(Logger(None, []))
    assert model.replay_buffer is not None
    generator = np.random.default_rng(0)
    for _ in range(ROWS):
        obs, next_obs = generator.standard_normal((2, 1, 3)).astype(np.float32)
        action = generator.uniform(-1, 1, (1, 1)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, action, generator.standard_normal(1), np.zeros(1), [{}])

    def run(updates: int) -> None:
        model.train(gradient_steps=updates, batch_size=batch_size)

    return timed(run)


def main() -> None:
    """Run all, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"batches of {options.batch}, 2 x 256 MLPs; load {os.getloadavg() if hasattr(os, 'getloadavg') else '?'}"
    )
    best: dict[str, float] = {}
    for threads in options.threads:
        torch.set_num_threads(threads)
        sides: dict[str, Timed] = {}
        if not options.no_compile:
            compiled = SacAgent(OBSERVATIONS, ACTIONS, options.device, compile=True)
            sides[OURS] = from_memory(compiled.train, options.batch, options.device)
        sides[f"{OURS}, compile: false"] = from_memory(
            SacAgent(OBSERVATIONS, ACTIONS, options.device, compile=False).train, options.batch, options.device
        )
        sides["plain"] = from_memory(PlainSac(options.device).train, options.batch, options.device)
        other = stable_baselines3(options.batch, options.device)
        if other is not None:
            sides["stable-baselines3"] = other
        for name, run in sides.items():  # what is made or compiled at the beginning is made now
            started = time.perf_counter()
            run(5)
            print(f"{threads} thread(s)  {name:28} ready after {time.perf_counter() - started:.1f} s", flush=True)
        rates: dict[str, list[float]] = {name: [] for name in sides}
        processor_ms: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.repetitions):
            for name, run in sides.items():
                seconds, processor_s = run(options.updates)
                processor_ms[name].append(processor_s / options.updates * 1e3)
                rates[name].append(options.updates / seconds)
        for name, found in rates.items():
            rate = statistics.median(found)
            best[name] = max(best.get(name, 0.0), rate)
            print(
                f"{threads} thread(s)  {name:28} {rate:8.1f} updates/s (median of {len(found)}; {min(found):.1f} to "
                f"{max(found):.1f}), {statistics.median(processor_ms[name]):.2f} ms of processor time each",
                flush=True,
            )
    mine = best[OURS] if OURS in best else best[f"{OURS}, compile: false"]
    for name, rate in best.items():
        if not name.startswith(OURS):
            print(f"{OURS} / {name}, each at its better number of threads: {mine / rate:.2f}")


if __name__ == "__main__":
    main()
