"""Actions per second of policies that see images of 4x64x64: torch's eager forward against the NumPy backend.

    python benchmarks/image_acting.py                 images of 4x64x64, every network
    python benchmarks/image_acting.py --cameras       one or two cameras, as robots have them, network `small`

Both act on the same weights, one random image at a time, on one thread, in turn, five times.
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

import numpy as np
import torch
from gymnasium import spaces
from wire_bytes import versions

from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor

IMAGES = spaces.Box(0, 255, (4, 64, 64), np.uint8)
ACTIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
CAMERAS: dict[str, Any] = {
    f"{number} of {side}x{side}x3": spaces.Dict(
        {f"camera {n}": spaces.Box(0, 255, (side, side, 3), np.uint8) for n in range(number)}
        | {"joints": spaces.Box(-1, 1, (14,), np.float32)}
    )
    for number, side in ((1, 64), (2, 64), (1, 128), (2, 128), (1, 224), (2, 224))
}
NETWORKS: dict[str, Any] = {
    "tiny": "tiny",
    "small": "small",
    "large": "large",
    "Mnih et al. (2015)": [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
}


def actions_per_second(act: Callable[[Any], Any], images: list[np.ndarray], seconds: float) -> float:
    """Actions that `act` makes per second of this processor's time."""
    count = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        for image in images:
            act(image)
        count += len(images)
    return count / elapsed


def cameras(repetitions: int, seconds: float) -> None:
    """Print the rates of one network for each number and size of cameras."""
    print("| cameras | NumPy, actions/s, median | range | torch, median | range | NumPy's time / torch's |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, space in CAMERAS.items():
        space.seed(0)
        images = [space.sample() for _ in range(5)]
        original = SquashedGaussianMLPActor(space, ACTIONS, convolutions="small")
        acting = NumpySquashedGaussianMLPActor(space, ACTIONS, convolutions="small", random=0.0, seed=0)
        acting.from_blob(*original.to_blob(), device="cpu")
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(repetitions):
            for act, found in zip((acting.act_, original.act_), rates, strict=True):
                found.append(actions_per_second(act, images, seconds))
        cells = [f"{statistics.median(one):,.0f} | {min(one):,.0f} to {max(one):,.0f}" for one in rates]
        ratio = statistics.median(rates[1]) / statistics.median(rates[0])
        print(f"| {name} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per repetition, network and side")
    parser.add_argument(
        "--reach", type=float, default=20.0, help="actions/s of the NumPy backend below which the exit is 1"
    )
    parser.add_argument("--cameras", action="store_true", help="larger pictures beside 14 numbers, network `small`")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, IMAGES.shape, np.uint8) for _ in range(20)]
    print(f"{versions()}, torch {torch.__version__}; {arguments.repetitions} repetitions in turn, one thread\n")
    if arguments.cameras:
        cameras(arguments.repetitions, arguments.seconds)
        return 0
    print("| network | parameters | NumPy, actions/s, median | range | torch, median | range |")
    print("| --- | --- | --- | --- | --- | --- |")
    lowest = float("inf")
    for name, convolutions in NETWORKS.items():
        original = SquashedGaussianMLPActor(IMAGES, ACTIONS, convolutions=convolutions)
        acting = NumpySquashedGaussianMLPActor(IMAGES, ACTIONS, convolutions=convolutions, random=0.0, seed=0)
        acting.from_blob(*original.to_blob(), device="cpu")
        gap = max(np.abs(original.act_(one, test=True) - acting.act(one, test=True)).max() for one in images)
        if gap > 1e-5:
            print(f"the backends differ by {gap}", file=sys.stderr)
            return 1
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(arguments.repetitions):
            for act, found in zip((acting.act_, original.act_), rates, strict=True):
                found.append(actions_per_second(act, images, arguments.seconds))
        cells = [f"{statistics.median(one):,.0f} | {min(one):,.0f} to {max(one):,.0f}" for one in rates]
        print(f"| {name} | {sum(p.numel() for p in original.parameters()):,} | {' | '.join(cells)} |")
        lowest = min(lowest, statistics.median(rates[0]))
    print(f"\nTo reach: {arguments.reach:,.0f} actions/s of the NumPy backend.")
    return 0 if lowest >= arguments.reach else 1


if __name__ == "__main__":
    raise SystemExit(main())
