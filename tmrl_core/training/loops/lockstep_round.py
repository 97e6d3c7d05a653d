"""One round of lockstep collection, the trainer's side: who is asked for how much, and what of it counts. Sans-I/O.

The amount of a round is cut into *shares*, one for each worker's stream. What a stream brings counts while it is of the
round's version and within its share; everything else is discarded, counted. A share whose worker has gone, says nothing
for `grace_s`, or is not done `grace_s` after the first one that is, is taken away as far as it is not done, and given
to the others. What was brought before stays. The amount of a round is therefore always exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tmrl_core.networking.protocol.messages import Collect, Version
from tmrl_core.samples import Chunk
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.memories.memory import MAX_STREAMS, LastRow, rows_that_follow

Worker = tuple[bytes, str]
"""Stream and name."""


@dataclass
class Piece:
    """Neighbouring rows of one stream.

    Args:
        chunk: the rows.
        follows: for each row, whether it is a step from the row before.
        before: the row before the first, if that one is such a step.
    """

    chunk: Chunk
    follows: list[bool]
    before: Chunk | None

    def slice(self, start: int, stop: int) -> Piece:
        """Rows `start` to `stop`."""
        before = self.before if start == 0 else self.chunk.slice(start - 1, start)
        return Piece(self.chunk.slice(start, stop), self.follows[start:stop], before)


class LastRows:
    """The last row of each stream, which its next one may follow; noted whether it counts or not."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Chunk] = {}

    def join(self, chunk: Chunk) -> Piece:
        """The stream's next chunk, joined to what came before it."""
        last = self._rows.get(chunk.stream)
        place = None
        if last is not None and not last.terminated[0] and not last.truncated[0]:
            place = LastRow(int(last.episode[0]), int(last.step[0]))
        follows: list[bool] = rows_that_follow(chunk, place).tolist()
        self._rows.pop(chunk.stream, None)
        self._rows[chunk.stream] = _copy_of_last(chunk)
        if len(self._rows) > MAX_STREAMS:
            del self._rows[next(iter(self._rows))]  # silent for longest
        return Piece(chunk, follows, last if follows[0] else None)


@dataclass
class Share:
    """One worker stream's assignment in a round.

    Attributes:
        name: of the worker.
        asked: what it was told, in all.
        wanted: how much of what it brings counts.
        brought: how much of that has come.
        heard_s: when something of it came last, or when it was asked.
        seed: of its first episode, if it begins with a new one.
        pieces: what counts, in the order in which it came.
    """

    name: str
    asked: int
    wanted: int
    heard_s: float
    seed: int | None = None
    brought: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def lacking(self) -> int:
        """Return the amount that is still missing."""
        return self.wanted - self.brought


