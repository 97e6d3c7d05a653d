"""A Server with one hostile member at full effort: what honest workers lose, and what the member costs the Server.

    python benchmarks/hostile.py                    all attacks, about thirteen minutes; status 1: a bound is passed
    python benchmarks/hostile.py --attacks "2 wants" --seconds 20 --turns 5

Processes on this machine: a Server, a trainer that commits everything and publishes a policy of 8 MB every two seconds,
three honest WorkerLinks that send messages of 10 kB as fast as they are taken, two more with 25 such messages a second
each, whose latency is measured, and a thief with a stolen bundle, which signs its streams. Phases take turns: once
nothing, then each attack, whose bundle is revoked at its end, and after it control processes, which burn the processor
time of the thief and the Server's increase. There are so many because the scheduler gives one process, and two, less
than an attack whose threads wait for sockets. The slow-down of honest workers is the loss of acknowledged samples a
second in an attack's phase compared with its control's; with several turns, the median of the turns counts, because two
phases without any attack differ by 10 % and more. Processor seconds of the Server are those of the attack's phase,
scaled to 60 s, less what the samples of that phase cost in the phase without anything. Those of the trainer are shown
as they are, since the control does not burn what the attack costs there. Growth is the peak of the Server's resident
memory in the attack's phase, above that before it. Only an idle machine gives meaningful figures: the bounds of one
principal are processor seconds of the Server, however few it gets.
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
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from load_parts import Network, Sender, forget_peak, memory_bytes, trainer, workers
from processes import Process
from wire_bytes import versions

GREEDY, PROBES, RATE = 3, 2, 25.0
BURNERS = 8
POLICY_BYTES, POLICY_EVERY_S = 8 << 20, 2.0
MB = 1 << 20
BUDGET_BYTES = 64 * MB
SLOWER, GROWTH_MB, SERVER_S = 0.1, 1.1 * BUDGET_BYTES / MB, 15.0
"""Bounds of an attack's phase."""
STREAMS = 900
REVOKED_S = 3.0
"""Within this time the Server notices a revocation."""
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


def seal_of(bundle: str) -> Any:
    """The thief's signature, which it has with the bundle."""
    from tmrl_core.networking.links.sealing import Identity
    from tmrl_core.networking.worker.seal import WorkerSeal

    identity = Identity(Path(bundle), "worker")
    return WorkerSeal("run", identity.signer, identity.verifier, mode="authenticate")


class Link:
    """A link of the thief; a thread reads and notes the credit of its streams, unless it is deaf."""

    def __init__(self, bundle: str, port: int, number: int, *, deaf: bool = False, greets: bool = True) -> None:
        from tmrl_core.networking.protocol.messages import Hello
        from tmrl_core.networking.security import tls_contexts

        raw = socket.socket()
        if deaf:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.settimeout(20)
        raw.connect(("127.0.0.1", port))
        self.sock = tls_contexts.client_context(bundle, "worker").wrap_socket(raw, server_hostname="localhost")
        self.resumes: dict[int, Any] = {}
        self.credits: dict[int, Any] = {}
        self.number = number
        self.seal = seal_of(bundle)
        if greets:
            self.tell(Hello((1,), "worker", "", "run", "robot", os.urandom(16)))
        if not deaf:
            threading.Thread(target=self._read, daemon=True).start()

    def tell(self, *messages: Any) -> None:
        from tmrl_core.networking.protocol.messages import control_frame

        self.sock.sendall(b"".join(map(control_frame, messages)))

    def _read(self) -> None:
        from tmrl_core.networking.protocol.framing import FrameReader, Kind
        from tmrl_core.networking.protocol.messages import Credit, Resume, decode_control

        reader = FrameReader()
        with suppress(OSError, ssl.SSLError):
            while n := self.sock.recv_into(reader.get_buffer()):
                for frame in reader.received(n):
                    if frame.kind == Kind.CONTROL:
                        message = decode_control(frame.payload)
                        if isinstance(message, Resume):
                            self.resumes[message.channel] = message
                        elif isinstance(message, Credit):
                            self.credits[message.channel] = message

    def opening(self, channel: int, name: str = "robot", signature: bytes = b"") -> Any:
        """The announcement of a new stream."""
        from tmrl_core.networking.protocol.messages import OpenStream

        stream = self.seal.new_stream()
        return OpenStream(channel, stream, name, self.seal.record(stream, signature))

    def open(self, streams: int, name: str = "robot", signature: bytes = b"") -> None:
        for first in range(0, streams, 64):
            some = range(first, min(streams, first + 64))
            self.tell(*(self.opening(i, name, signature) for i in some))
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
    """Row 2: many streams ask for a little more, again and again."""
    from tmrl_core.networking.protocol.messages import Want

    link.open(STREAMS)
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

    link.open(STREAMS, WIDE)
    while not over():
        for first in range(0, STREAMS, 50):
            link.tell(*(Waits(i, WIDE + str(first)) for i in range(first, first + 50)))


