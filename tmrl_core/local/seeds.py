"""One configuration with several seeds, a few runs at a time: `--local --seeds 0-4`."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from tmrl_core.config import Config
from tmrl_core.errors import ConfigError
from tmrl_core.local.supervision import Child
from tmrl_core.roles.shutdown import STOP, ShutdownSignal

logger = logging.getLogger(__name__)

MAX_SEEDS = 1_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_POLL_S = 0.5
_LAST_LINES = 5


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text such as `0-4,7`, in its order.

    Raises:
        ConfigError: it is no list of seeds and ranges, or names a seed twice, or more than `MAX_SEEDS`.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MAX_SEEDS:
            raise ConfigError(f"--seeds: found {text!r}, allowed: seeds and ranges such as 0-4 or 1,2,5-7")
        found += range(first, last + 1)
    if len(set(found)) < len(found) or len(found) > MAX_SEEDS:
        raise ConfigError(f"--seeds: found {text!r}, allowed: each seed once, and at most {MAX_SEEDS}")
    return found


def run_of_seed(config: Config, seed: int) -> Config:
    """Return the configuration of one seed's run: a name of its own, in one group with the others."""
    about = config.run
    run = msgspec.structs.replace(about, name=f"{about.name}-{seed}", seed=seed, group=about.group or about.name)
    return msgspec.structs.replace(config, run=run)


def run_seeds(
    config: Config, passed: Sequence[str], shutdown: ShutdownSignal, seeds: Sequence[int], at_once: int
) -> tuple[int, list[Path]]:
    """Run one `--local` for each seed and return the exit status and the folders of the runs that ended in order.

    Each is a process with a log of its own, `<run>/logs/local.log`, and a group of processes below it. One that fails
    does not end the others. A run of an earlier call is resumed, and one that has ended ends again at once, so the
    same command goes on after an interruption.

    Args:
        config: the configuration.
        passed: command line of each run, besides its seed, name and group.
        shutdown: requests the end of all.
        seeds: the seeds.
        at_once: most runs at a time.
    """
    waiting = deque((seed, run_of_seed(config, seed)) for seed in seeds)
    running: dict[int, tuple[Child, Config]] = {}
    done: list[Path] = []
    failed = 0
    shutdown.calls(lambda: _each(running, lambda child: child.tell(STOP)))
    shutdown.kill_on_second(lambda: _each(running, Child.end_now))
    pause = threading.Event()
    try:
        while (waiting and not shutdown.requested) or running:
            while waiting and len(running) < at_once and not shutdown.requested:
                seed, own = waiting.popleft()
                running[seed] = (_started(own, passed), own)
                logger.info("seed %d: run %r has begun, %d more wait", seed, own.run.name, len(waiting))
                if shutdown.wait(0.0):  # requested since the look above: this one was not told
                    running[seed][0].tell(STOP)
            # An ending run takes seconds, and the event of the request does not wait any more.
            (pause if shutdown.requested else shutdown).wait(_POLL_S)
            for seed in [seed for seed, (child, _) in running.items() if not child.running]:
                child, own = running.pop(seed)
                child.release()
                if child.status == 0:
                    done.append(own.run_folder)
                    logger.info("seed %d: %s", seed, (child.last_lines(1) or ["ended"])[0])
                else:
                    failed += 1
                    last = "\n  ".join(child.last_lines(_LAST_LINES))
                    logger.error("seed %d: status %s, see %s:\n  %s", seed, child.status, child.log, last)
    finally:
        for child, _ in running.values():
            child.end_now()
            child.release()
    return (1 if failed else 0), done


def _started(config: Config, passed: Sequence[str]) -> Child:
    """Start the run of one seed. Its log begins anew."""
    log = config.run_folder / "logs" / "local.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    run = config.run
    chosen = [f"run.name={run.name}", f"run.seed={run.seed}", f"run.group={run.group}"]
    arguments = ["--local", *passed, *(word for one in chosen for word in ("--set", one))]
    child = Child(f"run {run.name}", arguments, log, None, Path.cwd())
    child.start()
    return child


def _each(running: Mapping[int, tuple[Child, Config]], call: Callable[[Child], object]) -> None:
    for child, _ in list(running.values()):
        call(child)
