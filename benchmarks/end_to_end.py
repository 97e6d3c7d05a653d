"""Cost of end-to-end authentication and encryption: relay throughput, the worker's loop, and policies.

    python benchmarks/end_to_end.py

Each figure compares `network.end_to_end: authenticate` and `encrypt` with `off`. The processes of all three live at the
same time and do small amounts of work in turn, in every order. The ratio is the median of the repetitions' ratios, with
its 95 % interval.

- Samples: a worker's link, a Server and a trainer's link in three processes over TLS with bundles, messages of 1 MB and
  of 1 kB (two layouts in turn, so that the link joins none). Everything is acknowledged.
- Worker's loop: `worker_loop.py`'s RolloutWorker with Pendulum, with each setting.
- Policies: a trainer's link publishes policies of 10 MB one after the other; eight workers in two processes take each.

Processor time is that of all processes (of the worker's alone in its loop), without their start. On a machine that
other programs use too, its ratio says more than that of the rates.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from processes import Cost, Process
from wire_bytes import versions
from worker_loop import LENGTH, Loop

MODES = ("off", "authenticate", "encrypt")
REACH = {
    "samples of 1 MB": (0.97, 0.92),
    "samples of 1 kB": (0.9, 0.85),
    "worker's loop": (0.98, 0.97),
    "policies of 10 MB": (0.9, 0.9),
}
"""Ratios to reach, with authentication and with encryption."""
SWITCH_S = 0.0005
POLICY_BYTES = 10_000_000
EPISODES = 20
"""Of `LENGTH` steps, in a measurement of the worker's loop."""
WORKERS = 8


def settings(folder: str, port: int, mode: Any) -> Any:
    from tmrl_core.networking.links import LinkSettings

    return LinkSettings(
        host="127.0.0.1", port=port, hostname="localhost", credentials_dir=folder, end_to_end=mode, compression="none"
    )


def server(folder: str, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    with Server(config=from_values({"network": {"credentials_dir": folder}, "server": {"port": 0}})) as made:
        pipe.send(made.port)
        while pipe.recv() != "end":
            pipe.send(time.process_time())


def source(folder: str, port: int, mode: str, payload: int, pipe: Pipe) -> None:
    """Send messages of one sample each, as many as asked; two layouts in turn are never joined."""
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import WorkerLink
    from tmrl_core.samples import Buffer

    def chunk(dtype: Any) -> Any:
        buffer = Buffer(maxlen=None)
        observation = np.frombuffer(os.urandom(payload), dtype).copy()
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.0, False, False, {}))
        return buffer.take()[0][0]

    link = WorkerLink(
        settings(folder, port, mode),
        name="source",
        run="run",
        when_full="block",
        drain_timeout_s=60,
        queue_bytes=8 << 20,
    )
    link.start()
    link.wait_connected(30)
    chunks = [chunk(np.uint8), chunk(np.int8)]
    pipe.send("ready")
    sent = 0
    while (count := pipe.recv()) != "end":
        for number in range(count):
            link.send([chunks[number % 2]], [])
        sent += count
        while link.counts.samples_acked < sent:
            assert link.wait_change(60), "the acknowledgements stopped coming"
        pipe.send(time.process_time())
    assert link.close().acknowledged == sent
    assert link.counts.forged == 0