def churn(link: Link, over: Callable[[], bool]) -> None:
    """Row 6, through an honest Server: streams with signatures of 58 kB, opened and closed again and again."""
    from tmrl_core.networking.protocol.messages import CloseStream

    channel = 0
    while not over():
        channel += 1
        link.tell(link.opening(channel, signature=bytes(58_000)), CloseStream(channel))


def tiny(link: Link, over: Callable[[], bool]) -> None:
    """Row 7: a megabyte of messages of 44 bytes, then the link ends, again and again."""
    from tmrl_core.networking.protocol.framing import Kind, cut
    from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Want

    link.open(1)
    told = link.resumes[0]
    link.tell(Want(0, told.epoch, told.credit + MB))
    for first in range(0, 20_000, 500):
        if over():
            return
        heads = (SAMPLES_HEAD.pack(number, number, number, 1, 0) for number in range(first, first + 500))
        frames = (wire for head in heads for wire in cut(Kind.DATA, head, [b""], epoch=told.epoch, channel=0))
        link.sock.sendall(b"".join(map(bytes, frames)))
    link.sock.close()


def probe(link: Link, over: Callable[[], bool]) -> None:
    """Row 8: a new link for each check of the connection."""
    from tmrl_core.networking.protocol.messages import Probe

    link.tell(Probe((1,), "worker", "", "run"))
    link.sock.close()


def unfinished(link: Link, over: Callable[[], bool]) -> None:
    """Row 9: a frame of 64 kB in TLS records of one byte, but for its end; then another link."""
    from tmrl_core.networking.protocol.framing import HEADER, Kind

    link.sock.sendall(HEADER.pack(60_000, Kind.CONTROL, 3, 0, 0))
    for _ in range(59_000):
        if over():
            break
        link.sock.sendall(b"x")
    link.sock.close()


def refused(link: Link, over: Callable[[], bool]) -> None:
    """Row 10: a link that is refused, and sends bytes at the rate of the network from then on."""
    from tmrl_core.networking.protocol.messages import CloseStream

    link.tell(CloseStream(99))
    while not over():
        socket.socket.sendall(link.sock, bytes(1 << 18))  # without TLS


def begun(link: Link, over: Callable[[], bool]) -> None:
    """Row 11: messages of 8 MB but for their end; then their stream is closed, and another one begins."""
    from tmrl_core.networking.protocol.framing import Kind, cut, message_bytes
    from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, CloseStream, Want

    size = 8 * MB
    channel = 0
    while not over():
        link.tell(link.opening(channel))
        deadline = time.monotonic() + 5
        while channel not in link.resumes and time.monotonic() < deadline:
            time.sleep(0.001)
        told = link.resumes[channel]
        link.credits.pop(channel, None)
        link.tell(Want(channel, told.epoch, told.credit + message_bytes(SAMPLES_HEAD, size)))
        while channel not in link.credits and time.monotonic() < deadline:
            time.sleep(0.001)
        head = SAMPLES_HEAD.pack(0, 0, 0, 1, size)
        *frames, _ = cut(Kind.DATA, head, [bytes(size)], epoch=told.epoch, channel=channel)
        link.sock.sendall(b"".join(map(bytes, frames)))
        link.tell(CloseStream(channel))
        channel += 1


