"""Content of the page at one moment, as one JSON object. Sans-I/O."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from tmrl_core.dashboard.faults import LATE_SCENE_S, Fault, Seen, faults, is_silent
from tmrl_core.dashboard.pictures import Shown
from tmrl_core.dashboard.source import CONNECTED
from tmrl_core.dashboard.verdict import Verdict, verdict
from tmrl_core.metrics.text import bytes_text, clock_text
from tmrl_core.networking.protocol.status import PeerStatus, ServerStatus
from tmrl_core.networking.protocol.telemetry import History, Scene, WorkerScene

Level = Literal["good", "note", "warn", "bad", "off"]

MOST_ROWS = 64
"""Maximum number of workers in the table, of each Server: those with a problem come first, and others are counted."""

_ORDER: dict[Level, int] = {"bad": 0, "warn": 1, "off": 2, "note": 3, "good": 4}


class Part(msgspec.Struct, frozen=True):
    """A process in the answer to "is everything alive"."""

    name: str
    level: Level
    text: str


class Row(msgspec.Struct, frozen=True):
    """A worker in the table. Times are seconds; None: unknown."""

    name: str
    level: Level
    state: str
    since_s: float
    last_sample_s: float | None = None
    steps_per_s: float | None = None
    lateness_ms: float | None = None
    version_lag: float | None = None
    rtt_ms: float | None = None
    drops: int = 0
    paused: bool = False


class Screen(msgspec.Struct, frozen=True):
    """All that the page shows, without curves.

    Args:
        link: state of the source.
        recorded: True: the folder of a run is shown.
        scene_age_s: seconds since the scene arrived.
        verdict: is it learning.
        parts, workers: is everything alive.
        faults: what is wrong.
        may_order: True: buttons are shown.
        pictures: videos and camera pictures that can be had.
        scene: the rest, without what stands elsewhere; None: nothing is known.
    """

    link: str
    recorded: bool
    scene_age_s: float
    verdict: Verdict
    parts: list[Part]
    workers: list[Row]
    faults: list[Fault]
    may_order: bool
    pictures: list[Shown]
    scene: Scene | None


def screen(seen: Seen, history: History | None, pictures: Sequence[Shown] = (), *, may_order: bool) -> Screen:
    """Return the content of the page."""
    scene = seen.scene
    return Screen(
        link=seen.state,
        recorded=seen.recorded,
        scene_age_s=round(seen.scene_age_s, 1),
        verdict=verdict(scene, history),
        parts=[_records(seen)] if seen.recorded else _all_parts(seen),
        workers=_by_level([row for one in (seen, *seen.others) for row in _rows(one)]),
        faults=faults(seen),
        may_order=may_order and scene is not None and scene.takes_orders,
        pictures=list(pictures),
        scene=None if scene is None else msgspec.structs.replace(scene, workers=()),
    )


def curves(history: History) -> dict[str, Any]:
    """Return all settings, and the curves as columns with five significant digits, which is more than a screen has."""
    return {
        "run": history.run,
        "settings": history.settings,
        "series": {
            name: {
                "steps": [steps for steps, _, _ in points],
                "seconds": [_short(seconds) for _, seconds, _ in points],
                "values": [_short(value) for _, _, value in points],
            }
            for name, points in history.series.items()
        },
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _all_parts(seen: Seen) -> list[Part]:
    everyone = [seen, *seen.others]
    servers, trainers = zip(*map(_linked, everyone), strict=True)
    return [_together("Server", servers), _together("Trainer", trainers), _workers(everyone)]


def _together(name: str, parts: Sequence[Part]) -> Part:
    """Return the part of several Servers: the worst level, and how many are well."""
    if len(parts) == 1:
        return parts[0]
    worst = min(parts, key=lambda part: _ORDER[part.level])
    well = sum(part.level == "good" for part in parts)
    return Part(f"{name}s", worst.level, f"{well} of {len(parts)} in order; {parts[0].text}")


def _linked(seen: Seen) -> tuple[Part, Part]:
    """Return a Server and its trainer."""
    status, scene = seen.status, seen.scene
    if seen.state != CONNECTED:
        return Part("Server", "bad", "not reached"), Part("Trainer", "off", "unknown")
    server = Part("Server", "good", "linked" if status is None else _server_text(status))
    peer = None if status is None else next((one for one in status.peers if one.role == "trainer"), None)
    if status is not None and not status.trainer:
        return server, Part("Trainer", "bad", "not linked")
    if scene is None:
        return server, Part("Trainer", "note", "linked, no values yet")
    since = "" if peer is None else f", linked for {clock_text(peer.since_s)}"
    return server, Part("Trainer", "warn" if seen.scene_age_s > LATE_SCENE_S else "good", f"{scene.state}{since}")


def _workers(everyone: Sequence[Seen]) -> Part:
    """Return the workers of all Servers."""
    if all(seen.state != CONNECTED for seen in everyone):
        return Part("Workers", "off", "unknown")
    rows = [row for seen in everyone for row in _rows(seen)]
    told = [seen.scene for seen in everyone if seen.scene and (seen.status is None or seen.status.trainer)]
    left_out = sum(scene.workers_left_out for scene in told)
    total = max(len(rows) + left_out, sum(seen.status.workers for seen in everyone if seen.status))
    if total == 0:
        return Part("Workers", "bad", "none is linked")
    well = sum(row.level in ("good", "note") for row in rows)
    more = f", {total - len(rows)} more not shown" if total > len(rows) else ""
    return Part("Workers", "good" if well == len(rows) else "warn", f"{well} of {len(rows)} in order{more}")


def _records(seen: Seen) -> Part:
    if seen.scene is None:
        return Part("Records", "note", "none yet")
    level: Level = "note" if seen.scene.state == "ended" else "good"
    return Part("Records", level, f"{seen.scene.state}, the latest from {date_text(seen.scene.time_s)}")


def date_text(time_s: float) -> str:
    """Return a time in seconds since 1970 as local date and time."""
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")


def _server_text(status: ServerStatus) -> str:
    texts = [] if status.uptime_s is None else [f"up {clock_text(status.uptime_s)}"]
    texts += [] if status.memory_bytes is None else [bytes_text(status.memory_bytes)]
    texts += [f"refused {status.refused_peers:,}"] if status.refused_peers else []
    return ", ".join(texts) or "linked"


def _rows(seen: Seen) -> list[Row]:
    told = seen.scene.workers if seen.scene is not None else ()
    trainer = seen.status is None or seen.status.trainer
    rows = [_row(worker, seen) for worker in told] if trainer else []
    known = {row.name for row in rows}
    # Of a large fleet, the scene has chosen whom to show.
    chosen = seen.scene.run if rows and seen.scene is not None and seen.scene.workers_left_out else None
    peers = seen.status.peers if seen.status is not None else ()
    others = (peer for peer in peers if peer.role == "worker" and peer.name not in known and peer.run != chosen)
    rows += map(_row_of_peer, itertools.islice(others, max(0, MOST_ROWS - len(rows))))
    return rows


def _by_level(rows: list[Row]) -> list[Row]:
    """Return the workers, the worst first."""
    return sorted(rows, key=lambda row: _ORDER[row.level])


def _row(worker: WorkerScene, seen: Seen) -> Row:
    last = worker.last_sample_s
    level: Level = "good"
    state = "collecting"
    if not seen.state.startswith(CONNECTED):
        level, state = "off", "unknown"
    elif worker.refused:
        level, state = "bad", "refused"
    elif worker.paused:
        level, state = "note", "paused"
    elif worker.waits:
        level, state = "note", f"waits: {worker.waits}"
    elif is_silent(worker, seen):
        level, state = "warn", "silent"
    elif worker.drops:
        level, state = "warn", "loses samples"
    return Row(
        name=worker.name,
        level=level,
        state=state,
        since_s=round(worker.since_s + seen.scene_age_s),
        last_sample_s=None if last is None else round(last + seen.scene_age_s, 1),
        steps_per_s=worker.steps_per_s,
        lateness_ms=None if worker.lateness is None else 1e3 * worker.lateness,
        version_lag=worker.version_lag,
        rtt_ms=worker.rtt_ms,
        drops=worker.drops,
        paused=worker.paused,
    )


def _row_of_peer(peer: PeerStatus) -> Row:
    return Row(name=peer.name, level="off", state="linked", since_s=round(peer.since_s))
