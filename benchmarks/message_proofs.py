"""Microseconds to prove and check the origin of a message, and the cost of importing what computes the proofs.

    python benchmarks/message_proofs.py

Without a link: a worker's end seals messages of samples in each mode, a trainer's end opens them; then
acknowledgements, policies and the records that open streams. Processor time; five repetitions in turn, in each the
fastest of some passes.
The import is measured in fresh processes, on top of NumPy, msgspec and `ssl`, which a role has anyway.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from wire_bytes import versions

from tmrl_core.networking.end_to_end.identity import Signer, Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.protocol.messages import MessageHead
from tmrl_core.networking.security.certificates import make_authority, make_client_certificate
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

HEAD = MessageHead(1, 0, 100, 10)
POLICY_BYTES = 10_000_000
IMPORT = """
import sys, time, resource, ssl, numpy, msgspec
def memory_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
before, start = memory_kb(), time.process_time()
import tmrl_core.networking.worker, tmrl_core.networking.trainer, tmrl_core.networking.links
base, begun = memory_kb(), time.process_time()
import tmrl_core.networking.worker.seal
print(time.process_time() - begun, memory_kb() - base)
"""


def fastest(work: Callable[[], object], passes: int) -> float:
    """Processor seconds of the fastest of some passes."""
    best = float("inf")
    for _ in range(passes):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def ends(mode: Mode) -> tuple[WorkerSeal, TrainerSeal]:
    later = datetime.now(timezone.utc) + timedelta(days=1)
    authority = make_authority(later)
    signers = []
    for role in ("worker", "trainer"):
        signed = make_client_certificate(authority, role, "name", later)
        signers.append(Signer(signed.certificate, signed.key))
    worker = WorkerSeal("run", signers[0], Verifier(authority.certificate), mode=mode)
    trainer = TrainerSeal("run", signers[1], Verifier(authority.certificate), RunKey(bytes(32)))
    worker.announced(trainer.card(1))
    return worker, trainer


def samples(mode: Mode, size: int, repeat: int) -> dict[str, Callable[[], object]]:
    """Sealing and opening of `repeat` messages."""
    worker, trainer = ends(mode)
    stream = worker.new_stream()
    opened = trainer.open_record(stream, worker.record(stream, b""))
    body = [bytes(size)]
    parts = worker.seal(stream, HEAD, body)
    assert parts is not None
    sealed = memoryview(b"".join(parts))

    def seal() -> None:
        for _ in range(repeat):
            worker.seal(stream, HEAD, body)

    def open_() -> None:
        for _ in range(repeat):
            opened.open(HEAD, sealed)

    return {f"{mode}, {size:,} bytes: seal": seal, f"{mode}, {size:,} bytes: open": open_}


def others(repeat: int) -> dict[str, Callable[[], object]]:
    worker, trainer = ends("authenticate")
    stream = worker.new_stream()
    record = worker.record(stream, b"")
    opened = trainer.open_record(stream, record)
    tag = opened.ack_tag(5, ())
    counter = itertools.count(2)
    policy = bytes(POLICY_BYTES)
    sealed = b"".join(trainer.seal_policy((1, 1), policy))
    verifier = worker._verifier
    card = trainer.card(1)

    def check_policy() -> None:
        fresh = WorkerSeal("run", worker.signer, verifier, mode="authenticate")
        fresh.announced(card)
        fresh.open_policy((1, 1), memoryview(sealed))

    def repeated(work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeat):
                work()

        return run

    return {
        "acknowledgement: prove": repeated(lambda: opened.ack_tag(5, ())),
        "acknowledgement: check": repeated(lambda: worker.check_ack(stream, 5, (), tag)),
        "record of a stream: sign": repeated(lambda: worker.record(stream, b"")),
        "record of a stream: check": repeated(lambda: trainer.open_record(stream, record)),
        "directive: sign": repeated(lambda: trainer.seal_directive(1, b"directive")),
        "policy of 10 MB: sign": lambda: trainer.seal_policy((1, next(counter)), bytes(memoryview(policy))),
        "policy of 10 MB: check": check_policy,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--passes", type=int, default=20, help="per repetition and side")
    arguments = parser.parse_args()
    sides: dict[str, tuple[Callable[[], object], int]] = {}
    for mode in ("authenticate", "encrypt"):
        for size, repeat in ((1_000, 100), (32_768, 20), (1_000_000, 1)):
            sides |= {name: (work, repeat) for name, work in samples(mode, size, repeat).items()}
    sides |= {name: (work, 1 if "10 MB" in name else 20) for name, work in others(20).items()}
    found: dict[str, list[float]] = {name: [] for name in sides}
    imports = []
    for _ in range(arguments.repetitions):
        for name, (work, repeat) in sides.items():
            found[name].append(1e6 * fastest(work, arguments.passes) / repeat)
        ended = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60)
        imports.append([float(word) for word in ended.stdout.split()])
    print(f"`python benchmarks/message_proofs.py`; {versions()}; {arguments.repetitions} repetitions in turn\n")
    print("| what | us each, median | range |\n| --- | --: | --- |")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):,.1f} | {min(times):,.1f} to {max(times):,.1f} |")
    seconds, kilobytes = (statistics.median(column) for column in zip(*imports, strict=True))
    print(f"\nImport of the worker's end: {1e3 * seconds:.0f} ms of processor time, {kilobytes / 1e3:.1f} MB.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
