"""What a Server bears: stopped peers, a trainer that is busy, many workers, one that floods.

    python benchmarks/server_load.py                    all, a few minutes
    python benchmarks/server_load.py --only flood

A Server, a trainer and workers in processes of their own on this machine, over TLS. Two hundred workers are WorkerLinks
in four processes, each with its own thread, connection and stream; they are not two hundred Pythons. Where nothing else
is said, the Server's settings are the defaults (64 MiB of budget, links dead after 10 s of silence).

Memory is the Server's resident memory at its highest during the load, over what it was with everybody connected and
idle before. Latency is from handing a message over to the trainer's acknowledgement, in a worker that sends ten small
messages a second and does not care about what the others do. The trainer takes what has come every 5 ms.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from load_parts import Network, Sender, Sent, server, trainer, workers
from processes import Process

MIB = 1 << 20
PER_CONNECTION = 0.6e6
BUDGET = 64 * MIB


class Check(NamedTuple):
    """One figure, what it has to be, and whether it is."""

    what: str
    found: str
    wanted: str
    good: bool
    of_time: bool = False
    """Whether it depends on how fast, and how busy with other things, the machine is."""


class Load:
    """The processes of one scenario."""

    def __init__(self, keys: str, silent_s: float = 10.0, budget_bytes: int = BUDGET) -> None:
        network = Network(
            keys,
            silent_s=silent_s,
            heartbeat_s=min(3.0, silent_s / 4),
            budget_bytes=budget_bytes,
            max_message_bytes=min(16 * MIB, budget_bytes // 4),
        )
        self.budget_bytes = budget_bytes
        self.server = Process(server, network)
        self.network = network._replace(port=self.server.recv())
        self.trainer = Process(trainer, self.network)
        self.trainer_pid: int = self.trainer.recv()[1]
        self.groups: list[Process] = []
        self.pids: list[int] = []
        self.connections = 1

    def add(self, *groups: list[Sender]) -> None:
        """Each group of workers in a process of its own."""
        made = [Process(workers, self.network, group) for group in groups]
        self.groups += made
        self.pids += [process.recv()[1] for process in made]
        self.connections += sum(map(len, groups))

    def idle(self) -> int:
        """The Server's memory now; its peak begins anew."""
        now: tuple[int, int] = self.server.ask("forget")
        return now[0]

    def grown(self, idle: int) -> int:
        peak: tuple[int, int] = self.server.ask("memory")
        return max(0, peak[1] - idle)

    def send(self, seconds: float, settle_s: float = 60.0) -> None:
        """Have all groups send; `sent` waits for them."""
        for group in self.groups:
            group.pipe.send(("send", seconds, settle_s))

    def sent(self) -> list[Sent]:
        return [sent for group in self.groups for sent in group.recv()]

    def counts(self) -> Any:
        return self.trainer.ask(("counts",))[0]

    def close(self) -> None:
        for process in (*self.groups, self.trainer):
            process.pipe.send(("end",))
        for process in (*self.groups, self.trainer):
            process.end()
        self.server.pipe.send("end")
        self.server.end()

    # --- what is checked in all of them ---

    def memory(self, grown: int, per_connection: bool = False) -> Check:
        limit = 1.1 * self.budget_bytes + (PER_CONNECTION * self.connections if per_connection else 0)
        return Check(
            "growth of the Server's memory", f"{grown / MIB:.1f} MiB", f"{limit / MIB:.0f} MiB", grown <= limit
        )

    @staticmethod
    def alive(sent: list[Sent]) -> Check:
        lost = sum(one.reconnects for one in sent)
        return Check("workers' links that were lost", str(lost), "0", lost == 0)

    def reckoned(self, sent: list[Sent]) -> list[Check]:
        counts = self.counts()
        dropped = sum(one.dropped for one in sent)
        left = sum(one.sent - one.acknowledged - one.dropped for one in sent)
        return [
            Check("samples neither acknowledged nor dropped", str(left), "0", left == 0),
            Check(
                f"dropped by workers / gaps at the trainer, of {sum(one.sent for one in sent):,}",
                f"{dropped:,} / {counts.gap_samples:,}",
                "equal",
                dropped == counts.gap_samples,
            ),
        ]


