"""Peak memory of a worker without torch and of the Server, after 60 s connected.

    python benchmarks/peak_memory.py

The worker and the Server are processes of their own, started as a user starts them, `python -m tmrl_core`, over TLS; a
sink takes and acknowledges what the worker sends, once a second publishes a policy, and lets about 2,000 samples pass a
second (as a trainer's updates do), so that buffers, queues and codec are all in use. Peak memory is VmHWM of
/proc/PID/status, read when the time is over, so this runs on Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from wire_bytes import versions

REACH_MB = {"worker": 120.0, "server": 60.0}
SAMPLES_PER_S = 2000


def peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} has no VmHWM")


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def start(role: str, folder: str, config: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tmrl_core", f"--{role}", "-c", config], cwd=folder)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sink(keys: str, port: int, stop: threading.Event, ready: threading.Event) -> int:
    import gymnasium

    from tmrl_core.actor import NumpySquashedGaussianMLPActor
    from tmrl_core.networking.links import LinkSettings, TrainerLink
    from tmrl_core.networking.protocol.messages import Blob, Progress
    from tmrl_core.samples import decode_message

    env = gymnasium.make("Pendulum-v1")
    actor = NumpySquashedGaussianMLPActor(env.observation_space, env.action_space, seed=0)
    settings = LinkSettings(host="127.0.0.1", port=port, hostname="localhost", credentials_dir=keys)
    link = TrainerLink(settings, name="sink", run="default")
    link.start()
    rows = 0
    begin = time.monotonic()
    published = 0
    while not stop.is_set():
        link.wait(0.1)
        received = link.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=64 << 20).chunk
            rows += chunk.rows if chunk is not None else 0
        link.acknowledge(received)
        elapsed = time.monotonic() - begin
        link.report(Progress(samples=rows, updates=int(elapsed * SAMPLES_PER_S / 2), start_training=1))
        if elapsed > published:
            link.publish({"policy": Blob(*actor.to_blob())})
            published += 1
        if rows:
            ready.set()
    link.close()
    return rows


class Peaks(NamedTuple):
    """Figures of one measurement."""

    mb: dict[str, float]
    """Peak memory of each role."""
    samples: int
    """Arrived in that time."""
    torch: bool
    """The worker has loaded it."""


def measure(seconds: float) -> Peaks:
    """Let a worker and a Server be connected for some time.

    Raises:
        RuntimeError: no sample has arrived within a minute.
    """
    from tmrl_core.networking.security import credentials

    stop, ready = threading.Event(), threading.Event()
    rows: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "credentials")
        credentials.ensure(keys)
        port = free_port()
        config = Path(folder) / "config.yaml"
        config.write_text(f"server: {{port: {port}}}\nnetwork: {{credentials_dir: {keys}, backoff_max_s: 1.0}}\n")
        processes = {role: start(role, folder, str(config)) for role in REACH_MB}
        thread = threading.Thread(target=lambda: rows.append(sink(keys, port, stop, ready)))
        thread.start()
        try:
            if not ready.wait(60):
                raise RuntimeError("no sample has arrived within a minute")
            time.sleep(seconds)
            mb = {role: peak_mb(process.pid) for role, process in processes.items()}
            torch = has_torch(processes["worker"].pid)
        finally:
            for role in REACH_MB:  # the worker first: its samples are still acknowledged
                processes[role].terminate()
                processes[role].wait(30)
            stop.set()
            thread.join()
    return Peaks(mb, rows[0], torch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="connected")
    arguments = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    peaks = measure(arguments.seconds)
    print(f"{versions()}; {arguments.seconds:g} s connected, {peaks.samples:,} samples\n")
    print("| process | peak, MB | to reach |")
    print("| --- | --- | --- |")
    for role, peak in peaks.mb.items():
        print(f"| {role} | {peak:.1f} | {REACH_MB[role]:g} |")
    print(f"\nThe worker has {'loaded' if peaks.torch else 'not loaded'} torch. NumPy {np.__version__}.")
    return 0 if not peaks.torch and all(peaks.mb[role] <= REACH_MB[role] for role in peaks.mb) else 1


if __name__ == "__main__":
    raise SystemExit(main())
