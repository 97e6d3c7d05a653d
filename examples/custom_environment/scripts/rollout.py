"""Run 20 rendered steps with the policy of a checkpoint, without Server and workers."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import gymnasium

from tmrl_core import Trainer
from tmrl_core.config import load

CONFIG = Path(__file__).resolve().parents[1] / "line_walk.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path, nargs="?", help="default: the last checkpoint of the run")
    parser.add_argument("-c", "--config", type=Path, default=CONFIG)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as tmrl_core's --set")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)  # otherwise the Trainer logs its steps
    config = load(arguments.config, arguments.set)
    checkpoints = config.run_folder / "checkpoints"
    path = arguments.checkpoint or max(checkpoints.glob("checkpoint_*"), default=None)
    if path is None:
        parser.error(f"{checkpoints} holds no checkpoint: run train.py first, or name one")

    with Trainer(config=config) as trainer:
        trainer.restore(path)
        env = gymnasium.make(config.environment.kwargs["id"], render_mode="human")
        obs, _ = env.reset(seed=arguments.seed)
        total = 0.0
        for _ in range(arguments.steps):
            obs, reward, terminated, truncated, _ = env.step(trainer.act(obs, test=True))
            total += float(reward)
            env.render()
            if terminated or truncated:
                print("cumulative reward", total)
                obs, _ = env.reset()
                total = 0.0
        env.close()


if __name__ == "__main__":
    main()
