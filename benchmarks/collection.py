"""Environment steps per second from one worker into the trainer's memory: ours over TLS, and tmrl's.

    python benchmarks/collection.py --tmrl PYTHON [--repetitions 5] [--seconds 10]

Both sides: Pendulum, a policy with two hidden layers of 256, a Server, one worker that collects as fast as it can, and
a Trainer with SAC whose loop appends what arrives to its memory and hardly ever trains (one update in 100,000 steps, so
that the worker acts with published weights). Counted are the steps, resets included, that the trainer has appended
within so many seconds, after the first 2,000. In turn, each repetition with new processes. Ours has Server, Trainer and
worker as processes with TLS, end-to-end authentication and acknowledgements, and the worker waits rather than drop.
tmrl's (`tmrl_peer.py collect`) has no encryption, which is its default.

PYTHON is that of an environment with tmrl, which the project does not depend on; without it only ours runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from latency import SWITCH_S
from processes import Process
from tmrl_peer import WARM_UP, answered
from wire_bytes import versions
from worker_loop import server_process

REACH = 4.0


def pendulum() -> Any:
    from tmrl_core.envs import GenericGymEnv

    return partial(GenericGymEnv, id="Pendulum-v1", to_float32=True)


def config_of(keys: str) -> Any:
    from tmrl_core.config import from_values

    return from_values(
        {"network": {"credentials_dir": keys}, "run": {"seed": 0, "folder": str(Path(keys).parent / "runs")}}
    )


def trainer_process(keys: str, port: int, seconds: float, pipe: Pipe) -> None:
    """Send the rate at which samples have arrived in the memory."""
    sys.setswitchinterval(SWITCH_S)
    import torch

    from tmrl_core.networking import Trainer
    from tmrl_core.training import ReplayMemory, SpinupSacAgent
    from tmrl_core.training.loops.training_loop import TorchTrainingOffline

    torch.set_num_threads(1)
    rates: list[float] = []

    class Counting(TorchTrainingOffline):
        first: tuple[float, int] | None = None

        def update_buffer(self, interface: Any) -> None:
            super().update_buffer(interface)
            now = time.monotonic()
            if self.first is None:
                if self.total_samples >= WARM_UP:
                    self.first = now, self.total_samples
            elif now - self.first[0] >= seconds and not rates:
                rates.append((self.total_samples - self.first[1]) / (now - self.first[0]))
                trainer.stop()

    trainer = Trainer(
        partial(
            Counting,
            env_cls=pendulum(),
            memory_cls=partial(ReplayMemory, memory_size=1_000_000, batch_size=256),
            training_agent_cls=SpinupSacAgent,
            epochs=1,
            rounds=1,
            steps=6000,
            update_model_interval=1,
            update_buffer_interval=1,
            max_training_steps_per_env_step=1e-5,
            start_training=1000,
            device="cpu",
        ),
        server_ip="127.0.0.1",
        server_port=port,
        hostname="localhost",
        checkpoint_path=None,
        model_path=None,
        config=config_of(keys),
    )
    trainer.run()
    pipe.send(rates[0])


def worker_process(keys: str, port: int, pipe: Pipe) -> None:
    """Collect until "end"; then send the numbers of dropped samples and of policies."""
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking import RolloutWorker

    worker = RolloutWorker(
        pendulum(),
        "tmrl_core.actor:SquashedGaussianMLPActor",
        model_path=None,
        server_ip="127.0.0.1",
        server_port=port,
        hostname="localhost",
        max_env_steps_per_update=None,
        when_full="block",
        drain_timeout_s=1.0,
        config=config_of(keys),
    )

    def wait_for_the_end() -> None:
        pipe.recv()
        worker.stop()

    threading.Thread(target=wait_for_the_end).start()
    worker.run(verbose=False)
    link = worker.link
    assert link is not None
    found = link.counts.samples_dropped, link.versions_published
    worker.close()
    pipe.send(found)


def ours(keys: str, seconds: float) -> float:
    server = Process(server_process, keys)
    port = server.recv()
    trainer = Process(trainer_process, keys, port, seconds)
    worker = Process(worker_process, keys, port)
    rate: float = trainer.recv()
    dropped, policies = worker.ask("end")
    assert dropped == 0, f"{dropped} samples were dropped"
    assert policies > 1, f"{policies} policies have arrived"
    server.pipe.send("end")
    for process in (worker, trainer, server):
        process.end()
    return rate


def tmrl(python: str, seconds: float) -> float:
    script = str(Path(__file__).with_name("tmrl_peer.py"))
    command = [python, script, "collect", "--seconds", str(seconds)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        rate = float(answered(process))
        process.communicate()
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tmrl", metavar="PYTHON", help="Python of an environment with tmrl")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from tmrl_core.networking.security import credentials

    rates: dict[str, list[float]] = {"tmrl_core": [], "tmrl": []}
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        credentials.ensure(keys)
        for _ in range(arguments.repetitions):
            rates["tmrl_core"].append(ours(keys, arguments.seconds))
            if arguments.tmrl:
                rates["tmrl"].append(tmrl(arguments.tmrl, arguments.seconds))
            print({name: [round(rate) for rate in found] for name, found in rates.items()}, flush=True)
    print(f"{versions()}; {arguments.repetitions} repetitions in turn of {arguments.seconds:g} s each\n")
    print("| who | steps/s in the memory, median | range |")
    print("| --- | --- | --- |")
    for name, found in rates.items():
        if found:
            print(f"| {name} | {statistics.median(found):,.0f} | {min(found):,.0f} to {max(found):,.0f} |")
    if not arguments.tmrl:
        return 0
    ratio = statistics.median(rates["tmrl_core"]) / statistics.median(rates["tmrl"])
    print(f"\nratio {ratio:.1f}, to reach: {REACH:g}")
    return 0 if ratio >= REACH else 1


if __name__ == "__main__":
    sys.exit(main())
