"""Measure the mean return of random moves over 10,000 episodes."""

from __future__ import annotations

import argparse
import statistics

import gymnasium


def play(env: gymnasium.Env) -> float:
    """Return the return of one episode of random moves."""
    env.reset()
    total, over = 0.0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += float(reward)
        over = terminated or truncated
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="line_walk:LineWalk-v0", help="a Gymnasium id")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--legacy", action="store_true", help="the classic variant of tmrl_core.envs:example-v0")
    arguments = parser.parse_args()
    options = {"legacy": True} if arguments.legacy else {}
    env = gymnasium.make(arguments.env, disable_env_checker=True, **options)
    env.reset(seed=arguments.seed)
    env.action_space.seed(arguments.seed)
    returns = [play(env) for _ in range(arguments.episodes)]
    error = statistics.stdev(returns) / len(returns) ** 0.5
    print(f"random moves: mean return {statistics.fmean(returns):.3f} +- {error:.3f} over {len(returns)} episodes")


if __name__ == "__main__":
    main()
