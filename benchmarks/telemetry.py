"""Measure the cost of ten viewers for a Server and a trainer, and the age of the scenes that they see.

    python benchmarks/telemetry.py                      4 pairs of windows, about three minutes
    python benchmarks/telemetry.py --pairs 2 --window 8

A Server, a trainer, workers and viewers in processes of their own on this machine, over TLS, each with the bundle that
its role has (scenes and samples are proved). Fifty workers are WorkerLinks in two processes that send ten rows each
half second. The trainer receives, decodes and acknowledges; it records episodes, rounds and the network as a run does,
with a `metrics.jsonl`, and makes no updates, so that nothing but the network and records is in its time.

Windows without and with viewers take turns. The cost is the difference of the processor time of a whole process, in
hundredths of one core, between the two windows of a pair; the spread is that of the pairs. The age is from a scene's
time (the trainer's clock) until a viewer of this machine has it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from load_parts import START_S, Network, Sender, workers
from processes import Process

WORKERS = 50
VIEWERS = 10
ROWS, SEND_S = 10, 0.5
EPISODES_PER_S = 5.0


def settings(network: Network, machine: str) -> Any:
    """Return the settings of a link of this machine."""
    from tmrl_core.networking.links import LinkSettings

    folder = str(Path(network.keys) / machine)
    return LinkSettings(port=network.port, hostname="localhost", credentials_dir=folder)


def server(network: Network, pipe: Pipe) -> None:
    """Sends its port; then answers each request with its processor time."""
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    folder = str(Path(network.keys) / "server")
    config = from_values({"network": {"credentials_dir": folder, "security": "TLS"}, "server": {"port": 0}})
    with Server(config=config) as made:
        pipe.send(made.port)
        while pipe.recv() != "end":
            pipe.send(time.process_time())


def trainer(network: Network, folder: str, pipe: Pipe) -> None:
    """Sends `ready`; then answers each request with its processor time and its number of samples."""
    from tmrl_core.metrics.latest import LatestSink
    from tmrl_core.metrics.recorder import Recorder
    from tmrl_core.metrics.sinks import JsonLinesSink
    from tmrl_core.networking.links import TrainerLink
    from tmrl_core.networking.protocol.messages import Progress
    from tmrl_core.training.remote.interface import RemoteInterface
    from tmrl_core.training.remote.telemetry import RunTelemetry

    path = Path(folder) / "metrics.jsonl"
    latest = LatestSink(path)
    recorder = Recorder([JsonLinesSink(path), latest])
    link = TrainerLink(settings(network, "hpc"), name="trainer", run="run")
    interface = RemoteInterface(link, recorder=recorder)
    values = {f"section.key{number}": "value" for number in range(20)}
    link.trainer.telemetry = RunTelemetry(link, latest, interface.progressing, lambda: recorder.elapsed_s, values)
    link.start()
    assert link.wait_connected(START_S)
    ended = threading.Event()
    samples = 0

    def work() -> None:
        nonlocal samples
        begun = time.monotonic()
        episodes = rounds = 0
        while not ended.is_set():
            for delivery in interface.receive():
                delivery.accept()
                samples += delivery.rows
            elapsed_s = time.monotonic() - begun
            interface.report(Progress(samples=samples, updates=int(elapsed_s)))
            while episodes < elapsed_s * EPISODES_PER_S:
                episodes += 1
                recorder.record("episode", {"return_train": float(episodes % 97), "mode": "train"}, step=episodes)
            while rounds < elapsed_s / 5.0:
                rounds += 1
                row = {f"loss_{name}": 0.1 * rounds for name in ("actor", "critic", "entropy")}
                row |= {"memory_len": samples, "samples_per_s": 1_000.0, "updates_per_s": 100.0}
                recorder.record("round", row, step=rounds)
            interface.wait(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    pipe.send("ready")
    while pipe.recv() != "end":
        pipe.send((time.process_time(), samples))
    ended.set()
    thread.join()
    link.close()
    recorder.close()


def viewers(network: Network, pipe: Pipe) -> None:
    """`watch`: begin, once all see something; `look`: ages of the scenes, and bytes of the links; `leave`; `end`."""
    from tmrl_core.networking.links.viewer_link import ViewerLink

    links: list[ViewerLink] = []
    ages_s: list[float] = []
    watching = threading.Event()

    def look() -> None:
        seen = 0.0
        while True:
            watching.wait()
            link = links[0] if links else None
            if link is None or not link.wait(0.5):
                continue
            scene = link.scene
            if scene is not None and scene.time_s > seen:
                ages_s.append(time.time() - scene.time_s)
                seen = scene.time_s

    threading.Thread(target=look, daemon=True).start()
    pipe.send("ready")
    while (command := pipe.recv()) != "end":
        if command == "watch":
            links = [ViewerLink(settings(network, "anna"), "run") for _ in range(VIEWERS)]
            for link in links:
                link.start()
            deadline = time.monotonic() + START_S
            while not all(link.scene and link.history and link.status for link in links):
                assert time.monotonic() < deadline, [link.state for link in links]
                time.sleep(0.05)
            ages_s.clear()
            watching.set()
            pipe.send(None)
        elif command == "leave":
            watching.clear()
            found = list(ages_s)
            status = links[0].status
            assert status is not None
            received = [peer.bytes_out / peer.since_s for peer in status.peers if peer.role == "observer"]
            for link in links:
                link.close()
            links = []
            pipe.send((found, received))


def credentials_of_all(folder: Path) -> None:
    """Make a bundle for each machine."""
    from tmrl_core.networking.security import credentials

    authority = folder / "authority"
    credentials.create(authority, ["localhost"])
    machines: list[tuple[Any, str]] = [("server", ""), ("worker", "robot"), ("trainer", "hpc"), ("operator", "anna")]
    for role, name in machines:
        credentials.install(credentials.bundle(authority, role, name, folder), folder / (name or role))


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--window", type=float, default=15.0, help="seconds of each window (default: 15)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        credentials_of_all(Path(folder))
        network = Network(folder)
        relay = Process(server, network)
        network = network._replace(port=relay.recv())
        trains = Process(trainer, network, folder)
        trains.recv()
        robots = network._replace(keys=str(Path(folder) / "robot"))
        groups = [
            [Sender(f"robot{group}-{number}", 1 / SEND_S, ROWS, 8) for number in range(WORKERS // 2)]
            for group in range(2)
        ]
        fleets = [Process(workers, robots, group) for group in groups]
        for fleet in fleets:
            fleet.recv()
        watching = Process(viewers, network)
        watching.recv()
        seconds = options.pairs * (2 * options.window + 15.0) + 30.0
        for fleet in fleets:
            fleet.pipe.send(("send", seconds, 0.0))
        time.sleep(5.0)

        def window() -> tuple[float, float]:
            """Processor time of the Server and the trainer, in hundredths of a core."""
            before, began = (relay.ask("cpu"), trains.ask("cpu")[0]), time.monotonic()
            time.sleep(options.window)
            wall_s = time.monotonic() - began
            return (
                100 * (relay.ask("cpu") - before[0]) / wall_s,
                100 * (trains.ask("cpu")[0] - before[1]) / wall_s,
            )

        alone: list[tuple[float, float]] = []
        watched: list[tuple[float, float]] = []
        ages_s: list[float] = []
        rates: list[float] = []
        for _ in range(options.pairs):
            alone.append(window())
            watching.ask("watch")
            watched.append(window())
            seen, received = watching.ask("leave")
            ages_s += seen
            rates += received
            time.sleep(1.0)
        print(f"{WORKERS} workers, {trains.ask('cpu')[1]:,} samples, {options.pairs} pairs of {options.window:g} s")
        for place, name in enumerate(("Server", "trainer")):
            without, with_ = [one[place] for one in alone], [one[place] for one in watched]
            extra = [after - before for before, after in zip(without, with_, strict=True)]
            print(
                f"{name}: {statistics.mean(without):.2f} % of a core alone, {statistics.mean(with_):.2f} % with "
                f"{VIEWERS} viewers: {statistics.mean(extra):+.2f} (from {min(extra):+.2f} to {max(extra):+.2f})"
            )
        ages_s.sort()
        print(
            f"age of a scene: median {1e3 * statistics.median(ages_s):.0f} ms, 99 % "
            f"{1e3 * ages_s[int(0.99 * (len(ages_s) - 1))]:.0f} ms, longest {1e3 * ages_s[-1]:.0f} ms"
        )
        print(f"sent to one viewer: {statistics.mean(rates) / 1e3:.1f} kB/s")
        for process in (watching, trains, relay):
            process.pipe.send("end")
            process.end()
        for fleet in fleets:
            fleet.end()


if __name__ == "__main__":
    main()
