"""Processor time of a manager of 8 agents, as a multiple of a loop that makes the identical experiences by hand.

    python benchmarks/manager_cost.py --out benchmarks/results/manager_cost_HARDWARE_YYYYMM.md

Both sides play the same episodes of a small event environment with the same seed: 8 agents decide in turn, each with a
policy of its own, a NumPy network of two hidden layers, with epsilon-greedy exploration. A decision's state is an array
made from the event and the environment's history. The experiences are 3-step returns of each agent with next states,
discounts and flags. One side is `Actor.roll_out`: manager, shapers, checks. The other is `by_hand`, one function with
lists and NumPy that checks nothing. The script stops if their experiences differ in a key, a dtype or a bit.

Each repetition plays one episode on each side, in turn; the ratio is the median of the ratios of the pairs. One thread.
The manager's cost is nearly constant, so its share falls with the cost of environment, shapers and policy. The target
is that of the last row: the container scenario of examples/containers with 8 ports, its shapers, and the policy of
`DQNAgent` on its NumPy backend, two hidden layers of 64. The rows before show an environment that does next to nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "containers"))

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from wire_bytes import versions

from tmrl_core.multiagent import (
    ActingPolicy,
    ActionShaper,
    Actor,
    AgentAlgorithm,
    AgentManager,
    Assembly,
    EventEnvironment,
    KStepExperienceShaper,
    PolicySettings,
    StateShaper,
)
from tmrl_core.networking.protocol.messages import Blob

IDS = tuple(f"port{number}" for number in range(8))
GAMMA, K = 0.97, 3
ORDERS = np.linspace(-1.0, 1.0, 11).tolist()
REACH = 1.2


class Ports(EventEnvironment):
    """Ports take or give containers, one after another; demand is drawn when the episode begins.

    Args:
        length: decisions of an episode.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.reset()

    def set_seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> None:
        self._tick = 0
        self._shortage = 0.0
        self._stock = dict.fromkeys(IDS, 10.0)
        self._history: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * 4

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        if action is None:
            self._demand = self._rng.random(self.length + 1).tolist()
            metrics = None
        else:
            port, amount = action
            stock = self._stock[port] + amount
            demand = self._demand[self._tick]
            shortage = max(0.0, demand - stock)
            self._stock[port] = max(0.0, stock - demand)
            self._history.append((stock, demand, shortage))
            self._shortage += shortage
            self._tick += 1
            metrics = {"shortage": shortage, "fulfilled": demand - shortage}
        port = IDS[self._tick % len(IDS)]
        event = {"agent": port, "stock": self._stock[port], "tick": self._tick}
        return metrics, event, self._tick >= self.length

    @property
    def snapshot_list(self) -> Any:
        return self._history

    @property
    def metrics(self) -> Any:
        return {"score": -self._shortage}


class Network(AgentAlgorithm):
    """An epsilon-greedy policy over action values, with two hidden layers.

    Args:
        hidden: units of each hidden layer.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        sizes = (14, hidden, hidden, len(ORDERS))
        self._layers = [
            (rng.standard_normal((first, second), dtype=np.float32) / first**0.5, np.zeros(second, np.float32))
            for first, second in pairwise(sizes)
        ]

    def choose_action(self, state: Any, epsilon: float) -> int:
        if self.rng.random() < epsilon:
            return int(self.rng.integers(len(ORDERS)))
        (first, first_bias), (second, second_bias), (last, last_bias) = self._layers
        hidden = np.maximum(state @ first + first_bias, 0.0)
        hidden = np.maximum(hidden @ second + second_bias, 0.0)
        return int((hidden @ last + last_bias).argmax())

    def train_on_batch(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_model(self) -> Blob:
        return Blob("none", b"")

    def load_model(self, model: Blob) -> None: ...


def state_of(decision_event: Any, snapshot_list: Any) -> Any:
    """Return the model state: stock, time, and the last four entries of the history."""
    a, b, c, d = snapshot_list[-4:]
    return np.array([decision_event["stock"], decision_event["tick"] * 1e-3, *a, *b, *c, *d], np.float32)


def order_of(model_action: int, decision_event: Any, snapshot_list: Any) -> tuple[str, float]:
    """Return the executable action."""
    return decision_event["agent"], ORDERS[model_action]


def reward_of(metrics: Any) -> float:
    """Return the reward of a decision."""
    return 0.1 * float(metrics["fulfilled"]) - float(metrics["shortage"])


class States(StateShaper):
    _shape = staticmethod(state_of)


class Orders(ActionShaper):
    _shape = staticmethod(order_of)


def manager(hidden: int) -> AgentManager:
    """Return a manager in which each agent has a policy of its own."""
    policies = {agent: PolicySettings(algorithm=lambda: Network(hidden)) for agent in IDS}
    return AgentManager(
        "inference",
        IDS,
        config=Assembly(agents={agent: agent for agent in IDS}, policies=policies),
        state_shaper=States(),
        action_shaper=Orders(),
        experience_shaper=KStepExperienceShaper(reward_of, gamma=GAMMA, k=K),
    )


def by_hand(
    env: Ports, policies: dict[str, Network], epsilons: dict[str, float], seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Play an episode and make its experiences, without a manager."""
    env.set_seed(seed)
    for agent, policy in policies.items():
        policy.rng = np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(f"policy {agent}".encode())]))
    states: dict[str, list[Any]] = {}
    actions: dict[str, list[int]] = {}
    rewards: dict[str, list[float]] = {}
    _, event, done = env.step(None)
    while not done:
        agent = event["agent"]
        history = env.snapshot_list
        state = state_of(event, history)
        action = policies[agent].choose_action(state, epsilons[agent])
        metrics, event, done = env.step(order_of(action, event, history))
        if agent not in states:
            states[agent], actions[agent], rewards[agent] = [], [], []
        states[agent].append(state)
        actions[agent].append(action)
        rewards[agent].append(reward_of(metrics))
    experiences = {}
    for agent, own in states.items():
        count = len(own)
        k = min(K, count)
        start = np.arange(count)
        state = np.array(own)
        at_end = start + k >= count
        experiences[agent] = {
            "state": state,
            "action": np.array(actions[agent]),
            "reward": np.convolve(rewards[agent][::-1], GAMMA ** np.arange(k))[count - 1 :: -1].astype(np.float32),
            "next_state": state[np.minimum(start + k, count - 1)],
            "discount": (GAMMA ** np.minimum(k, count - start)).astype(np.float32),
            "terminated": at_end,
            "truncated": np.zeros(count, bool),
        }
    performance = env.metrics
    env.reset()
    return {"local": performance}, experiences


