"""Seconds until a link that leads into a black hole is noticed, and until samples flow after it has healed.

    python benchmarks/black_hole.py

With the settings as they come (a link is dead after 10 s of silence). Each trial has a Server, a worker that hands over
ten samples a second and a trainer of its own, over TLS; the worker or the trainer reaches the Server through the proxy,
which holds everything in one direction or both, without a word to anybody, for a random time. When it heals, TCP sends
again at its own times, after waits that have doubled, which the proxy imitates. Trials run beside each other: they
mostly wait. All in one process.

Noticed: from the hole's beginning until the side says that it is not connected. Flow: from the healing until a sample
that was made after it is acknowledged to the worker.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from wire_bytes import versions

NOTICED_S = 10.0
FLOW_S = 5.0
SLACK_S = 0.3
"""Of timers and of this machine."""
GIVE_UP_S = 120.0


class Outcome(NamedTuple):
    where: str
    direction: str
    hole_s: float
    client_s: float | None
    """Until the client noticed; None: the hole was shorter than that."""
    server_s: float | None
    flow_s: float


class Trial:
    """A Server, a trainer and a worker, one of them behind a proxy."""

    def __init__(self, keys: str, where: str, stack: ExitStack) -> None:
        from tmrl_core.config import from_values
        from tmrl_core.networking import Server
        from tmrl_core.networking.links import LinkSettings, TrainerLink, WorkerLink
        from tmrl_core.samples import Buffer
        from tmrl_core.testing.proxy import Conditions, Proxy

        config = from_values({"network": {"credentials_dir": keys}, "server": {"port": 0}})
        self.server = stack.enter_context(Server(config=config))
        self.proxy = stack.enter_context(
            Proxy(("127.0.0.1", self.server.port), conditions=Conditions(retransmission=True))
        )

        def settings(role: str) -> LinkSettings:
            port = self.proxy.port if role == where else self.server.port
            return LinkSettings(port=port, hostname="localhost", credentials_dir=keys)

        buffer = Buffer(maxlen=None)
        buffer.append_sample((np.zeros(1, np.float32), np.zeros(3, np.float32), 0.0, False, False, {}))
        self._chunks = buffer.take()[0]
        self.where = where
        self.worker = WorkerLink(settings("worker"), name="worker", run="run")
        self.trainer = TrainerLink(settings("trainer"), name="trainer", run="run")
        self.ended = threading.Event()
        stack.callback(self.trainer.close, 0.1)
        stack.callback(self.worker.close, drain=False)
        self.worker.start()
        self.trainer.start()
        for run in (self._send, self._take):
            thread = threading.Thread(target=run, daemon=True)
            stack.callback(thread.join, 5.0)
            thread.start()
        stack.callback(self.ended.set)
        self.wait(lambda: self.worker.counts.samples_acked > 0)

    def _send(self) -> None:
        while not self.ended.wait(0.1):
            self.worker.send(self._chunks, [])

    def _take(self) -> None:
        while not self.ended.is_set():
            if self.trainer.wait(0.1):
                self.trainer.acknowledge(self.trainer.receive())

    def wait(self, condition: Callable[[], bool], seconds: float = GIVE_UP_S) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def run(self, direction: Any, hole_s: float) -> Outcome:
        link = self.worker if self.where == "worker" else self.trainer
        relay = self.server.relay
        noticed: dict[str, float] = {}
        begun = time.monotonic()
        self.proxy.black_hole(direction)
        while time.monotonic() - begun < hole_s:
            if not link.connected:
                noticed.setdefault("client", time.monotonic() - begun)
            if not relay.workers if self.where == "worker" else relay.trainer is None:
                noticed.setdefault("server", time.monotonic() - begun)
            time.sleep(0.01)
        made = self.worker.counts.samples_sent
        healed = time.monotonic()
        self.proxy.heal()
        flowed = self.wait(lambda: self.worker.counts.samples_acked > made)
        flow_s = time.monotonic() - healed if flowed else float("inf")
        return Outcome(self.where, direction, hole_s, noticed.get("client"), noticed.get("server"), flow_s)


def trial(keys: str, where: str, direction: str, hole_s: float, outcomes: list[Outcome]) -> None:
    with ExitStack() as stack:
        outcomes.append(Trial(keys, where, stack).run(direction, hole_s))


def span(values: list[float]) -> str:
    return f"{statistics.median(values):8.1f} ({min(values):.1f} to {max(values):.1f})" if values else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="of each of the six kinds")
    parser.add_argument("--shortest", type=float, default=3.0, help="seconds")
    parser.add_argument("--longest", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    from tmrl_core.networking.security import credentials

    rng = random.Random(options.seed)
    outcomes: list[Outcome] = []
    kinds = [(where, direction) for where in ("worker", "trainer") for direction in ("both", "up", "down")]
    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        threads = [
            threading.Thread(
                target=trial, args=(keys, *kind, rng.uniform(options.shortest, options.longest), outcomes), daemon=True
            )
            for _ in range(options.trials)
            for kind in kinds
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.3)  # handshakes one after the other
        for thread in threads:
            thread.join()
    assert len(outcomes) == len(threads), "a trial has failed"
    print(versions())
    print(
        f"{options.trials} trials of each kind, holes of {options.shortest:g} to {options.longest:g} s, {options.seed=}"
    )
    print(f"{'hole':<20}{'noticed by the client, s':>28}{'by the Server, s':>28}{'flow after healing, s':>28}")
    for where, direction in kinds:
        some = [one for one in outcomes if (one.where, one.direction) == (where, direction)]
        client = [one.client_s for one in some if one.client_s is not None]
        served = [one.server_s for one in some if one.server_s is not None]
        flow = [one.flow_s for one in some]
        print(f"{where + ', ' + direction:<20}{span(client):>28}{span(served):>28}{span(flow):>28}")
    noticed = [value for one in outcomes for value in (one.client_s, one.server_s) if value is not None]
    missed = [one for one in outcomes if one.hole_s > NOTICED_S + 1 and None in (one.client_s, one.server_s)]
    worst, flow_worst = max(noticed), max(one.flow_s for one in outcomes)
    print(f"noticed at the latest after {worst:.2f} s (to reach: {NOTICED_S:g}); never noticed: {len(missed)}")
    print(f"samples flowed at the latest {flow_worst:.2f} s after it had healed (to reach: {FLOW_S:g})")
    return 0 if worst <= NOTICED_S + SLACK_S and not missed and flow_worst <= FLOW_S else 1


if __name__ == "__main__":
    sys.exit(main())