ATTACKS: dict[str, tuple[Callable[[Link, Callable[[], bool]], None], int]] = {
    "1 reserve": (reserve, 1),
    "2 wants": (wants, 5),
    "3 deaf": (deaf, 40),
    "4 names": (names, 5),
    "6 churn": (churn, 4),
    "7 tiny": (tiny, 2),
    "8 probe": (probe, 4),
    "9 unfinished": (unfinished, 3),
    "10 refused": (refused, 8),
    "11 begun": (begun, 6),
}


def thief(port: int, pipe: Pipe) -> None:
    """(attack, bundle, seconds): full effort for so long; sends (processor seconds, links used). `end`."""
    pipe.send("ready")
    while (command := pipe.recv()) != "end":
        name, bundle, seconds = command
        attack, links = ATTACKS[name]
        until, begun = time.monotonic() + seconds, time.process_time()
        used = [0]

        def over(until: float = until) -> bool:
            return time.monotonic() >= until

        def keep(
            number: int,
            attack: Any = attack,
            bundle: str = bundle,
            over: Any = over,
            used: Any = used,
            name: str = name,
        ) -> None:
            while not over():
                with suppress(OSError, ssl.SSLError):
                    used[0] += 1
                    attack(Link(bundle, port, number, deaf="deaf" in name, greets="probe" not in name), over)
                time.sleep(0.05)

        threads = [threading.Thread(target=keep, args=(i,), daemon=True) for i in range(links)]
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, until - time.monotonic()))
        pipe.send((time.process_time() - begun, used[0]))


def control(pipe: Pipe) -> None:
    """(share, seconds): burn this share of a core, and what a busy machine delayed; sends the processor seconds."""
    pipe.send("ready")
    while (command := pipe.recv()) != "end":
        share, seconds = command
        begun, used = time.monotonic(), time.process_time()
        while (passed := time.monotonic() - begun) < seconds:
            if time.process_time() - used >= share * passed:
                time.sleep(0.005)
        pipe.send(time.process_time() - used)


class Phase(NamedTuple):
    """Figures of one phase."""

    rate: float
    """Samples of greedy workers acknowledged a second."""
    lost: int
    """Samples of all honest workers that were never acknowledged."""
    median_ms: float
    late_ms: float
    server_s: float
    """Processor seconds of the Server in 60 s."""
    trainer_s: float
    growth_mb: float


