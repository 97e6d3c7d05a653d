"""Scenes and histories of a run, for viewers."""

# Theory of operation
#
# For: people that look at a run from anywhere. The link's thread asks for a scene (`networking/trainer/telemetry.py`
# says when), and this object makes it from what others have at that moment: the latest records (`metrics/latest.py`),
# the link's counters, and last values of the training thread, each replaced by one assignment. The training thread does
# nothing for it, and a long update delays nothing.
#
# Workers are shown from what the link knows of their streams. Their rates are differences of two scenes, of at least
# `RATE_S`, since a worker that sends once in a few seconds would otherwise seem to stop and go.
#
# What workers and records say may be of any length, and a scene has 8 kB. It is shortened where that is seen least:
# of many workers, those with a problem are shown, then the first ones, and the others are counted; old events are left
# out, then settings.
#
# With network.end_to_end: encrypt, the relay must not read what this trainer sends, and viewers have no key of the run.
# A scene then says what the Server knows anyway, and the answers to orders.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from tmrl_core.metrics.latest import Latest, LatestSink
from tmrl_core.networking.links import TrainerLink
from tmrl_core.networking.protocol.messages import Progress, encode_body, plain
from tmrl_core.networking.protocol.telemetry import (
    MAX_HISTORY_BYTES,
    MAX_SCENE_BYTES,
    History,
    Scene,
    SceneCheckpoint,
    SceneEvent,
    ScenePolicy,
    State,
    WorkerScene,
)
from tmrl_core.networking.trainer import Member

MOST_WORKERS = 64
"""Maximum number of workers in a scene, if they fit."""
RATE_S = 3.0
"""Minimum time over which a worker's rate is measured."""
STANDS_S = 30.0
"""Time without a sample after which a worker's rate is 0."""
HIDDEN = (
    "this run encrypts what its trainer sends (network.end_to_end: encrypt), and a viewer has no key of it: only what "
    "the Server knows is shown"
)
_NAME_CHARACTERS, _TEXT_CHARACTERS = 64, 100
_FEWEST_POINTS = 16
_Value = TypeVar("_Value", float, str)


class Progressing(NamedTuple):
    """Last values of the training thread."""

    progress: Progress
    paused_by: str
    paused_workers: frozenset[str]
    versions: Mapping[bytes, int]
    """Number of the policy version of each stream's latest samples."""
    refusals: Mapping[bytes, str]
    """Reasons why samples of streams are refused."""


class _Rate:
    """Rate of a stream's samples."""

    def __init__(self, position: int, now: float) -> None:
        self._position, self._since = position, now
        self.per_s: float | None = None

    def note(self, position: int, now: float) -> None:
        # A worker that sends whole episodes seems to stand between two of them.
        if now - self._since >= (RATE_S if position != self._position else STANDS_S):
            self.per_s = max(0, position - self._position) / (now - self._since)
            self._position, self._since = position, now


