"""Simulate workers, a Server and a trainer under faults, one seed after another, and check every promise of delivery.

    python scripts/simulate.py --seeds 500                     seeds 0 to 499, in as many processes as there are cores
    python scripts/simulate.py --first 1234 --seeds 1 --trace  play one seed again, and print every event
    python scripts/simulate.py --mutation no-resume            with a safeguard taken out: the check must notice
    python scripts/simulate.py --hostile --seeds 500           beside a member that does all the harm that it can
    python scripts/simulate.py --soak 24                       a day of one Server, trainer and worker: what they hold
    python scripts/simulate.py --relays 4 --workers 1000 --seeds 100     several Servers, and many workers at each

A seed that breaks a promise is printed with the command that plays it again. The exit status is 0 when none did (with
`--mutation`: when one did, and no seed ended with another error).
"""

# Theory of operation
#
# The simulation (`tests/networking/simulation`) runs the real sans-I/O objects (relay, spool, states and connections of
# worker and trainer) over a seeded network, which is a heap of events: `network.py` does the work of a transport and of
# a Server process, `actors.py` that of a worker and a trainer, `memory.py` knows what a memory holds after its process
# has died (on disk: everything; in RAM: the last checkpoint). The seed decides everything, so a failing run is repeated
# event for event, in any process. Sequence of one seed: `scenario.py` draws a profile (workers, sizes, budgets, links,
# memory, spool, five kinds of fault or more), faults happen for at least 1,000 events, then all are repaired.
#
# Faults. Links are cut, also within a frame, silent in one direction or both, or slow. Server, trainer and workers are
# killed and restarted with or without their state. Workers end with and without a trainer, join, or run twice from one
# bundle. There are a second trainer, one of another run, and one that takes nothing. Queues fill, policies race.
#
# Checks (`checker.py`). At every step: the bounds of relay, worker and trainer hold; versions never go back, never
# differ under one number and never cross runs; no honest peer is treated as a broken one. At the end: all peers have
# caught up within 25 simulated seconds and the time in which what they hold passes through the smallest window, at most
# 45; every sample that was handed over is in the memory once and in order, or was refused, or dropped and counted on
# both sides, or committed to a memory that was lost with its process.
#
# In half of the seeds, workers and trainers authenticate each other with real certificates, in a quarter they encrypt.
# A hostile member (`hostile.py`) says whatever is valid: hoards credit, reads nothing, comes and goes, on many links.
# It goes on after all faults are repaired; then every honest sample is acknowledged within 4 simulated seconds (most
# take 0.5), its memory has bounds, and an honest worker's bytes cost the Server no more calls for its streams.
#
# Proof of the checker: `mutations.py` removes one safeguard at a time, and within 100 seeds each must be noticed; the
# seed that does stays in the suite. The suite runs 50 seeds, `--full` 5,000.
#
# Not simulated: sockets, TLS, threads and files (`benchmarks/chaos.py` and the transports' tests use real ones), two
# processes with one stream id, and truncated writes of a memory.

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.networking.simulation.mutations import HARMLESS, HOSTILE, MUTATIONS  # noqa: E402
from tests.networking.simulation.scenario import Result, simulate  # noqa: E402
from tests.networking.simulation.soak import Soak  # noqa: E402
from tmrl_core.config.endpoints import Endpoint, chosen_endpoint  # noqa: E402

BATCH = 20
KINDS = {
    0: "",
    1: "deadline",
    2: "bytes arrive at a client",
    3: "bytes arrive at the Server",
    4: "trainer works",
    5: "worker makes a message",
    6: "fault",
}


ALL = {"": contextlib.nullcontext, **MUTATIONS, **HOSTILE, **HARMLESS}


Batch = tuple[int, int, str, bool, int, "int | None"]


def shares(relays: int, workers: int | None) -> list[int | None]:
    """Return the number of workers at each Server, as their names choose it; None: each seed says."""
    if workers is None:
        return [None] * relays
    servers = [Endpoint("server", 1 + i) for i in range(relays)]
    counts = Counter(chosen_endpoint(f"worker{i}", servers) for i in range(relays * workers))
    return [max(1, counts[server]) for server in servers]


def play(arguments: Batch) -> list[Result]:
    """Some seeds, in this process.

    Servers share nothing, neither streams nor trainers, so each is a simulation of its own.
    """
    first, seeds, mutation, hostile, relays, workers = arguments
    gc.set_threshold(10_000, 10, 10)  # a network of links is one large cycle, searched less often so
    with ALL[mutation]():
        return [
            simulate(seed * relays + relay, hostile=hostile, workers=count)
            for seed in range(first, first + seeds)
            for relay, count in enumerate(shares(relays, workers))
        ]


def replay(seed: int, mutation: str, hostile: bool, workers: int | None) -> int:
    """Play one seed and print its events."""
    with ALL[mutation]():
        result = simulate(seed, keep_events=True, hostile=hostile, workers=workers)
    for now, kind, value in result.trace or []:
        print(f"{now:10.4f} s  {KINDS.get(kind, kind)} {value}")
    print_result(result)
    return 1 if result.failure else 0


def print_result(result: Result) -> None:
    """One line for a seed."""
    print(f"seed {result.seed}: {result.events} events, digest {result.digest & (1 << 64) - 1:016x}", end="")
    print(f": {result.failure}" if result.failure else ": every promise kept")


