"""A session: one recorded episode. And how chunks of samples become sessions."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.samples import Chunk, EpisodeRecord, Segment, Tree, Version
from tmrl_core.samples.columns import Array, join_trees, leaves, map_leaves
from tmrl_core.samples.concatenation import same_layout, same_structure
from tmrl_core.samples.segments import NO_VERSION

logger = logging.getLogger(__name__)

LEAST_OPEN_BYTES = 1 << 30
"""Maximum size of unfinished sessions on a machine with little memory, and where its size is unknown (Windows)."""
MAX_OPEN = 4096
"""Maximum number of unfinished sessions; beyond it the oldest is finished."""
RETURN_TOLERANCE = 1e-6
"""Maximum difference of a session's return from its episode's record, relative beyond 1."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Session:
    """One recorded episode, or a part of one. Tick t: observation t, the action chosen on it, the reward for it.

    Args:
        observations: leaves [T + 1, ...]; the last one follows the last action.
        actions: leaves [T, ...].
        rewards: [T].
        extras: further columns by name, leaves [T, ...], stored with the actions.
        infos: the infos that are not empty, by observation; 0 is that of the reset.
        terminated: the last step ended the episode.
        truncated: the last step cut the episode. With neither, the recording stopped before the episode's end.
        first_step: step of the episode that the first observation belongs to; 0 is the reset.
        seed: of the reset, if it was chosen.
        source: name of the worker or data set.
        version: of the policy that acted at the end; (0, 0): none.

    Raises:
        ValueError: the lengths differ, or there is no tick.
    """

    observations: Tree
    actions: Tree
    rewards: Array
    extras: dict[str, Tree] = field(default_factory=dict)
    infos: dict[int, dict[Any, Any]] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    first_step: int = 0
    seed: int | None = None
    source: str = ""
    version: Version = NO_VERSION

    def __post_init__(self) -> None:
        ticks = len(self)
        if not ticks:
            raise ValueError("a session has at least one tick, and this one has no rewards")
        for name, tree, rows in (
            ("observations", self.observations, ticks + 1),
            ("actions", self.actions, ticks),
            *((f"extras[{key!r}]", tree, ticks) for key, tree in self.extras.items()),
        ):
            for column in leaves(tree):
                if len(column) != rows:
                    raise ValueError(
                        f"the {name} of a session with {ticks} rewards have {rows} rows, found {len(column)}: there is "
                        "one observation more than actions and rewards"
                    )

    def __len__(self) -> int:
        """Return the number of ticks."""
        return len(self.rewards)

    @property
    def episode_return(self) -> float:
        """Sum of the rewards, undiscounted."""
        return float(np.sum(self.rewards, dtype=np.float64))

    def chunk(self, episode: int = 0, stream: bytes = b"") -> Chunk:
        """Return the samples as a worker sends them: the reset, then one sample for each action.

        Args:
            episode: its id, unique in the stream.
            stream: id of the stream.
        """
        rows = len(self) + 1

        # The reset has no action: zeros, which `action_present` marks, keep the columns of one length.
        def after_reset(column: Any) -> Any:
            if isinstance(column, list):
                return [None, *column]
            return np.concatenate([np.zeros_like(column[:1]), column])

        def flag(value: bool) -> np.ndarray:
            flags = np.zeros(rows, np.bool_)
            flags[-1] = value
            return flags

        present = np.ones(rows, np.bool_)
        present[0] = False
        return Chunk(
            rows=rows,
            action=map_leaves(after_reset, self.actions),
            action_present=present,
            observation=self.observations,
            reward=after_reset(self.rewards),
            terminated=flag(self.terminated),
            truncated=flag(self.truncated),
            info=self.infos,
            extras={name: map_leaves(after_reset, tree) for name, tree in self.extras.items()},
            segments=(Segment(rows, episode, self.first_step, *self.version),),
            stream=stream,
        )


def sessions_of(chunks: Iterable[Chunk], records: Iterable[EpisodeRecord] = ()) -> Iterator[Session]:
    """Yield the sessions that chunks of samples contain, in the order in which they end, then the unfinished ones.

    A session never continues across a missing message, a change of structure or two streams: the next one begins there.

    Args:
        chunks: of any streams; each stream's in its order.
        records: of their episodes, for seeds and names of workers.
    """
    joiner, noted = SessionJoiner(), tuple(records)
    for chunk in chunks:
        yield from joiner.add(chunk, noted)
    yield from joiner.finish()
    joiner.tell("the samples")


