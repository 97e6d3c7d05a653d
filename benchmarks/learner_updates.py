"""Processor time of an update of each off-policy learner, compiled and not, beside other libraries' learners.

    python benchmarks/learner_updates.py [LEARNER ...] [--updates N] [--repetitions N] [--batch N] [--eager]

HalfCheetah's spaces (17 observations, 6 actions), one thread. Ours is given its batches; sampling takes
0.02 ms. The others are stable-baselines3's or sb3-contrib's, which sample. All sides take turns in one process, and the
least of the repetitions counts, which other work on the machine disturbs less than the mean. *Compiling* is processor
time too, once for each run. CrossQ has critics of width 256, and *flashsac, half* the widths 64 and 128, as in the
configurations of `benchmarks/learning/`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.training import (
    CrossQAgent,
    DDPGAgent,
    FlashSACAgent,
    REDQSACAgent,
    SacAgent,
    TD3Agent,
    TQCAgent,
)

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)
LEARNERS: dict[str, Callable[[bool], Any]] = {
    "sac": lambda compiled: SacAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
    "tqc": lambda compiled: TQCAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
    "crossq": lambda compiled: CrossQAgent(OBSERVATIONS, ACTIONS, "cpu", critic_sizes=(256, 256), compile=compiled),
    "crossq, wide": lambda compiled: CrossQAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
    "flashsac, half": lambda compiled: FlashSACAgent(
        OBSERVATIONS, ACTIONS, "cpu", width=64, critic_width=128, compile=compiled
    ),
    "flashsac": lambda compiled: FlashSACAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
    "redq": lambda compiled: REDQSACAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
    "td3": lambda compiled: TD3Agent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
    "ddpg": lambda compiled: DDPGAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compiled),
}
PEERS = {"sac": "SAC", "tqc": "TQC", "crossq": "CrossQ", "td3": "TD3"}
KINDS = 6
"""Updates after which each kind of update of each learner has run."""


def batches(size: int) -> list[Any]:
    """Return batches of so many rows of random numbers."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    zeros = torch.zeros(size)
    return [
        (normal(size, 17), normal(size, 6).clamp(-1, 1), normal(size), normal(size, 17), zeros, zeros) for _ in range(8)
    ]


def ours(agent: Any, size: int) -> Callable[[int], None]:
    """Return a function that makes so many updates with batches of this size."""
    rows = batches(size)

    def run(updates: int) -> None:
        for number in range(updates):
            agent.train(rows[number % len(rows)])

    return run


def theirs(name: str, size: int) -> Callable[[int], None]:
    """Return a function that makes so many updates of another library's learner, sampling included."""
    import gymnasium
    import sb3_contrib
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    class Spaces(gymnasium.Env[Any, Any]):
        observation_space = OBSERVATIONS
        action_space = ACTIONS

    library: Any = stable_baselines3 if name in ("SAC", "TD3") else sb3_contrib
    layers: Any = {"pi": [256, 256], "qf": [256, 256]} if name == "CrossQ" else [256, 256]
    model = getattr(library, name)(
        "MlpPolicy", Spaces(), batch_size=size, buffer_size=2_000, device="cpu", policy_kwargs={"net_arch": layers}
    )
    model.set_logger(Logger(None, []))
    generator = np.random.default_rng(0)
    for _ in range(2_000):
        obs, next_obs = generator.standard_normal((2, 1, 17)).astype(np.float32)
        action = generator.uniform(-1, 1, (1, 6)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, action, generator.standard_normal(1), np.zeros(1), [{}])
    return lambda updates: model.train(gradient_steps=updates, batch_size=size)


def measured(sides: Sequence[Callable[[int], None]], updates: int, repetitions: int) -> tuple[list[float], list[float]]:
    """Return for each side the seconds of its first updates, and the least milliseconds of one of the others."""
    first, least = [], [math.inf] * len(sides)
    for run in sides:
        began = time.process_time()
        run(KINDS)
        first.append(time.process_time() - began)
    for _ in range(repetitions):
        for place, run in enumerate(sides):
            began = time.process_time()
            run(updates)
            least[place] = min(least[place], (time.process_time() - began) / updates * 1e3)
    return first, least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("learners", nargs="*", metavar="LEARNER", help=f"of {', '.join(LEARNERS)}; default: all")
    # Divisible by 2 and 3: as many updates of the policy as are due.
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--eager", action="store_true", help="leave out what is compiled")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| learner | compiled, ms | not compiled, ms | others, ms | others / compiled | compiling, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in arguments.learners or LEARNERS:
        sides = [ours(LEARNERS[name](False), arguments.batch)]
        sides += [theirs(PEERS[name], arguments.batch)] if name in PEERS else []
        sides += [] if arguments.eager else [ours(LEARNERS[name](True), arguments.batch)]
        first, least = measured(sides, arguments.updates, arguments.repetitions)
        peer = least[1] if name in PEERS else math.nan
        compiled = math.nan if arguments.eager else least[-1]
        cells = [name, *(f"{value:.1f}" for value in (compiled, least[0], peer)), f"{peer / compiled:.2f}"]
        cells.append("-" if arguments.eager else f"{first[-1]:.0f}")
        print(f"| {' | '.join('-' if cell == 'nan' else cell for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
