"""Processor time of a SAC update compiled by us, beside torch.compile alone.

    python benchmarks/plain_compile.py [--updates N] [--repetitions N] [--hidden N] [--batch N] [--threads N]

All sides make the same update, with its check that all numbers are finite, and sample from the same memory:

- `ours`: `compile: true`, one graph that `training/updates/` traces and inductor compiles.
- `update`: `torch.compile(agent.update)`; graphs break at each backward pass and at each optimizer step.
- `one graph`: torch.compile at its best. The update is rewritten for it: gradients by `torch.autograd.grad`, Adam as a
  function, and copies to choose from at the end. It takes a flag of Dynamo that is off by default
  (`trace_autograd_ops`).
- `eager`: `compile: false`.

The sides take turns; each ratio is one of neighbouring slices, which a machine that others use disturbs least.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from sac_updates import ACTIONS, OBSERVATIONS, memory
from torch import Tensor
from torch.optim.adam import adam

from tmrl_core.training import SacAgent
from tmrl_core.training.agents import off_policy, sac
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.batches import transitions_of
from tmrl_core.training.updates.rollback import agent_tensors, all_sums_finite, floating

REACH = 1.1
"""Ratio to ours below which torch.compile alone would do."""
Train = Callable[[Any], Any]


def agent_of(hidden: int, compile: bool) -> SacAgent:
    """An agent of two hidden layers."""
    torch.manual_seed(0)
    return SacAgent(OBSERVATIONS, ACTIONS, "cpu", compile=compile, hidden_sizes=(hidden, hidden))


def with_breaks(hidden: int) -> Train:
    """An agent whose `update` goes through torch.compile as it is."""
    agent: Any = agent_of(hidden, False)
    agent.update = torch.compile(agent.update)
    train: Train = agent.train
    return train


def functional_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Do what `minimise` does, in a form that Dynamo can follow."""
    (group,) = optimizer.param_groups
    parameters = group["params"]
    gradients = list(torch.autograd.grad(loss, parameters))
    states = [optimizer.state[parameter] for parameter in parameters]
    means, squares, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    beta1, beta2 = group["betas"]
    with torch.no_grad():
        adam(
            parameters, gradients, means, squares, [], steps,
            foreach=False, capturable=True, amsgrad=False, maximize=False,
            beta1=beta1, beta2=beta2, lr=group["lr"], weight_decay=0.0, eps=group["eps"],
        )  # fmt: skip


@contextmanager
def not_held(parameters: Any) -> Iterator[None]:
    """Do nothing: `torch.autograd.grad` leaves other parameters alone."""
    yield


def one_graph(hidden: int, batch: Any) -> Train:
    """An agent whose whole update, its check included, is one graph of torch.compile."""
    # The methods of the agent, with other functions where they look names up.
    rewritten: dict[str, Any] = {}
    for module, cls, methods in (
        (sac, SacAgent, ("update", "_update_critics", "_update_policy", "_update_temperature")),
        (off_policy, OffPolicyAgent, ("_step_critics",)),
    ):
        names = {**vars(module), "minimise": functional_step, "held": not_held}
        rewritten |= {name: FunctionType(vars(cls)[name].__code__, names) for name in methods}
    agent = agent_of(hidden, False)
    agent.train(batch)  # optimizers make their state in their first step
    agent._target_parameters, agent._source_parameters  # noqa: B018
    kept = agent_tensors(agent)
    agent.__class__ = type("Rewritten", (SacAgent,), rewritten)

    def update(batch: Any) -> tuple[dict[str, Tensor], Tensor]:
        transitions = transitions_of(batch, agent.settings.gamma)
        before = [tensor.detach().clone() for tensor in kept]
        metrics = agent.update(transitions)
        with torch.no_grad():
            finite = all_sums_finite(floating([*transitions, *metrics.values(), *(t.detach() for t in kept)]))
            for tensor, old in zip(kept, before, strict=True):
                tensor.copy_(torch.where(finite, tensor, old))
        return metrics, finite

    compiled = torch.compile(update, fullgraph=True, options={"fallback_random": True})

    def train(batch: Any) -> None:
        _, finite = compiled(batch)
        assert finite

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        train(batch)
    return train


def main() -> None:
    """Run all, in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    filled = memory(options.batch, "cpu")
    sides: dict[str, Train] = {
        "ours": agent_of(options.hidden, True).train,
        "eager": agent_of(options.hidden, False).train,
        "update": with_breaks(options.hidden),
        "one graph": one_graph(options.hidden, filled.sample()),
    }
    print(
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, {options.threads} "
        f"thread(s), 2 x {options.hidden}, batches of {options.batch}"
    )
    for name, train in sides.items():
        started = time.perf_counter()
        for _ in range(5):
            train(filled.sample())
        print(f"{name:18} ready after {time.perf_counter() - started:.1f} s", flush=True)
    spent_ms: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repetitions):
        for name, train in sides.items():
            started = time.process_time()
            for _ in range(options.updates):
                train(filled.sample())
            spent_ms[name].append((time.process_time() - started) / options.updates * 1e3)
    ratios = {}
    for name, found in spent_ms.items():
        pairs = sorted(a / b for a, b in zip(found, spent_ms["ours"], strict=True))
        ratios[name] = statistics.median(pairs)
        quarter = len(pairs) // 4
        print(
            f"{name:18} {statistics.median(found):6.2f} ms ({min(found):.2f} to {max(found):.2f}); of ours "
            f"{ratios[name]:.2f} ({pairs[quarter]:.2f} to {pairs[-1 - quarter]:.2f})"
        )
    best = min(ratio for name, ratio in ratios.items() if name not in ("ours", "eager"))
    print(f"torch.compile alone at its best takes {best:.2f} of ours; below {REACH} it would do")


if __name__ == "__main__":
    main()
