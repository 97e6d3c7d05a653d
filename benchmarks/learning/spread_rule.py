"""Random play and a hand-written rule for `simple_spread` of mpe2: the two ends of the scale for what is learned.

    python benchmarks/learning/spread_rule.py
    python benchmarks/learning/spread_rule.py --search 60

The rule: assign landmarks to agents so that the distances are least in sum (of a power of them), in every step anew.
All agents see all positions, so each makes the same assignment. Each agent then tries all its action sequences of some
steps on its own equations of motion, and takes the first action of the one that keeps it nearest to its landmark, with
a penalty for predicted collisions. The others are predicted to keep their velocities, which an agent knows from their
last positions.

`--search` draws the rule's numbers at random, plays each draw on the same 100 starts, and prints the best ones.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3
from numpy.typing import NDArray

Array = NDArray[Any]
PUSHES = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
"""Direction of each action."""
DT, DAMPING, ACCELERATION, COLLISION = 0.1, 0.25, 5.0, 0.3
"""Of the environment: seconds of a step, part of the speed lost in it, acceleration, and distance of a collision."""
SEARCH, TEST = 1_000_000, 2_000_000
"""First seeds of the starts on which the rule's numbers were chosen, and of those on which scores are reported."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule's numbers.

    Args:
        depth: length of the action sequences that are tried.
        power: of the distances whose sum the assignment minimizes.
        penalty: cost of a predicted collision in one step, in units of distance.
        margin: distance beyond that of a collision that counts as one.
        keep: cost of another assignment than the last one, so that agents do not dither.
    """

    depth: int = 4
    power: float = 1.5
    penalty: float = 0.5
    margin: float = 0.02
    keep: float = 0.2


class Player:
    """Plays all agents of an episode by the rule, each from its own observation and its own last one alone."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._sequences = np.array(list(itertools.product(range(len(PUSHES)), repeat=rule.depth)))
        """[S, depth]"""
        self._before: dict[str, tuple[Array, tuple[int, ...]]] = {}

    def __call__(self, agent: str, observation: Array) -> int:
        rule, own = self.rule, int(agent[-1])
        velocity, place = observation[:2].astype(np.float64), observation[2:4].astype(np.float64)
        landmarks = place + observation[4:10].reshape(3, 2)
        others = place + observation[10:14].reshape(2, 2)
        places = np.insert(others, own, place, axis=0)
        last, kept = self._before.get(agent, (places, ()))
        cost = np.linalg.norm(places[:, None] - landmarks, axis=-1) ** rule.power
        assigned = min(
            itertools.permutations(range(3)),
            key=lambda order: sum(cost[i, order[i]] for i in range(3)) + rule.keep * (order != kept),
        )
        self._before[agent] = places, assigned
        moved = np.delete(places - last, own, axis=0)
        ways = self._ways(velocity, place)
        costs = np.linalg.norm(ways - landmarks[assigned[own]], axis=-1).sum(1)
        for other, step in zip(others, moved, strict=True):
            predicted = other + np.arange(1, rule.depth + 2)[:, None] * step
            near = np.linalg.norm(ways - predicted, axis=-1) < COLLISION + rule.margin
            costs += rule.penalty * near.sum(1)
        return int(self._sequences[costs.argmin(), 0])

    def _ways(self, velocity: Array, place: Array) -> Array:
        """Return [S, depth + 1, 2], the places after each step of each sequence. An action moves one step later."""
        velocities, places, ways = np.broadcast_to(velocity, (len(self._sequences), 2)), place, []
        for step in range(self.rule.depth + 1):
            places = places + velocities * DT
            ways.append(places)
            if step < self.rule.depth:
                velocities = velocities * (1 - DAMPING) + PUSHES[self._sequences[:, step]] * ACCELERATION * DT
        return np.stack(np.broadcast_arrays(*ways), axis=1)


def score(player: Callable[[], Callable[[str, Array], int]], seed: int, env: Any) -> float:
    """Return the mean return of the agents in one episode."""
    env.reset(seed=seed)
    act, total = player(), 0.0
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        total += float(reward)
        env.step(None if terminated or truncated else act(agent, observation))
    return total / len(env.possible_agents)


def scores(player: Callable[[], Callable[[str, Array], int]], seeds: range) -> list[float]:
    env = simple_spread_v3.env(max_cycles=25)
    return [score(player, seed, env) for seed in seeds]


def random_player(seed: int) -> Callable[[], Callable[[str, Array], int]]:
    rng = np.random.default_rng(seed)
    return lambda: lambda agent, observation: int(rng.integers(len(PUSHES)))


def search(draws: int) -> None:
    rng = np.random.default_rng(0)
    found = []
    for number in range(draws):
        rule = (
            Rule()
            if not number
            else Rule(
                depth=int(rng.integers(1, 6)),
                power=float(rng.choice([1.0, 1.0, 1.5, 2.0, 4.0])),
                penalty=float(rng.choice([0.0, 0.1, 0.25, 0.5, 1.0, 2.0])),
                margin=float(rng.choice([0.0, 0.02, 0.05, 0.1])),
                keep=float(rng.choice([0.0, 0.05, 0.2, 10.0])),
            )
        )
        mean = statistics.fmean(scores(partial(Player, rule), range(SEARCH, SEARCH + 100)))
        found.append((mean, rule))
        print(f"{mean:8.2f}  {rule}", flush=True)
    print("\nbest:")
    for mean, rule in sorted(found, key=lambda one: -one[0])[:8]:
        print(f"{mean:8.2f}  {rule}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--search", type=int, metavar="N", help="try N draws of the rule's numbers")
    parser.add_argument("--episodes", type=int, default=300)
    arguments = parser.parse_args()
    if arguments.search:
        search(arguments.search)
        return
    seeds = range(TEST, TEST + arguments.episodes)
    for name, player in (("random", random_player(0)), ("rule", partial(Player, Rule()))):
        found = scores(player, seeds)
        error = statistics.stdev(found) / len(found) ** 0.5
        print(f"{name}: {statistics.fmean(found):.2f} +- {error:.2f} (standard error, {len(found)} episodes)")


if __name__ == "__main__":
    main()
