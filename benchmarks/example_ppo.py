"""What PPO has learned of the example environment after five rounds of 4000 steps, which two workers collect over TLS.

    python benchmarks/example_ppo.py

Each seed is a run of its own, with credentials of its own: a Server, a Trainer that calls `train_iteration` five times,
and two workers as processes, as `config/example_ppo.yaml` says. Counted are the mean return of the episodes that ended
in each round (so the first is that of the policy before any update), then that of 1000 further episodes played with the
policy after the fifth update, its actions sampled, and greedily once from each of the eight starts (8.5 is the best
there is). The same is then done in the classic variant of the environment, `legacy`, for which the means of five
iterations were published.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wire_bytes import versions

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "config" / "example_ppo.yaml"
ITERATIONS = 5
WORKERS = 2
REACH_MEAN = 7.83
REACH_GREEDY = 8.5
PUBLISHED_LEGACY = (-6.96, 1.24, 5.89, 7.19, 7.83)
WORKER_END_S = 60.0


@dataclass(frozen=True)
class Result:
    """Of one run: mean return of each iteration, of further sampled episodes, and of greedy ones; steps; seconds."""

    iterations: tuple[float, ...]
    sampled: float
    greedy: float
    steps: int
    seconds: float


@contextlib.contextmanager
def workers(options: Sequence[str]) -> Iterator[None]:
    command = [sys.executable, "-m", "tmrl_core", "--worker", "--control", "--log-level", "WARNING", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) for _ in range(WORKERS)]
    try:
        yield
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()  # ends it
        for process in started:
            process.wait(WORKER_END_S)


def play(env: Any, trainer: Any, obs: int, test: bool) -> float:
    """The rest of the episode that has begun; its return."""
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(int(trainer.act(obs, test=test)))
        total += float(reward)
        over = terminated or truncated
    return total


def run(seed: int, legacy: bool, episodes: int, folder: str) -> Result:
    from tmrl_core import Server, Trainer
    from tmrl_core.config import load
    from tmrl_core.envs import ExampleEnv

    changes = [
        f"run.seed={seed}",
        f"run.folder={folder}",
        f"network.credentials_dir={folder}/keys",
        f"environment.kwargs.gym_kwargs={{legacy: {str(legacy).lower()}}}",
        "trainer.evaluation.every_updates=0",
        "metrics.console=false",
        "metrics.tensorboard=false",
    ]
    began = time.perf_counter()
    with Server(port=0, config=load(CONFIG, changes, {})) as server:
        changes.append(f"server.port={server.port}")
        options = ["-c", str(CONFIG), *(word for change in changes for word in ("--set", change))]
        with Trainer(config=load(CONFIG, changes, {}), checkpoint_path=None) as trainer, workers(options):
            rows = [trainer.train_iteration() for _ in range(ITERATIONS)]
            trainer.finish()
            seconds = time.perf_counter() - began
            env = ExampleEnv(legacy=legacy)
            env.reset(seed=10_000 + seed)
            sampled = [play(env, trainer, env.reset()[0], test=False) for _ in range(episodes)]
            greedy = []
            for start in env.starts:
                env.reset()
                env.position = start
                greedy.append(play(env, trainer, start, test=True))
    return Result(
        tuple(float(row["return_mean"]) for row in rows),
        statistics.fmean(sampled),
        statistics.fmean(greedy),
        sum(int(row["memory_len"]) for row in rows),
        seconds,
    )


def table(title: str, seeds: Sequence[int], legacy: bool, episodes: int) -> list[Result]:
    print(f"\n{title}\n")
    print("| seed | mean return of the iterations 1 to 5 | sampled | greedy | steps | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            result = run(seed, legacy, episodes, folder)
        found.append(result)
        means = ", ".join(f"{mean:.2f}" for mean in result.iterations)
        print(
            f"| {seed} | {means} | {result.sampled:.2f} | {result.greedy:.2f} | {result.steps} | "
            f"{result.seconds:.0f} |",
            flush=True,
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--legacy-seeds", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    print(versions(), "cores:", os.cpu_count())
    found = table("example-v0", range(arguments.seeds), False, arguments.episodes)
    reached = all(result.sampled >= REACH_MEAN and result.greedy == REACH_GREEDY for result in found)
    if found:
        print(
            f"\nlowest of the seeds: sampled {min(result.sampled for result in found):.2f} (to reach: {REACH_MEAN}), "
            f"greedy {min(result.greedy for result in found):.2f} (to reach: {REACH_GREEDY})"
        )
    legacy = table("example-v0 with legacy=True", range(arguments.legacy_seeds), True, arguments.episodes)
    if legacy:
        columns = zip(*(result.iterations for result in legacy), strict=True)
        print(f"\nmean of the seeds: {', '.join(f'{statistics.fmean(column):.2f}' for column in columns)}")
        print(f"published:         {', '.join(f'{mean:.2f}' for mean in PUBLISHED_LEGACY)}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