def container_scenario() -> Any:
    """Return a configuration of the container scenario with 8 ports and four times as many ticks."""
    from containers import Config, Port, Ship  # type: ignore[import-not-found,unused-ignore]

    names = IDS
    return Config(
        ports=tuple(Port(name=name, exports=1.0 + i, imports=8.0 - i) for i, name in enumerate(names)),
        ships=tuple(
            Ship(name=f"ship{i}", route=(*names[i:], *names[:i])[: 4 + i % 5], first=i) for i in range(len(names))
        ),
        ticks=400,
    )


def acting(scenario: Any) -> ActingPolicy:
    """Return the policy of one port: the acting half of a `DQNAgent`."""
    from container_agents import SHARES, state_size  # type: ignore[import-not-found,unused-ignore]

    states = Dict(
        state=Box(-np.inf, np.inf, (state_size(scenario),), np.float32), action_mask=Box(0, 1, (len(SHARES),), np.int8)
    )
    return ActingPolicy("tmrl_core.training:DQNAgent", states, Discrete(len(SHARES)), hidden_sizes=(64, 64))


def containers_by_hand(
    env: Any, policies: dict[str, ActingPolicy], epsilons: dict[str, float], seed: int, shapers: tuple[Any, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Play an episode of the container scenario and make its experiences, without a manager."""
    state_of_call, containers_of = shapers[0]._shape, shapers[1]._shape
    env.set_seed(seed)
    for agent, policy in policies.items():
        policy.seed(np.random.SeedSequence([seed, zlib.crc32(f"policy {agent}".encode())]))
    states: dict[str, list[Any]] = {}
    actions: dict[str, list[int]] = {}
    calls: dict[str, list[int]] = {}
    _, event, done = env.step(None)
    while not done:
        agent = event.agent
        snapshots = env.snapshot_list
        state = state_of_call(event, snapshots)
        action = policies[agent].choose_action(state, epsilons[agent])
        if agent not in states:
            states[agent], actions[agent], calls[agent] = [], [], []
        states[agent].append(state)
        actions[agent].append(action)
        calls[agent].append(event.tick + 1)
        _, event, done = env.step(containers_of(action, event, snapshots))
    lost = [sum(state.shortage for state in tick) for tick in zip(*env.snapshot_list.ports.values(), strict=True)]
    experiences = {}
    for agent, own in states.items():
        count = len(own)
        k = min(3, count)
        start = np.arange(count)
        after = np.minimum(start + k, count - 1)
        rewards = np.array([-sum(lost[tick : tick + 4]) / 100.0 for tick in calls[agent]])
        columns = {name: np.array([state[name] for state in own]) for name in ("state", "action_mask")}
        experiences[agent] = {
            "state": columns,
            "action": np.array(actions[agent]),
            "reward": np.convolve(rewards[::-1], 0.9 ** np.arange(k))[count - 1 :: -1].astype(np.float32),
            "next_state": {name: column[after] for name, column in columns.items()},
            "discount": (0.9 ** np.minimum(k, count - start)).astype(np.float32),
            "terminated": start + k >= count,
            "truncated": np.zeros(count, bool),
        }
    performance = env.metrics
    env.reset()
    return {"local": performance}, experiences


def check_identical(first: Any, second: Any, place: str = "experiences") -> None:
    """Stop if two results differ."""
    if isinstance(first, dict):
        assert list(first) == list(second), f"{place}: {list(first)} and {list(second)}"
        for key in first:
            check_identical(first[key], second[key], f"{place}[{key!r}]")
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype, f"{place}: {first.dtype} and {second.dtype}"
        assert np.array_equal(first, second), place
    else:
        assert first == second, place


def container_case(epsilons: dict[str, float]) -> tuple[str, int, Actor, Callable[[int], Any]]:
    """Return the container scenario as a case: name, decisions (0: count them), both sides."""
    from container_agents import (  # type: ignore[import-not-found,unused-ignore]
        CallStateShaper,
        PortManager,
        ShareActionShaper,
    )
    from containers import ContainerInventory  # type: ignore[import-not-found,unused-ignore]

    scenario = container_scenario()
    first = {agent: acting(scenario) for agent in IDS}
    policies = {agent: acting(scenario) for agent in IDS}
    for agent in IDS:
        policies[agent].load_model(first[agent].get_model())
    assembly = Assembly(
        agents={agent: agent for agent in IDS},
        policies={agent: PolicySettings(algorithm=partial(first.__getitem__, agent)) for agent in IDS},
    )
    agents = PortManager("inference", IDS, config=assembly, scenario=scenario)
    shapers = CallStateShaper(scenario), ShareActionShaper()

    def play(seed: int) -> Any:
        return containers_by_hand(env, policies, epsilons, seed, shapers)

    env = ContainerInventory(scenario)
    return "container scenario", 0, Actor(ContainerInventory(scenario), agents), play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=41)
    parser.add_argument("--decisions", type=int, default=4000, help="of an episode")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128, 256], help="units of both hidden layers")
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    epsilons = dict.fromkeys(IDS, arguments.epsilon)
    cases: list[tuple[str, int, Actor, Callable[[int], Any]]] = []
    for hidden in arguments.hidden:
        env, policies = Ports(arguments.decisions), {agent: Network(hidden) for agent in IDS}
        cases.append(
            (
                f"{hidden}, {hidden}",
                arguments.decisions,
                Actor(Ports(arguments.decisions), manager(hidden)),
                partial(by_hand, env, policies, epsilons),
            )
        )
    cases.append(container_case(epsilons))
    rows, reached = [], False
    for label, decisions, actor, play in cases:
        managed: list[float] = []
        plain: list[float] = []
        for seed in range(arguments.repetitions + 1):
            results = {}
            for times, name in ((managed, "manager"), (plain, "by hand"))[:: 1 if seed % 2 else -1]:
                began = time.process_time()
                results[name] = actor.roll_out(None, epsilons, seed) if name == "manager" else play(seed)
                times.append(time.process_time() - began)
            for part in (0, 1):
                check_identical(results["manager"][part], results["by hand"][part])
        pairs = [one / other for one, other in zip(managed[1:], plain[1:], strict=True)]  # the first one warms up
        ratio = statistics.median(pairs)
        reached = ratio <= REACH
        decisions = decisions or sum(len(columns["reward"]) for columns in results["manager"][1].values())
        per_decision = [1e6 * statistics.median(times[1:]) / decisions for times in (managed, plain)]
        rows.append(
            f"| {label} | {per_decision[0]:.1f} us | {per_decision[1]:.1f} us | {ratio:.3f} "
            f"({statistics.quantiles(pairs, n=4)[0]:.3f} to {statistics.quantiles(pairs, n=4)[2]:.3f}; "
            f"{min(pairs):.3f} to {max(pairs):.3f}) |"
        )
    table = "\n".join(
        [
            "| environment and policy | manager, per decision | by hand | manager / by hand (quartiles; extremes) |",
            "| --- | --- | --- | --- |",
            *rows,
        ]
    )
    text = f"""# Cost of an agent manager

`python benchmarks/manager_cost.py {" ".join(sys.argv[1:])}`; {versions()}; load
{os.getloadavg()[0]:.0f}

Processor time of {arguments.repetitions} pairs of episodes by {len(IDS)} agents, in turn: {arguments.decisions:,}
decisions, in the container scenario 400 ticks. The experiences of both sides were identical in every pair.

{table}

To reach: {REACH} in the container scenario.
"""
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
