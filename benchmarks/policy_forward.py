"""Actions per second of the policy of two hidden layers of 256: torch's eager forward, NumPy backend, ONNX file.

    python benchmarks/policy_forward.py

All act on the same weights, one observation of Pendulum at a time, on one thread, in turn, five times. The file runs in
ONNX Runtime.
"""

# ruff: noqa: E402  # the environment must be set before NumPy and torch are imported
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# One thread each, decided before NumPy and torch load their libraries: a worker has no more to spare.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import gymnasium
import numpy as np
import onnxruntime
import torch
from wire_bytes import versions

from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor
from tmrl_core.onnx_export.file import model_of


def actions_per_second(act: Callable[[Any], Any], obs: np.ndarray, seconds: float) -> float:
    """How many actions `act` makes in about `seconds`."""
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(500):
            act(obs)
        count += 500
    return count / elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per repetition and side")
    parser.add_argument(
        "--reach", type=float, default=90_000.0, help="actions/s of the NumPy backend below which the exit is 1"
    )
    arguments = parser.parse_args()

    env = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    original = SquashedGaussianMLPActor(env.observation_space, env.action_space)
    numpy_actor = NumpySquashedGaussianMLPActor(env.observation_space, env.action_space, seed=0)
    numpy_actor.from_blob(*original.to_blob(), device="cpu")
    gap = float(np.abs(original.act_(obs, test=True) - numpy_actor.act(obs, test=True)).max())
    if gap > 1e-5:
        print(f"the backends differ by {gap}", file=sys.stderr)
        return 1

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    data = model_of(numpy_actor).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    sides: dict[str, Callable[[Any], Any]] = {
        "torch's eager forward": original.act_,
        "NumPy backend": numpy_actor.act_,
        "ONNX Runtime, deterministic": lambda obs: session.run(["action"], {"observation": obs[None]}),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for act in sides.values():
        actions_per_second(act, obs, 0.2)
    for _ in range(arguments.repetitions):
        for name, act in sides.items():
            rates[name].append(actions_per_second(act, obs, arguments.seconds))

    slow, fast, _ = (statistics.median(values) for values in rates.values())
    print(f"{versions()}, torch {torch.__version__}; {arguments.repetitions} repetitions in turn, one thread\n")
    print("| what | actions/s, median | range | of torch |")
    print("| --- | --- | --- | --- |")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"| {name} | {median:,.0f} | {min(values):,.0f} to {max(values):,.0f} | {median / slow:.1f} |")
    print(f"\nTo reach: {arguments.reach:,.0f} actions/s for the NumPy backend.")
    return 0 if fast >= arguments.reach else 1


if __name__ == "__main__":
    raise SystemExit(main())
