"""A run as its folder shows it, also while it grows: no Server is needed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tmrl_core.config import load
from tmrl_core.config.differing import every_setting
from tmrl_core.dashboard.source import CONNECTED
from tmrl_core.errors import ConfigError, TmrlError
from tmrl_core.metrics import names
from tmrl_core.metrics.latest import LatestSink
from tmrl_core.metrics.reading import RecordReader
from tmrl_core.metrics.records import MetricRecord
from tmrl_core.networking.protocol.pictures import Kind, Picture
from tmrl_core.networking.protocol.status import ServerStatus
from tmrl_core.networking.protocol.telemetry import (
    History,
    Order,
    Scene,
    SceneCheckpoint,
    SceneEvent,
    ScenePolicy,
    State,
)

FILE = "metrics.jsonl"
POLL_S = 0.5
"""Seconds between two looks at the file."""
STOPPED_S = 120.0
"""Seconds without a record after which the run counts as ended: a trainer records its network every few seconds."""
_STATES: dict[str, State] = {"learning": "training", "evaluating": "evaluating", "waiting": "waiting", "done": "ended"}


class RecordedRun:
    """Source that reads `metrics.jsonl` in the thread that waits for changes.

    Args:
        folder: of the run.
        clock: seconds since 1970.

    Raises:
        ConfigError: the folder has no records.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        path = folder / FILE
        if not path.is_file():
            found = "no such folder" if not folder.is_dir() else f"no {FILE} in it"
            raise ConfigError(f"--folder: found {folder}, {found}; allowed: the folder of a run, such as runs/NAME")
        self._folder = folder
        self._clock = clock
        self._reader = RecordReader(path)
        self._sink = LatestSink()
        self._last: MetricRecord | None = None
        self._run = folder.name
        self._settings: dict[str, str] = {}
        if (settings := folder / "config.yaml").is_file():
            with contextlib.suppress(TmrlError):  # of another version: curves are shown all the same
                self._settings = every_setting(load(settings))
        self._version = (0, 0)
        self._env_steps = 0
        self._lack = ""
        self._change = threading.Condition()
        self._closed = False
        self._stopped = False
        self.changed = 0
        self.scene: Scene | None = None
        self.history: History | None = None
        self.status: ServerStatus | None = None
        self.pictures: Mapping[tuple[str, Kind], Picture] = {}
        self.may_order = False
        self.state = CONNECTED
        self._look()

    def wait(self, timeout_s: float, after: int | None = None) -> bool:
        """Read the file until it has grown."""
        seen = self.changed if after is None else after
        deadline = time.monotonic() + timeout_s
        while self.changed == seen and not self._closed:
            self._look()
            rest = deadline - time.monotonic()
            if self.changed != seen or rest <= 0:
                break
            with self._change:
                self._change.wait_for(lambda: self._closed, min(rest, POLL_S))
        return self.changed != seen and not self._closed

    def _look(self) -> None:
        grown = False
        try:
            for records in self._reader.blocks():
                grown = grown or bool(records)
                for record in records:
                    self._take(record)
        except OSError as exc:
            self._show_state(f"{self._reader.path}: {exc.strerror or exc}")
            return
        last = self._last
        stopped = last is not None and self._clock() - last.time_s > STOPPED_S
        if not grown and stopped == self._stopped and self.state == CONNECTED:
            return
        self._stopped = stopped
        if last is not None:
            self.scene = self._scene(last)
        if grown:
            curves = self._sink.curves()
            self.history = History(
                run=self._run,
                series={name: tuple(points) for name, points in curves.items()},
                settings=self._settings,
            )
        self._show_state(CONNECTED)

    def _show_state(self, state: str) -> None:
        if state != self.state or state == CONNECTED:
            self.state = state
            self.changed += 1

    def _take(self, record: MetricRecord) -> None:
        if record.kind == "event" and record.text(names.EVENT) == names.EVENT_START:
            if record.step == 0:  # a new run in an emptied folder
                self._sink, self._env_steps, self._version = LatestSink(), 0, (0, 0)
            self._run = record.text(names.RUN_NAME) or self._run
        self._sink.write(record)
        self._last = record
        self._env_steps = record.env_steps or self._env_steps
        self._lack = record.text(names.LACK) if record.kind == "network" else self._lack
        self._version = max(self._version, _version(record.text(names.VERSION)))

    def _scene(self, last: MetricRecord) -> Scene:
        latest = self._sink.latest()
        state = _STATES.get(latest.phase, "collecting")
        waits = self._lack if state in ("collecting", "waiting") else ""
        if self._stopped and state != "ended":
            state, waits = "ended", "it has written no record for minutes, so its trainer was stopped or killed"
        return Scene(
            run=self._run,
            version=self._version,
            time_s=last.time_s,
            elapsed_s=last.elapsed_s,
            state=state,
            waits=waits,
            env_steps=self._env_steps,
            updates=last.step,
            target_return=latest.target_return,
            values=latest.values,
            events=tuple(SceneEvent(*event) for event in latest.events),
            checkpoints=tuple(SceneCheckpoint(*one) for one in latest.checkpoints),
            policies=tuple(ScenePolicy(_version(one.version), one.time_s, one.mean_return) for one in latest.policies),
        )

    def order(self, order: Order) -> str:
        """Refuse: a folder obeys nobody.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("--folder shows records only; leave it out to reach the run's trainer")

    def close(self) -> None:
        """End."""
        with self._change:
            self._closed = True
            self._change.notify_all()


def _version(text: str) -> tuple[int, int]:
    incarnation, _, counter = text.partition(".")
    return (int(incarnation), int(counter)) if incarnation.isdecimal() and counter.isdecimal() else (0, 0)
