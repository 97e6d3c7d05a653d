"""Steps per second of a RolloutWorker that sends over TLS, against the same environment and policy in a bare loop.

    python benchmarks/worker_loop.py

Three processes on this machine: a Server; a sink that takes, decodes, checks and acknowledges what arrives, as a
trainer does; and a worker with Pendulum and the NumPy policy of two hidden layers of 256, which it has received from
the sink. The worker has no rate limit, and waits rather than drop. In its process a bare loop (act, step, reset at the
end of an episode, nothing kept) and the RolloutWorker's `run` take turns, nine times; the clock of `run` goes on until
everything that was collected in it has been acknowledged. One thread each for NumPy's libraries.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from processes import Cost, Process, timed
from wire_bytes import versions

REACH = 0.75
LENGTH = 200
"""Steps of an episode of Pendulum after its reset."""


def server_process(keys: str, pipe: Pipe) -> None:
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    config = from_values({"network": {"credentials_dir": keys}, "server": {"port": 0}})
    with Server(config=config) as server:
        pipe.send(server.port)
        pipe.recv()


def _protection(end_to_end: str) -> dict[str, Any]:
    return {"end_to_end": end_to_end} if end_to_end else {}


def sink_process(keys: str, port: int, end_to_end: str, pipe: Pipe) -> None:
    """Publish a policy, then take everything: each episode whole, in order, each observation as Pendulum gives it."""
    import gymnasium
    import numpy as np

    from tmrl_core.actor import NumpySquashedGaussianMLPActor
    from tmrl_core.networking.links import LinkSettings, TrainerLink
    from tmrl_core.networking.protocol.messages import Blob
    from tmrl_core.samples import decode_message

    env = gymnasium.make("Pendulum-v1")
    actor = NumpySquashedGaussianMLPActor(env.observation_space, env.action_space, seed=0)
    settings = LinkSettings(
        host="127.0.0.1", port=port, hostname="localhost", credentials_dir=keys, **_protection(end_to_end)
    )
    link = TrainerLink(settings, name="sink", run="default")
    link.start()
    link.wait_connected(30)
    link.publish({"policy": Blob(*actor.to_blob())})
    pipe.send("ready")
    rows = 0
    while not pipe.poll():
        link.wait(0.2)
        received = link.receive()
        for one in received:
            chunk = decode_message(one.payload, max_bytes=64 << 20).chunk
            if chunk is None:
                continue
            expected = (np.arange(rows, rows + chunk.rows)) % (LENGTH + 1)
            assert np.array_equal(chunk.step, expected), "samples are missing or out of order"
            assert isinstance(chunk.observation, np.ndarray)
            assert np.allclose(np.hypot(chunk.observation[:, 0], chunk.observation[:, 1]), 1.0, atol=1e-4)
            rows += chunk.rows
        link.acknowledge(received)
    pipe.recv()
    counts = link.counts
    pipe.send((rows, counts.gap_samples, counts.duplicate_messages))
    link.close()


def worker_process(keys: str, port: int, episodes: int, end_to_end: str, pipe: Pipe) -> None:
    """Answer "bare" and "sending" with seconds and seconds of processor time, until "end"."""
    from tmrl_core.config import from_values
    from tmrl_core.envs import GenericGymEnv
    from tmrl_core.networking import RolloutWorker

    config = from_values({"network": {"credentials_dir": keys, **_protection(end_to_end)}, "run": {"seed": 0}})
    worker = RolloutWorker(
        GenericGymEnv,
        "tmrl_core.actor:SquashedGaussianMLPActor",
        model_path=None,
        server_ip="127.0.0.1",
        server_port=port,
        hostname="localhost",
        max_env_steps_per_update=None,
        when_full="block",
        config=config,
    )
    link = worker.link
    assert link is not None
    bare_env = GenericGymEnv()
    bare_env.reset(seed=0)

    def bare() -> None:
        act, step, reset = worker.actor.act, bare_env.step, bare_env.reset
        obs, _ = reset()
        for _ in range(episodes * LENGTH):
            obs, _, terminated, truncated, _ = step(act(obs))
            if terminated or truncated:
                obs, _ = reset()

    def sending() -> None:
        worker.run(nb_episodes=episodes, verbose=False)
        while link.counts.queued_samples:
            time.sleep(0.0005)

    # Without a policy of the trainer, actions are drawn from the action space, which is another amount of work.
    while not link.versions_published:
        assert link.wait_change(30), "no policy has arrived"
    worker.run(nb_episodes=20, verbose=False)
    sides = {"bare": bare, "sending": sending}
    for run in sides.values():
        run()
    pipe.send("ready")
    while (side := pipe.recv()) != "end":
        pipe.send(timed(sides[side]))
    dropped = link.counts.samples_dropped + link.counts.samples_refused
    pipe.send((worker.steps_collected, dropped, "torch" in sys.modules))
    worker.close()


class Loop:
    """A Server, a sink and a worker, each in a process of its own.

    Args:
        keys: folder with credentials for all of them.
        episodes: of `LENGTH` steps, in each measurement.
        end_to_end: `network.end_to_end`; empty: its default.
    """

    def __init__(self, keys: str, episodes: int, end_to_end: str = "") -> None:
        self.steps = episodes * LENGTH
        self._server = Process(server_process, keys)
        port = self._server.recv()
        self._sink = Process(sink_process, keys, port, end_to_end)
        self._sink.recv()
        self._worker = Process(worker_process, keys, port, episodes, end_to_end)
        self._worker.recv()

    def measure(self, side: str) -> Cost:
        """Return the cost of all steps in the worker's process: `bare`, or `sending`."""
        cost: Cost = self._worker.ask(side)
        return cost

    def close(self) -> int:
        """End all and return how many samples have arrived: all that were collected, none of them twice."""
        collected, dropped, with_torch = self._worker.ask("end")
        self._worker.end()
        rows, gaps, duplicates = self._sink.ask("end")
        self._server.pipe.send("end")
        self._sink.end()
        self._server.end()
        assert rows == collected, f"{collected} samples were collected, {rows} have arrived"
        assert [dropped, gaps, duplicates] == [0, 0, 0], "dropped or refused samples, gaps, duplicates"
        assert not with_torch, "the worker has imported torch"
        return int(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--episodes", type=int, default=200, help="of 200 steps, per repetition and side")
    arguments = parser.parse_args()

    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # for the processes that are started; this one computes nothing
    from tmrl_core.networking.security import credentials

    costs: dict[str, list[Cost]] = {"bare": [], "sending": []}
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        credentials.ensure(keys)
        loop = Loop(keys, arguments.episodes)
        for _ in range(arguments.repetitions):
            for side, measured in costs.items():
                measured.append(loop.measure(side))
        rows = loop.close()

    print(f"{versions()}; {arguments.repetitions} repetitions in turn of {loop.steps:,} steps each\n")
    print("| what | steps/s, median | range | of bare | us of processor time a step |")
    print("| --- | --- | --- | --- | --- |")
    bare, sending = (statistics.median(loop.steps / cost.wall_s for cost in costs[side]) for side in costs)
    for side, label in (("bare", "bare loop"), ("sending", "RolloutWorker, sending over TLS, acknowledged")):
        rates = [loop.steps / cost.wall_s for cost in costs[side]]
        median = statistics.median(rates)
        processor_us = statistics.median(cost.processor_s for cost in costs[side]) / loop.steps * 1e6
        print(
            f"| {label} | {median:,.0f} | {min(rates):,.0f} to {max(rates):,.0f} | {median / bare:.2f} "
            f"| {processor_us:.1f} |"
        )
    print(f"\n{rows:,} samples arrived, each checked; none dropped. To reach: {REACH} of the bare loop.")
    return 0 if sending / bare >= REACH else 1


if __name__ == "__main__":
    raise SystemExit(main())
