"""Mean return of a policy that sees a rendered game only, against random actions: DQN through all roles over TLS.

    python benchmarks/learning/images.py [--seeds 3] [--compile true]

A Server, a worker and a Trainer are processes on this machine, with the settings of without_peer/images.yaml; the
trainer has one thread. The worker draws 64 x 64 colour pixels for each step with pygame and runs the convolutions
with NumPy, without torch. A seed's score is the best mean of 30 deterministic episodes among the evaluations (one
each 250 updates).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pygame
from gymnasium import spaces

ROOT = Path(__file__).resolve().parents[2]
REACH = 0.8
"""Mean return of each seed. A ball that is caught has 1, one that is missed -1."""
RANDOM_EPISODES = 500


class RenderedCatch(gymnasium.Env[Any, Any]):
    """A ball falls, and a paddle moves left, stays or moves right. Reward: 1 for a caught ball, else -1.

    Observations are the picture that pygame draws.
    """

    SIDE, COLUMNS, ROWS = 64, 10, 9
    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.surface = pygame.Surface((self.SIDE, self.SIDE))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.column, self.paddle = 0, int(self.np_random.integers(self.COLUMNS)), self.COLUMNS // 2
        return self.picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.COLUMNS - 1)
        self.row += 1
        down = self.row == self.ROWS
        caught = abs(self.paddle - self.column) <= 1
        return self.picture(), (1.0 if caught else -1.0) if down else 0.0, down, False, {}

    def picture(self) -> np.ndarray:
        """Draw the ball and the paddle."""
        self.surface.fill((40, 60, 90))
        pygame.draw.circle(self.surface, (240, 200, 60), (5 + 6 * self.column, 4 + 6 * self.row), 3)
        pygame.draw.rect(self.surface, (220, 80, 70), (6 * self.paddle - 4, 60, 18, 4))
        return pygame.surfarray.array3d(self.surface)


def random_return() -> float:
    """Return the mean return of random actions."""
    env = RenderedCatch()
    env.action_space.seed(0)
    returns = []
    for seed in range(RANDOM_EPISODES):
        env.reset(seed=seed)
        reward, over = 0.0, False
        while not over:
            _, reward, over, _, _ = env.step(env.action_space.sample())
        returns.append(reward)
    return statistics.fmean(returns)


def learn(seed: int, compiled: str) -> tuple[list[float], float, bool]:
    """Return the means of a run's evaluations, its seconds, and True if its updates were compiled."""
    from tmrl_core.metrics import names, read_records

    with tempfile.TemporaryDirectory() as folder:
        changes = [f"run.seed={seed}", f"run.folder={folder}/runs", f"network.credentials_dir={folder}/keys"]
        changes += [f"agent.kwargs.compile={compiled}"] if compiled else []
        options = [word for change in changes for word in ("--set", change)]
        config = str(Path(__file__).parent / "without_peer" / "images.yaml")
        command = [sys.executable, "-m", "tmrl_core", "--local", "--workers", "1", "-c", config, *options]
        environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        (log,) = Path(folder, "runs").glob("*/metrics.jsonl")
        found = [record.number(names.RETURN_EVALUATION) for record in read_records(log) if record.kind == "evaluation"]
        said = [done.stdout, done.stderr, *(log.read_text() for log in Path(folder).rglob("*.log"))]
    return [mean for mean in found if mean is not None], seconds, any("compiled in" in text for text in said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--compile", choices=("true", "false", "auto"), default="", help="agent.kwargs.compile")
    arguments = parser.parse_args()
    bar = random_return()
    print(f"random actions: {bar:.2f}, mean of {RANDOM_EPISODES} episodes; to reach: {REACH:g} with each seed")
    print("| seed | evaluations | best | compiled | seconds |")
    print("| --- | --- | --- | --- | --- |")
    reached = True
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        means, seconds, was_compiled = learn(seed, arguments.compile)
        best = max(means, default=-1.0)
        reached &= best >= REACH
        shown = ", ".join(f"{mean:.2f}" for mean in means)
        print(f"| {seed} | {shown} | {best:.2f} | {'yes' if was_compiled else 'no'} | {seconds:.0f} |", flush=True)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
