"""One round of lockstep collection on the trainer's side: assignments of workers, and the rows that count. Sans-I/O."""

# Theory of operation
#
# It divides the amount of a round into *assignments*, one for each worker's stream, counts the rows that arrive, and
# says which requests to send. It is told the time, the linked workers and what they report, and it opens nothing: the
# loop (lockstep.py) moves messages, round_memory.py makes the batch.
#
# Rows of a stream count if they are of the round's version and within its assignment. All other rows are counted as
# late or surplus and discarded; they are acknowledged all the same. A worker is *stalled* if it has sent nothing for
# `grace_s` (also because it has disconnected), or has not finished `grace_s` after the first worker that has. The
# missing part of its assignment is reassigned to others. Steps or whole episodes that have arrived are kept, so that
# the amount of a round is always exact, and an update never sees a step of another policy.
#
# Example: 1,000 steps and the workers a, b and c, so 334, 333 and 333. a and c finish; b has sent 133 and then nothing
# for 30 s. Its missing 200 go to a and c, 100 each. Requests count from the beginning of the round, because a directive
# is a last value that a lost link may repeat: a is asked for 434 now, c for 433. If b comes back, its further rows are
# surplus, and it gets no part until it has sent something or reports that it waits.
#
# A worker whose process has been started again comes with another stream. If a stream with a missing part is away, a
# new stream of the same name and origin takes that part at once, since otherwise all would wait for `grace_s`. Each
# does so once in a round, and while its origin has not stalled twice: one that comes again and again holds no part.
#
# A worker's report that it has finished means that all it sent was acknowledged. If rows are still missing then, they
# were lost or could not be read, and the same amount is requested again (`repeated`).
#
# No origin (a certificate, with any number of workers) may make a round last as long as it likes:
#
# - In a round of steps, only rows that count are signs of life. In a round of episodes, the rows of an episode are,
#   but for `SLOW` periods at most while another worker waits: an episode may arrive in pieces. A worker that is
#   stalled has twice the time when it is asked again, so that long episodes end although several workers take them
#   from each other. Later rounds begin with the time that two origins have needed for episodes (or the only one), so
#   that one among others cannot prolong it.
# - Workers of an origin that has stalled twice receive no more while there are others.
# - A worker that has waited for `grace_s` receives a share of assignments that are not done after `SLOW` periods.
# - If there are fewer parts than workers, each origin receives one before any receives two. Origins that have stalled
#   in recent rounds come last. Otherwise all workers get equal parts, so that a fleet with one certificate collects
#   as much as its machines do.
#
# Memory is bounded too. A round keeps the rows that count and the row before each of them: as views of their message,
# or as copies if that is less than half of it, since a view keeps the whole message. The rows of an open episode are
# limited to `max_episode_bytes` for each assignment; those of a larger one are dropped and the worker is named. They
# are also dropped when the part is taken from its worker, since the end may never come.
#
# The result does not depend on arrival: segments, episodes and the batch are in the order of the workers' names, and
# the sum of an episode's rewards is made reward by reward, however the rows are divided into messages.
#
# Rejected: rounds that end by time with what is there (not exact, not repeatable).

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tmrl_core.networking.protocol.messages import Collect, Version
from tmrl_core.samples import Chunk
from tmrl_core.samples.columns import leaves, worker_stream
from tmrl_core.training.memories.held_rows import HeldRows
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.memory import LastRow, rows_that_follow

Worker = tuple[bytes, str]
"""Stream and name."""

STALLS_OF_ORIGIN = 2
"""Number of times that an origin may stall in a round before its streams receive no more of the round."""
SLOW = 4
"""Grace periods after which a worker without an end of an episode, or with a large assignment, is slow."""
LONGEST = 16.0
"""Maximum patience that a round begins with."""
MAX_EPISODE_BYTES = 256 << 20
"""Maximum size of the rows of a worker's open episode, unless the training object has a limit of its own."""
VIEWED = 2
"""A view may keep this many times the rows that are needed of it. Beyond that they are copied."""
SMALL_BYTES = 4_096
"""Size of a message that a view may keep in any case."""


@dataclass
class RoundSegment:
    """Consecutive rows of one stream.

    Args:
        chunk: the rows.
        follows: True for each row that is a step from the row before.
        before: the row before the first, if the first is such a step.
        returns: [rows] float64, the sum of the rewards of each row's episode up to it; NaN: its beginning is missing.
            None: rewards mean nothing here.
    """

    chunk: Chunk
    follows: list[bool]
    before: Chunk | None
    returns: Array | None = None

    def row_before(self, row: int) -> Chunk | None:
        """Return the row before `row`; None: the stream's first one, or none that `row` follows."""
        if not self.follows[row]:
            return None
        return self.before if row == 0 else self.chunk.slice(row - 1, row)