def latency(sent: list[Sent]) -> tuple[float, float, float]:
    """(median, 99th percentile, highest) in seconds, of all that are watched."""
    values = sorted(value for one in sent for value in one.latencies_s)
    assert values, "nothing was acknowledged"
    return statistics.median(values), values[int(len(values) * 0.99)], values[-1]


def told(name: str, values: tuple[float, float, float], wanted: str = "-", good: bool = True) -> Check:
    text = " / ".join(f"{1e3 * value:.0f}" for value in values)
    return Check(f"{name}: ms to the acknowledgement, median / 99 % / worst", text, wanted, good, of_time=True)


WATCHED = Sender("watched", rate=10, rows=10, width=8, watched=True)


# --- the scenarios ----------------------------------------------------------------------------------------------------


def stopped_trainer(keys: str, seconds: float = 20.0, silent_s: float = 10.0, megabytes_per_s: int = 20) -> list[Check]:
    """SIGSTOP for the trainer while two workers send; longer than the limit of silence."""
    load = Load(keys, silent_s)
    try:
        # 100 kB a message; queues so small that some has to be dropped.
        load.add(
            [Sender(f"w{i}", megabytes_per_s * 5, 10, 2500, "drop_oldest", queue_bytes=8 * MIB) for i in range(2)],
            [Sender("small", 10, 10, 8)],
        )
        idle = load.idle()
        load.send(seconds + 4.0)
        time.sleep(2.0)
        os.kill(load.trainer_pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
            grown = load.grown(idle)
        finally:
            os.kill(load.trainer_pid, signal.SIGCONT)
        begun = time.monotonic()
        sent = load.sent()
        settled = time.monotonic() - begun
        again = load.counts().reconnects
        return [
            load.memory(max(grown, load.grown(idle))),
            load.alive(sent),
            *load.reckoned(sent),
            Check(
                "times that the trainer's link was taken for dead",
                str(again),
                "1",
                (again == 1) == (seconds > silent_s),
            ),
            Check("seconds until all was settled after its return", f"{settled:.1f}", "-", True),
        ]
    finally:
        load.close()


def stopped_worker(keys: str, versions: int = 500, size: int = MIB, rate: float = 40.0) -> list[Check]:
    """SIGSTOP for a worker while the trainer publishes; it is not taken for dead, so that what it costs is held."""
    load = Load(keys, silent_s=120.0)
    try:
        load.add([Sender("stopped", 10, 10, 8)], [WATCHED])
        idle = load.idle()
        seconds = versions / rate
        load.send(seconds + 2.0)
        os.kill(load.pids[0], signal.SIGSTOP)
        try:
            load.trainer.ask(("publish", versions, size, rate))
            grown = load.grown(idle)
        finally:
            os.kill(load.pids[0], signal.SIGCONT)
        stopped, other = load.sent()
        return [
            load.memory(grown),
            Check("versions that reached the other worker", str(other.policies), "-", other.policies > 0),
            Check("last version at the other worker", str(other.version), str(versions), other.version == versions),
            Check(
                "last version at the stopped one, after",
                str(stopped.version),
                str(versions),
                stopped.version == versions,
            ),
            Check(
                "versions that the stopped one knows of",
                str(stopped.versions_published),
                str(versions),
                stopped.versions_published == versions,
            ),
            load.alive([stopped, other]),
            *load.reckoned([stopped, other]),
            told("the other worker", latency([other])),
        ]
    finally:
        load.close()


def busy_trainer(keys: str, seconds: float = 60.0, megabytes_per_s: int = 10, silent_s: float = 10.0) -> list[Check]:
    """The training thread takes nothing for a minute, as while compiling; its link's thread lives."""
    load = Load(keys, silent_s)
    try:
        load.add(
            [Sender(f"w{i}", megabytes_per_s * 5, 10, 2500, "drop_oldest", queue_bytes=32 * MIB) for i in range(2)],
            [Sender("small", 10, 10, 8)],
        )
        idle = load.idle()
        load.trainer.ask(("busy", seconds))
        load.send(seconds + 2.0)
        time.sleep(seconds)
        grown = load.grown(idle)
        sent = load.sent()
        again = load.counts().reconnects
        return [
            load.memory(max(grown, load.grown(idle))),
            load.alive(sent),
            Check("times that the trainer's link was lost", str(again), "0", again == 0),
            *load.reckoned(sent),
        ]
    finally:
        load.close()


def many_workers(keys: str, count: int = 200, seconds: float = 20.0, processes: int = 4) -> list[Check]:
    """All of them send as fast as they can, messages of 20 kB; and one sends little and is watched."""
    load = Load(keys)
    try:
        per = count // processes
        load.add([WATCHED], *[[Sender(f"g{p}-{i}", 0, 10, 500) for i in range(per)] for p in range(processes)])
        idle = load.idle()
        load.send(seconds, settle_s=120.0)
        time.sleep(seconds)
        grown = load.grown(idle)
        watched, *others = load.sent()
        got = [one.acknowledged_meanwhile for one in others]
        mean = statistics.mean(got)
        spread = statistics.pstdev(got) / mean
        sent = [watched, *others]
        return [
            load.memory(max(grown, load.grown(idle)), per_connection=True),
            load.alive(sent),
            *load.reckoned(sent),
            Check("MB/s of samples", f"{sum(got) * 2000 / seconds / 1e6:.0f}", "-", True),
            Check(
                "shares of the equals: least / most, of the mean",
                f"{min(got) / mean:.2f} / {max(got) / mean:.2f}",
                "0.5 at least",
                min(got) >= 0.5 * mean,
                of_time=True,
            ),
            Check("standard deviation of the shares", f"{100 * spread:.0f} %", "-", True),
            told("the one that sends little", latency([watched])),
        ]
    finally:
        load.close()


def flood(keys: str, seconds: float = 10.0, count: int = 20, quiet_s: float = 5.0) -> list[Check]:
    """Twenty workers send ten small messages a second; then one floods as well."""
    load = Load(keys)
    try:
        load.add([WATCHED._replace(name=f"s{i}") for i in range(count)])
        load.send(quiet_s)
        before = latency(load.sent())
        load.add([Sender("flood", 0, 100, 250, queue_bytes=32 * MIB)])
        idle = load.idle()
        load.send(seconds)
        time.sleep(seconds)
        grown = load.grown(idle)
        *slow, flooder = load.sent()
        for one in slow:
            del one.latencies_s[: int(quiet_s * WATCHED.rate)]
        during = latency(slow)
        due = WATCHED.rate * seconds * WATCHED.rows
        least = min(one.sent for one in slow) - WATCHED.rate * quiet_s * WATCHED.rows
        times = flooder.acknowledged_meanwhile * 1000 / (due * 32)
        return [
            Check("bytes of the one / of each of the others", f"{times:.0f}", "100", times >= 100, of_time=True),
            load.memory(max(grown, load.grown(idle))),
            load.alive([*slow, flooder]),
            *load.reckoned([*slow, flooder]),
            Check(
                "least rate of the others, of what they want",
                f"{least / due:.2f}",
                "0.9",
                least >= 0.9 * due,
                of_time=True,
            ),
            told("the others before", before),
            told("the others during", during, "99 %: 250", during[1] <= 0.25),
        ]
    finally:
        load.close()


SCENARIOS: dict[str, Callable[[str], list[Check]]] = {
    "stopped_trainer": stopped_trainer,
    "stopped_worker": stopped_worker,
    "busy_trainer": busy_trainer,
    "many_workers": many_workers,
    "flood": flood,
}


def show(name: str, checks: list[Check]) -> None:
    print(f"{name}: {(SCENARIOS[name].__doc__ or '').strip()}")
    for check in checks:
        print(f"    {check.what:<66}{check.found:>22}  ({check.wanted}){'' if check.good else '  MISSED'}")
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SCENARIOS), action="append", help="may be repeated")
    options = parser.parse_args()
    from tmrl_core.networking.security import credentials

    good = True
    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        for name in options.only or SCENARIOS:
            checks = SCENARIOS[name](keys)
            show(name, checks)
            good = good and all(check.good for check in checks)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
