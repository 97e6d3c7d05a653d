"""Cost of end-to-end authentication and encryption: relay throughput, the worker's loop, and policies.

    python benchmarks/end_to_end.py

Each figure compares `network.end_to_end: authenticate` and `encrypt` with `off`, in the same run and in turn.

- Samples: a worker's link, a Server and a trainer's link in three processes over TLS with bundles, messages of 1 MB and
  of 1 kB (two layouts in turn, so that the link joins none). Everything is acknowledged.
- Worker's loop: `worker_loop.py`'s RolloutWorker with Pendulum, with each setting.
- Policies: a trainer's link publishes policies of 10 MB one after the other; eight workers in two processes take each.

Processor time is that of all processes, without their start. On a machine that other programs use too, its ratio says
more than that of the rates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
from moved import acknowledge
from processes import Cost, Process
from wire_bytes import versions
from worker_loop import Loop

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
        while pipe.recv() == "used":
            pipe.send(time.process_time())


def source(folder: str, port: int, mode: str, payload: int, count: int, pipe: Pipe) -> None:
    """Send messages of one sample each; two layouts in turn are never joined."""
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
    pipe.recv()
    used = time.process_time()
    for number in range(count):
        link.send([chunks[number % 2]], [])
    report = link.close()
    pipe.send((report, time.process_time() - used, link.counts.forged))


def sink(folder: str, port: int, mode: str, count: int, pipe: Pipe) -> None:
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking.links import TrainerLink

    link = TrainerLink(settings(folder, port, mode), name="sink", run="run")
    link.start()
    link.wait_connected(30)
    pipe.send("ready")
    used = time.process_time()
    samples, start = 0, 0.0
    while samples < count:
        assert link.wait(60), "the samples stopped coming"
        start = start or time.perf_counter()
        received = link.receive()
        samples += sum(one.samples for one in received)
        acknowledge(link, received)
    wall_s = time.perf_counter() - start
    link.close()
    pipe.send((wall_s, time.process_time() - used, link.counts.forged))


def relay(folders: dict[str, str], mode: str, payload: int, count: int) -> Cost:
    """Return the cost of all three processes for so many messages."""
    middle = Process(server, folders["server"])
    port = middle.recv()
    end = Process(sink, folders["trainer"], port, mode, count)
    end.recv()
    begin = Process(source, folders["worker"], port, mode, payload, count)
    begin.recv()
    before = middle.ask("used")
    begin.pipe.send("go")
    wall_s, end_s, forged = end.recv()
    report, begin_s, also = begin.recv()
    assert report.acknowledged == count, report
    assert [forged, also] == [0, 0]
    used = middle.ask("used") - before
    middle.pipe.send("end")
    for process in (begin, end, middle):
        process.end()
    return Cost(wall_s, begin_s + end_s + used)


def publisher(folder: str, port: int, mode: str, pipe: Pipe) -> None:
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.networking.protocol.messages import Blob

    link = TrainerLink(settings(folder, port, mode), name="trainer", run="run")
    link.start()
    link.wait_connected(30)
    body = os.urandom(POLICY_BYTES)
    while pipe.recv() == "publish":
        used = time.process_time()
        link.publish({"policy": Blob("file", body)})
        pipe.send(used)
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
    while pipe.recv() == "take":
        for link in links:
            assert link.wait_policy(60), "no policy has arrived"
            update = link.take_policy()
            assert update is not None
            assert len(update.policies["policy"].data) == POLICY_BYTES
        pipe.send(time.process_time())
    for link in links:
        link.close(drain=False)


def publish(folders: dict[str, str], mode: str, count: int) -> Cost:
    """Return the cost of publishing so many policies to all workers."""
    middle = Process(server, folders["server"])
    port = middle.recv()
    trainer = Process(publisher, folders["trainer"], port, mode)
    halves = [Process(takers, folders["worker"], port, mode) for _ in range(2)]
    for half in halves:
        half.recv()
    begun, before = 0.0, 0.0
    for number in range(count + 1):  # the first one is not measured
        used = trainer.ask("publish")
        for half in halves:
            half.pipe.send("take")
        used_by_workers = sum(half.recv() for half in halves)
        if number == 0:
            begun, before = time.perf_counter(), used_by_workers + middle.ask("used")
            first = used
    wall_s = time.perf_counter() - begun
    total = used_by_workers + middle.ask("used") + trainer.ask("end") - first - before
    for process in halves:
        process.pipe.send("end")
    middle.pipe.send("end")
    for process in (trainer, *halves, middle):
        process.end()
    return Cost(wall_s, total)


def credentials_of(folder: Path) -> dict[str, str]:
    """Make a folder of credentials for each role's machine."""
    from tmrl_core.networking.security import credentials

    credentials.create(folder / "server", ["localhost"])
    for role, name in (("worker", "robot"), ("trainer", "hpc")):
        credentials.install(credentials.bundle(folder / "server", role, name, folder), folder / role)  # type: ignore[arg-type]
    return {role: str(folder / role) for role in ("server", "worker", "trainer")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual amount of work in each measurement")
    parser.add_argument("--only", default="", help="measure only the figures whose names contain this")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"

    def amount(usual: int) -> int:
        return max(2, int(usual * arguments.share))

    chosen = {what: reach for what, reach in REACH.items() if arguments.only in what}
    costs: dict[str, dict[str, list[float]]] = {what: {mode: [] for mode in MODES} for what in chosen}
    walls: dict[str, dict[str, list[float]]] = {what: {mode: [] for mode in MODES} for what in chosen}
    with tempfile.TemporaryDirectory() as place:
        folders = credentials_of(Path(place))
        loops = {mode: Loop(folders["server"], 50, mode) for mode in MODES}
        works: dict[str, tuple[int, Callable[[str, int], Cost]]] = {
            "samples of 1 MB": (amount(600), lambda mode, count: relay(folders, mode, 1_000_000, count)),
            "samples of 1 kB": (amount(40_000), lambda mode, count: relay(folders, mode, 1_000, count)),
            "worker's loop": (loops["off"].steps, lambda mode, count: loops[mode].measure("sending")),
            "policies of 10 MB": (amount(20), lambda mode, count: publish(folders, mode, count)),
        }
        for turn in range(arguments.repetitions):
            for what in chosen:
                count, measure = works[what]
                for mode in MODES if turn % 2 else MODES[::-1]:
                    cost = measure(mode, count)
                    costs[what][mode].append(cost.processor_s / count)
                    walls[what][mode].append(count / cost.wall_s)
        for loop in loops.values():
            loop.close()
    print(f"{versions()}; {arguments.repetitions} repetitions in turn; {os.cpu_count()} cores\n")
    print("| what | mode | us of processor time each | ratio of processor time (reach) | range | rate/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    reached = True
    for what, reach in chosen.items():
        for mode, least in zip(MODES, (1.0, *reach), strict=True):
            # Each repetition is compared with its neighbour, because the load of the machine changes slowly.
            ratios = [off / own for off, own in zip(costs[what]["off"], costs[what][mode], strict=True)]
            rates = [own / off for off, own in zip(walls[what]["off"], walls[what][mode], strict=True)]
            ratio = statistics.median(ratios)
            reached = reached and ratio >= least
            print(
                f"| {what} | {mode} | {1e6 * statistics.median(costs[what][mode]):,.1f} | {ratio:.3f} ({least}) "
                f"| {min(ratios):.2f} to {max(ratios):.2f} | {statistics.median(walls[what][mode]):,.0f} "
                f"| {statistics.median(rates):.2f} |"
            )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