@dataclass(slots=True)
class _Tally:
    """Steps and rewards of an episode in all its sessions, to compare with its record.

    Attributes:
        whole: no step is missing so far, from the reset on.
    """

    whole: bool
    steps: int = 0
    total: float = 0.0

    def difference(self, record: EpisodeRecord, returns: bool) -> str:
        """Return the difference that no missing message explains; empty: there is none."""
        # Where steps do not follow each other, a message was lost, which explains any difference.
        if not self.whole or (record.end == "aborted" and self.steps < record.length):
            return ""  # of an aborted episode, the last message may be missing
        off = abs(self.total - record.episode_return) > RETURN_TOLERANCE * max(1.0, abs(record.episode_return))
        if self.steps == record.length and not (returns and off):
            return ""
        return (
            f"episode {record.episode} has {self.steps} steps and the return {self.total:.9g}, its record "
            f"{record.length} steps and {record.episode_return:.9g}"
        )


class _Open:
    """An unfinished session: the first observation, and chunks of one layout with the steps after it."""

    __slots__ = ("body", "first", "first_step", "nbytes", "next_step", "tally")

    def __init__(self, first: Chunk, first_step: int, tally: _Tally) -> None:
        self.tally = tally
        self.first = first.last_row()  # a copy: what is cut from a chunk does not keep the whole of it in memory
        self.first_step = first_step
        self.next_step = first_step + 1
        self.body: list[Chunk] = []
        self.nbytes = first.nbytes

    def takes(self, chunk: Chunk) -> bool:
        """Return True if the steps of a chunk have the layout of this session."""
        if self.body:
            return same_layout(self.body[-1], chunk)
        return same_structure(self.first.observation, chunk.observation)

    def append(self, chunk: Chunk) -> None:
        self.body.append(chunk)
        self.next_step += chunk.rows
        self.tally.steps += chunk.rows
        self.tally.total += float(np.sum(chunk.reward, dtype=np.float64)) if _numeric(chunk.reward) else 0.0
        self.nbytes += chunk.nbytes

    def session(self, record: EpisodeRecord | None) -> Session | None:
        """Return the session; None: no step follows the first observation."""
        if not self.body:
            return None
        last = self.body[-1]
        infos = {0: self.first.info[0]} if 0 in self.first.info else {}
        row = 1
        for part in self.body:
            infos |= {row + at: info for at, info in part.info.items()}
            row += part.rows
        return Session(
            observations=join_trees([self.first.observation, *(part.observation for part in self.body)]),
            actions=join_trees([part.action for part in self.body]),
            rewards=join_trees([part.reward for part in self.body]),
            extras={name: join_trees([part.extras[name] for part in self.body]) for name in last.extras},
            infos=infos,
            terminated=bool(last.terminated[-1]),
            truncated=bool(last.truncated[-1]),
            first_step=self.first_step,
            # Only from the reset on: a seed does not reproduce the middle of an episode.
            seed=record.seed if record is not None and self.first_step == 0 else None,
            source=record.worker if record is not None else "",
            version=last.segments[-1].version,
        )


