"""First screen, bytes, memory and delay of the live page, with 24 simulated hours of 50 workers' metrics.

    python benchmarks/dashboard.py                 all, about ten minutes
    python benchmarks/dashboard.py --hours 1       a short run

- first screen: headless Chromium opens the page at the end of those hours; the time until curve, workers and answers
  are drawn, and all bytes that it has received by then.
- delay: the time from a new scene until the page shows its number of steps.
- a day: the page's server makes a screen for every sixth simulated second and the curves each half minute, as fast as
  it can, for one reader that takes gzip. Processor time of a screen, bytes of the stream, and resident memory after
  each quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from load_parts import memory_bytes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.dashboard.browser import CHROMIUM, chromium  # noqa: E402
from tests.dashboard.played import NOW, Played, scene, status, worker  # noqa: E402
from tmrl_core.config import from_values  # noqa: E402
from tmrl_core.dashboard.faults import Seen  # noqa: E402
from tmrl_core.dashboard.feed import Feed  # noqa: E402
from tmrl_core.dashboard.screen import screen  # noqa: E402
from tmrl_core.dashboard.serve import Dashboard  # noqa: E402
from tmrl_core.metrics.latest import LatestSink  # noqa: E402
from tmrl_core.metrics.records import record  # noqa: E402
from tmrl_core.networking.protocol.telemetry import History, Scene  # noqa: E402

WORKERS = 50
EPISODE_S = 10
STEPS_PER_S = 20
REACH_FIRST_S, REACH_BYTES, REACH_DELAY_S = 1.0, 300_000, 1.0
DRAWN = (
    "document.querySelector('#return-chart .line') && document.getElementById('verdict').textContent.trim() && "
    f"document.querySelectorAll('#workers tbody tr').length === {WORKERS}"
)


def day(hours: float, each_s: int) -> Iterator[tuple[Scene, History | None]]:
    """Yield a scene every `each_s` seconds, with the curves of the latest half minute."""
    sink = LatestSink()
    history = None
    seconds = round(3600 * hours)
    for second in range(1, seconds + 1):
        steps = second * WORKERS * STEPS_PER_S
        learned = -1400.0 + 1200.0 / (1.0 + math.exp(-12.0 * (second / seconds - 0.35)))
        # One episode of each worker in ten seconds.
        for index in range(WORKERS // EPISODE_S):
            values = {"return_train": learned + 150.0 * math.sin(second * 7.3 + index), "samples_received": steps}
            sink.write(record("episode", values, step=steps // 50, elapsed_s=second, time_s=NOW + second))
        if second % 10 == 0:
            values = {"loss_actor": 30.0 + math.sin(second), "loss_critic": 0.9, "memory_len": min(steps, 1_000_000)}
            values |= {
                "samples_received": steps,
                "samples_per_s": 1000.0,
                "updates_per_s": 20.0,
                "return_mean": learned,
            }
            sink.write(record("round", values, step=steps // 50, elapsed_s=second, time_s=NOW + second))
        if second % 600 == 0:
            values = {"return_evaluation": learned, "return_evaluation_min": learned - 90}
            values |= {"return_evaluation_max": learned + 80, "samples_received": steps}
            sink.write(record("evaluation", values, step=steps // 50, elapsed_s=second, time_s=NOW + second))
        if second % 30 == 0 or second == seconds:
            history = History(run="day", series={name: tuple(points) for name, points in sink.curves().items()})
        if second % each_s and second != seconds:
            continue
        workers = tuple(
            worker(index, since_s=float(second), last_sample_s=(second * 7 + index) % 20 / 10, drops=index // 49)
            for index in range(WORKERS)
        )
        told = scene(
            0,
            run="day",
            time_s=NOW + second,
            elapsed_s=float(second),
            env_steps=steps,
            updates=steps // 50,
            values=sink.latest().values,
        )
        yield msgspec.structs.replace(told, workers=workers), history


def cost_of_a_day(hours: float, each_s: int) -> list[str]:
    """Return lines about the server of the page: time, bytes, memory."""
    source = Played()
    source.show(status=status(WORKERS))
    feed = Feed(
        source,
        lambda told, age_s: screen(Seen(scene=told, scene_age_s=age_s, status=source.status), None, may_order=True),
    )
    screens = round(3600 * hours) // each_s
    memory: list[int] = []
    sent = 0
    spent = 0.0

    async def replay() -> None:
        nonlocal sent, spent
        stream = feed.stream(compressed=True)
        await anext(stream)
        last = None
        for index, (told, curves) in enumerate(day(hours, each_s)):
            source.show(scene=told, history=curves)
            began = time.process_time()
            feed.refresh()
            sent += len(await anext(stream))
            if curves is not last:  # the screen came first
                last = curves
                sent += len(await anext(stream))
            spent += time.process_time() - began
            if index % (screens // 4) == screens // 4 - 1:
                memory.append(memory_bytes()[0])
        feed.stop()

    asyncio.run(replay())
    quarters = ", ".join(f"{one / 1e6:.1f}" for one in memory)
    return [
        f"| processor time of a screen, with its share of curves | {1e3 * spent / screens:.2f} ms |",
        f"| stream of one page with a screen a second, gzip | {sent / screens * 3.6e-3:.2f} MB an hour |",
        f"| resident memory after each quarter of {hours:g} h | {quarters} MB |",
    ]


def first_screens(hours: float, each_s: int, repetitions: int) -> list[str]:
    """Return lines about the page in a browser."""
    if not CHROMIUM:
        return ["no Chromium here: first screen and delay are not measured"]
    source = Played()
    source.show(status=status(WORKERS))
    for told, curves in day(hours, each_s):
        source.scene, source.history = told, curves
    assert source.scene is not None
    first, received, delays, heap = [], [], [], []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        chromium(Path(folder)) as page,
        Dashboard(from_values({"dashboard": {"port": 0}}), source) as served,
    ):
        page.size(1440, 900)
        for _ in range(repetitions):
            page.open("about:blank")
            page.until("location.href === 'about:blank'")
            page.call("Network.clearBrowserCache")
            before, began = page.received_bytes, time.monotonic()
            page.open(served.url)
            page.until(DRAWN)
            first.append(time.monotonic() - began)
            received.append(page.received_bytes - before)
        told = source.scene
        for number in range(60):
            told = msgspec.structs.replace(told, env_steps=told.env_steps + 1_000_000, time_s=told.time_s + 1)
            source.show(scene=told)
            delays.append(page.until(f"document.getElementById('steps').textContent.startsWith({_shown(told)!r})", 10))
            if number in (0, 59):
                page.call("HeapProfiler.collectGarbage")
                heap.append(page.value("performance.memory.usedJSHeapSize") / 1e6)
    return [
        f"| first screen, median of {repetitions} (spread) | {statistics.median(first):.2f} s "
        f"({min(first):.2f} to {max(first):.2f}) | {REACH_FIRST_S:g} s |",
        f"| received until then | {statistics.median(received) / 1000:.0f} kB | {REACH_BYTES / 1000:.0f} kB |",
        f"| page behind a new scene, median of {len(delays)} (longest) | {statistics.median(delays):.2f} s "
        f"({max(delays):.2f}) | {REACH_DELAY_S:g} s |",
        f"| heap of the scripts at first, after {len(delays)} screens | {heap[0]:.1f}, {heap[1]:.1f} MB | flat |",
    ]


def _shown(told: Scene) -> str:
    """Return the number of steps as the page shows it: millions have four digits."""
    steps = told.env_steps
    return f"{steps / 1e6:.4g}" if steps >= 1e6 else f"{steps:,}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--hours", type=float, default=24.0)
    options.add_argument("--each-s", type=int, default=6, help="seconds between two scenes of the day")
    options.add_argument("--repetitions", type=int, default=9)
    options.add_argument(
        "--only", choices=["page", "day"], help="one half: the page in a browser, or a day of its server"
    )
    chosen = options.parse_args()
    print(f"{chosen.hours:g} simulated hours, {WORKERS} workers\n\n| what | found | reach |\n| --- | --- | --- |")
    if chosen.only != "day":
        print("\n".join(first_screens(chosen.hours, chosen.each_s, chosen.repetitions)), flush=True)
    if chosen.only != "page":
        print("\n".join(line.removesuffix("|") + "| |" for line in cost_of_a_day(chosen.hours, chosen.each_s)))


if __name__ == "__main__":
    main()