class LastRows:
    """Last row of each stream, counted or not. The stream's next row may follow it."""

    def __init__(self) -> None:
        self._rows: HeldRows[tuple[Chunk, float]] = HeldRows(lambda held: held[0].nbytes)
        """With the return of its episode up to it."""

    def join(self, chunk: Chunk) -> RoundSegment:
        """Return the stream's next chunk, joined to its previous row."""
        last, total = self._rows.get(chunk.stream, (None, math.nan))
        place = None
        if last is not None and not last.terminated[0] and not last.truncated[0]:
            place = LastRow(int(last.episode[0]), int(last.step[0]))
        follows = rows_that_follow(chunk, place)
        returns = _returns(chunk, follows, total)
        self._rows.put(chunk.stream, (_copy_of_last(chunk), float(returns[-1])), chunk.origin)
        return RoundSegment(chunk, follows.tolist(), last if follows[0] else None, returns)


def _returns(chunk: Chunk, follows: Array, total: float) -> Array:
    """Return [rows] float64, the return of each row's episode up to it; NaN if its beginning is missing.

    The sums are the same however the rows are divided into messages, because each is made reward by reward.

    Args:
        chunk: the rows.
        follows: [rows] bool, the rows that are a step from the row before.
        total: return up to the row before the first.
    """
    returns = np.array(chunk.reward, np.float64)
    returns[~follows] = np.nan
    start = 0
    for segment in chunk.segments:
        stop = start + segment.rows
        if segment.rows and follows[start]:
            returns[start] += returns[start - 1] if start else total
        elif segment.rows and not segment.first_step:
            returns[start] = 0.0
        np.cumsum(returns[start:stop], out=returns[start:stop])
        start = stop
    return returns


@dataclass
class Assignment:
    """One worker stream's assignment in a round.

    Attributes:
        name: name of the worker.
        requested: steps or episodes requested from it so far.
        wanted: number of its steps or episodes that count.
        collected: number of those that have arrived.
        given_s: time of the request.
        last_arrival_s: time of its latest sign of life, or of the request.
        last_counted_s: time of its latest rows that count, or of the request.
        patience: number of grace periods that it may be silent.
        finished: True: it has collected all that was requested.
        begun_s: as `last_counted_s`, but for the first request after it had finished.
        heard_s: as `last_arrival_s`, but for that request.
        longest_silence_s: longest time between two signs of life since `begun_s`.
        seed: seed of its first episode, if it begins with a new one.
        segments: rows that count, in order of arrival.
        episodes: (return, length) of the episodes that have ended in these rows; a return is NaN if it is not known.
        whole: in a round of episodes, number of segments whose episodes have ended; the others are of an open one.
        open_bytes: size of the rows of the open episode.
        too_long: id of the episode whose rows were dropped last, because it was too large.
    """

    name: str
    requested: int
    wanted: int
    given_s: float
    seed: int | None = None
    collected: int = 0
    segments: list[RoundSegment] = field(default_factory=list)
    episodes: list[tuple[float, int]] = field(default_factory=list)
    patience: float = 1.0
    finished: bool = True
    whole: int = 0
    open_bytes: int = 0
    too_long: int | None = None

    def __post_init__(self) -> None:
        self.begin(self.given_s)

    def begin(self, now: float) -> None:
        """Begin to wait for a requested part."""
        self.given_s = self.last_arrival_s = self.last_counted_s = now
        if self.finished:  # else its episode may have begun with the part that was taken from it
            self.begun_s = self.heard_s = now
            self.longest_silence_s = 0.0
            self.finished = False

    @property
    def missing(self) -> int:
        """Return the amount that is still missing."""
        return self.wanted - self.collected

    def drop_open_episode(self) -> int:
        """Drop the rows of the open episode. Return their number."""
        rows = sum(segment.chunk.rows for segment in self.segments[self.whole :])
        del self.segments[self.whole :]
        self.open_bytes = 0
        return rows


def _copy_of_last(chunk: Chunk) -> Chunk:
    """Return a copy of the last row, without unneeded columns: a view would keep the whole chunk in memory."""
    return replace(chunk, action=(), extras={}, info={}, kinds=()).last_row()


