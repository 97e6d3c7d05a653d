"""Ranks of one learner against one process, on a fixed stream of batches and noise: are they the same learner?

    python benchmarks/rank_updates.py equal [--updates 200] [--batch 256] [--agents sac crossq flashsac ppo] [--seed 0]
                                            [--smooth]
    python benchmarks/rank_updates.py digests [--updates 5000] [--ranks 4] [--agents sac crossq flashsac ppo]
    python benchmarks/rank_updates.py speed [--updates 500] [--ranks 1 2]

`equal`: 2 and 4 ranks as processes over gloo, each with its part of every batch and of the noise that actions are
sampled with, against one process with the whole: the relative L2 distance of all parameters, in float32 and float64.
`--smooth` replaces ReLU by a function without a kink, at which rounding decides the gradient.
`digests`: SHA-256 of all numbers of the agent (parameters, target networks, moments, statistics) on each rank, in
memory and in a checkpoint that was written and read again. `speed`: updates a second, and processor time of all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from tmrl_core.ranks.place import Place
from tmrl_core.ranks.process_group import joined
from tmrl_core.ranks.trainer import digest_of
from tmrl_core.training import CrossQAgent, FlashSACAgent, PPOAgent, SacAgent
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.checkpoints.checkpoint_folder import load_training, save_training
from tmrl_core.training.rank_group import RANK_GROUP
from tmrl_core.training.updates.rollback import agent_tensors
from tmrl_core.training.value_types import Batch

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (8,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
_RANDN, _SINGLE = torch.randn, torch.float32


class FixedStream:
    """Batches and noise that depend on the number of the update alone; each rank gets its rows of them.

    Args:
        batch: rows of all ranks together.
        dtype: of the numbers.
        seed: chooses the stream.
    """

    def __init__(self, batch: int, dtype: torch.dtype, seed: int = 0) -> None:
        self.batch, self.dtype, self._seed = batch, dtype, 1_000_000 * seed
        self._noise = torch.Generator().manual_seed(self._seed + 11)
        ranks = RANK_GROUP.get()
        rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        self._rows = slice(rank * batch // size, (rank + 1) * batch // size)

    def take(self, update: int) -> Batch:
        """Return this rank's rows of a batch for an off-policy agent."""
        of_update = torch.Generator().manual_seed(self._seed + 1000 + update)
        obs, next_obs = (self._uniform(of_update, 8) for _ in range(2))
        action, reward = self._uniform(of_update, 2), obs.sum(1) + 0.1 * next_obs[:, 0]
        terminated = (self._uniform(of_update, 1)[:, 0] > 0.9).to(self.dtype)
        return obs, action, reward, next_obs, terminated, torch.zeros_like(terminated)

    def take_round(self, update: int, agent: PPOAgent) -> Batch:
        """Return this rank's rows of a round for PPO, as if its own policy had collected them."""
        obs, action, reward, next_obs, terminated, truncated = self.take(update)
        ends = torch.zeros_like(reward)
        ends[7::8] = 1.0  # runs of 8 rows, so that none lies in two ranks
        ends[terminated > 0] = 1.0
        extras = {"drawn": action, "ends": ends}
        with torch.no_grad():
            known = agent.model.actor.trained_action(action, extras)
            extras["logp"] = agent.model.actor.log_prob_and_entropy(obs, known)[0]
        return obs, action, reward, next_obs, terminated, truncated, extras

    def _uniform(self, generator: torch.Generator, width: int) -> Tensor:
        whole = torch.rand((self.batch, width), generator=generator, dtype=torch.float64) * 2 - 1
        return whole[self._rows].to(self.dtype)

    def split(self, shape: torch.Size, **options: object) -> Tensor:
        """Return this rank's rows of the noise of all ranks, in place of `torch.randn`."""
        own = self._rows.stop - self._rows.start
        # Noise for a batch of s and s' together has twice as many rows.
        whole = _RANDN((shape[0] // own, self.batch, *shape[1:]), generator=self._noise, dtype=torch.float64)
        return whole[:, self._rows].flatten(0, 1).to(self.dtype)

    @contextlib.contextmanager
    def noise(self) -> Iterator[None]:
        """Use `split` for the noise that actions are sampled with."""
        torch.randn = self.split  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.randn = _RANDN


@contextlib.contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let networks compute in float64, where the code says float32; nothing changes for float32."""
    single, to_single = torch.float32, Tensor.float
    if dtype == torch.float64:
        torch.float32, Tensor.float = torch.float64, Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.float32, Tensor.float = single, to_single  # type: ignore[method-assign]


@contextlib.contextmanager
def without_kinks(smooth: bool) -> Iterator[None]:
    """Let softplus take the place of ReLU, if `smooth`."""
    relu = torch.relu
    if smooth:
        torch.relu = partial(torch.nn.functional.softplus, beta=4.0)
    try:
        yield
    finally:
        torch.relu = relu


def agent_of(kind: str, batch: int, dtype: torch.dtype) -> TrainingAgent:
    """Return an agent with the same initial weights in each process. `batch`: rows of one rank."""
    torch.manual_seed(7)
    agent: TrainingAgent
    if kind == "sac":
        agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", hidden_sizes=(64, 64), compile=False)
    elif kind == "crossq":
        agent = CrossQAgent(
            OBSERVATIONS, ACTIONS, "cpu", hidden_sizes=(64, 64), critic_sizes=(64, 64), compile=False
        )  # fmt: skip
    elif kind == "flashsac":
        agent = FlashSACAgent(OBSERVATIONS, ACTIONS, "cpu", width=32, critic_width=32, bins=21, compile=False)
    else:
        agent = PPOAgent(
            OBSERVATIONS, ACTIONS, "cpu", minibatch_size=batch, update_epochs=1, normalize_rewards=True,
            normalize_observations=True, target_kl=None,
        )  # fmt: skip
    with torch.no_grad():
        modules = [part for part in vars(agent).values() if isinstance(part, torch.nn.Module)]
        for tensor in [*agent_tensors(agent), *(buffer for module in modules for buffer in module.buffers())]:
            if tensor.dtype == _SINGLE:
                tensor.data = tensor.data.to(dtype)
    return agent


def train(kind: str, updates: int, batch: int, dtype: torch.dtype, seed: int, smooth: bool) -> TrainingAgent:
    """Return an agent after updates with batches of so many rows of all ranks together."""
    ranks = RANK_GROUP.get()
    agent = agent_of(kind, batch // (1 if ranks is None else ranks.size), dtype)
    stream = FixedStream(batch, dtype, seed)
    with stream.noise(), in_dtype(dtype), without_kinks(smooth):
        for update in range(updates):
            agent.train(stream.take_round(update, agent) if isinstance(agent, PPOAgent) else stream.take(update))
    return agent


def parameters(agent: TrainingAgent) -> np.ndarray:
    """Return all trained parameters of an agent as one array, its temperature included."""
    tensors = [*agent.model.parameters(), *([agent.log_alpha] if isinstance(agent, SacAgent) else [])]  # type: ignore[attr-defined]
    return np.concatenate([tensor.detach().double().reshape(-1).numpy() for tensor in tensors])


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the relative L2 distance."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


# --- processes --------------------------------------------------------------------------------------------------------


def one_rank(options: argparse.Namespace) -> None:
    """Train as one rank; write the results into a file."""
    torch.set_num_threads(1)
    dtype = torch.float64 if options.dtype == "float64" else torch.float32
    place = Place(options.rank, options.ranks[0], "127.0.0.1", options.port, serves=options.rank == 0)
    with contextlib.ExitStack() as stack:
        if place.size > 1:
            stack.enter_context(joined(place))
        began, cpu = time.perf_counter(), time.process_time()
        agent = train(options.agents[0], options.updates, options.batch, dtype, options.seed, options.smooth)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        folder = options.out.with_suffix(".checkpoint")
        save_training(agent, folder)
        again = agent_of(options.agents[0], options.batch // place.size, dtype)
        load_training(again, folder)
        np.savez(
            options.out,
            parameters=parameters(agent),
            digests=np.array([digest_of(agent).hex(), digest_of(again).hex()]),
            times=np.array([seconds, cpu_s]),
        )


def run(
    kind: str, ranks: int, updates: int, batch: int, dtype: str, seed: int, smooth: bool = False
) -> list[dict[str, np.ndarray]]:
    """Run ranks as processes; return the results of each."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        outs = [Path(folder) / f"{rank}.npz" for rank in range(ranks)]
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "rank", "--agents", kind, "--ranks", str(ranks), "--rank", str(rank)),
                    *("--updates", str(updates), "--batch", str(batch), "--dtype", dtype, "--port", str(port)),
                    *("--out", str(out), "--seed", str(seed), *(["--smooth"] if smooth else [])),
                ]
            )
            for rank, out in enumerate(outs)
        ]
        if any(process.wait() for process in processes):
            raise SystemExit("a rank has failed")
        return [dict(np.load(out)) for out in outs]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["equal", "digests", "speed", "rank"])
    parser.add_argument("--updates", type=int, default=None)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ranks", type=int, nargs="+", default=None)
    parser.add_argument("--agents", nargs="+", default=["sac", "crossq", "flashsac", "ppo"])
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smooth", action="store_true", help="for `equal`: softplus in place of ReLU")
    for name, kind in (("--rank", int), ("--port", int), ("--out", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "rank":
        one_rank(options)
        return
    for kind in options.agents:
        if options.what == "equal":
            updates = options.updates or 200
            for dtype in [options.dtype] if options.dtype else ["float32", "float64"]:
                (alone,) = run(kind, 1, updates, options.batch, dtype, options.seed, options.smooth)
                for ranks in options.ranks or [2, 4]:
                    found = run(kind, ranks, updates, options.batch, dtype, options.seed, options.smooth)
                    apart = max(distance(one["parameters"], alone["parameters"]) for one in found)
                    same = len({one["digests"][0] for one in found}) == 1
                    print(
                        f"| {kind} | {dtype} | {ranks} x {options.batch // ranks} | {apart:.2e} | {same} |", flush=True
                    )
        elif options.what == "digests":
            updates, ranks = options.updates or 5000, (options.ranks or [4])[0]
            found = run(kind, ranks, updates, options.batch, options.dtype or "float32", options.seed)
            digests = [str(digest) for one in found for digest in one["digests"]]
            joined_digests = hashlib.sha256("".join(sorted(set(digests))).encode()).hexdigest()
            print(
                f"| {kind} | {ranks} | {updates} | {len(set(digests))} of {len(digests)} | {joined_digests[:12]} |",
                flush=True,
            )
        else:
            for ranks in options.ranks or [1, 2]:
                found = run(
                    kind, ranks, options.updates or 500, options.batch, options.dtype or "float32", options.seed
                )
                seconds = max(one["times"][0] for one in found)
                cpu_s = sum(one["times"][1] for one in found)
                rate = (options.updates or 500) / seconds
                print(f"| {kind} | {ranks} x {options.batch // ranks} | {rate:.0f} | {cpu_s:.1f} |", flush=True)


if __name__ == "__main__":
    main()