class RunTelemetry:
    """Telemetry of a run.

    Args:
        link: link to the Server.
        latest: sink of the run's records.
        read: returns the last values of the training thread. Called in the link's thread.
        elapsed_s: returns the seconds since the run began.
        settings: settings that differ from the defaults.
        every_setting: all settings.
        clock: seconds of the link's clock.
        wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        link: TrainerLink,
        latest: LatestSink,
        read: Callable[[], Progressing],
        elapsed_s: Callable[[], float],
        settings: Mapping[str, str],
        every_setting: Mapping[str, str] = MappingProxyType({}),
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._link = link
        self._latest = latest
        self._read = read
        self._elapsed_s = elapsed_s
        self._settings = dict(settings)
        self._every_setting = dict(every_setting)
        self._clock = clock
        self._wall_clock = wall_clock
        self._rates: dict[bytes, _Rate] = {}
        self._updates = 0
        """Updates at the latest scene."""

    # --- scenes ---

    def scene(self) -> bytes:
        """Return an encoded `Scene`, at most `MAX_SCENE_BYTES` long."""
        state, now = self._link.trainer, self._read()
        latest = self._latest.latest()
        shown = self._state(now, latest)
        scene = Scene(
            run=state.run,
            version=state.version,
            time_s=self._wall_clock(),
            elapsed_s=self._elapsed_s(),
            state=shown,
            orders=state.orders.outcomes,
            takes_orders=state.orders.obeys,
        )
        if state.seal is not None and state.seal.encrypts:
            return encode_body(msgspec.structs.replace(scene, hidden=HIDDEN))
        workers, left_out = self._workers(now)
        return _fitting(
            msgspec.structs.replace(
                scene,
                waits=self._waits(now, shown),
                env_steps=now.progress.samples,
                updates=now.progress.updates,
                target_return=latest.target_return,
                values=latest.values,
                workers=workers,
                workers_left_out=left_out,
                events=tuple(SceneEvent(*event) for event in latest.events),
                checkpoints=tuple(SceneCheckpoint(*one) for one in latest.checkpoints),
                policies=tuple(
                    ScenePolicy(_version(one.version), one.time_s, one.mean_return) for one in latest.policies
                ),
                settings=self._settings,
            )
        )

    def _state(self, now: Progressing, latest: Latest) -> State:
        updates, before, self._updates = now.progress.updates, self._updates, now.progress.updates
        if latest.phase == "done":
            return "ended"
        if now.paused_by:
            return "paused"
        if latest.phase == "evaluating":
            return "evaluating"
        if not updates:
            return "collecting"
        # A trainer at its ratio waits for each sample: what counts is that it makes updates.
        return "waiting" if now.progress.lack and updates == before else "training"

    def _waits(self, now: Progressing, shown: State) -> str:
        if shown == "paused":
            return f"paused by {now.paused_by}"
        return plain(now.progress.lack, 500) if shown in ("collecting", "waiting") else ""

    def _workers(self, now: Progressing) -> tuple[tuple[WorkerScene, ...], int]:
        state, clock = self._link.trainer, self._clock()
        with state.lock:
            live = [member for member in state.members.values() if member.live]
            if len(live) > MOST_WORKERS:
                live.sort(key=lambda member: self._order(member, now, clock))
            chosen = live[:MOST_WORKERS]
            receivers = {member.stream: state.receivers.get(member.stream) for member in chosen}
            waits = {member.stream: state.waits.get(member.stream, "") for member in chosen}
            lateness = {member.stream: state.lateness.get(member.stream) for member in chosen}
        self._rates = {stream: rate for stream, rate in self._rates.items() if stream in receivers}
        counter, shown = state.version[1], []
        for member in chosen:
            stream, receiver, late = member.stream, receivers[member.stream], lateness[member.stream]
            position = receiver.position if receiver is not None else 0
            rate = self._rates.setdefault(stream, _Rate(position, clock))
            rate.note(position, clock)
            heard_at = receiver.heard_at if receiver is not None else None
            version = now.versions.get(stream)
            shown.append(
                WorkerScene(
                    name=member.name[:_NAME_CHARACTERS],
                    since_s=round(max(0.0, clock - member.since_s), 1),
                    last_sample_s=None if heard_at is None else round(max(0.0, clock - heard_at), 2),
                    steps_per_s=None if rate.per_s is None else round(rate.per_s, 2),
                    lateness=None if late is None else late.p999_us / 1e6,
                    late_steps=0 if late is None else late.late_steps,
                    version_lag=None if version is None else float(max(0, counter - version)),
                    drops=0 if receiver is None else receiver.gap_samples,
                    waits=waits[stream][:_TEXT_CHARACTERS],
                    refused=now.refusals.get(stream, "")[:_TEXT_CHARACTERS],
                    paused=member.name in now.paused_workers,
                )
            )
        return tuple(shown), len(live) - len(chosen)

    def _order(self, member: Member, now: Progressing, clock: float) -> int:
        """Return the place of a worker among those that are shown: the worst problems first. The caller has the lock.

        Dropped samples come last, because a worker that has lost some long ago may be well.
        """
        state, stream = self._link.trainer, member.stream
        receiver = state.receivers.get(stream)
        heard_at = None if receiver is None else receiver.heard_at
        silent_s = clock - (member.since_s if heard_at is None else heard_at)
        problems = (
            stream in now.refusals,
            member.name in now.paused_workers,  # to be resumed
            silent_s >= STANDS_S and not state.waits.get(stream),
            receiver is not None and receiver.gap_samples > 0,
            True,
        )
        return problems.index(True)

    # --- histories ---

    def history(self) -> bytes:
        """Return an encoded `History`, at most `MAX_HISTORY_BYTES` long."""
        run, seal = self._link.trainer.run, self._link.trainer.seal
        if seal is not None and seal.encrypts:
            return encode_body(History(run=run))
        most, body = 256, b""
        while most >= _FEWEST_POINTS:
            series = {name: tuple(map(tuple, points)) for name, points in self._latest.curves(most).items()}
            for settings in (self._every_setting, {}):
                body = encode_body({"run": run, "series": series, "settings": settings})
                if len(body) <= MAX_HISTORY_BYTES:
                    return body
            most //= 2
        return encode_body(History(run=run))


def _version(text: str) -> tuple[int, int]:
    incarnation, _, counter = text.partition(".")
    return (int(incarnation), int(counter)) if incarnation.isdecimal() and counter.isdecimal() else (0, 0)


def _fitting(scene: Scene) -> bytes:
    """Encode a scene, without as much of it as does not fit."""
    body = encode_body(scene)
    while len(body) > MAX_SCENE_BYTES:
        workers, events = scene.workers, scene.events
        if len(events) > 5:
            scene = msgspec.structs.replace(scene, events=events[len(events) // 2 :])
        elif len(workers) > 16:
            kept = workers[: len(workers) * 3 // 4]
            left_out = scene.workers_left_out + len(workers) - len(kept)
            scene = msgspec.structs.replace(scene, workers=kept, workers_left_out=left_out)
        elif scene.settings:
            scene = msgspec.structs.replace(scene, settings=_half(scene.settings))
        elif scene.values:
            scene = msgspec.structs.replace(scene, values=_half(scene.values))
        else:
            scene = msgspec.structs.replace(
                scene, workers=(), workers_left_out=scene.workers_left_out + len(workers), orders=(), events=()
            )
        body = encode_body(scene)
    return body


def _half(values: dict[str, _Value]) -> dict[str, _Value]:
    return dict(list(values.items())[: len(values) // 2])
