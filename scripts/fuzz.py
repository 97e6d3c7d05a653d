"""Give the parsers, the codec, files and both ends of links bytes that no honest peer sends, for as long as asked.

    python scripts/fuzz.py --cases 1000000                  all targets, by their share
    python scripts/fuzz.py --minutes 30 --target codec      one of them
    python scripts/fuzz.py --replay fuzz-findings/codec-0123456789ab.json

Any bytes must give a value or the documented error, within the limits of memory. A case that does not is written to
`--findings`, and `--replay` tries it again. The cases follow from `--seed`: the same seed and number make the same.
Memory is limited for the whole process, and measured for one case in 25. Exit status: 0 nothing found, 1 something.
"""

# Theory of operation
#
# The promise is one sentence: any bytes give a value or the documented error, within a bound of memory. A target
# (`tests/fuzzing`) makes a case from a generator, gives it to a parser, and says which errors are documented. Cases are
# mutated honest ones, since random bytes end at the first length or tag.
#
# A case follows from the seed and its number alone, so a finding can be repeated without its file. Work is cut into
# pieces of 200,000 cases, each in a process of its own: the limit of memory (RLIMIT_AS) counts from the size that the
# process has at its start, and what one piece leaks cannot hide what the next one takes. Memory is measured for one
# case in 25, because measuring makes a case slower; one beyond the limit of the process ends in MemoryError and is
# found in any case. A piece by `--cases` is timed by its processor, so that its result is the same on a busy machine;
# one by `--minutes` by the wall clock.

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzzing import runner  # noqa: E402

ADDRESS_SPACE_BYTES = 1 << 30
"""That much more than a process has at its start, and no more: what asks for more ends in MemoryError."""
PIECE_CASES = 200_000


def limit_memory() -> None:
    """Hold this process to what it has now and `ADDRESS_SPACE_BYTES` more, where the system can."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        return
    most = pages * resource.getpagesize() + ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def piece(name: str, seed: int, cases: int | None, seconds: float | None) -> runner.Report:
    """Some cases of one target; runs in a process of its own."""
    target = runner.make(name)
    try:
        limit_memory()
        return runner.run(
            target, seed, cases=cases, seconds=seconds, clock=time.process_time if cases else time.monotonic
        )
    finally:
        target.close()


def work_piece(item: tuple[str, int, int | None, float | None]) -> runner.Report:
    return piece(*item)


def replay(path: Path) -> int:
    name, case = runner.load(path)
    target = runner.make(name)
    try:
        finding = runner.attempt(target, case)
    finally:
        target.close()
    print(f"{name}, {len(case)} bytes: {case[:200]!r}")
    print(finding.trace if finding is not None else "all right: a value or the documented error, within the limits")
    return 0 if finding is None else 1


def table(reports: dict[str, runner.Report], wall_s: float) -> str:
    lines = ["| target | cases | taken | memory measured | cases/s of one core | found |", "|---|--:|--:|--:|--:|--:|"]
    for name, report in reports.items():
        rate = report.cases / report.seconds if report.seconds else 0.0
        counts = f"{report.cases:,} | {report.taken:,} | {report.measured:,} | {rate:,.0f} | {len(report.findings)}"
        lines.append(f"| {name} | {counts} |")
    whole = sum(report.cases for report in reports.values())
    found = sum(len(report.findings) for report in reports.values())
    lines.append(f"| **all** | **{whole:,}** | | | {whole / wall_s:,.0f} (wall, all jobs) | **{found}** |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=None, help="so many, shared out among the targets")
    parser.add_argument("--minutes", type=float, default=None, help="or for so long, the same time for each target")
    parser.add_argument("--target", action="append", choices=list(runner.TARGETS), help="only this; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default: 2)")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), metavar="FOLDER")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try one saved case again")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay)
    if (options.cases is None) == (options.minutes is None):
        parser.error("say either --cases or --minutes")
    names = options.target or list(runner.TARGETS)
    work: list[tuple[str, int, int | None, float | None]] = []
    if options.cases is not None:
        for name, cases in runner.shares(options.cases, names).items():
            for start in range(0, cases, PIECE_CASES):
                work.append((name, options.seed * 1_000_003 + start, min(PIECE_CASES, cases - start), None))
    else:
        seconds = 60 * options.minutes * options.jobs / len(names)
        work = [(name, options.seed, None, seconds) for name in names]
    reports = {name: runner.Report(name) for name in names}
    begun = time.monotonic()
    context = multiprocessing.get_context("spawn")
    # A process for each piece: its limit of memory counts from its own start.
    with context.Pool(options.jobs, maxtasksperchild=1) as pool:
        for report in pool.imap_unordered(work_piece, work, chunksize=1):
            reports[report.target].add(report)
            done = sum(one.cases for one in reports.values())
            print(f"{time.monotonic() - begun:8.0f} s  {done:>12,} cases, last {report.target}", flush=True)
            for finding in report.findings:
                path = runner.save(finding, options.findings)
                print(f"FOUND {path}\n{finding.trace}", flush=True)
    wall_s = time.monotonic() - begun
    print(f"\nseed {options.seed}, {options.jobs} jobs, {wall_s:.0f} s, Python {platform.python_version()}, ", end="")
    print(f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores\n\n{table(reports, wall_s)}")
    print(json.dumps({"found": sum(len(report.findings) for report in reports.values())}))
    return 1 if any(report.findings for report in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