def _kept(segment: RoundSegment, counted: list[bool], start: int, stop: int) -> RoundSegment:
    """Return the rows from `start` to `stop` that training needs: those that count, each with the row before it.

    A view keeps the whole message in memory, so few rows of a message are copied. Infos are left out.
    """
    chunk, before, follows = segment.chunk, segment.row_before(start), counted[start:stop]
    mask = np.array(follows, np.bool_)
    mask[:-1] |= mask[1:]
    rows = chunk.slice(start, stop)
    rows = replace(rows, info={}) if rows.info else rows
    needed = VIEWED * int(mask.sum())
    if needed >= chunk.rows and _viewed_bytes(chunk) <= needed * rows.nbytes // rows.rows + SMALL_BYTES:
        return RoundSegment(rows, follows, before)
    last = before if before is None or before is segment.before else _copy_of_last(before)
    return RoundSegment(rows.where(mask), list(itertools.compress(follows, mask)), last)


def _viewed_bytes(chunk: Chunk) -> int:
    """Return the size of the memory that views of a chunk's rewards and observations keep."""
    sizes: dict[int, int] = {}
    for column in (chunk.reward, *leaves(chunk.observation)):
        owner: object = column
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if isinstance(owner, memoryview | np.ndarray):
            whole = memoryview(owner.obj) if isinstance(owner, memoryview) else owner  # not only the viewed part
            sizes[id(owner)] = whole.nbytes
    return sum(sizes.values())


