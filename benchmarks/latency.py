"""Milliseconds from a step's end to its sample in the trainer's memory, and from new weights to the first action.

    python benchmarks/latency.py [--samples 1000] [--publishings 100] [--step-ms 5]

Three processes on this machine: a Server, a Trainer and a worker, with TLS. Clocks are the machine's monotonic one,
which its processes share. The worker's environment waits `--step-ms` in each step, as a machine in real time does.

- Samples: the worker sends each step (`worker.send_every: 1`). The observation holds the time at which `step` returned
  it; the trainer's replay memory notes the time after each insertion. The training loop waits for samples, as it does
  while `trainer.max_training_steps_per_env_step` holds training back.
- Weights: the trainer publishes a policy of 1 MB (two hidden layers of 490) every 60 ms or so, at any moment of the
  worker's step. The worker has `update_weights: step`. The clock runs from the call that publishes until the
  environment is given the first action of the new policy, the rest of the step that is under way included.
  `--step-ms 0` leaves that rest out, and measures on a worker whose core is never idle.
- Control: three processes with blocking TLS sockets in the same shape, without any of our code between them. They
  pass on 200 bytes after each step, and then 1 MB every 60 ms or so. This is what the machine takes for two hops.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import sys
import tempfile
import threading
import time
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from processes import Process
from relay_throughput import raw_client, raw_relay
from wire_bytes import versions
from worker_loop import server_process

REACH_SAMPLE_MS = 1.0
REACH_WEIGHTS_MS = 10.0
PAUSE_S = 0.06
LONGEST_S = 120.0
HIDDEN = (490, 490)
"""Layers of a policy of 1 MB for `Clock`: 250,000 numbers of four bytes."""
SWITCH_S = 0.0005
"""The command line sets it for every role."""
WARM_UP = 50
"""Samples, or publishings, that are not counted."""
STAMP = struct.Struct("<d")
RAW_BYTES = 200
"""A message of one sample takes about so many on the wire."""


def clock_env(step_s: float, on_action: Any = None) -> Any:
    """An environment whose observations are the times at which its steps have ended."""
    import gymnasium
    import numpy as np
    from gymnasium import spaces

    class Clock(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        action_space = spaces.Box(-1, 1, (1,), np.float32)
        steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.array([time.monotonic()]), {}

        def step(self, action: Any) -> Any:
            if on_action is not None:
                on_action(time.monotonic())
            self.steps += 1
            if step_s:
                time.sleep(step_s)
            return np.array([time.monotonic()]), 0.0, False, self.steps % 200 == 0, {}

    return Clock()


def config_of(keys: str, **worker: Any) -> Any:
    from tmrl_core.config import from_values

    return from_values(
        {
            "network": {"credentials_dir": keys},
            "run": {"seed": 0, "folder": str(Path(keys).parent)},
            "worker": {"update_weights": "step", "send_every": 1, "max_env_steps_per_update": None, **worker},
        }
    )


def trainer_process(keys: str, port: int, pipe: Pipe) -> None:
    """Answer "samples" with the delays of the samples since the last answer, "publish" with the time of the call."""
    sys.setswitchinterval(SWITCH_S)
    import torch

    from tmrl_core.actor import SquashedGaussianMLPActor
    from tmrl_core.networking import Trainer
    from tmrl_core.training.agent import TrainingAgent
    from tmrl_core.training.loops.training_loop import TorchTrainingOffline
    from tmrl_core.training.memories.replay import ReplayMemory

    torch.set_num_threads(1)
    delays: list[float] = []
    loops: list[Any] = []

    class Noting(ReplayMemory):
        def append_chunk(self, chunk: Any) -> int:
            count = super().append_chunk(chunk)
            now = time.monotonic()
            delays.extend(now - at for at in chunk.observation[:, 0].tolist())
            return count

    class Idle(TrainingAgent):
        """An agent that is never trained."""

        def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
            super().__init__(observation_space, action_space, device)
            self.actor = SquashedGaussianMLPActor(observation_space, action_space, hidden_sizes=HIDDEN)

        def train(self, batch: Any) -> dict[str, float]:
            raise AssertionError("there are never enough samples")

        def get_actor(self) -> Any:
            return self.actor

    class Loop(TorchTrainingOffline):
        def run_epoch(self, interface: Any) -> Any:
            loops.append(interface)
            return super().run_epoch(interface)

    trainer = Trainer(
        partial(
            Loop,
            env_cls=partial(clock_env, 0.0),
            memory_cls=partial(Noting, memory_size=100_000, downcast_float64=False),
            training_agent_cls=Idle,
            start_training=10**9,
            device="cpu",
        ),
        server_ip="127.0.0.1",
        server_port=port,
        hostname="localhost",
        checkpoint_path=None,
        model_path=None,
        config=config_of(keys),
    )
    thread = threading.Thread(target=trainer.run)
    thread.start()
    while not loops:
        time.sleep(0.01)
    actor = SquashedGaussianMLPActor(clock_env(0).observation_space, clock_env(0).action_space, hidden_sizes=HIDDEN)
    size = len(actor.to_blob()[1])
    pipe.send(size)
    while (command := pipe.recv()) != "end":
        if command == "samples":
            pipe.send(list(delays))
        else:
            started = time.monotonic()
            loops[0].broadcast_model(actor)
            pipe.send((loops[0].version, started))
    trainer.stop()
    thread.join()
    pipe.send("ended")


def worker_process(keys: str, port: int, step_s: float, pipe: Pipe) -> None:
    """Step until "end"; then answer with the time of the first action of each policy version."""
    sys.setswitchinterval(SWITCH_S)
    from tmrl_core.networking import RolloutWorker

    first: dict[tuple[int, int], float] = {}
    workers: list[Any] = []

    def on_action(now: float) -> None:
        if workers:
            first.setdefault(workers[0].policy_version, now)

    worker = RolloutWorker(
        partial(clock_env, step_s, on_action),
        partial(actor_of_the_trainer, hidden_sizes=HIDDEN, random=0.0),
        model_path=None,
        server_ip="127.0.0.1",
        server_port=port,
        hostname="localhost",
        config=config_of(keys),
    )
    workers.append(worker)

    def wait_for_the_end() -> None:
        pipe.recv()
        worker.stop()

    threading.Thread(target=wait_for_the_end).start()
    pipe.send("ready")
    worker.run(verbose=False)
    worker.close()
    pipe.send((first, "torch" in sys.modules))


def actor_of_the_trainer(observation_space: Any, action_space: Any, **kwargs: Any) -> Any:
    from tmrl_core.actor import NumpySquashedGaussianMLPActor

    return NumpySquashedGaussianMLPActor(observation_space, action_space, **kwargs)


def raw_source(keys: str, port: int, plan: list[tuple[int, int, float]], pipe: Pipe) -> None:
    """Send messages that begin with the time, as planned: their number, their bytes, and the pause before each."""
    sock = raw_client(keys, port, b"W")
    pipe.recv()
    for count, size, pause_s in plan:
        rest = bytes(size - STAMP.size)
        for number in range(count):
            time.sleep(pause_s * (1 + 0.37 * (number % 3)) if size > RAW_BYTES else pause_s)
            sock.sendall(STAMP.pack(time.monotonic()) + rest)
    sock.close()


def raw_sink(keys: str, port: int, plan: list[tuple[int, int, float]], pipe: Pipe) -> None:
    """Receive the planned messages; send the delays of each kind."""
    sock = raw_client(keys, port, b"T")
    pipe.send("ready")
    found = []
    for count, size, _ in plan:
        delays, view = [], memoryview(bytearray(size))
        for _ in range(count):
            filled = 0
            while filled < size:
                n = sock.recv_into(view[filled:])
                assert n, "the control's connection ended early"
                filled += n
            delays.append(time.monotonic() - STAMP.unpack_from(view)[0])
        found.append(delays[WARM_UP:])
    pipe.send(found)


def control(keys: str, samples: int, publishings: int, step_s: float, size: int) -> list[list[float]]:
    """Return the delays of small and of large messages over two hops of blocking TLS sockets."""
    plan = [(samples + WARM_UP, RAW_BYTES, step_s), (publishings + WARM_UP, size, PAUSE_S)]
    relay = Process(raw_relay, keys)
    port = relay.recv()
    sink = Process(raw_sink, keys, port, plan)
    source = Process(raw_source, keys, port, plan)
    sink.recv()
    source.pipe.send("go")
    found: list[list[float]] = sink.recv()
    for process in (source, sink):
        process.end()
    relay.recv()
    relay.end()
    return found


def report(name: str, delays_s: list[float], reach_ms: float | None = None) -> bool:
    """Print a row; True: the median reaches the target."""
    ordered = sorted(delay * 1e3 for delay in delays_s)
    cuts = [ordered[int(len(ordered) * part)] for part in (0.25, 0.75, 0.99)]
    median = statistics.median(ordered)
    reach = "-" if reach_ms is None else f"{reach_ms:g}"
    print(f"| {name} | {len(ordered)} | {median:.2f} | {cuts[0]:.2f} to {cuts[1]:.2f} | {cuts[2]:.2f} | {reach} |")
    return reach_ms is None or median <= reach_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--publishings", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=5.0)
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from tmrl_core.networking.security import credentials

    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        credentials.ensure(keys)
        server = Process(server_process, keys)
        port = server.recv()
        trainer = Process(trainer_process, keys, port)
        size = trainer.recv()
        worker = Process(worker_process, keys, port, arguments.step_ms / 1e3)
        worker.recv()
        found: list[float] = []
        deadline = time.monotonic() + LONGEST_S
        while len(found) < arguments.samples + WARM_UP:
            assert time.monotonic() < deadline, f"{len(found)} samples have arrived"
            time.sleep(0.2)
            found = trainer.ask("samples")
        samples = found[WARM_UP:]
        published: dict[tuple[int, int], float] = {}
        for number in range(arguments.publishings + WARM_UP):
            version, started = trainer.ask("publish")
            if number >= WARM_UP:
                published[version] = started
            # Not in step with the environment.
            time.sleep(PAUSE_S * (1 + 0.37 * (number % 3)))
        first, with_torch = worker.ask("end")
        worker.end()
        trainer.ask("end")
        trainer.end()
        server.pipe.send("end")
        server.end()
        raw = control(keys, arguments.samples, arguments.publishings, arguments.step_ms / 1e3, size)
    assert not with_torch, "the worker has imported torch"
    delays = [first[version] - started for version, started in published.items() if version in first]
    print(
        f"{versions()}; steps of {arguments.step_ms:g} ms; weights of {size:,} bytes; load {os.getloadavg()[0]:.1f}\n"
    )
    print("| from | number | median, ms | quartiles | 99th percentile | to reach |")
    print("| --- | --- | --- | --- | --- | --- |")
    reached = report("a step's end to its sample in the memory", samples, REACH_SAMPLE_MS)
    report(f"control: {RAW_BYTES} bytes over two raw TLS hops", raw[0])
    reached &= report("publishing to the first action", delays, REACH_WEIGHTS_MS)
    report("control: as many bytes over two raw TLS hops", raw[1])
    if len(delays) < len(published):
        print(f"\n{len(published) - len(delays)} versions were replaced by a later one before they acted.")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