class SessionJoiner:
    """Joins the samples of episodes that arrive in parts.

    Its memory is bounded: beyond `max_bytes`, the longest unfinished session is returned as it is, and the rest of its
    episode becomes another one, with a warning (`tell`).

    The steps and the return of each episode are compared with its record. A missing message explains a difference; a
    change of the layout within an episode does not, since the step at the border is in none of its sessions.

    Args:
        max_bytes: maximum size of the unfinished sessions; None: that of `open_bytes`.

    Attributes:
        compare_returns: compare returns too; False: the samples are those of a worker's `sample_compressor`.
        different: number of episodes that differ from their records.
        first_difference: of the first of them.
        cuts: number of sessions that were cut for memory.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.compare_returns = True
        self.different = 0
        self.first_difference = ""
        self.cuts = 0
        self._max_bytes = open_bytes() if max_bytes is None else max_bytes
        self._open: dict[tuple[bytes, int], _Open] = {}

    def add(self, chunk: Chunk, records: Sequence[EpisodeRecord] = ()) -> list[Session]:
        """Add the next samples of a stream; return the sessions that end with them.

        Args:
            chunk: the samples.
            records: of finished episodes, see `end`.
        """
        if _numeric(chunk.reward):
            # A sender may give ints and floats within one episode, which are chunks of two layouts.
            chunk = replace(chunk, reward=chunk.reward.astype(np.float64, copy=False))
        recorded = {record.episode: record for record in records}
        found: list[Session | None] = []
        for start, stop, episode, first_step in _runs(chunk):
            key = (chunk.stream, episode)
            session = self._open.get(key)
            if session is not None and first_step == session.next_step - 1:
                start += 1  # a sender may repeat the last row, to begin a message with it
                first_step += 1
                if start == stop:
                    continue
            rows = chunk.slice(start, stop)
            # Cut sessions of one episode share the tally: its record counts the whole episode.
            tally = _Tally(whole=first_step == 0) if session is None else session.tally
            if session is not None and (first_step != session.next_step or not session.takes(rows)):
                found.append(session.session(recorded.get(episode)))
                tally.whole &= first_step == session.next_step
                session = None
            if session is None:
                session = self._open[key] = _Open(rows.slice(0, 1), first_step, tally)
                rows = rows.slice(1, rows.rows)
            ended = chunk.terminated[stop - 1] or chunk.truncated[stop - 1]
            if rows.rows:
                if not ended and 2 * rows.rows < chunk.rows:
                    rows = rows.where(np.ones(rows.rows, np.bool_))  # a view keeps the whole message in memory
                session.append(rows)
            if ended:
                del self._open[key]
                self._compare(session, recorded.get(episode))
                found.append(session.session(recorded.get(episode)))
        found += self._cut()
        return [*_present(found), *self.end(chunk.stream, records)]

    def end(self, stream: bytes, records: Sequence[EpisodeRecord]) -> list[Session]:
        """Return the unfinished sessions of a stream's aborted episodes."""
        found = []
        for record in records:
            session = self._open.pop((stream, record.episode), None) if record.end == "aborted" else None
            if session is not None:
                self._compare(session, record)
                found.append(session.session(record))
        return _present(found)

    def _compare(self, session: _Open, record: EpisodeRecord | None) -> None:
        difference = session.tally.difference(record, self.compare_returns) if record is not None else ""
        if difference:
            self.different += 1
            self.first_difference = self.first_difference or difference

    def tell(self, source: object) -> None:
        """Log the sessions that were cut and the differences from the records, if there are any."""
        if self.cuts:
            logger.warning(
                "%s: unfinished sessions had more than %.1f GB (a quarter of this machine's memory), so %d were cut: "
                "the rest of each is a session of its own. Read them on a machine with more memory, or record smaller "
                "images (worker.images) or shorter episodes",
                source,
                self._max_bytes / 1e9,
                self.cuts,
            )
        if self.different:
            logger.warning(
                "%s: %d episodes differ from their records, and no missing message explains it; the first: %s. Please "
                "report it",
                source,
                self.different,
                self.first_difference,
            )

    def finish(self) -> list[Session]:
        """Return the unfinished sessions, and forget them."""
        found = [session.session(None) for session in self._open.values()]
        self._open = {}
        return _present(found)

    def _cut(self) -> Iterator[Session | None]:
        # Episodes of killed workers never end, and each of them keeps an observation.
        while len(self._open) > MAX_OPEN:
            yield self._open.pop(next(iter(self._open))).session(None)
        while sum(session.nbytes for session in self._open.values()) > self._max_bytes:
            # The longest: it frees the most, and its rest is a session long enough to learn from.
            key, longest = max(self._open.items(), key=lambda item: item[1].nbytes)
            if not longest.body:
                return  # single observations, which are as few as `MAX_OPEN` allows
            self._open[key] = _Open(longest.body[-1], longest.next_step - 1, longest.tally)
            self.cuts += 1
            yield longest.session(None)


def open_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the maximum size of unfinished sessions: a quarter of this machine's memory, as joining one doubles it.

    A container has the memory of its control group.

    An episode of a minute with two cameras of 640x480 has 3 GB. A cut one would be several episodes in an export.
    """
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # there is no such function on Windows
        memory = 0
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or no limit (max)
            memory = min(memory, int((groups / name).read_text()))
    return max(memory // 4, LEAST_OPEN_BYTES)


def _numeric(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind in "biuf"


def _present(sessions: Iterable[Session | None]) -> list[Session]:
    return [session for session in sessions if session is not None]


def _runs(chunk: Chunk) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, stop, episode, first step) of each run of rows that belong to one session."""
    ended = np.flatnonzero(chunk.terminated | chunk.truncated)
    episode, step = chunk.episode, chunk.step
    # Rows that follow each other in a chunk belong together only if their steps do.
    breaks = np.flatnonzero((np.diff(episode) != 0) | (np.diff(step) != 1)) + 1
    starts = sorted({0, *breaks.tolist(), *(int(row) + 1 for row in ended if row + 1 < chunk.rows)})
    for start, stop in zip(starts, [*starts[1:], chunk.rows], strict=True):
        if stop > start:
            yield start, stop, int(episode[start]), int(step[start])
