"""One round of lockstep collection on the trainer's side: assignments of workers, and the rows that count. Sans-I/O.

The amount of a round is divided into *assignments*, one for each worker's stream. Rows of a stream count if they are of
the round's version and within its assignment. All other rows are counted and discarded. A worker is *stalled* if it has
sent nothing for `grace_s` (also because it has disconnected), or has not finished `grace_s` after the first worker that
has. The missing part of its assignment is reassigned to others. Rows that have arrived are kept, so that the amount of
a round is always exact. An origin (a certificate) may have any number of workers, so those of an origin that has
stalled twice in a round receive no more of it: otherwise one origin could make a round last as long as it likes.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from tmrl_core.networking.protocol.messages import Collect, Version
from tmrl_core.samples import Chunk
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.memories.held_rows import HeldRows
from tmrl_core.training.memories.memory import LastRow, rows_that_follow

Worker = tuple[bytes, str]
"""Stream and name."""

STALLS_OF_ORIGIN = 2
"""Number of times that an origin may stall in a round before its streams receive no more of the round."""


@dataclass
class RoundSegment:
    """Consecutive rows of one stream.

    Args:
        chunk: the rows.
        follows: True for each row that is a step from the row before.
        before: the row before the first, if the first is such a step.
    """

    chunk: Chunk
    follows: list[bool]
    before: Chunk | None

    def slice(self, start: int, stop: int) -> RoundSegment:
        """Return rows `start` to `stop`."""
        before = self.before if start == 0 else self.chunk.slice(start - 1, start)
        return RoundSegment(self.chunk.slice(start, stop), self.follows[start:stop], before)


class LastRows:
    """Last row of each stream, counted or not. The stream's next row may follow it."""

    def __init__(self) -> None:
        self._rows: HeldRows[Chunk] = HeldRows(operator.attrgetter("nbytes"))

    def join(self, chunk: Chunk) -> RoundSegment:
        """Return the stream's next chunk, joined to its previous row."""
        last = self._rows.get(chunk.stream)
        place = None
        if last is not None and not last.terminated[0] and not last.truncated[0]:
            place = LastRow(int(last.episode[0]), int(last.step[0]))
        follows: list[bool] = rows_that_follow(chunk, place).tolist()
        self._rows[chunk.stream] = _copy_of_last(chunk)
        return RoundSegment(chunk, follows, last if follows[0] else None)


