"""Episodes of one round of lockstep collection over TLS, with the experiences of many agents."""

# Theory of operation
#
# The trainer's side of a round: chunks go in, whole episodes come out. It knows the agents' pools only to compare
# layouts, and writes nothing into them; `Learner.run_episode` stores the joined experiences after the round.
#
# Why everything is checked here. An error in `Learner.run_episode` would end the run, after other workers have
# delivered a good round. So whatever a worker can send wrongly is refused before an episode counts: the form
# (`EpisodeReader`), a performance that the manager cannot score, unknown agents and values that are not finite
# (`experience_problem`), weights below 0, values that the algorithm cannot use (`check_experiences`), and a layout that
# differs from the pool's. A refusal names the reason, does not count, and the assignment stays open for another
# episode.
#
# State. `round` says which streams have an assignment, and how many episodes each still misses. `_readers` has the open
# episode of each stream, `_played` the accepted ones in their order. `_layouts` is the layout of the first accepted
# episode of the round for each pool, because an empty pool has none: two workers with different environments must not
# both fill it. `_stored` is the layout that the pool itself holds, and has no empty dicts, which arrays cannot express.
#
# What counts. `counts` marks one row for each accepted episode, its last one, and the round adds these marks up: 3
# episodes of 7 rows are 21 rows of which 3 count. Rows of streams without an assignment and of other versions are
# counted as received and not held.
#
# Memory is bounded by the episodes of the round and one open episode of each worker with an assignment, of at most
# `max_episode_bytes` each. A view of a large message keeps all of it in memory, so rows that are less than half of
# their message are copied (`VIEWED`). After `MAX_REFUSALS` in one message its rest is discarded unread: a refusal costs
# more than a row, and a hostile worker would send nothing else.
#
# Nothing of a round is in a checkpoint: after a restart the round is collected again.

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tmrl_core.errors import SampleRefusedError
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.experiences import MAX_EPISODE_BYTES, EpisodeReader, PlayedEpisode
from tmrl_core.multiagent.trajectory import Columns, Experiences, experience_problem
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.samples.columns import join_trees, map_leaves
from tmrl_core.samples.concatenation import continued_segments
from tmrl_core.training.contracts import Refusals, TrainingMemory
from tmrl_core.training.loops.lockstep_round import VIEWED, Round, RoundSegment
from tmrl_core.training.memories.layout import TreeSpec, tree_spec

MAX_REFUSALS = 64
"""Number of refused runs after which the rest of a message is discarded unread; a refusal costs more than a row."""