def processor_s(process: Process) -> float:
    """Processor seconds that a process has used."""
    used = psutil.Process(process.process.pid).cpu_times()
    return float(used.user + used.system)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=32.0, help="of each phase")
    parser.add_argument("--turns", type=int, default=1, help="of each attack and its control")
    parser.add_argument("--attacks", nargs="*", default=list(ATTACKS), choices=list(ATTACKS))
    arguments = parser.parse_args()
    seconds: float = arguments.seconds
    from tmrl_core.networking.security import credentials
    from tmrl_core.networking.security.renewal import revoke

    with tempfile.TemporaryDirectory() as keys:
        credentials.create(keys, ["localhost"])
        names = {
            (one, turn): f"robot{one.split()[0]}-{turn}" for one in arguments.attacks for turn in range(arguments.turns)
        }
        bundles = {key: str(credentials.bundle(keys, "worker", name, keys)) for key, name in names.items()}
        network = Network(keys, budget_bytes=BUDGET_BYTES)
        relay = Process(server, network)
        network = network._replace(port=relay.recv())
        sink = Process(trainer, network)
        sink.recv()
        greedy = Process(workers, network, [Sender(f"good{i}", 0.0, 1, 2_500) for i in range(GREEDY)])
        timed = [Sender(f"probe{i}", RATE, 1, 2_500, "drop_oldest", 64 << 20, watched=True) for i in range(PROBES)]
        probes = Process(workers, network, timed)
        wolf, burners = Process(thief, network.port), [Process(control) for _ in range(BURNERS)]
        for process in (greedy, probes, wolf, *burners):
            process.recv()
        acknowledged, timed_before = 0, 0

        def phase(*commands: tuple[Process, tuple[Any, ...]]) -> tuple[Phase, list[Any]]:
            """Let processes work on commands beside the honest workers; figures of the phase and their answers."""
            nonlocal acknowledged, timed_before
            used, resident, _ = relay.ask("forget")
            trainer_used = processor_s(sink)
            sink.pipe.send(("publish", int(seconds / POLICY_EVERY_S), POLICY_BYTES, 1 / POLICY_EVERY_S))
            for process, command in commands:
                process.pipe.send(command)
            for process in (greedy, probes):
                process.pipe.send(("send", seconds, 30.0))
            time.sleep(seconds)
            after, _, peak = relay.ask("look")
            trainer_used = processor_s(sink) - trainer_used
            answers = [process.recv() for process, _ in commands]
            sink.recv()
            fast, slow = greedy.recv(), probes.recv()
            meanwhile = sum(one.acknowledged_meanwhile for one in fast)
            latencies = sorted(x for one in slow for x in one.latencies_s[timed_before:])
            found = Phase(
                (meanwhile - acknowledged) / seconds,
                sum(one.sent - one.acknowledged for one in (*fast, *slow)),
                1e3 * statistics.median(latencies),
                1e3 * latencies[int(0.99 * len(latencies))],
                (after - used) * 60 / seconds,
                trainer_used * 60 / seconds,
                (peak - resident) / MB,
            )
            acknowledged = sum(one.acknowledged for one in fast)
            timed_before = min(len(one.latencies_s) for one in slow)
            return found, answers

        print(
            f"{GREEDY} greedy and {PROBES} timed workers; {seconds:g} s a phase; cores: {os.cpu_count()}; {versions()}"
        )
        print(
            "| attack | phase | acknowledged/s | not acknowledged | median, 99 % ms | Server, trainer s in 60 s "
            "| growth MB |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")

        def row(attack: str, name: str, found: Phase) -> None:
            print(
                f"| {attack} | {name} | {found.rate:.1f} | {found.lost} | {found.median_ms:.0f}, {found.late_ms:.0f} | "
                f"{found.server_s:.1f}, {found.trainer_s:.1f} | {found.growth_mb:.0f} |",
                flush=True,
            )

        phase()  # memory and caches that every later phase has
        calm, _ = phase()
        row("none", "none", calm)
        good = True
        for attack in arguments.attacks:
            slower, extra, growth_mb, lost = list[float](), list[float](), 0.0, 0
            for turn in range(arguments.turns):
                hit, [(used, links)] = phase((wolf, (attack, bundles[attack, turn], seconds)))
                # The Server closes its links, and what they have sent is gone.
                revoke(keys, names[attack, turn])
                time.sleep(REVOKED_S)
                row(attack, f"attack ({links} links, thief {used:.0f} s)", hit)
                extra.append(hit.server_s - calm.server_s * hit.rate / calm.rate)
                share = used / seconds + max(0.0, extra[-1]) / 60
                burnt, had = phase(*((burner, (share / BURNERS, seconds)) for burner in burners))
                row(attack, f"control ({share:.2f} of a core, had {sum(had) / seconds:.2f})", burnt)
                slower.append(1.0 - hit.rate / burnt.rate)
                growth_mb = max(growth_mb, hit.growth_mb)
                lost += hit.lost
            slow, server_s = statistics.median(slower), statistics.median(extra)
            kept = not lost and slow <= SLOWER and server_s <= SERVER_S and growth_mb <= GROWTH_MB
            good &= kept
            spread = f" ({100 * min(slower):.1f} to {100 * max(slower):.1f})" if arguments.turns > 1 else ""
            words = f"slow-down {100 * slow:.1f} %{spread}, Server {server_s:.1f} s of 60 s"
            print(f"| {attack} | {words}: {'kept' if kept else 'PASSED'} |  |  |  |  |  |", flush=True)
        for process in (wolf, *burners, relay):
            process.pipe.send("end")
        for process in (greedy, probes, sink):
            process.pipe.send(("end",))
        for process in (greedy, probes, sink, wolf, *burners, relay):
            process.end()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
