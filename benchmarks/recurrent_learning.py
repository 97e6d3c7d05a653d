"""Tasks that need memory, with a recurrent learner and with the same one without memory.

    python benchmarks/recurrent_learning.py                            # all tasks, three seeds
    python benchmarks/recurrent_learning.py recurrent_sac --without    # without memory only

Each run is one of `algorithms.py`, over TLS. Without memory, the policy is a multi-layer perceptron, and an off-policy
learner samples as many transitions as the sequences of a batch have ticks; all other settings are the same. *Score* is
the mean return of further deterministic episodes with the final weights: 500 of the delayed cue, 20 of Pendulum. The
exit status is 0 if each score is on the right side of its bound.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from algorithms import run
from wire_bytes import versions

TASKS = {"r2d2": (500, 0.95, 0.3), "recurrent_ppo": (500, 0.95, 0.3), "recurrent_sac": (20, -300.0, -600.0)}
"""By algorithm: episodes with the final weights, their lowest mean return with memory, the highest one without."""
WITHOUT = {
    "r2d2": (
        "actor={cls: 'tmrl_core.actor:QValueMLPActor', kwargs: {hidden_sizes: [32, 32]}}",
        "agent.cls=tmrl_core.training:DQNAgent",
        "agent.kwargs={gamma: 0.99, lr: 2.0e-3, polyak: 0.98, target_interval: 1, epsilon_final: 0.05, "
        "epsilon_updates: 500}",
        "memory={sampling: prioritized, capacity: 20000, batch_size: 320}",
    ),
    "recurrent_ppo": (
        "actor={cls: 'tmrl_core.actor:CategoricalMLPActor', kwargs: {hidden_sizes: [16, 32]}}",
        "agent.cls=tmrl_core.training:PPOAgent",
    ),
    "recurrent_sac": (
        "actor={cls: 'tmrl_core.actor:SquashedGaussianMLPActor', kwargs: {hidden_sizes: [64, 64]}}",
        "agent.cls=tmrl_core.training:SacAgent",
        "agent.kwargs={gamma: 0.98, polyak: 0.99, reward_scale: 0.1}",
        "memory={capacity: 80000, batch_size: 512}",
    ),
}
"""Settings without memory."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help=f"of {', '.join(TASKS)}; none: all")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    parser.add_argument("--first-seed", type=int, default=0)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--with", dest="kinds", action="store_const", const=("yes",), help="with memory only")
    only.add_argument("--without", dest="kinds", action="store_const", const=("no",), help="without memory only")
    parser.add_argument("--log", type=Path, default=None, help="folder for the metrics of each run")
    arguments = parser.parse_args()
    print(versions())
    print("| task | memory | seed | reached | steps | updates | best evaluation | score | all steps | total |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    reached_all = True
    for algorithm in arguments.algorithms or TASKS:
        episodes, least, most = TASKS[algorithm]
        for kind in arguments.kinds or ("yes", "no"):
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                log = arguments.log / kind if arguments.log is not None else None
                settings = WITHOUT[algorithm] if kind == "no" else ()
                found = run(algorithm, seed, 1, episodes, settings, log)
                reached_all = reached_all and (found.score <= most if kind == "no" else found.score >= least)
                steps, updates = ("-", "-") if found.reached is None else map(str, found.reached[:2])
                print(
                    f"| {algorithm} | {kind} | {seed} | {'yes' if found.learned else 'no'} | {steps} | {updates} | "
                    f"{found.best:.2f} | {found.score:.3f} | {found.steps:,} | {found.total_s:.0f} |",
                    flush=True,
                )
    return 0 if reached_all else 1


if __name__ == "__main__":
    sys.exit(main())
