"""A Server with one hostile member at full effort: what honest workers lose, and what the member costs the Server.

    python benchmarks/hostile.py --seconds 60 --turns 1

Processes on this machine: a Server, a trainer that commits everything and publishes a policy of 8 MB every two seconds,
four honest WorkerLinks with 25 messages of 10 kB a second each, and a thief with a stolen bundle. Phases take turns:
nothing, each attack, and after each attack a control process that burns the same processor time as the thief and the
Server's increase together. The slow-down of honest workers is the loss of acknowledged samples in an attack's phase,
less that in its control's. Processor seconds of the Server are those of the attack's phase less those of the phase
without anything, scaled to 60 s. Growth is the peak of the Server's resident memory in the attack's phase, above that
before it.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

from load_parts import Network, Sender, forget_peak, memory_bytes, trainer, workers
from processes import Process
from wire_bytes import versions

HONEST, RATE = 4, 25.0
POLICY_BYTES, POLICY_EVERY_S = 8 << 20, 2.0
MB = 1 << 20
WIDE = "\N{GRINNING FACE}" * 200


def server(network: Network, pipe: Pipe) -> None:
    """Sends its port. `forget`: a new peak; both that and `look`: (processor seconds, memory, peak); `end`."""
    sys.setswitchinterval(0.0005)
    from tmrl_core.config import from_values
    from tmrl_core.networking import Server

    values = {"network": {"credentials_dir": network.keys}, "server": {"port": 0, "budget_bytes": network.budget_bytes}}
    with Server(config=from_values(values)) as made:
        pipe.send(made.port)
        while (command := pipe.recv()) != "end":
            if command == "forget":
                forget_peak()
            pipe.send((time.process_time(), *memory_bytes()))


class Link:
    """A link of the thief; a thread reads and notes the credit of its streams, unless it is deaf."""

    def __init__(self, bundle: str, port: int, number: int, *, deaf: bool = False) -> None:
        from tmrl_core.networking.protocol.messages import Hello
        from tmrl_core.networking.security import credentials

        raw = socket.socket()
        if deaf:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.settimeout(20)
        raw.connect(("127.0.0.1", port))
        self.sock = credentials.client_context(bundle, "worker").wrap_socket(raw, server_hostname="localhost")
        self.resumes: dict[int, Any] = {}
        self.number = number
        self.tell(Hello((1,), "worker", "", "run", "robot", os.urandom(16)))
        if not deaf:
            threading.Thread(target=self._read, daemon=True).start()

    def tell(self, *messages: Any) -> None:
        from tmrl_core.networking.protocol.framing import control_frame

        self.sock.sendall(b"".join(map(control_frame, messages)))

    def _read(self) -> None:
        from tmrl_core.networking.protocol.framing import FrameReader, Kind
        from tmrl_core.networking.protocol.messages import Resume, decode_control

        reader = FrameReader()
        with suppress(OSError, ssl.SSLError):
            while n := self.sock.recv_into(reader.get_buffer()):
                reader.received(n)
                for frame in reader.take():
                    if frame.kind == Kind.CONTROL:
                        message = decode_control(frame.payload)
                        if isinstance(message, Resume):
                            self.resumes[message.channel] = message

    def open(self, streams: int, name: str = "robot", signature: bytes = b"") -> None:
        from tmrl_core.networking.protocol.messages import OpenStream

        for first in range(0, streams, 64):
            some = range(first, min(streams, first + 64))
            self.tell(*(OpenStream(i, os.urandom(16), name, signature) for i in some))
        deadline = time.monotonic() + 5
        while len(self.resumes) < streams and time.monotonic() < deadline:
            time.sleep(0.01)


def reserve(link: Link, over: Callable[[], bool]) -> None:
    """Row 1: 40 streams want 8 MB each, then only heartbeats."""
    from tmrl_core.networking.protocol.framing import PING_FRAME
    from tmrl_core.networking.protocol.messages import Want

    link.open(40)
    link.tell(*(Want(i, told.epoch, told.credit + 7 * MB) for i, told in list(link.resumes.items())))
    while not over():
        link.sock.sendall(PING_FRAME * 4_096)


def wants(link: Link, over: Callable[[], bool]) -> None:
    """Row 2: 1,000 streams ask for a little more, again and again."""
    from tmrl_core.networking.protocol.messages import Want

    link.open(1_000)
    told = list(link.resumes.items())
    step = 0
    while not over():
        step += 1
        for first in range(0, len(told), 256):
            link.tell(*(Want(i, one.epoch, one.credit + step) for i, one in told[first : first + 256]))
        if not told:
            time.sleep(0.05)


def deaf(link: Link, over: Callable[[], bool]) -> None:
    """Row 3: a link that never reads, kept alive with heartbeats."""
    from tmrl_core.networking.protocol.framing import PING_FRAME

    while not over():
        link.sock.sendall(PING_FRAME)
        time.sleep(0.5)


def names(link: Link, over: Callable[[], bool]) -> None:
    """Row 4: streams with long names, and long wait reasons again and again, in the widest characters."""
    from tmrl_core.networking.protocol.messages import Waits

    link.open(1_000, WIDE)
    while not over():
        for first in range(0, 1_000, 50):
            link.tell(*(Waits(i, WIDE + str(first)) for i in range(first, first + 50)))


def churn(link: Link, over: Callable[[], bool]) -> None:
    """Row 6, through an honest Server: streams with signatures of 60 kB, opened and closed again and again."""
    from tmrl_core.networking.protocol.messages import CloseStream, OpenStream

    channel = 0
    while not over():
        channel += 1
        link.tell(OpenStream(channel, os.urandom(16), "robot", bytes(60_000)), CloseStream(channel))


ATTACKS: dict[str, tuple[Callable[[Link, Callable[[], bool]], None], int]] = {
    "1 reserve": (reserve, 1),
    "2 wants": (wants, 5),
    "3 deaf": (deaf, 40),
    "4 names": (names, 5),
    "6 churn": (churn, 4),
}


def thief(bundle: str, port: int, pipe: Pipe) -> None:
    """(attack, seconds): full effort for so long; sends (processor seconds, links used). `end`."""
    pipe.send("ready")
    while (command := pipe.recv()) != "end":
        name, seconds = command
        attack, links = ATTACKS[name]
        until, begun = time.monotonic() + seconds, time.process_time()
        used = [0]

        def over(until: float = until) -> bool:
            return time.monotonic() >= until

        def keep(number: int, attack: Any = attack, over: Any = over, used: Any = used, name: str = name) -> None:
            while not over():
                with suppress(OSError, ssl.SSLError):
                    used[0] += 1
                    attack(Link(bundle, port, number, deaf=name.startswith("3")), over)
                time.sleep(0.05)

        threads = [threading.Thread(target=keep, args=(i,), daemon=True) for i in range(links)]
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, until - time.monotonic()))
        pipe.send((time.process_time() - begun, used[0]))


def control(pipe: Pipe) -> None:
    """(share, seconds): burn this share of a core."""
    pipe.send("ready")
    while (command := pipe.recv()) != "end":
        share, seconds = command
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            begun = time.process_time()
            while time.process_time() - begun < 0.01 * min(share, 1.0):
                pass
            time.sleep(max(0.0, 0.01 * (1.0 - share)))
        pipe.send(None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    arguments = parser.parse_args()
    from tmrl_core.networking.security import credentials

    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        bundle = str(credentials.bundle(keys, "worker", "robot7", keys))
        network = Network(keys, end_to_end="off")  # else the thief would have to sign its streams
        relay = Process(server, network)
        network = network._replace(port=relay.recv())
        sink = Process(trainer, network)
        sink.recv()
        honest = [Sender(f"good{i}", RATE, 1, 2_500, "drop_oldest", 64 << 20, watched=True) for i in range(HONEST)]
        fleet = Process(workers, network, honest)
        fleet.recv()
        wolf, burner = Process(thief, bundle, network.port), Process(control)
        wolf.recv(), burner.recv()
        before = {"acknowledged": 0, "sent": 0, "latencies": 0}

        def phase(what: Process | None, *command: Any) -> tuple[dict[str, float], Any]:
            seconds = arguments.seconds
            used, resident, _ = relay.ask("forget")
            sink.pipe.send(("publish", int(seconds / POLICY_EVERY_S), POLICY_BYTES, 1 / POLICY_EVERY_S))
            if what is not None:
                what.pipe.send(command)
            fleet.pipe.send(("send", seconds, 30.0))
            time.sleep(seconds)
            after, _, peak = relay.ask("look")
            answer = what.recv() if what is not None else None
            sink.recv()
            reports = fleet.recv()
            meanwhile = sum(one.acknowledged_meanwhile for one in reports)
            sent, acknowledged = sum(one.sent for one in reports), sum(one.acknowledged for one in reports)
            latencies = sorted(x for one in reports for x in one.latencies_s[before["latencies"] // HONEST :])
            found = {
                "server_s": (after - used) * 60 / seconds,
                "growth_mb": (peak - resident) / MB,
                "rate": (meanwhile - before["acknowledged"]) / seconds,
                "lost": sent - acknowledged,
                "median_ms": 1e3 * statistics.median(latencies),
                "late_ms": 1e3 * latencies[int(0.99 * len(latencies))],
            }
            before["acknowledged"] = acknowledged
            before["latencies"] += len(latencies)
            return found, answer

        print(
            f"{HONEST} honest workers, {RATE:g} messages of 10 kB a second each; cores: {os.cpu_count()}; {versions()}"
        )
        print("| attack | phase | acknowledged/s | not acknowledged | median, 99 % ms | Server s in 60 s | growth MB |")
        print("| --- | --- | --- | --- | --- | --- | --- |")

        def row(attack: str, name: str, found: dict[str, float]) -> None:
            print(
                f"| {attack} | {name} | {found['rate']:.1f} | {found['lost']:.0f} | {found['median_ms']:.0f}, "
                f"{found['late_ms']:.0f} | {found['server_s']:.1f} | {found['growth_mb']:.0f} |",
                flush=True,
            )

        for _ in range(arguments.turns):
            for attack in arguments.attacks:
                calm, _ = phase(None)
                row(attack, "none", calm)
                hit, (used, links) = phase(wolf, attack, arguments.seconds)
                row(attack, f"attack ({links} links, thief {used:.0f} s)", hit)
                share = used / arguments.seconds + max(0.0, hit["server_s"] - calm["server_s"]) / 60
                burnt, _ = phase(burner, share, arguments.seconds)
                row(attack, f"control ({share:.2f} of a core)", burnt)
                slower = (burnt["rate"] - hit["rate"]) / calm["rate"]
                extra = hit["server_s"] - calm["server_s"]
                print(f"|  | slow-down {100 * slower:.1f} %, Server {extra:.1f} s of 60 s |  |  |  |  |  |", flush=True)
        for process in (wolf, burner, relay):
            process.pipe.send("end")
        for process in (fleet, sink):
            process.pipe.send(("end",))
        for process in (fleet, sink, wolf, burner, relay):
            process.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
