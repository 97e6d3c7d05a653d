"""Rounds per second of many agents over TLS, beside the same rounds in one process.

    python benchmarks/multiagent_rounds.py --out benchmarks/results/multiagent_rounds_HARDWARE_YYYYMM.md

A round publishes the models and exploration parameters, plays episodes of the container scenario (six ports, 100 ticks,
one model for all ports, a torch network) and returns the experiences by agent. Nothing is trained. One side is
`Actor.roll_out`, once for each episode. The other is the actor of `remote_actor`, with a Server and workers in
processes of their own on this machine. With one worker the script stops if experiences differ in a key, a dtype or a
bit. Blocks of rounds alternate between the sides; the ratio is that of the two blocks of a pair.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "containers"))

import numpy as np
import torch
from wire_bytes import versions

from tmrl_core.config import Config, load
from tmrl_core.multiagent import Actor, remote_actor
from tmrl_core.multiagent.actor import RollOut
from tmrl_core.multiagent.from_config import environment_maker, make_manager, make_worker
from tmrl_core.networking import Server
from tmrl_core.networking.security import credentials

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "containers"
EPSILON = 0.1
_processes = multiprocessing.get_context("spawn")


def configuration(folder: Path, port: int, workers: int) -> Config:
    """Return the example's configuration for a Server at a port."""
    changes = [
        f"server.port={port}",
        f"run.folder={folder / 'runs'}",
        f"network.credentials_dir={folder / 'keys'}",
        f"trainer.lockstep.min_workers={workers}",
    ]
    return load(EXAMPLE / "shared_model.yaml", changes, {})


def serve(folder: Path, link: Connection) -> None:
    """Run a Server until the other end of the pipe is closed."""
    with Server(config=configuration(folder, 0, 1)) as server:
        link.send(server.port)
        link.poll(None)


def work(folder: Path, port: int, name: str) -> None:
    """Run a worker until the trainer has finished."""
    torch.set_num_threads(1)
    with make_worker(configuration(folder, port, 1), name=name) as worker:
        worker.run()


@contextmanager
def remote(workers: int, episodes: int, agents: Any) -> Iterator[RollOut]:
    """Start a Server and workers, and connect to them as the trainer."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        credentials.create(folder / "keys", ["localhost"])
        ours, theirs = _processes.Pipe()
        server = _processes.Process(target=serve, args=(folder, theirs), daemon=True)
        server.start()
        theirs.close()
        stack.callback(server.join)
        stack.callback(ours.close)
        port = ours.recv()
        for number in range(workers):
            worker = _processes.Process(target=work, args=(folder, port, f"worker{number}"), daemon=True)
            worker.start()
            stack.callback(worker.join)
        config = configuration(folder, port, workers)
        yield stack.enter_context(remote_actor(config, agents, episodes_per_round=episodes))


def compare(workers: int, rounds: int, pairs: int) -> tuple[list[float], list[float], list[float]]:
    """Return rounds per second in one process and over TLS, and the trainer's processor time per round, by pair."""
    torch.manual_seed(0)
    config = configuration(Path("."), 1, workers)
    agents = make_manager(config, "training")
    models, epsilons = agents.get_models(), dict.fromkeys(agents.agents, EPSILON)
    local = Actor(environment_maker(config)(), make_manager(config, "inference"))

    def here(seed: int) -> Any:
        played = [local.roll_out(models=models, epsilons=epsilons, seed=seed + number) for number in range(workers)]
        return played[0][1]

    def speed(roll_out: Callable[[int], Any], first: int) -> float:
        began = time.perf_counter()
        for seed in range(first, first + rounds):
            roll_out(seed)
        return rounds / (time.perf_counter() - began)

    speeds: tuple[list[float], list[float]] = ([], [])
    cpu = []
    with remote(workers, workers, agents) as actor:

        def there(seed: int) -> Any:
            return actor.roll_out(models=models, epsilons=epsilons, seed=seed)[1]

        for seed in range(3):
            found, expected = there(seed), here(seed)
            if workers == 1:
                np.testing.assert_equal(found, expected)
        for number in range(pairs):
            speeds[0].append(speed(here, 1000 * number))
            began = time.process_time()
            speeds[1].append(speed(there, 1000 * number))
            cpu.append((time.process_time() - began) / rounds)
    return (*speeds, cpu)


def spread(values: list[float], digits: int = 1) -> str:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a block")
    parser.add_argument("--pairs", type=int, default=15, help="blocks on each side")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Rounds of many agents over TLS, beside one process",
        "",
        f"`python benchmarks/multiagent_rounds.py`; {versions()}, torch {torch.__version__}; load "
        f"{os.getloadavg()[0]:.0f}. Median and quartiles of {arguments.pairs} pairs of blocks of {arguments.rounds} "
        "rounds. A round has one episode of each worker.",
        "",
        "| workers | rounds per second over TLS | in one process | over TLS / one process | trainer, ms of processor "
        "time per round |",
        "| --- | --- | --- | --- | --- |",
    ]
    for workers in arguments.workers:
        local, over_tls, cpu = compare(workers, arguments.rounds, arguments.pairs)
        ratios = [one / other for one, other in zip(over_tls, local, strict=True)]
        lines.append(
            f"| {workers} | {spread(over_tls)} | {spread(local)} | {spread(ratios, 2)} | "
            f"{spread([1000 * one for one in cpu])} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