def soak(seed: int, hours: float) -> int:
    """Play one seed for hours of simulated time, and print what grows; 1 if anything does by a thousandth an hour."""
    scenario = Soak(seed)
    footprint = scenario.soak(hours, lambda hour: print(f"{hour:.1f} h", end=" ", flush=True))
    print(f"\n\n{footprint.events:,} events, {footprint.streams:,} worker processes, {footprint.samples:,} samples\n")
    print("| part | held after a tenth | half | all | growth an hour, second half |\n| --- | --- | --- | --- | --- |")
    grown = 0
    for part, held in footprint.held.items():
        tenth, half, last = (held[len(held) * share // 20 - (share == 20)] for share in (2, 10, 20))
        slope = footprint.slope(part)
        grown += slope > 0.001 * last
        print(f"| {part} | {tenth:,} B | {half:,} B | {last:,} B | {slope:+,.0f} B |")
    return 1 if grown else 0


def hostile_rows(results: list[Result]) -> list[tuple[str, str]]:
    """Return the rows about the hostile members, if there were any."""
    if not results[0].thief:
        return []
    moods = Counter(result.thief for result in results)
    slowest = sorted(result.slowest_s for result in results)
    return [
        ("messages of the hostile member", f"{sum(result.said for result in results):,}"),
        ("samples acknowledged beside it (worst)", f"{slowest[-1]:.1f} s"),
        ("samples acknowledged beside it (median)", f"{slowest[len(slowest) // 2]:.1f} s"),
        *((f"seeds: {mood}", f"{times:,}") for mood, times in sorted(moods.items())),
    ]


def table(results: list[Result], wall_s: float) -> None:
    """What was simulated, in figures."""
    if not results:
        return
    faults: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
    caught = sorted(result.caught_up_s for result in results)
    rows = [
        ("seeds, of each Server one", f"{len(results):,}"),
        ("seeds that broke a promise", f"{sum(bool(result.failure) for result in results):,}"),
        ("events", f"{sum(result.events for result in results):,}"),
        ("events in a seed (least)", f"{min(result.events for result in results):,}"),
        ("kinds of fault in a seed (least)", f"{min(len(result.faults) for result in results)}"),
        ("workers of one Server at the beginning (most)", f"{max(result.beginners for result in results):,}"),
        ("worker processes", f"{sum(result.workers for result in results):,}"),
        ("messages handed over", f"{sum(result.messages for result in results):,}"),
        ("samples handed over", f"{sum(result.samples for result in results):,}"),
        ("samples dropped, all counted", f"{sum(result.dropped for result in results):,}"),
        ("simulated hours", f"{sum(result.simulated_s for result in results) / 3600:,.1f}"),
        ("caught up after the last fault (median)", f"{caught[len(caught) // 2]:.1f} s"),
        ("caught up after the last fault (worst)", f"{caught[-1]:.1f} s"),
        *hostile_rows(results),
        ("wall time", f"{wall_s:.1f} s"),
    ]
    print("\n| what | |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")
    print("\n| fault | times |\n| --- | --- |")
    for name, times in sorted(faults.items()):
        print(f"| {name} | {times:,} |")


def main() -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(description="Simulate workers, a Server and a trainer under faults.")
    parser.add_argument("--seeds", type=int, default=500, help="how many (default: 500)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--mutation", default="", choices=list(ALL), help="change the core")
    parser.add_argument("--hostile", action="store_true", help="add a member with a stolen bundle")
    parser.add_argument("--soak", type=float, default=0.0, metavar="HOURS", help="play the first seed for so long")
    parser.add_argument("--relays", type=int, default=1, help="Servers in a seed, each with its trainer (default: 1)")
    parser.add_argument("--workers", type=int, help="workers for each Server at the beginning (default: 2 to 8)")
    parser.add_argument("--trace", action="store_true", help="print every event of the first seed")
    arguments = parser.parse_args()
    hostile = arguments.hostile or arguments.mutation in HOSTILE
    if arguments.soak:
        return soak(arguments.first, arguments.soak)
    if arguments.trace:
        return replay(arguments.first, arguments.mutation, hostile, arguments.workers)
    started = time.monotonic()
    last = arguments.first + arguments.seeds
    batch_of = BATCH if arguments.workers is None else max(1, BATCH * 8 // (arguments.workers * arguments.relays))
    batches = [
        (at, min(batch_of, last - at), arguments.mutation, hostile, arguments.relays, arguments.workers)
        for at in range(arguments.first, last, batch_of)
    ]
    results: list[Result] = []
    failed = crashed = 0
    with contextlib.ExitStack() as stack:
        if arguments.jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(arguments.jobs))
            played = pool.imap_unordered(play, batches)
        else:
            played = map(play, batches)  # type: ignore[assignment]
        for batch in played:
            results += batch
            for result in batch:
                if result.failure:
                    failed += 1
                    crashed += result.crashed
                    print_result(result)
                    mutated = f" --mutation {arguments.mutation}" if arguments.mutation else ""
                    mutated += " --hostile" if hostile else ""
                    mutated += f" --workers {result.beginners}" if arguments.workers is not None else ""
                    print(f"    again: python scripts/simulate.py --first {result.seed} --trace{mutated}", flush=True)
    table(results, time.monotonic() - started)
    expected = arguments.mutation in MUTATIONS or arguments.mutation in HOSTILE
    if crashed:
        print(f"\n{crashed} seeds ended with an error that is no broken promise")
    return 0 if bool(failed) == expected and not crashed else 1


if __name__ == "__main__":
    sys.exit(main())