def _copy_of_last(chunk: Chunk) -> Chunk:
    """The last row, without what it does not need: a view would keep the whole chunk in memory."""
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
        number: of the round, from 1.
        version: of the policy that everything in it is collected with.
        amount: how many steps, or episodes.
        episodes: the amount is in episodes.
        grace_s: seconds, as above.
        suspended: streams that lost their shares earlier, and have sent nothing since: they get none while there are
            others. Kept up to date.
        seed_of: `(stream, index of the share)` gives the seed of the first episode of a share; None: it goes on.
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
    ) -> None:
        if amount < 1:
            raise ValueError(f"a round has at least 1 step or episode, got {amount}")
        self.number = number
        self.version = version
        self.amount = amount
        self.in_episodes = episodes
        self.grace_s = grace_s
        self.shares: dict[bytes, Share] = {}
        self.late = 0
        """Samples of other versions, discarded."""
        self.surplus = 0
        """Samples of this version beyond what was wanted, discarded."""
        self.redistributed = 0
        """Steps or episodes that were taken from a worker and given to others."""
        self.stragglers: list[str] = []
        """Names of those they were taken from."""
        self.repeated = 0
        """Steps or episodes that a worker had to collect again, since they were lost on their way."""
        self._suspended = suspended if suspended is not None else set()
        self._seed_of = seed_of
        self._first_done_s: float | None = None

    @property
    def complete(self) -> bool:
        """Tell whether the round has everything that was requested."""
        return bool(self.shares) and self.brought == self.amount

    @property
    def brought(self) -> int:
        """Return the amount that has been collected."""
        return sum(share.brought for share in self.shares.values())

    @property
    def pieces(self) -> list[Piece]:
        """Return the round's segments, stream by stream in the order of the workers' names, not of their arrival."""
        ordered = sorted(self.shares.items(), key=lambda item: (item[1].name, item[0]))
        return [piece for _, share in ordered for piece in share.pieces]

    # --- what comes ---------------------------------------------------------------------------------------------------

    def take(self, piece: Piece, now: float) -> None:
        """Take what came next of a stream; `now` is in seconds."""
        chunk = piece.chunk
        self._suspended.discard(chunk.stream)
        share = self.shares.get(chunk.stream)
        start = 0
        for segment in chunk.segments:
            stop = start + segment.rows
            if segment.version != self.version:
                self.late += segment.rows
            elif share is None:
                self.surplus += segment.rows
            else:
                share.heard_s = now
                kept = self._count(share, piece, start, stop)
                self.surplus += stop - kept
                if kept > start:
                    share.pieces.append(piece.slice(start, kept))
                if not share.lacking and self._first_done_s is None:
                    self._first_done_s = now
            start = stop

    def _count(self, share: Share, piece: Piece, start: int, stop: int) -> int:
        """Count what rows `start` to `stop` bring; returns up to which row they are wanted."""
        for row in range(start, stop):
            if not share.lacking:
                return row
            if self.in_episodes:
                # An end that follows nothing is all that has come of its episode, which is to be collected again: a
                # round of such ones would hold no transition.
                ended = piece.chunk.terminated[row] or piece.chunk.truncated[row]
                share.brought += bool(ended and piece.follows[row])
            else:
                share.brought += piece.follows[row]
        return stop

    # --- who is asked -------------------------------------------------------------------------------------------------

    def poll(
        self, present: Sequence[Worker], now: float, says_done: Callable[[bytes, Collect], bool]
    ) -> list[tuple[bytes, Collect]]:
        """Look at who is there, and how long for; returns what has to be asked of whom now.

        Args:
            present: the workers that are linked.
            now: seconds.
            says_done: whether a stream's worker says that it waits since it has collected that, all acknowledged.
        """
        if not self.shares:
            return self._begin(sorted(present, key=lambda worker: (worker[1], worker[0])), now)
        changed: dict[bytes, None] = {}
        here = dict(present)
        for stream, share in self.shares.items():
            if share.lacking and stream in here and says_done(stream, self.collect_of(stream)):
                # Nothing more will come: what it lacks was lost on its way, or could not be read.
                share.asked += share.lacking
                self.repeated += share.lacking
                changed[stream] = None
        stragglers = self._stragglers(now)
        for stream in stragglers:
            changed.update(dict.fromkeys(self._redistribute(stream, stragglers, here, now)))
        return [(stream, self.collect_of(stream)) for stream in changed]

    def collect_of(self, stream: bytes) -> Collect:
        """Return the collection request for a stream."""
        share = self.shares[stream]
        steps, episodes = (None, share.asked) if self.in_episodes else (share.asked, None)
        return Collect(self.number, self.version, steps, episodes, share.seed)

    def _begin(self, present: Sequence[Worker], now: float) -> list[tuple[bytes, Collect]]:
        able = [worker for worker in present if worker[0] not in self._suspended] or list(present)
        for (stream, name), part in zip(able, _parts(self.amount, len(able)), strict=True):
            if part:
                self.shares[stream] = Share(name, part, part, now, self._seed_of(stream, len(self.shares)))
        return [(stream, self.collect_of(stream)) for stream in self.shares]

    def _stragglers(self, now: float) -> list[bytes]:
        lacking = [stream for stream, share in self.shares.items() if share.lacking]
        first = self._first_done_s
        if first is not None and now - first >= self.grace_s:
            self._first_done_s = None  # whoever is done next has others wait anew
            return lacking
        return [stream for stream in lacking if now - self.shares[stream].heard_s >= self.grace_s]

    def _redistribute(
        self, stream: bytes, stragglers: Sequence[bytes], here: dict[bytes, str], now: float
    ) -> Iterable[bytes]:
        """Give the rest of this share to others; returns the streams whose shares have changed."""
        takers = self._takers(stragglers, here, now)
        if not takers:
            return []
        share = self.shares[stream]
        rest = share.lacking
        share.wanted = share.asked = share.brought
        self.redistributed += rest
        self.stragglers.append(share.name)
        self._suspended.add(stream)
        for taker, part in zip(takers, _parts(rest, len(takers)), strict=True):
            other = self.shares.get(taker)
            if other is None:
                other = Share(here[taker], 0, 0, now, self._seed_of(taker, len(self.shares)))
                self.shares[taker] = other
            if not other.lacking:
                other.heard_s = now
            other.asked += part
            other.wanted += part
        return [stream, *takers]

    def _takers(self, stragglers: Sequence[bytes], here: dict[bytes, str], now: float) -> list[bytes]:
        """Return the streams to reassign to: finished ones, else responsive ones, else newly joined ones, else all."""
        others = [other for other in self.shares if other in here and other not in stragglers]
        able = [other for other in others if other not in self._suspended]
        done = [other for other in able if not self.shares[other].lacking]
        heard = [other for other in able if now - self.shares[other].heard_s < self.grace_s]
        new = [other for other in here if other not in self.shares]
        for takers in (done, heard, new, others):
            if takers:
                return sorted(takers, key=lambda other: (here[other], other))
        return []


def _parts(amount: int, number: int) -> list[int]:
    """`amount` in `number` parts that differ by one at most, the larger first."""
    if not number:
        return []
    part, more = divmod(amount, number)
    return [part + (index < more) for index in range(number)]