class Round:
    """One round.

    Args:
        number: number of the round, from 1.
        version: version of the policy that all its samples are collected with.
        amount: number of steps or episodes.
        episodes: True: the amount is in episodes.
        grace_s: seconds, as above.
        suspended: streams of stalled workers that have sent nothing since, and do not wait. They get no assignment
            while there are others. Updated in place.
        seed_of: returns the seed of an assignment's first episode, given (stream, index of the assignment); None: the
            open episode continues.
        origin_of: returns the origin of a stream; by default, each stream is its own origin.
        stalled_origins: latest round in which each origin has stalled, the latest ones last. Updated in place.
        needed: for each origin, the largest patience that its episodes have needed in recent rounds, and the round, the
            latest ones last. Updated in place.
        max_episode_bytes: maximum size of the rows of one open episode.
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
        stalled_origins: dict[Hashable, int] | None = None,
        needed: dict[Hashable, tuple[int, float]] | None = None,
        max_episode_bytes: int = MAX_EPISODE_BYTES,
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
        self.too_long: dict[bytes, str] = {}
        """Streams and names of workers that have sent an episode of more than `max_episode_bytes`."""
        self.max_episode_bytes = max_episode_bytes
        self.repeated = 0
        """Steps or episodes that a worker had to collect again, because they were lost in transit."""
        self._suspended = suspended if suspended is not None else set()
        self._seed_of = seed_of
        self._origin_of = origin_of
        self._stalled_origins = stalled_origins if stalled_origins is not None else {}
        self._needed = needed if needed is not None else {}
        self._patience = min(heapq.nlargest(2, (patience for _, patience in self._needed.values())), default=1.0)
        """Patience that two origins have needed, or the only one."""
        self._stalls: Counter[Hashable] = Counter()
        """Number of times that each origin has stalled."""
        self._first_done_s: float | None = None
        self._came_again: set[tuple[str, Hashable]] = set()
        """Names and origins of restarted workers that have taken their part again."""
        self._new: dict[bytes, float] = {}
        """Time since which each linked worker without an assignment has been there."""

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
        """Return the round's segments, stream by stream in the order of the workers' names, not of their arrival.

        Those of one environment follow each other, however a worker has divided its rows into messages.
        """
        return [
            segment
            for _, assignment in self.ordered
            for segment in sorted(assignment.segments, key=lambda segment: segment.chunk.stream)
        ]

    @property
    def episodes(self) -> list[tuple[float, int]]:
        """Return (return, length) of the episodes that have ended in rows that count, in the order of `segments`."""
        return [episode for _, assignment in self.ordered for episode in assignment.episodes]

    # --- arriving rows ------------------------------------------------------------------------------------------------

    def take(self, segment: RoundSegment, now: float) -> None:
        """Count the next rows of a stream; `now` is in seconds."""
        chunk = segment.chunk
        worker = worker_stream(chunk.stream)
        self._suspended.discard(worker)
        assignment = self.assignments.get(worker)
        counts_from: int | None = None
        counted: list[bool] = []
        start = 0
        too_long = None if assignment is None else assignment.too_long
        for (version, dropped), runs in itertools.groupby(
            chunk.segments, lambda run: (run.version, run.episode == too_long)
        ):
            stop = start + sum(run.rows for run in runs)
            if version != self.version:
                self.late += stop - start
            elif assignment is None or dropped:
                self.surplus += stop - start
            else:
                if self.in_episodes and not assignment.missing:
                    # At the end of an episode whose part was taken, the next part begins anew.
                    ended = chunk.terminated[start:stop] | chunk.truncated[start:stop]
                    assignment.finished |= bool(ended.any())
                before = assignment.collected
                kept = self._count(assignment, segment, start, stop)
                self.surplus += stop - kept
                follows = segment.follows[start:kept]
                if any(follows):
                    counts_from = start if counts_from is None else counts_from
                    counted += [False] * (start - len(counted)) + follows
                counts = assignment.collected > before
                if counts or self.in_episodes:
                    assignment.longest_silence_s = max(assignment.longest_silence_s, now - assignment.heard_s)
                    assignment.last_arrival_s = assignment.heard_s = now
                if counts:
                    if self.in_episodes:
                        self._note_patience(worker, assignment, now)
                    assignment.last_counted_s = now
                    assignment.finished = not assignment.missing
                    if not assignment.missing and self._first_done_s is None:
                        self._first_done_s = now
            start = stop
        if assignment is not None and counts_from is not None:
            self._keep(assignment, segment, counted, counts_from)

    def _keep(self, assignment: Assignment, segment: RoundSegment, counted: list[bool], start: int) -> None:
        """Keep the rows of a chunk from `start` on, of which those count that `counted` names.

        They are one segment, or two in a round of episodes, whatever the number of runs in the chunk.
        """
        stop = len(counted)
        chunk = segment.chunk
        ended = start + np.flatnonzero((chunk.terminated | chunk.truncated)[start:stop] & counted[start:stop])
        if segment.returns is not None and len(ended):
            # Counted here, not from the workers' records: those may arrive after the round.
            assignment.episodes += zip(segment.returns[ended].tolist(), chunk.step[ended].tolist(), strict=True)
        if self.in_episodes and len(ended):
            end = int(ended[-1]) + 1
            assignment.segments.append(_kept(segment, counted, start, end))
            assignment.whole = len(assignment.segments)
            assignment.open_bytes = 0
            start = end
        if True in counted[start:]:
            kept = _kept(segment, counted, start, stop)
            assignment.segments.append(kept)
            if self.in_episodes:
                assignment.open_bytes += kept.chunk.nbytes
                if assignment.open_bytes > self.max_episode_bytes:
                    self.surplus += assignment.drop_open_episode()
                    assignment.too_long = segment.chunk.segments[-1].episode
                    self.too_long.setdefault(worker_stream(segment.chunk.stream), assignment.name)

    def _note_patience(self, stream: bytes, assignment: Assignment, now: float) -> None:
        """Note the patience that an episode needed, now that it counts."""
        period_s = max(assignment.longest_silence_s, (now - assignment.begun_s) / SLOW)
        patience = 1.0
        while patience < LONGEST and period_s >= self.grace_s * patience:
            patience *= 2
        origin = self._origin_of(stream)
        if patience >= self._needed.get(origin, (0, 0.0))[1]:
            self._needed.pop(origin, None)
            self._needed[origin] = self.number, patience
        assignment.begun_s, assignment.longest_silence_s = now, 0.0

    def _count(self, assignment: Assignment, segment: RoundSegment, start: int, stop: int) -> int:
        """Count rows `start` to `stop`. Return the end of the rows that count."""
        chunk, counts = segment.chunk, segment.follows[start:stop]
        if self.in_episodes:
            # A final row without a previous row is not an episode. A round of such rows would hold no transition.
            counts = ((chunk.terminated[start:stop] | chunk.truncated[start:stop]) & counts).tolist()
        row = 0
        while assignment.missing:
            try:
                row = counts.index(True, row) + 1  # a message of 500 bytes may hold millions of rows that do not count
            except ValueError:
                return stop
            assignment.collected += 1
        return start + row

    # --- assignments --------------------------------------------------------------------------------------------------

    def poll(
        self,
        present: Sequence[Worker],
        now: float,
        says_done: Callable[[bytes, Collect], bool],
        says_idle: Callable[[bytes], bool] = lambda stream: False,
    ) -> list[tuple[bytes, Collect]]:
        """Update the assignments. Return the requests to send, as (stream, request).

        Args:
            present: the linked workers.
            now: seconds.
            says_done: returns True if a stream's worker reports that it has finished a request and that all its samples
                are acknowledged.
            says_idle: returns True if a stream's worker reports that it waits for an assignment.
        """
        here = dict(present)
        # A worker that was away, or that played an evaluation, may have no rows to send.
        self._suspended -= {stream for stream in self._suspended if stream in here and says_idle(stream)}
        self._new = {stream: self._new.get(stream, now) for stream in here if stream not in self.assignments}
        if not self.assignments:
            return self._begin(here, now)
        changed: dict[bytes, None] = {}
        for stream, assignment in self.assignments.items():
            if assignment.missing and stream in here and says_done(stream, self.collect_of(stream)):
                # Nothing more will arrive: the missing rows were lost in transit, or could not be read.
                assignment.requested += assignment.missing
                self.repeated += assignment.missing
                changed[stream] = None
        changed.update(dict.fromkeys(self._replace_restarted(here, now)))
        changed.update(dict.fromkeys(self._reassign(self._stalled_workers(here, now), here, now)))
        changed.update(dict.fromkeys(self._share(here, now)))
        return [(stream, self.collect_of(stream)) for stream in changed]

    def collect_of(self, stream: bytes) -> Collect:
        """Return the collection request for a stream."""
        assignment = self.assignments[stream]
        steps, episodes = (None, assignment.requested) if self.in_episodes else (assignment.requested, None)
        return Collect(self.number, self.version, steps, episodes, assignment.seed)

    def _begin(self, here: dict[bytes, str], now: float) -> list[tuple[bytes, Collect]]:
        able = [stream for stream in here if stream not in self._suspended]
        return [(stream, self.collect_of(stream)) for stream in self._give(self.amount, able or list(here), here, now)]

    def _give(self, amount: int, recipients: Sequence[bytes], here: dict[bytes, str], now: float) -> list[bytes]:
        """Divide an amount between streams. Return those that receive a part, in the order of the workers' names."""
        able = sorted(recipients, key=lambda stream: (here[stream], stream))
        if amount < len(able):
            able = sorted(self._by_turns(able)[:amount], key=lambda stream: (here[stream], stream))
        for stream, part in zip(able, _parts(amount, len(able)), strict=True):
            assignment = self.assignments.get(stream)
            if assignment is None:
                assignment = Assignment(here[stream], 0, 0, now, self._seed_of(stream, len(self.assignments)))
                assignment.patience = self._patience
                self.assignments[stream] = assignment
            if not assignment.missing:
                assignment.begin(now)
            assignment.requested += part
            assignment.wanted += part
        return able

    def _by_turns(self, streams: Sequence[bytes]) -> list[bytes]:
        """Return streams so that each origin is there once before any is there twice; those that have stalled last."""
        turns: Counter[Hashable] = Counter()
        places: dict[bytes, tuple[bool, int]] = {}
        for stream in streams:
            origin = self._origin_of(stream)
            places[stream] = (origin in self._stalled_origins, turns[origin])
            turns[origin] += 1
        return sorted(streams, key=places.__getitem__)

    def _stalled_workers(self, here: dict[bytes, str], now: float) -> list[bytes]:
        missing = {stream: assignment for stream, assignment in self.assignments.items() if assignment.missing}
        late: set[bytes] = set()
        first = self._first_done_s
        if first is not None and now - first >= self.grace_s:
            self._first_done_s = None  # the next worker that finishes restarts the period
            late.update(stream for stream, assignment in missing.items() if assignment.given_s <= first)
        waiting: list[bytes] | None = None
        for stream, assignment in missing.items():
            allowed = self.grace_s * (assignment.patience if stream in here else 1.0)
            if now - assignment.last_arrival_s >= allowed:
                late.add(stream)
            elif now - assignment.last_counted_s >= SLOW * allowed:
                waiting = self._waiting(here) if waiting is None else waiting
                late.update([stream] if waiting else [])
        return [stream for stream in missing if stream in late]

    def _waiting(self, here: dict[bytes, str]) -> list[bytes]:
        """Return the responsive streams of reliable origins that have nothing to collect."""
        return [
            stream
            for stream in here
            if stream not in self._suspended
            and (stream not in self.assignments or not self.assignments[stream].missing)
            and self._stalls[self._origin_of(stream)] < STALLS_OF_ORIGIN
        ]

    def _waits_since(self, stream: bytes) -> float:
        """Return the time since which a worker has had nothing to collect."""
        assignment = self.assignments.get(stream)
        return self._new[stream] if assignment is None else assignment.last_counted_s

    def _reassign(self, stalled: Sequence[bytes], here: dict[bytes, str], now: float) -> Iterable[bytes]:
        """Give the missing parts of stalled workers' assignments to others. Return the changed streams."""
        origins = set(map(self._origin_of, stalled))
        self._stalls.update(origins)
        recipients = self._recipients(stalled, here, now) if stalled else []
        if not recipients:
            self._stalls.subtract(origins)  # nothing is taken from them
            return []
        for origin in origins:
            self._stalled_origins.pop(origin, None)
            self._stalled_origins[origin] = self.number
        missing = 0
        for stream in stalled:
            assignment = self.assignments[stream]
            missing += self._take_back(assignment)
            if stream in here and now - assignment.last_counted_s >= self.grace_s:
                assignment.patience *= 2
            self.stalled.append(assignment.name)
        self.redistributed += missing
        self._suspended.update(stalled)
        return [*stalled, *self._give(missing, recipients, here, now)]

    def _take_back(self, assignment: Assignment) -> int:
        """Take the missing part of an assignment from its worker. Return its amount."""
        missing = assignment.missing
        assignment.wanted = assignment.requested = assignment.collected
        if self.in_episodes:
            self.surplus += assignment.drop_open_episode()
        return missing

    def _replace_restarted(self, here: dict[bytes, str], now: float) -> list[bytes]:
        """Give the missing part of each stream that is away to a new stream of its worker. Return the new streams."""
        away = [stream for stream, assignment in self.assignments.items() if assignment.missing and stream not in here]
        new = {(here[stream], self._origin_of(stream)): stream for stream in self._new} if away else {}
        given: list[bytes] = []
        for stream in away:
            assignment = self.assignments[stream]
            worker = assignment.name, self._origin_of(stream)
            stalls = self._stalls[worker[1]]
            if worker in new and worker not in self._came_again and stalls < STALLS_OF_ORIGIN:
                self._came_again.add(worker)
                given += self._give(self._take_back(assignment), [new[worker]], here, now)
                self._suspended.add(stream)
        return given

    def _recipients(self, stalled: Sequence[bytes], here: dict[bytes, str], now: float) -> list[bytes]:
        """Return the streams to reassign to, of the origins that have stalled least.

        They are those that have finished, else those without an assignment, else responsive ones, else all.
        """
        ended = set(stalled)
        ranks: dict[bytes, tuple[int, int]] = {}
        for stream in here:
            if stream in ended:
                continue
            assignment = self.assignments.get(stream)
            if stream in self._suspended:
                rank = 3
            elif assignment is None:
                rank = 1
            elif not assignment.missing:
                rank = 0
            else:
                rank = 2 if now - assignment.last_arrival_s < self.grace_s else 3
            stalls = self._stalls[self._origin_of(stream)]
            ranks[stream] = (stalls if stalls >= STALLS_OF_ORIGIN else 0, rank)
        best = min(ranks.values(), default=None)
        return [stream for stream, rank in ranks.items() if rank == best]

    def _share(self, here: dict[bytes, str], now: float) -> list[bytes]:
        """Give waiting workers a share of what slow ones have yet to begin. Return the changed streams."""
        slow = [
            stream
            for stream, assignment in self.assignments.items()
            if assignment.missing > 1 and now - assignment.given_s >= SLOW * self.grace_s and stream in here
        ]
        # One that has just finished is as fast as the others, which then finish soon.
        waiting = (
            [stream for stream in self._waiting(here) if self._waits_since(stream) <= now - self.grace_s]
            if slow
            else []
        )
        if not waiting:
            return []
        spare = 0
        for stream in slow:
            assignment = self.assignments[stream]
            part = assignment.missing - 1
            assignment.wanted -= part
            assignment.requested -= part
            assignment.given_s = now
            spare += part
        given = self._give(spare, [*slow, *waiting], here, now)
        self.redistributed += sum(self.assignments[stream].missing for stream in waiting if stream in self.assignments)
        return [*slow, *given]


def _parts(amount: int, number: int) -> list[int]:
    """Divide `amount` into `number` parts that differ by at most 1, the larger first."""
    if not number:
        return []
    part, more = divmod(amount, number)
    return [part + (index < more) for index in range(number)]