@dataclass
class Assignment:
    """One worker stream's assignment in a round.

    Attributes:
        name: name of the worker.
        requested: steps or episodes requested from it so far.
        wanted: number of its steps or episodes that count.
        collected: number of those that have arrived.
        last_arrival_s: time of its latest rows, or of the request.
        seed: seed of its first episode, if it begins with a new one.
        segments: rows that count, in order of arrival.
    """

    name: str
    requested: int
    wanted: int
    last_arrival_s: float
    seed: int | None = None
    collected: int = 0
    segments: list[RoundSegment] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Return the amount that is still missing."""
        return self.wanted - self.collected


def _copy_of_last(chunk: Chunk) -> Chunk:
    """Return a copy of the last row, without unneeded columns: a view would keep the whole chunk in memory."""
    last = chunk.slice(chunk.rows - 1, chunk.rows)
    return Chunk(
        rows=1,
        action=(),
        action_present=last.action_present.copy(),
        observation=map_leaves(copy.copy, last.observation),
        reward=last.reward.copy(),
        terminated=last.terminated.copy(),
        truncated=last.truncated.copy(),
        segments=last.segments,
        stream=last.stream,
    )


class Round:
    """One round.

    Args:
        number: number of the round, from 1.
        version: version of the policy that all its samples are collected with.
        amount: number of steps or episodes.
        episodes: True: the amount is in episodes.
        grace_s: seconds, as above.
        suspended: streams of stalled workers that have sent nothing since. They get no assignment while there are
            others. Updated in place.
        seed_of: returns the seed of an assignment's first episode, given (stream, index of the assignment); None: the
            open episode continues.
        origin_of: returns the origin of a stream; by default, each stream is its own origin.
    """

    def __init__(
        self,
        number: int,
        version: Version,
        *,
        amount: int,
        episodes: bool = False,
        grace_s: float,
        suspended: set[bytes] | None = None,
        seed_of: Callable[[bytes, int], int | None] = lambda stream, index: None,
        origin_of: Callable[[bytes], Hashable] = bytes,
    ) -> None:
        if amount < 1:
            raise ValueError(f"a round has at least 1 step or episode, got {amount}")
        self.number = number
        self.version = version
        self.amount = amount
        self.in_episodes = episodes
        self.grace_s = grace_s
        self.assignments: dict[bytes, Assignment] = {}
        self.late = 0
        """Samples of other versions, discarded."""
        self.surplus = 0
        """Samples of this version beyond the assignments, discarded."""
        self.redistributed = 0
        """Steps or episodes that were reassigned from stalled workers."""
        self.stalled: list[str] = []
        """Names of the stalled workers."""
        self.repeated = 0
        """Steps or episodes that a worker had to collect again, because they were lost in transit."""
        self._suspended = suspended if suspended is not None else set()
        self._seed_of = seed_of
        self._origin_of = origin_of
        self._stalls: Counter[Hashable] = Counter()
        """Number of times that each origin has stalled."""
        self._first_done_s: float | None = None

    @property
    def complete(self) -> bool:
        """Return True if the round has all requested steps or episodes."""
        return bool(self.assignments) and self.collected == self.amount

    @property
    def collected(self) -> int:
        """Return the amount that has been collected."""
        return sum(assignment.collected for assignment in self.assignments.values())

    @property
    def ordered(self) -> list[tuple[bytes, Assignment]]:
        """Return the assignments with their streams, in the order of the workers' names."""
        return sorted(self.assignments.items(), key=lambda item: (item[1].name, item[0]))

    @property
    def segments(self) -> list[RoundSegment]:
        """Return the round's segments, stream by stream in the order of the workers' names, not of their arrival."""
        return [segment for _, assignment in self.ordered for segment in assignment.segments]

    # --- arriving rows ------------------------------------------------------------------------------------------------

    def take(self, segment: RoundSegment, now: float) -> None:
        """Count the next rows of a stream; `now` is in seconds."""
        chunk = segment.chunk
        self._suspended.discard(chunk.stream)
        assignment = self.assignments.get(chunk.stream)
        start = 0
        for run in chunk.segments:
            stop = start + run.rows
            if run.version != self.version:
                self.late += run.rows
            elif assignment is None:
                self.surplus += run.rows
            else:
                assignment.last_arrival_s = now
                kept = self._count(assignment, segment, start, stop)
                self.surplus += stop - kept
                if kept > start:
                    assignment.segments.append(segment.slice(start, kept))
                if not assignment.missing and self._first_done_s is None:
                    self._first_done_s = now
            start = stop

    def _count(self, assignment: Assignment, segment: RoundSegment, start: int, stop: int) -> int:
        """Count rows `start` to `stop`. Return the end of the rows that count."""
        for row in range(start, stop):
            if not assignment.missing:
                return row
            if self.in_episodes:
                # A final row without a previous row is not an episode. A round of such rows would hold no transition.
                ended = segment.chunk.terminated[row] or segment.chunk.truncated[row]
                assignment.collected += bool(ended and segment.follows[row])
            else:
                assignment.collected += segment.follows[row]
        return stop

    # --- assignments --------------------------------------------------------------------------------------------------

    def poll(
        self, present: Sequence[Worker], now: float, says_done: Callable[[bytes, Collect], bool]
    ) -> list[tuple[bytes, Collect]]:
        """Update the assignments. Return the requests to send, as (stream, request).

        Args:
            present: the linked workers.
            now: seconds.
            says_done: returns True if a stream's worker reports that it has finished a request and that all its samples
                are acknowledged.
        """
        if not self.assignments:
            return self._begin(sorted(present, key=lambda worker: (worker[1], worker[0])), now)
        changed: dict[bytes, None] = {}
        here = dict(present)
        for stream, assignment in self.assignments.items():
            if assignment.missing and stream in here and says_done(stream, self.collect_of(stream)):
                # Nothing more will arrive: the missing rows were lost in transit, or could not be read.
                assignment.requested += assignment.missing
                self.repeated += assignment.missing
                changed[stream] = None
        changed.update(dict.fromkeys(self._reassign(self._stalled_workers(now), here, now)))
        return [(stream, self.collect_of(stream)) for stream in changed]

    def collect_of(self, stream: bytes) -> Collect:
        """Return the collection request for a stream."""
        assignment = self.assignments[stream]
        steps, episodes = (None, assignment.requested) if self.in_episodes else (assignment.requested, None)
        return Collect(self.number, self.version, steps, episodes, assignment.seed)

    def _begin(self, present: Sequence[Worker], now: float) -> list[tuple[bytes, Collect]]:
        able = [worker for worker in present if worker[0] not in self._suspended] or list(present)
        for (stream, name), part in zip(able, _parts(self.amount, len(able)), strict=True):
            if part:
                self.assignments[stream] = Assignment(
                    name, part, part, now, self._seed_of(stream, len(self.assignments))
                )
        return [(stream, self.collect_of(stream)) for stream in self.assignments]

    def _stalled_workers(self, now: float) -> list[bytes]:
        missing = [stream for stream, assignment in self.assignments.items() if assignment.missing]
        first = self._first_done_s
        if first is not None and now - first >= self.grace_s:
            self._first_done_s = None  # the next worker that finishes restarts the period
            return missing
        return [stream for stream in missing if now - self.assignments[stream].last_arrival_s >= self.grace_s]

    def _reassign(self, stalled: Sequence[bytes], here: dict[bytes, str], now: float) -> Iterable[bytes]:
        """Give the missing parts of stalled workers' assignments to others. Return the changed streams."""
        origins = set(map(self._origin_of, stalled))
        self._stalls.update(origins)
        recipients = self._recipients(stalled, here, now) if stalled else []
        if not recipients:
            self._stalls.subtract(origins)  # nothing is taken from them
            return []
        missing = 0
        for stream in stalled:
            assignment = self.assignments[stream]
            missing += assignment.missing
            assignment.wanted = assignment.requested = assignment.collected
            self.stalled.append(assignment.name)
        self.redistributed += missing
        self._suspended.update(stalled)
        parts = [
            (stream, part) for stream, part in zip(recipients, _parts(missing, len(recipients)), strict=True) if part
        ]
        for recipient, part in parts:
            other = self.assignments.get(recipient)
            if other is None:
                other = Assignment(here[recipient], 0, 0, now, self._seed_of(recipient, len(self.assignments)))
                self.assignments[recipient] = other
            if not other.missing:
                other.last_arrival_s = now
            other.requested += part
            other.wanted += part
        return [*stalled, *(recipient for recipient, _ in parts)]

    def _recipients(self, stalled: Sequence[bytes], here: dict[bytes, str], now: float) -> list[bytes]:
        """Return the streams to reassign to: finished ones, else responsive ones, else newly joined ones, else all."""
        ended = set(stalled)
        others = [other for other in self.assignments if other in here and other not in ended]
        able = [other for other in others if other not in self._suspended]
        done = [other for other in able if not self.assignments[other].missing]
        heard = [other for other in able if now - self.assignments[other].last_arrival_s < self.grace_s]
        new = [other for other in here if other not in self.assignments]
        reliable = (
            [other for other in some if self._stalls[self._origin_of(other)] < STALLS_OF_ORIGIN]
            for some in (done, heard, new)
        )
        for recipients in (*reliable, done, heard, new, others):
            if recipients:
                return sorted(recipients, key=lambda other: (here[other], other))
        return []


def _parts(amount: int, number: int) -> list[int]:
    """Divide `amount` into `number` parts that differ by at most 1, the larger first."""
    if not number:
        return []
    part, more = divmod(amount, number)
    return [part + (index < more) for index in range(number)]
