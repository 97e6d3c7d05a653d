"""Steps per second of a recurrent policy with one observation at a time, with NumPy and with torch.

    python benchmarks/recurrent_acting.py --out benchmarks/results/recurrent_acting_HARDWARE_YYYYMM.md

A step is one call of the policy runner: the action of one observation, the extras, and the state for the next step.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from gymnasium import spaces

OBSERVATION = spaces.Box(-np.inf, np.inf, (17,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (6,), np.float32)


def steps_per_s(actor: Any, steps: int, runner: bool) -> float:
    """Return steps per second of processor time, with exploration."""
    from tmrl_core.actor.rollout.runner import PolicyRunner

    acting = PolicyRunner(lambda **_: actor, OBSERVATION, ACTION, seed=0)
    acting.actor.set_exploration({"random": 0.0, "epsilon": 0.0})
    observations = list(np.random.default_rng(0).standard_normal((1000, 17)).astype(np.float32))
    acting.reset()
    state, rng = actor.initial_state(1), np.random.default_rng(0)
    began = time.process_time()
    for step in range(steps):
        obs = observations[step % 1000]
        if runner:
            acting.decide(obs, False, True)
        else:
            _, state, _ = actor.act_batch(obs[None], state, rng, False)
    return steps / (time.process_time() - began)


def main() -> None:
    """Measure each policy in turn, and print or write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import torch

    import tmrl_core.actor as actors

    torch.set_num_threads(1)
    rows = [
        "| policy | cell | backend | `act_batch` | policy runner |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ("SquashedGaussianRNNActor", "GaussianRNNActor"):
        for cell in ("gru", "lstm"):
            for backend in ("Numpy", ""):
                actor = getattr(actors, backend + name)(
                    OBSERVATION, ACTION, hidden_sizes=(128,), cell=cell, cell_size=128
                )
                steps = args.steps if backend else args.steps // 10
                found = []
                for runner in (False, True):
                    rates = [steps_per_s(actor, steps, runner) for _ in range(args.repeats)]
                    found.append(f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})")
                rows.append(f"| {name} | {cell} 128 | {'NumPy' if backend else 'torch'} | {' | '.join(found)} |")
    text = f"""# Recurrent acting, one observation at a time

Steps per second of processor time, median (lowest to highest) of {args.repeats} runs of {args.steps:,} steps (torch: a
tenth). Observation of 17 float32, hidden layer of 128, recurrent layer of 128, action of 6; with exploration, one
thread.

{chr(10).join(rows)}

Command: `python {" ".join(sys.argv)}`. Python {platform.python_version()},
NumPy {np.__version__}, torch {torch.__version__}, {os.cpu_count()} cores of {platform.machine()}.
"""
    if args.out is None:
        print(text)
    else:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