def sink(folder: str, port: int, mode: str, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import TrainerLink

    link = TrainerLink(settings(folder, port, mode), name="sink", run="run")
    link.start()
    link.wait_connected(30)
    pipe.send("ready")
    while (count := pipe.recv()) != "end":
        samples = 0
        while samples < count:
            assert link.wait(60), "the samples stopped coming"
            received = link.receive()
            samples += sum(one.samples for one in received)
            link.acknowledge(received)
        pipe.send(None)
        pipe.recv()  # the source has all acknowledgements
        pipe.send(time.process_time())
    link.close()
    assert link.counts.forged == 0


class Samples:
    """A worker's link, a Server and a trainer's link.

    Args:
        payload: bytes of a message.
    """

    def __init__(self, folders: dict[str, str], mode: str, payload: int) -> None:
        self._server = Process(server, folders["server"])
        port = self._server.recv()
        self._sink = Process(sink, folders["trainer"], port, mode)
        self._source = Process(source, folders["worker"], port, mode, payload)
        for process in (self._sink, self._source):
            process.recv()
        self._used = 0.0

    def measure(self, count: int) -> Cost:
        """Return the cost of all three processes for so many messages, each acknowledged. The first call warms up."""
        begun = time.perf_counter()
        self._sink.pipe.send(count)
        used: float = self._source.ask(count)
        wall_s = time.perf_counter() - begun
        self._sink.recv()
        used += self._sink.ask("used") + self._server.ask("used")
        used, self._used = used - self._used, used
        return Cost(wall_s, used)

    def close(self) -> None:
        for process in (self._source, self._sink, self._server):
            process.pipe.send("end")
            process.end()
            assert process.process.exitcode == 0


def publisher(folder: str, port: int, mode: str, pipe: Pipe) -> None:
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.networking.protocol.messages import Blob

    link = TrainerLink(settings(folder, port, mode), name="trainer", run="run")
    link.start()
    link.wait_connected(30)
    body = os.urandom(POLICY_BYTES)
    pipe.send("ready")
    while (command := pipe.recv()) != "end":
        if command == "publish":
            link.publish({"policy": Blob("file", body)})
        pipe.send(time.process_time())
    link.close()


def takers(folder: str, port: int, mode: str, pipe: Pipe) -> None:
    """Take each policy with half of the workers."""
    from tmrl_core.networking.links import WorkerLink

    links = [WorkerLink(settings(folder, port, mode), name="taker", run="run") for _ in range(WORKERS // 2)]
    for link in links:
        link.start()
    for link in links:
        link.wait_connected(30)
    pipe.send("ready")
    while pipe.recv() != "end":
        for link in links:
            assert link.wait_policy(60), "no policy has arrived"
            update = link.take_policy()
            assert update is not None
            assert len(update.policies["policy"].data) == POLICY_BYTES
        pipe.send(time.process_time())
    for link in links:
        link.close(drain=False)
        assert link.counts.forged == 0


class Policies:
    """A trainer's link, a Server and eight workers' links in two processes."""

    def __init__(self, folders: dict[str, str], mode: str) -> None:
        self._server = Process(server, folders["server"])
        port = self._server.recv()
        self._trainer = Process(publisher, folders["trainer"], port, mode)
        self._halves = [Process(takers, folders["worker"], port, mode) for _ in range(2)]
        for process in (self._trainer, *self._halves):
            process.recv()
        self._used = 0.0

    def measure(self, count: int) -> Cost:
        """Return the cost of all processes for so many policies, one after the other. The first call warms up."""
        begun = time.perf_counter()
        for _ in range(count):
            for half in self._halves:
                half.pipe.send("take")
            self._trainer.ask("publish")
            used = sum(half.recv() for half in self._halves)
        wall_s = time.perf_counter() - begun
        used += self._trainer.ask("used") + self._server.ask("used")
        used, self._used = used - self._used, used
        return Cost(wall_s, used)

    def close(self) -> None:
        for process in (*self._halves, self._trainer, self._server):
            process.pipe.send("end")
            process.end()
            assert process.process.exitcode == 0


class Steps:
    """A RolloutWorker with a Server and a sink; only the worker's process is measured."""

    def __init__(self, folders: dict[str, str], mode: str) -> None:
        self._loop = Loop(folders["server"], EPISODES, mode)

    def measure(self, count: int) -> Cost:
        """Return the cost of `count` steps."""
        assert count == self._loop.steps
        return self._loop.measure("sending")

    def close(self) -> None:
        self._loop.close()


class Rig(Protocol):
    """Processes that can do some work again and again."""

    def measure(self, count: int) -> Cost: ...

    def close(self) -> None: ...


def credentials_of(folder: Path) -> dict[str, str]:
    """Make a folder of credentials for each role's machine."""
    from tmrl_core.networking.security import credentials

    credentials.create(folder / "server", ["localhost"])
    for role, name in (("worker", "robot"), ("trainer", "hpc")):
        credentials.install(credentials.bundle(folder / "server", role, name, folder), folder / role)  # type: ignore[arg-type]
    return {role: str(folder / role) for role in ("server", "worker", "trainer")}


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by bootstrap."""
    drawn = np.random.default_rng(0).choice(ratios, (4_000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--only", default="", help="measure only the figures whose names contain this")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"

    chosen = {what: reach for what, reach in REACH.items() if arguments.only in what}
    print(f"{versions()}; {arguments.repetitions} repetitions in turn; {os.cpu_count()} cores\n")
    print("| what | mode | us of processor time each | ratio of processor time (reach) | 95 % | rate/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    reached = True
    with tempfile.TemporaryDirectory() as place:
        folders = credentials_of(Path(place))
        works: dict[str, tuple[int, Callable[[str], Rig]]] = {
            "samples of 1 MB": (30, lambda mode: Samples(folders, mode, 1_000_000)),
            "samples of 1 kB": (2_000, lambda mode: Samples(folders, mode, 1_000)),
            "worker's loop": (EPISODES * LENGTH, lambda mode: Steps(folders, mode)),
            "policies of 10 MB": (2, lambda mode: Policies(folders, mode)),
        }
        for what, reach in chosen.items():
            count, make = works[what]
            rigs = {mode: make(mode) for mode in MODES}
            costs: dict[str, list[Cost]] = {mode: [] for mode in MODES}
            orders = itertools.cycle(itertools.permutations(MODES))
            for turn in range(-2, arguments.repetitions):
                for mode in next(orders):
                    cost = rigs[mode].measure(count)
                    if turn >= 0:
                        costs[mode].append(cost)
            for rig in rigs.values():
                rig.close()
            for mode, least in zip(MODES, (1.0, *reach), strict=True):
                # Each repetition is compared with its neighbour, because the load of the machine changes slowly.
                pairs = list(zip(costs["off"], costs[mode], strict=True))
                ratios = [off.processor_s / own.processor_s for off, own in pairs]
                ratio = statistics.median(ratios)
                reached = reached and ratio >= least
                processor_us = 1e6 * statistics.median(cost.processor_s for cost in costs[mode]) / count
                rate = count / statistics.median(cost.wall_s for cost in costs[mode])
                low, high = interval(ratios)
                print(
                    f"| {what} | {mode} | {processor_us:,.1f} | {ratio:.3f} ({least}) | {low:.3f} to {high:.3f} "
                    f"| {rate:,.0f} | {statistics.median(off.wall_s / own.wall_s for off, own in pairs):.2f} |",
                    flush=True,
                )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
