"""Seconds from a role's command line until it works: Server, worker and trainer.

    python benchmarks/role_start.py

Each is `python -m tmrl_core` in a process of its own, over TLS. The Server is ready when it accepts a connection; the
worker when its first sample has arrived at a sink; the trainer when its first policy has arrived at a worker. The
Server runs already for the last two. The configuration is the default one, with Pendulum.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from peak_memory import free_port, start
from wire_bytes import versions

READY_S = 120.0


@contextlib.contextmanager
def running(role: str, folder: str, config: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(role, folder, config)
    try:
        yield process
    finally:
        process.kill()  # its end is not measured
        process.wait()


def wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, "the Server has ended"
        time.sleep(0.005)


def measure() -> dict[str, float]:
    """Start each role once."""
    from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
    from tmrl_core.networking.security import credentials

    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "credentials")
        credentials.ensure(keys)
        port = free_port()
        config = str(Path(folder) / "config.yaml")
        Path(config).write_text(f"server: {{port: {port}}}\nnetwork: {{credentials_dir: {keys}}}\n")
        settings = LinkSettings(host="127.0.0.1", port=port, hostname="localhost", credentials_dir=keys)
        started = time.perf_counter()
        with running("server", folder, config) as server:
            wait_listening(server, port)
            seconds["server"] = time.perf_counter() - started
            sink = TrainerLink(settings, name="sink", run="default")
            sink.start()
            assert sink.wait_connected(READY_S)
            started = time.perf_counter()
            with running("worker", folder, config):
                assert sink.wait(READY_S), "no sample has arrived"
                seconds["worker"] = time.perf_counter() - started
            sink.close()
            worker = WorkerLink(settings, name="taker", run="default")
            worker.start()
            assert worker.wait_connected(READY_S)
            started = time.perf_counter()
            with running("trainer", folder, config):
                assert worker.wait_policy(READY_S), "no policy has arrived"
                seconds["trainer"] = time.perf_counter() - started
            worker.close(drain=False)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    found = [measure() for _ in range(repetitions)]
    print(f"{versions()}; {repetitions} repetitions\n")
    print("| role | s until ready, median | range |\n| --- | --- | --- |")
    for role in found[0]:
        values = [one[role] for one in found]
        print(f"| {role} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")


if __name__ == "__main__":
    main()
