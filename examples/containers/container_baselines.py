"""Hand-written policies for the containers. As a script, print a table of their shortage.

python examples/containers/container_baselines.py [--seeds 20]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from typing import Any

from containers import Call, ContainerInventory, Snapshots

Policy = Callable[[Call, Snapshots], int]


def nothing(event: Call, snapshots: Snapshots) -> int:
    """Move no empty container."""
    return 0


def at_random(seed: int) -> Policy:
    """Return a policy that draws each action from its range."""
    draw = random.Random(seed)
    return lambda event, snapshots: draw.randint(-event.loadable, event.dischargeable)


def rule(event: Call, snapshots: Snapshots, recent: int = 10, ahead: int = 8) -> int:
    """Keep what the port needs for a while: its recent mean demand, less what returns to it anyway.

    Args:
        event: the call of a ship.
        snapshots: history of the episode.
        recent: ticks in the mean.
        ahead: ticks that the stock shall last.
    """
    states = snapshots.ports[event.agent][-recent:]
    demand = sum(state.orders for state in states) / len(states)
    wanted = round(ahead * demand) - states[-1].returning
    return max(-event.loadable, min(event.dischargeable, wanted - event.empty))


def play(env: ContainerInventory, policy: Policy, seed: int) -> dict[str, Any]:
    """Play an episode and return its metrics."""
    env.set_seed(seed)
    _, event, _ = env.step(None)
    while event is not None:
        _, event, _ = env.step(policy(event, env.snapshot_list))
    metrics = env.metrics
    env.reset()
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    env = ContainerInventory()
    found = {}
    for name, make in {"nothing": lambda _: nothing, "random": at_random, "rule": lambda _: rule}.items():
        found[name] = [play(env, make(seed), seed) for seed in seeds]
    print("| policy | shortage, mean and standard deviation | of all orders | against doing nothing |")
    print("| --- | --- | --- | --- |")
    for name, metrics in found.items():
        lost = [each["shortage"] for each in metrics]
        mean = statistics.fmean(lost)
        share = sum(lost) / sum(each["orders"] for each in metrics)
        change = sum(lost) / sum(each["shortage"] for each in found["nothing"]) - 1
        print(f"| {name} | {mean:,.0f} ± {statistics.stdev(lost):,.0f} | {share:.1%} | {change:+.0%} |")


if __name__ == "__main__":
    main()
