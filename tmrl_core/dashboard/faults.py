"""Answer to the page's question what is wrong, in words, each with the next step. Sans-I/O."""

# Theory of operation
#
# A fault is derived from what is known now: the state of the link, the Server's status and the trainer's scene. It is
# never remembered, so a fault that is repaired disappears with the next scene, and this file is a function.
#
# Causes hide their effects. Example: without a Server no scene arrives, no worker is seen and every age grows; one
# sentence about the Server is shown and not four. The order is therefore from the link outwards: Server, trainer,
# workers, samples, updates.
#
# Several workers with one fault are one entry. With 50 workers on one switch that was unplugged, 50 lines would hide
# the rest.
#
# A return that does not rise is no fault: it may be the nature of the task. `verdict.py` says it beside the curve.
#
# Ages: those in a scene are of the moment at which the trainer made it; `Seen.scene_age_s` says how long ago that was
# by this machine's clock, since clocks of machines differ.

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tmrl_core.dashboard.source import CONNECTED
from tmrl_core.networking.protocol.status import ServerStatus
from tmrl_core.networking.protocol.telemetry import Scene, WorkerScene

Level = Literal["bad", "warn", "note"]

_IN_TURN = (" is above ", " of round ")
"""Parts of what a trainer says at the limits of `training/loops/limiter.py`, and in a round of lockstep."""
SILENT_S = 30.0
"""Seconds without samples after which a worker that does not wait is silent."""
LATE_SCENE_S = 15.0
"""Seconds without a scene after which the trainer is silent: many updates take less."""
FULL = 0.95
"""Used fraction of a store that counts as full."""
_NAMED = 3
"""Workers that a fault names; the rest are counted."""


@dataclass(frozen=True)
class Seen:
    """All that is known of a run at one moment.

    Args:
        state: of the source.
        scene: latest values.
        scene_age_s: seconds since that scene arrived.
        status: of the Server.
        recorded: True: the source is the folder of a run, so nothing is linked.
        command: words after `python -m tmrl_core --ROLE` that give other roles this configuration.
        place: address of the Server, of several.
        others: the other Servers of the run.
    """

    state: str = CONNECTED
    scene: Scene | None = None
    scene_age_s: float = 0.0
    status: ServerStatus | None = None
    recorded: bool = False
    command: str = "-c FILE"
    place: str = ""
    others: Sequence[Seen] = ()


class Fault(msgspec.Struct, frozen=True):
    """A fault.

    Args:
        level: `bad`: the run makes no progress or loses data; `warn`: look at it soon; `note`: for information.
        text: the finding.
        step: next step.
    """

    level: Level
    text: str
    step: str


def faults(seen: Seen) -> list[Fault]:
    """Return the faults of a run, the worst first."""
    order = {"bad": 0, "warn": 1, "note": 2}
    found = list(_faults(seen))
    known = {fault.text for fault in found}
    for other in seen.others:
        # The first one says what is true of the whole run.
        found += [
            Fault(one.level, f"{other.place}: {one.text}", one.step) for one in _faults(other) if one.text not in known
        ]
    return sorted(found, key=lambda fault: order[fault.level])


def _faults(seen: Seen) -> Iterator[Fault]:
    scene, status = seen.scene, seen.status
    if not seen.state.startswith(CONNECTED):
        yield Fault(
            "bad",
            f"The {'run' if seen.recorded else 'Server'} is not reached: {seen.state}",
            "Look at the folder's path."
            if seen.recorded
            else f"Run {_command('doctor', seen)} on this machine; is `--server` running?",
        )
        return
    if seen.state != CONNECTED:
        yield Fault(
            "bad",
            f"The Server is {seen.state}.",
            "Look at docs/security.md; take the credentials of this run's machines.",
        )
    if scene is not None and scene.state == "ended":
        text = f"The run has ended: {scene.waits}" if scene.waits else "The run has ended."
        yield Fault("note", text, f"{_command('test', seen)} runs its policy.")
        return
    if not seen.recorded:
        yield from _of_server(status)
        yield from _of_trainer(seen)
    if scene is not None:
        linked = status is not None and (not status.trainer or status.workers == 0)
        if scene.hidden:
            yield Fault("note", f"Values are left out: {scene.hidden}", "See tmrl_core/dashboard/README.md.")
        if not linked:
            yield from _of_workers(scene, seen)
        yield from _of_updates(scene)


def _of_server(status: ServerStatus | None) -> Iterator[Fault]:
    if status is None:
        return
    for name, budget in status.budgets.items():
        used = budget.used_bytes + budget.reserved_bytes
        if name == "spool" and budget.limit_bytes and used >= FULL * budget.limit_bytes:
            yield Fault(
                "bad",
                f"The Server's spool is full ({used / 1e6:,.0f} MB): samples of workers that end are lost.",
                "Start the trainer, which takes them, or raise server.spool_bytes.",
            )
    if forging := [peer.name for peer in status.peers if peer.forged]:
        yield Fault(
            "bad",
            f"Messages without a valid proof of their origin reached {_names(forging)}.",
            "A machine in between changes them, or a certificate was replaced: see docs/security.md.",
        )


