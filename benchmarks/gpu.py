"""Compare and time updates on a GPU: all rows in one call, and the names of those that it could not measure.

    python benchmarks/gpu.py [--device cuda] [--budget-s 480] [--small]

GPU time is scarce, so one call does all, in this order. First the comparisons: compiled and uncompiled updates of the
same weights and batches must give the same parameters (1e-3 relative, 1e-2 with TF32). Then the rates, sampling from
the replay memory included: SAC with two layers of 256, 17 observations and 6 actions, batches of 256 and 4096,
compiled, compiled with TF32, and uncompiled; FlashSAC of full size with batches of 512; and stable-baselines3's SAC
where it is installed. PPO learns from one round again and again, and recurrent SAC from one batch of sequences, both
without sampling. A row begins only while the budget lasts; what failed or did not fit is listed with the reason, and
the exit status is then 1. Each rate waits for the device before the clock is read.

`--small --device cpu` runs every row with tiny networks and few updates, as a test of this script; the graphs of
updates are interpreted then, not compiled.
"""

from __future__ import annotations

import argparse
import copy
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import FlashSACAgent, PPOAgent, RecurrentSacAgent, ReplayMemory, SacAgent
from tmrl_core.training.batches import ENDS, FIRST_TICK, TICKS
from tmrl_core.training.updates.compiled import Compiler, inductor
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.updates.update_graph import Backend

