"""A thousand workers at the real command lines: `--server`, `--trainer`, `--status` and the live page.

    python benchmarks/large_fleet.py --count 1000

Workers are connections at the level of the protocol (many_links.py), with the role's token. They send ten rows of
Pendulum at a time, `--rate` times a second each, to a small SAC with its memory on disk. Server and trainer are the
processes that a user starts; their processor time is the system's count, in percent of a core. `page`: one open page
of the live page for 12 s.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from load_parts import Network
from many_links import Load, links, told
from processes import Process
from wire_bytes import versions

ROWS = 10
CONFIG = """
run: {{name: run, folder: {folder}/run}}
environment: {{cls: tmrl_core.envs:GenericGymEnv, kwargs: {{id: Pendulum-v1, to_float32: true}}}}
actor: {{cls: tmrl_core.actor:SquashedGaussianMLPActor, kwargs: {{hidden_sizes: [64, 64]}}}}
memory: {{cls: tmrl_core.training:ReplayMemory, capacity: 1e6, batch_size: 64, storage: disk}}
agent: {{cls: tmrl_core.training:SacAgent}}
trainer: {{epochs: 100000, steps: 50, start_training: 1000, max_training_steps_per_env_step: 0.01,
           update_model_interval: 100, update_buffer_interval: 1, device: cpu}}
network: {{credentials_dir: {folder}/keys}}
server: {{port: {port}, bind: 127.0.0.1}}
dashboard: {{port: {page}}}
"""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def used_s(process: psutil.Popen) -> float:
    """Return the processor time of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


class Fleet:
    """The processes of a run in a folder."""

    def __init__(self, folder: str, options: argparse.Namespace) -> None:
        from tmrl_core.networking.security import credentials

        self.folder = Path(folder)
        credentials.create(self.folder / "keys", ["localhost"])
        self.port, self.page = free_port(), free_port()
        (self.folder / "run.yaml").write_text(CONFIG.format(folder=folder, port=self.port, page=self.page))
        self.roles = {role: self.start(role) for role in ("server", "trainer")}
        while b"listens" not in (self.folder / "server.log").read_bytes():
            time.sleep(0.1)
        network = Network(str(self.folder / "keys"), port=self.port)
        self.workers = Process(links, network, Load(options.count, 0, options.rate, "worker", ROWS))

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tmrl_core", *words, "-c", str(self.folder / "run.yaml")]

    def start(self, role: str) -> psutil.Popen:
        """Start a role."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMRL_CORE_HOME": str(self.folder / "home")}
        with (self.folder / f"{role}.log").open("ab") as log:
            return psutil.Popen(self.command(f"--{role}"), stdout=log, stderr=log, env=environment)

    def flow(self, count: int, begun: float) -> float:
        """Wait until the samples of all workers flow. Return the seconds since `begun`."""
        while self.workers.ask(("active", 0.0)) < count:
            time.sleep(0.2)
        return time.monotonic() - begun

    def used(self, seconds: float, sends: bool, **others: psutil.Popen) -> str:
        """Let time pass. Return the processor time and memory of all roles, and the latencies of what was sent."""
        roles = {**self.roles, **others}
        before = {name: used_s(role) for name, role in roles.items()}
        result: Any = None
        if sends:
            result = self.workers.ask(("send", seconds))
        else:
            time.sleep(seconds)
        texts = [
            f"{name} {100 * (used_s(role) - before[name]) / seconds:.1f} %, {role.memory_info().rss >> 20} MiB"
            for name, role in roles.items()
        ]
        if result is not None:
            texts.append(f"acknowledged after {told(result.latencies_s)} (median / 99 % / worst)")
            texts.append(f"{result.acknowledged / seconds:.0f} samples/s, links lost {result.lost_links}")
        return "; ".join(texts)

    def look(self) -> str:
        """Open the live page for a while. Return what it costs."""
        dashboard = self.start("dashboard")
        try:
            while b"live page of run" not in (self.folder / "dashboard.log").read_bytes():
                time.sleep(0.1)
            connection = http.client.HTTPConnection("localhost", self.page, timeout=20)
            connection.request("GET", "/events")
            events, seconds, begun = connection.getresponse(), 12.0, time.monotonic()
            received, used = b"", used_s(dashboard)
            while time.monotonic() - begun < seconds:
                received += events.read1(65_536)
            largest = max(len(event) for event in received.split(b"\n\n") if b"event: screen" in event)
            percent, rate = 100 * (used_s(dashboard) - used) / seconds, len(received) / seconds / 1e3
            return f"dashboard {percent:.1f} %, {rate:.0f} kB/s, a screen of {largest / 1e3:.0f} kB"
        finally:
            dashboard.kill()
            dashboard.wait()

    def close(self) -> None:
        self.workers.process.kill()
        for role in self.roles.values():
            role.kill()
            role.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=0.1, help="messages a second of each worker")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    print(versions())
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        fleet = Fleet(folder, options)
        try:
            fleet.workers.recv()
            print(f"all flow after {fleet.flow(options.count, begun):.0f} s", flush=True)
            time.sleep(10)
            print(f"at rest: {fleet.used(options.seconds, False)}", flush=True)
            print(f"sending: {fleet.used(options.seconds, True)}", flush=True)
            asked = time.monotonic()
            shown = subprocess.run(fleet.command("--status"), capture_output=True, check=True).stdout
            print(f"--status: {time.monotonic() - asked:.1f} s, {len(shown) / 1e3:.0f} kB", flush=True)
            print(f"page: {fleet.look()}", flush=True)
            for role in ("server", "trainer"):
                fleet.roles[role].send_signal(signal.SIGKILL)
                fleet.roles[role].wait()
                begun = time.monotonic()
                fleet.roles[role] = fleet.start(role)
                time.sleep(4)
                print(f"{role} killed and started: all flow after {fleet.flow(options.count, begun):.0f} s", flush=True)
            print(f"sending: {fleet.used(options.seconds, True)}", flush=True)
        finally:
            fleet.close()


if __name__ == "__main__":
    main()
