"""Training from recorded sessions alone: what a training object talks to without Server and workers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Any

from tmrl_core.metrics.recorder import Recorder
from tmrl_core.samples import EpisodeRecord, Version
from tmrl_core.training.interface import Delivery, TrainingInterface
from tmrl_core.training.value_types import Metrics, Policy


class OfflineInterface(TrainingInterface):
    """Provides no samples; writes records, and tells of each policy.

    Args:
        recorder: gets the records.
        stop_requested: returns True when training should end.
        on_rest: called between two updates, where a checkpoint may be written.
        on_publish: called with each policy's turn.
        counter: number of the version before the next.
        time_limit_s: seconds after which training ends; None: no limit.
        clock: seconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        stop_requested: Callable[[], bool],
        on_rest: Callable[[], object],
        on_publish: Callable[[], object],
        counter: int = 0,
        time_limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recorder = recorder
        self._stop_requested = stop_requested
        self._on_rest = on_rest
        self._on_publish = on_publish
        self._counter = counter
        self._updates = 0
        self._clock = clock
        self._deadline = math.inf if time_limit_s is None else clock() + time_limit_s

    def receive(self) -> list[Delivery]:
        """Return nothing: no samples arrive."""
        return []

    def commit(self) -> None:
        """Do nothing: there is nothing to acknowledge."""

    def broadcast_model(self, actor: Policy) -> Version:
        """Count the policy as published."""
        self._counter += 1
        self._on_publish()
        return self.version

    @property
    def version(self) -> Version:
        """(1, number of published policies)."""
        return (1, self._counter)

    def wait(self, timeout_s: float) -> bool:
        """Return immediately, because no samples can arrive."""
        return False

    def rest(self) -> None:
        """Write a checkpoint if one is due."""
        self._on_rest()

    def record_round(self, row: Metrics, latest: Collection[EpisodeRecord] = ()) -> None:
        """Write a round's row to the records."""
        self._updates = int(row["updates"])
        self._recorder.record("round", row, step=self._updates)

    def event(self, event: str, message: str = "", *, step: int | None = None, **values: Any) -> None:
        """Write an event to the records, at `step` updates; None: at those of the latest round."""
        self._recorder.event(event, message, step=self._updates if step is None else step, **values)

    @property
    def stopping(self) -> bool:
        """True: a stop was requested, or the time limit has passed."""
        return self._stop_requested() or self.time_limit_reached

    @property
    def time_limit_reached(self) -> bool:
        """Return True if the time limit has passed."""
        return self._clock() >= self._deadline