class RoundEpisodes(TrainingMemory):
    """Hold the whole episodes of one round, and refuse experiences that the agents' pools cannot store.

    Rows of streams without an assignment, and of other versions, are counted and not held. So the memory in use is
    limited to the episodes of the round, and one unfinished episode of each worker, of `max_episode_bytes` each.

    Args:
        agents: agents with their pools, by id.
        score: returns the score of a performance, which workers may send in any form.
        max_episode_bytes: maximum size of one episode.
        clock: seconds.
    """

    type_id = "round_episodes"
    type_version = 1

    transient = frozenset(
        {
            "round",
            "max_episode_bytes",
            "_agents",
            "_score",
            "_clock",
            "_readers",
            "_played",
            "_layouts",
            "_stored",
        }
    )
    """Attributes that are not in checkpoints: an unfinished round is collected again after a restart."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        score: Callable[[Any], float],
        *,
        max_episode_bytes: int = MAX_EPISODE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.round: Round | None = None
        self.max_episode_bytes = max_episode_bytes
        self._agents = agents
        self._score = score
        self._clock = clock
        self._readers: dict[bytes, EpisodeReader] = {}
        self._played: dict[bytes, list[PlayedEpisode]] = {}
        self._layouts: dict[int, TreeSpec] = {}
        """Layout of the rows of each pool, by the pool's `id`: that of the first episode of the round."""
        self._stored: dict[int, TreeSpec] = {}
        """Layout of the rows that each pool holds, which has no empty dicts."""

    def begin(self, round_: Round) -> None:
        """Begin another round."""
        self.round = round_
        self._readers, self._played = {}, {}
        for agent in self._agents.values():
            pool = agent.experience_pool
            if pool.keys:
                self._stored[id(pool)] = _layout_of(pool.get([]))
                self._layouts.pop(id(pool), None)

    @property
    def episodes(self) -> list[tuple[float, int]]:
        """Return (score, length) of the episodes of the round."""
        return [
            (float(self._score(episode.performance)), episode.length)
            for stream, _ in (self.round.ordered if self.round is not None else ())
            for episode in self._played.get(stream, [])
        ]

    def append(self, buffer: Buffer) -> Refusals:
        """Insert the episodes of a buffer that the round wants; count and discard other rows.

        Returns:
            Rejected chunks, with the reasons.
        """
        self.note_statistics(buffer)
        now = self._clock()
        refusals: Refusals = []
        if self.round is not None:
            for chunk in buffer.chunks:
                reason = self._take(self.round, chunk, now)
                if reason:
                    refusals.append((chunk, SampleRefusedError(reason)))
        return refusals

    def _take(self, round_: Round, chunk: Chunk, now: float) -> str:
        """Insert the next rows of a stream. Return the reason of a refusal; empty: none."""
        assignment = round_.assignments.get(chunk.stream)
        missing = assignment.missing if assignment is not None else 0
        counts = [False] * chunk.rows
        reason, refusals, stop = "", 0, 0
        runs = continued_segments(chunk.segments)
        for run in runs:
            start, stop = stop, stop + run.rows
            if not missing or run.version != round_.version or refusals == MAX_REFUSALS:
                continue
            reader = self._readers.setdefault(chunk.stream, EpisodeReader(self.max_episode_bytes))
            if reader.skips(run):
                continue
            rows = chunk.slice(start, stop)
            if VIEWED * run.rows < chunk.rows:
                rows = rows.where(np.ones(run.rows, np.bool_))  # a view keeps the whole message in memory
            try:
                episode = reader.take(run, rows)
                if episode is not None:
                    self._check(episode)
            except SampleRefusedError as exc:
                reason = reason or str(exc)
                refusals += 1
                continue
            if episode is not None:
                self._played.setdefault(chunk.stream, []).append(episode)
                counts[stop - 1] = True  # only the last row of an accepted episode counts
                missing -= 1
        flags = replace(chunk, action=(), observation=(), info={}, extras={}, kinds=(), segments=runs)
        round_.take(RoundSegment(flags, counts, None), now)
        return reason

    def _check(self, episode: PlayedEpisode) -> None:
        """Refuse an episode that cannot be used.

        Raises:
            SampleRefusedError: the message has the reason.
        """
        try:
            score = float(self._score(episode.performance))
        except Exception as exc:  # the manager's own code, with values of a worker
            raise SampleRefusedError(
                f"a performance without a score, as AgentManager.score says: {type(exc).__name__}: {exc}"
            ) from exc
        if math.isinf(score):
            raise SampleRefusedError(f"a performance with the score {score}, which is not finite")
        if problem := experience_problem(episode.experiences, self._agents):
            raise SampleRefusedError(problem)
        found: dict[int, TreeSpec] = {}
        for name, columns in episode.experiences.items():
            agent = self._agents[name]
            if not _rows_of(columns):
                continue
            weights = columns.get(agent.params.sample_by) if agent.params.sample_by is not None else None
            if isinstance(weights, np.ndarray) and weights.dtype.kind in "iuf" and (weights < 0).any():
                raise SampleRefusedError(
                    f"negative weights of agent {name!r:.100}, by which its experiences are sampled"
                )
            try:
                agent.algorithm.check_experiences(columns)
                rows = agent.rows_of(_first_row(columns))
                layout = _layout_of(rows)
            except Exception as exc:  # the algorithm's own code, with values of a worker
                raise SampleRefusedError(f"the experiences of agent {name!r:.100}: {exc}") from exc
            pool = id(agent.experience_pool)
            known = self._layouts.get(pool) or found.get(pool)
            stored = self._stored.get(pool)
            if stored is not None and _layout_of(_without_empty(rows)) != stored:
                known = stored
            if known is not None and layout != known:
                raise SampleRefusedError(
                    f"the experiences of agent {name!r:.100} are {layout}, its pool holds {known}. "
                    "See that workers and trainer use the same manager and environment."
                )
            found[pool] = layout
        self._layouts |= found

    def __len__(self) -> int:
        """Return the number of experiences in the round."""
        return sum(self.experiences_by_agent().values())

    def experiences_by_agent(self) -> dict[str, int]:
        """Return the number of experiences of each agent in the round."""
        counts = dict.fromkeys(self._agents, 0)
        for episodes in self._played.values():
            for episode in episodes:
                for agent, columns in episode.experiences.items():
                    counts[agent] += _rows_of(columns)
        return counts

    def joined(self) -> tuple[dict[str, Any], Experiences]:
        """Return the performances of the round by worker, and the experiences by agent.

        Both are in the order of the workers' names. A worker that has played several episodes has a list of
        performances.
        """
        performances: dict[str, Any] = {}
        parts: dict[str, list[Columns]] = {}
        for stream, assignment in self.round.ordered if self.round is not None else ():
            episodes = self._played.get(stream, [])
            values = [episode.performance for episode in episodes]
            if len(values) == 1 and not isinstance(values[0], list):
                performances[assignment.name] = values[0]
            elif values:
                performances[assignment.name] = values
            for episode in episodes:
                for agent, columns in episode.experiences.items():
                    parts.setdefault(agent, []).append(columns)
        return performances, {agent: _of_agent(columns) for agent, columns in parts.items()}


def _layout_of(columns: Columns) -> TreeSpec:
    """Return the layout of columns; the order of keys does not matter.

    Raises:
        SampleRefusedError: a column is not an array of numbers.
    """
    return tree_spec(columns, "", False)


def _without_empty(columns: Columns) -> Columns:
    """Return columns without empty dicts."""
    filled = {key: _without_empty(tree) if isinstance(tree, dict) else tree for key, tree in columns.items()}
    return {key: tree for key, tree in filled.items() if not isinstance(tree, dict) or tree}


def _first_row(columns: Columns) -> Columns:
    return {key: map_leaves(lambda leaf: leaf[:1], tree) for key, tree in columns.items()}


def _rows_of(columns: Columns) -> int:
    return len(columns["reward"])


def _of_agent(parts: list[Columns]) -> Columns:
    # In columns without rows, dtypes and shapes mean nothing.
    filled = [columns for columns in parts if _rows_of(columns)] or parts[:1]
    return filled[0] if len(filled) == 1 else join_trees(filled)
