"""A learning curve of our off-policy agent and memory in one process: the same settings, no network, nothing late.

    python benchmarks/learning/one_process.py pendulum --seed 0
    python benchmarks/learning/one_process.py pendulum --seed 0 --set agent.kwargs.precision=bfloat16
    python benchmarks/learning/one_process.py pendulum --check 3

It steps, stores and updates in turn, so that the policy is never older than one step, as stable-baselines3 does it. So
what differs from `run.py` comes of the network, and what differs from `peer.py` of the learner.

With `precision: bfloat16`, a processor without instructions for it multiplies by loops of torch's that take up to
hundreds of milliseconds a product. Here such products are made as hardware makes them, of the same rounded numbers:
multiplied and summed in float32, and rounded. All else is the agent's own. `--check N` makes N updates both ways, and
prints how far the weights are apart afterwards, beside how far they are from those of float32.
"""

from __future__ import annotations

import copy
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import curves
import numpy as np
import torch
from run import HERE, parser_of, run_seed
from torch.utils._python_dispatch import TorchDispatchMode

from tmrl_core.config import Config, environment_maker, load
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.samples import Buffer

_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
}


class HardwareProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, products of bfloat16 matrices are summed in float32 and rounded once, as hardware does it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS and all(value.dtype is torch.bfloat16 for value in args):
            return func(*(value.float() for value in args), **(kwargs or {})).bfloat16()
        return func(*args, **(kwargs or {}))


def evaluate(actor: Any, make_env: Any, seeds: range) -> list[float]:
    """Returns of deterministic episodes from these starts, all played at once."""
    envs = [make_env() for _ in seeds]
    obs = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)])
    totals = [0.0] * len(envs)
    over = [False] * len(envs)
    while not all(over):
        with torch.no_grad():
            actions = actor(torch.from_numpy(obs), test=True, compute_logprob=False)[0].numpy()
        for index, env in enumerate(envs):
            if not over[index]:
                obs[index], reward, terminated, truncated, _ = env.step(actions[index])
                totals[index] += float(reward)
                over[index] = terminated or truncated
    return totals


def learn(config: Config, seed: int) -> Iterator[tuple[curves.Point, list[float]]]:
    """The curve, and the returns of each of its evaluations."""
    torch.manual_seed(seed)
    trainer = config.trainer
    training = training_from_config(config)()
    agent, memory = training.agent, training.memory
    make_env = environment_maker(config.environment.cls, config.environment.kwargs)
    first = trainer.evaluation.first_seed
    seeds = range(first, first + trainer.evaluation.episodes)
    began = time.perf_counter()
    trained: list[float] = []
    products: Any = HardwareProducts if agent.settings.precision == "bfloat16" else nullcontext
    with products():
        for step in steps_of(make_env(), agent, memory, seed, trained):
            updates = step - int(trainer.start_training)
            if updates <= 0:
                continue
            agent.train(memory.sample())
            if updates % trainer.evaluation.every_updates == 0:
                returns = evaluate(agent.get_actor(), make_env, seeds)
                spread, seconds = statistics.pstdev(returns), time.perf_counter() - began
                yield curves.Point(step, statistics.fmean(returns), spread, seconds, curves.mean_of(trained)), returns
                trained.clear()
            if updates >= trainer.epochs * trainer.rounds * trainer.steps:
                return


def steps_of(env: Any, agent: Any, memory: Any, seed: int, trained: list[float]) -> Iterator[int]:
    """Step the environment for ever, into the memory; yields the number of steps so far."""
    agent.get_actor().seed(seed)
    buffer = Buffer(maxlen=None)
    obs, _ = env.reset(seed=seed)
    step, total, over = 0, 0.0, True
    while True:
        if over:
            if step:
                trained.append(total)
                obs, _ = env.reset()
            buffer.append_sample((None, obs, 0.0, False, False, {}))
            total = 0.0
        # Asked for anew, since it says whether to act by chance still.
        action = agent.get_actor().act_(obs)
        obs, reward, terminated, truncated, info = env.step(action)
        buffer.append_sample((action, obs, reward, terminated, truncated, info))
        for chunk in buffer.take()[0]:
            memory.append_chunk(chunk)
        step += 1
        total += float(reward)
        over = terminated or truncated
        yield step


def check(config: Config, updates: int) -> tuple[float, float]:
    """How far bfloat16's weights are apart after so many updates by torch's own products and by `HardwareProducts`, and
    how far they are from those of float32; as shares of the way that float32's have gone."""
    obs = torch.randn(256, 3)
    batch = (obs, torch.rand(256, 1) * 4 - 2, torch.randn(256), obs + 0.1, torch.zeros(256), torch.zeros(256))
    torch.manual_seed(0)
    agent = training_from_config(config)().agent
    start = _weights(agent)
    ends = []
    hardware_products: Any = HardwareProducts
    ways = (("bfloat16", nullcontext), ("bfloat16", hardware_products), ("float32", nullcontext))
    for precision, products in ways:
        one = copy.deepcopy(agent)
        one.settings.compile, one.settings.precision = False, precision
        torch.manual_seed(1)
        with products():
            for _ in range(updates):
                one.train(batch)
        ends.append(_weights(one))
    own, hardware, exact = ends
    way = (exact - start).norm()
    return float((hardware - own).norm() / way), float((own - exact).norm() / way)


def _weights(agent: Any) -> torch.Tensor:
    parameters = [*agent.model.actor.parameters(), *agent.critics.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).clone()


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--check", type=int, metavar="UPDATES", help="compare the two ways of multiplying instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    def settings(seed: int) -> Any:
        return load(HERE / f"{arguments.task}.yaml", [f"run.seed={seed}", *arguments.changes], {})

    if arguments.check:
        apart, rounding = check(settings(arguments.seed), arguments.check)
        print(f"after {arguments.check} updates: {apart:.1e} apart; bfloat16 and float32: {rounding:.1e}")
        return 0

    def learned(seed: int) -> curves.Curve:
        curve = []
        for point, returns in learn(settings(seed), seed):
            curve.append(point)
            lost = sum(value < statistics.median(returns) - 300.0 for value in returns)
            print(f"{point.steps:7d} steps, {lost} of {len(returns)} far below their median", flush=True)
        return curve

    run_seed(arguments, learned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
