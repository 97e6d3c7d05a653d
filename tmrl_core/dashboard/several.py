"""A run with several Servers as one source: a link to each, and the page of all."""

# Theory of operation
#
# Each Server has a trainer of its own, a rank (docs/rooms.md), and knows nothing of the others. The first one's trainer
# writes the records of the run, so curves, checkpoints and settings are its own, and it takes orders for the run. What
# the others add is who is alive and what is wrong: workers, their trainers, and themselves.
#
# An order about a worker goes to the Server that the worker belongs to.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.source import Source
from tmrl_core.networking.protocol.pictures import Kind, Picture
from tmrl_core.networking.protocol.status import ServerStatus
from tmrl_core.networking.protocol.telemetry import History, Order, Scene

_LOOK_S = 0.1
"""Seconds between two looks at the Servers but the first."""


class SeveralServers:
    """Source of a run with several Servers.

    Args:
        sources: a link to each, by its address; the trainer of the first writes the records. Closed with this one.
        clock: seconds, monotonic.
    """

    def __init__(self, sources: Mapping[str, Source], clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = list(sources.values())
        self._places = list(sources)
        self._first = self._sources[0]
        self._clock = clock
        self._told: dict[str, tuple[float, float]] = {}
        """Time of the latest scene by the trainer's clock, and of its arrival, by the Server's address."""

    @property
    def scene(self) -> Scene | None:
        """See `Source`: the first Server's, with the answers to orders of all."""
        scene = self._first.scene
        answers = [one for source in self._sources if source.scene is not None for one in source.scene.orders]
        if scene is None or len(answers) == len(scene.orders):
            return scene
        return msgspec.structs.replace(scene, orders=tuple(sorted(answers, key=lambda outcome: outcome.time_s)))

    @property
    def history(self) -> History | None:
        """See `Source`."""
        return self._first.history

    @property
    def status(self) -> ServerStatus | None:
        """See `Source`."""
        return self._first.status

    @property
    def pictures(self) -> Mapping[tuple[str, Kind], Picture]:
        """See `Source`."""
        return {key: picture for source in self._sources for key, picture in source.pictures.items()}

    @property
    def state(self) -> str:
        """See `Source`."""
        return self._first.state

    @property
    def changed(self) -> int:
        """See `Source`."""
        return sum(source.changed for source in self._sources)

    @property
    def may_order(self) -> bool:
        """See `Source`."""
        return self._first.may_order

    def others(self, command: str) -> Sequence[Seen]:
        """Return what is known of the Servers but the first.

        Args:
            command: see `Seen.command`.
        """
        return [
            Seen(source.state, source.scene, self._age_s(place, source.scene), source.status, False, command, place)
            for place, source in zip(self._places[1:], self._sources[1:], strict=True)
        ]

    def _age_s(self, place: str, scene: Scene | None) -> float:
        now = self._clock()
        if scene is not None and self._told.get(place, (None, 0.0))[0] != scene.time_s:
            self._told[place] = scene.time_s, now
        return now - self._told[place][1] if place in self._told else 0.0

    def wait(self, timeout_s: float, after: int | None = None) -> bool:
        """See `Source`."""
        seen = self.changed if after is None else after
        deadline = self._clock() + timeout_s
        while self.changed == seen and (rest := deadline - self._clock()) > 0:
            self._first.wait(min(rest, _LOOK_S))
        return self.changed != seen

    def order(self, order: Order) -> str:
        """See `Source`."""
        for source in self._sources:
            scene = source.scene
            if order.worker and scene is not None and any(one.name == order.worker for one in scene.workers):
                return source.order(order)
        return self._first.order(order)

    def close(self) -> None:
        """See `Source`."""
        for source in self._sources:
            source.close()
