"""Days of simulated work: how much memory a Server, a trainer and a worker hold that never restart."""

# Theory of operation
#
# One scenario runs for hours of simulated time. Server, trainer and the first worker live all the time; other workers
# join, end, crash and come back, links break, fall silent and become slow, queues fill, policies are published. What
# the three hold is measured by walking their objects, several times an hour, with the simulation itself left out: its
# lists of what was sent, which it needs for its checks, grow by design. Workers that are gone are checked and
# forgotten, so that the simulation does not become slow.
#
# Streams of workers that have ended stay known in small bounded tables (4,096 at the trainer). These tables fill during
# the first hours, so the slope is that of the second half.

from __future__ import annotations

import gc
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from tests.networking.simulation.actors import Worker
from tests.networking.simulation.memory import Memory
from tests.networking.simulation.network import Violation
from tests.networking.simulation.scenario import FAULTS, Scenario

FAULT_S = 1.0
"""Mean time between two faults."""
MESSAGE_S = 0.5
"""Mean time between two messages of all workers together."""
GONE_S = 120.0
"""Time after which nothing of a worker that is gone is on its way any more."""
MEASURED_S = 360.0
WITHOUT = {
    "Server restarted",
    "trainer restarted",
    "trainer without its state",
    "second trainer",
    "trainer of another run",
    "workers ended without a trainer",
    "policy broken off",
}
"""Faults that end the Server or the trainer."""
_LEAVES = (type, ModuleType, FunctionType, BuiltinFunctionType, str, int, float)


@dataclass
class Footprint:
    """Bytes that were held, at each measurement.

    Attributes:
        at_h: simulated hours.
        held: bytes of all objects, by part.
    """

    at_h: list[float] = field(default_factory=list)
    held: dict[str, list[int]] = field(default_factory=dict)
    streams: int = 0
    samples: int = 0
    events: int = 0

    def slope(self, part: str) -> float:
        """Return the growth in the second half, in bytes per simulated hour: the median of the slopes of all pairs.

        A pool that takes one more block at some time does not count, as it would for a line of least squares.
        """
        half = len(self.at_h) // 2
        points = list(zip(self.at_h[half:], self.held[part][half:], strict=True))
        return statistics.median((y - b) / (x - a) for (a, b), (x, y) in itertools.combinations(points, 2))


def held_bytes(*roots: object) -> int:
    """Return the bytes of all objects that can be reached, without those of the simulation."""
    seen: set[int] = set()
    waiting: list[Any] = list(roots)
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        owner = one.__self__ if isinstance(one, MethodType) else one
        if type(owner).__module__.startswith("tests."):
            continue
        total += sys.getsizeof(one)
        if not isinstance(one, _LEAVES):
            waiting.extend(gc.get_referents(one))
    return total


class Soak(Scenario):
    """A scenario that lasts.

    Args:
        seed: decides everything.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pace_s = MESSAGE_S
        self.durable = True
        self.kinds = self.others = [kind for kind in FAULTS if kind not in WITHOUT]
        self.first: Worker | None = None
        self.dead_since: dict[Worker, float] = {}
        self.footprint = Footprint()

    def living(self) -> list[Worker]:
        """Return the workers that faults may happen to; once there are no more faults, all."""
        return [worker for worker in super().living() if self.peace or worker is not self.first]

    def soak(self, hours: float, told: Callable[[float], None] = lambda hour: None) -> Footprint:
        """Play it.

        Raises:
            Violation: a promise was broken.
        """
        network = self.network
        self.new_trainer(Memory(durable=True))
        self.first = self.new_worker()
        for _ in range(4):
            self.new_worker()
        self._make()
        self._make_of_first()
        network.at(1.0, self._rare_fault)
        due = measured_s = min(MEASURED_S, hours * 3600 / 10)
        while network.now < hours * 3600:
            network.step()
            if network.now >= due:
                self._audit()
                self._forget_gone()
                self._measure()
                told(due / 3600)
                due += measured_s
        self.finish()
        self.footprint.events = network.events
        self.footprint.streams = self._next_uid
        return self.footprint

    def _rare_fault(self) -> None:
        kind = self.random.choice(self.kinds)
        if FAULTS[kind](self):
            self.result.faults[kind] += 1
        if len(self.living()) < 3:
            self.new_worker()
        if not self.peace:
            self.network.at(2 * FAULT_S * self.random.random(), self._rare_fault)

    def _make_of_first(self) -> None:
        assert self.first is not None
        if not self.peace:
            self.make(self.first)
            self.network.at(2.0, self._make_of_first)

    def _forget_gone(self) -> None:
        memory, now = self.trainer.memory, self.network.now
        for worker in self.workers[:]:
            if not worker.alive and now - self.dead_since.setdefault(worker, now) > GONE_S:
                self.checker.finished(worker, memory, [], forgotten=False)
                self.footprint.samples += sum(worker.samples)
                self.workers.remove(worker)
                del self.dead_since[worker], memory.streams[worker.stream]

    def _measure(self) -> None:
        assert self.first is not None
        footprint, end = self.footprint, self.first.end
        footprint.at_h.append(self.network.now / 3600)
        parts = {
            "Server": held_bytes(self.network.relay),
            "trainer": held_bytes(self.trainer.state, self.trainer.end and self.trainer.end.connection),
            "worker": held_bytes(self.first.state, self.first.sender, end and end.connection),
        }
        for part, held in parts.items():
            footprint.held.setdefault(part, []).append(held)


__all__ = ["Footprint", "Soak", "Violation", "held_bytes"]