def _of_trainer(seen: Seen) -> Iterator[Fault]:
    scene, status = seen.scene, seen.status
    if status is not None and not status.trainer:
        yield Fault(
            "bad",
            "No trainer is linked to the Server: nothing learns.",
            f"Start it: {_command('trainer', seen)}. If it runs, its log says what it waits for.",
        )
    elif scene is None:
        yield Fault("note", "The trainer has not told its values yet.", "They come within 30 seconds.")
    elif seen.scene_age_s > LATE_SCENE_S:
        yield Fault(
            "warn",
            f"The trainer has told nothing for {seen.scene_age_s:.0f} s.",
            "Look at its log: it may write a large checkpoint, or its process may be stopped.",
        )
    if status is not None and status.workers == 0:
        yield Fault(
            "bad",
            "No worker is linked to the Server: no samples come.",
            f"Start one: {_command('worker', seen)}.",
        )
    elif scene is not None and scene.state == "waiting" and not _keeps_pace(scene, seen):
        yield Fault(
            "warn",
            f"The trainer waits for samples{f': {scene.waits}' if scene.waits else '.'}",
            "Look at the workers, or at the key of the configuration that it names.",
        )
    if scene is not None and scene.state == "paused":
        yield Fault("note", f"Training is {scene.waits or 'paused'}.", "Resume it below.")


def _of_workers(scene: Scene, seen: Seen) -> Iterator[Fault]:
    def are(matches: Callable[[WorkerScene], object]) -> list[str]:
        return [worker.name for worker in scene.workers if matches(worker)]

    for worker in scene.workers:
        if worker.refused:
            yield Fault(
                "bad",
                f"Samples of {worker.name} are refused: {worker.refused}",
                "Start it with the same configuration and environment as the trainer.",
            )

    if silent := are(lambda worker: is_silent(worker, seen)):
        longest = max(_silence_s(worker, seen) for worker in scene.workers if worker.name in silent)
        yield Fault(
            "warn",
            f"{_names(silent)} {_have(silent)} sent no samples for {longest:,.0f} s.",
            f"Look at {_their(silent)} log: the environment may not return from a step, or the machine may be off.",
        )
    if paused := are(lambda worker: worker.paused):
        yield Fault("note", f"{_names(paused)} {_have(paused)} been paused by an order.", "Resume below.")
    if losing := are(lambda worker: worker.drops):
        lost = sum(worker.drops for worker in scene.workers)
        yield Fault(
            "warn",
            f"{lost:,} samples of {_names(losing)} never arrived.",
            "The queue was full, or a process was killed: see worker.queue_bytes, worker.when_full and "
            "worker.spool_dir.",
        )


def _silence_s(worker: WorkerScene, seen: Seen) -> float:
    since = worker.since_s if worker.last_sample_s is None else worker.last_sample_s
    return since + seen.scene_age_s


def _keeps_pace(scene: Scene, seen: Seen) -> bool:
    """Return True if a trainer has made all updates that its ratio or round allows, and samples come."""
    in_turn = any(part in scene.waits for part in _IN_TURN) and "min_workers" not in scene.waits
    return in_turn and any(_silence_s(worker, seen) <= SILENT_S for worker in scene.workers)


def is_silent(worker: WorkerScene, seen: Seen) -> bool:
    """Return True if a worker sends nothing, and nothing that is known explains it."""
    explained = worker.waits or worker.paused or worker.refused
    running = seen.scene is not None and seen.scene.state not in ("paused", "ended")
    return not explained and running and _silence_s(worker, seen) > SILENT_S


def _of_updates(scene: Scene) -> Iterator[Fault]:
    if skipped := scene.values.get("train/updates_skipped"):
        yield Fault(
            "warn",
            f"{skipped:,.0f} updates gave NaN or Inf and were taken back.",
            "The trainer's log says where; a lower learning rate or smaller rewards help.",
        )
    for event in scene.events:
        if "full" in event.message and "disk" in event.message:
            yield Fault("bad", event.message, "Free space on that disk; the trainer goes on by itself.")
            return


def _command(role: str, seen: Seen) -> str:
    return f"`{f'python -m tmrl_core --{role} {seen.command}'.rstrip()}`"


def _names(found: list[str]) -> str:
    if len(found) <= _NAMED:
        return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
    return f"{', '.join(found[:_NAMED])} and {len(found) - _NAMED} more"


def _have(found: list[str]) -> str:
    return "has" if len(found) == 1 else "have"


def _their(found: list[str]) -> str:
    return "its" if len(found) == 1 else "their"