OBSERVATIONS, ACTIONS = spaces.Box(-8, 8, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
ROW_S = 10.0
"""Seconds of a rate, after what is compiled has been compiled."""
TOLERANCES = {"float32": 1e-3, "tf32": 1e-2}


class Size(NamedTuple):
    """Size of all rows."""

    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    rows: int
    row_s: float
    at_once: int
    """Updates of one call."""
    backend: Backend
    flash: dict[str, Any]
    """Settings of FlashSAC, and with `batch` its batches."""
    round_rows: int
    """Rows of a round of PPO."""
    sequences: tuple[int, int]
    """Sequences of a batch, and their ticks."""


def interpreted(graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Sequence[torch.Tensor]]:
    """Run a graph as it is, operation by operation."""
    return graph


LARGE = Size((256, 256), (256, 4096), 100_000, ROW_S, 16, inductor, {"batch": 512}, 2_048, (32, 40))
TINY = {"batch": 8, "width": 8, "critic_width": 8, "blocks": 1, "bins": 11}
SMALL = Size((16, 16), (8, 32), 1_000, 0.1, 2, interpreted, TINY, 64, (4, 8))


def agent_of(size: Size, device: str, **settings: Any) -> SacAgent:
    made = SacAgent(OBSERVATIONS, ACTIONS, device, hidden_sizes=size.hidden, **settings)
    made.compiler = Compiler(made, size.backend)
    return made


def memory(size: Size, batch: int, device: str) -> ReplayMemory:
    """Return a full replay memory."""
    generator = np.random.default_rng(0)
    rows = size.rows + 1
    filled = ReplayMemory(device, size.rows, memory_size=size.rows, batch_size=batch, seed=0)
    filled.append_chunk(
        Chunk(
            rows=rows,
            action=generator.uniform(-1, 1, (rows, 6)).astype(np.float32),
            action_present=np.arange(rows) > 0,
            observation=generator.standard_normal((rows, 17)).astype(np.float32),
            reward=generator.standard_normal(rows),
            terminated=np.zeros(rows, bool),
            truncated=np.zeros(rows, bool),
            segments=(Segment(rows, 0, 0, 1, 1),),
            stream=bytes(16),
        )
    )
    return filled


def wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def compared(size: Size, device: str, precision: str) -> str:
    """Train two agents of the same weights, one compiled, with the same batches and noise; return the difference."""
    torch.manual_seed(0)
    plain, compiled = (agent_of(size, device, compile=wanted, precision=precision) for wanted in (False, True))
    compiled.model.load_state_dict(copy.deepcopy(plain.model.state_dict()))
    for target, source in zip(agent_tensors(compiled), agent_tensors(plain), strict=True):
        target.data.copy_(source.data)
    source_of_batches = memory(size, size.batches[0], device)
    for number in range(7):
        batch = source_of_batches.sample()
        for agent in (plain, compiled):
            torch.manual_seed(number)
            agent.train(batch)
    wait(device)
    worst = max(
        float((a.detach() - b.detach()).abs().max() / b.detach().abs().max().clamp(min=1e-3))
        for a, b in zip(agent_tensors(compiled), agent_tensors(plain), strict=True)
    )
    if not worst <= TOLERANCES[precision]:
        raise RuntimeError(f"compiled and uncompiled parameters differ by {worst:.1e}")
    return f"equal to {worst:.1e}"


def rate(size: Size, device: str, batch: int, **settings: Any) -> str:
    """Return updates a second of SAC, after the seconds until the first ones were made."""
    return sampled_rate(agent_of(size, device, **settings), size, device, batch)


def flash_rate(size: Size, device: str) -> str:
    """Return the same of FlashSAC."""
    settings = dict(size.flash)
    batch = settings.pop("batch")
    agent = FlashSACAgent(OBSERVATIONS, ACTIONS, device, compile=True, **settings)
    agent.compiler = Compiler(agent, size.backend)
    return sampled_rate(agent, size, device, batch)


def sampled_rate(agent: Any, size: Size, device: str, batch: int) -> str:
    filled = memory(size, batch, device)
    filled.expect_agent(agent)

    def some() -> int:
        agent.train_steps([filled.sample() for _ in range(size.at_once)])
        return size.at_once

    return warm_rate(some, size, device)


def ppo_rate(size: Size, device: str) -> str:
    """Return updates a second of PPO on one round."""
    torch.manual_seed(0)
    agent = PPOAgent(OBSERVATIONS, ACTIONS, device, hidden_sizes=size.hidden)
    rows = size.round_rows
    obs, next_obs = torch.randn(2, rows, 17, device=device)
    zeros = torch.zeros(rows, device=device)
    action = torch.randn(rows, 6, device=device).clamp(-1, 1)
    ends = zeros.clone()
    ends[-1] = 1.0
    extras = {"drawn": action, ENDS: ends}
    with torch.no_grad():
        known = agent.model.actor.trained_action(action, extras)
        extras["logp"] = agent.model.actor.log_prob_and_entropy(obs, known)[0]
    batch = (obs, action, torch.randn(rows, device=device), next_obs, zeros, zeros, extras)
    return warm_rate(lambda: int(agent.train(batch)["updates"]), size, device)


def recurrent_rate(size: Size, device: str) -> str:
    """Return updates a second of recurrent SAC on one batch of sequences."""
    torch.manual_seed(0)
    agent = RecurrentSacAgent(OBSERVATIONS, ACTIONS, device, hidden_sizes=size.hidden, burn_in=size.sequences[1] // 4)
    count, ticks = size.sequences
    first_obs, next_obs = torch.randn(count, 17, device=device), torch.randn(count, ticks, 17, device=device)
    zeros, begins = torch.zeros(count, ticks, device=device), torch.zeros(count, device=device)
    state = {
        f"state.{name}": torch.zeros(value.shape) for name, value in agent.model.actor.initial_state(count).items()
    }
    extras = {TICKS: begins + ticks, FIRST_TICK: begins + 20, **{name: one.to(device) for name, one in state.items()}}
    action = torch.rand(count, ticks, 6, device=device) * 2 - 1
    batch = (first_obs, action, torch.randn(count, ticks, device=device), next_obs, zeros, zeros, extras)

    def one() -> int:
        agent.train(batch)
        return 1

    return warm_rate(one, size, device)


def warm_rate(some: Callable[[], int], size: Size, device: str) -> str:
    """Return updates a second, and the seconds of the first calls."""
    started = time.perf_counter()
    first = sum(some() for _ in range(3))
    wait(device)
    first_s = time.perf_counter() - started
    return f"{updates_per_s(some, size.row_s, device):,.0f} updates/s; the first {first} took {first_s:.1f} s"


def peer_rate(size: Size, device: str, batch: int) -> str:
    """Return the same of stable-baselines3."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    arguments: dict[str, Any] = {"policy_kwargs": {"net_arch": list(size.hidden)}, "device": device}
    model = SAC("MlpPolicy", "Pendulum-v1", batch_size=batch, buffer_size=size.rows, **arguments)
    model.set_logger(Logger(None, []))
    assert model.replay_buffer is not None
    generator = np.random.default_rng(0)
    for _ in range(size.rows):
        obs, next_obs = generator.standard_normal((2, 1, 3)).astype(np.float32)
        action = generator.uniform(-1, 1, (1, 1)).astype(np.float32)
        model.replay_buffer.add(obs, next_obs, action, generator.standard_normal(1), np.zeros(1), [{}])

    def some() -> int:
        model.train(gradient_steps=size.at_once, batch_size=batch)
        return size.at_once

    some()
    wait(device)
    return f"{updates_per_s(some, size.row_s, device):,.0f} updates/s (on Pendulum's 3 observations and 1 action)"


def updates_per_s(some: Callable[[], int], seconds: float, device: str) -> float:
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        count += some()
    wait(device)
    return count / (time.perf_counter() - started)


def rows(size: Size, device: str) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name and the measurement of each row, in order of their worth."""
    yield "compiled / uncompiled, parameters after 7 updates", partial(compared, size, device, "float32")
    yield "the same, TF32", partial(compared, size, device, "tf32")
    yield f"FlashSAC, batch {size.flash['batch']}, compiled", partial(flash_rate, size, device)
    yield f"PPO, rounds of {size.round_rows}", partial(ppo_rate, size, device)
    yield "recurrent SAC, {} sequences of {} ticks".format(*size.sequences), partial(recurrent_rate, size, device)
    for batch in size.batches:
        forms: tuple[tuple[str, dict[str, Any]], ...] = (
            ("compiled", {"compile": True}),
            ("compiled, TF32", {"compile": True, "precision": "tf32"}),
            ("uncompiled", {"compile": False}),
        )
        for name, settings in forms:
            yield f"SAC, batch {batch}, {name}", partial(rate, size, device, batch, **settings)
        yield f"SAC, batch {batch}, stable-baselines3", partial(peer_rate, size, device, batch)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget-s", type=float, default=480.0)
    parser.add_argument("--small", action="store_true", help="tiny networks, to try this script")
    arguments = parser.parse_args()
    size = SMALL if arguments.small else LARGE
    device = arguments.device
    if device != "cpu" and not torch.cuda.is_available():
        print("there is no CUDA device here: nothing was measured. --small --device cpu tries the script")
        return 2
    name = platform.machine() if device == "cpu" else torch.cuda.get_device_name()
    print(f"# Updates on {name}\n")
    print(
        f"`python benchmarks/gpu.py --device {device}{' --small' if arguments.small else ''}`; torch "
        f"{torch.__version__}\n"
    )
    print("| row | found |\n| --- | --- |", flush=True)
    began, missing = time.perf_counter(), []
    longest_s = 0.0
    for row, measure in rows(size, device):
        left_s = arguments.budget_s - (time.perf_counter() - began)
        if left_s < longest_s:
            missing.append(f"{row}: {left_s:.0f} s of the budget were left")
            continue
        started = time.perf_counter()
        try:
            print(f"| {row} | {measure()} |", flush=True)
        except Exception as exc:  # the other rows are worth their time all the same
            missing.append(f"{row}: {type(exc).__name__}: {(str(exc).strip() or 'no reason').splitlines()[0]}")
        longest_s = max(longest_s, time.perf_counter() - started)
    print(f"\n{time.perf_counter() - began:.0f} s of {arguments.budget_s:g} s.")
    for reason in missing:
        print(f"Not measured: {reason}.")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
