"""Experiences of an episode as chunks of samples, and back."""

# Theory of operation
#
# An episode travels as one run of rows of a worker's stream, sent when the episode has ended. This file knows the form
# of these rows only: a manager has checked the experiences before, and `round_episodes.py` decides after which episodes
# count.
#
#     step 0        the head: its info holds agents, epsilons, seed, length and performance
#     steps 1 to n  the experiences, agent by agent: state, action and reward as a sample's fields, others as extras
#     step n + 1    the end, with the flag `truncated`
#
# Example: agents a with 3 experiences and b with 2. The rows are head, a a a, b b, end: 7 rows, steps 0 to 6. The head
# lists ("a", 3, 0) and ("b", 2, 0); the last number is the index of their keys, which are equal here and stand in the
# head once.
#
# Only the end has a flag, so a round of lockstep collection counts the run as one episode; segments carry its version,
# and delivery, splitting and joining of chunks work as for any other samples. Every promise of delivery therefore holds
# without a word about agents in the protocol. Numbers of samples in metrics and in `--status` count rows, so an episode
# adds two to its experiences.
#
# Rejected: a column of agents' names, which would cost a text per row and make the chunks of two agents with equal
# columns unequal, hence not joinable; one encoded value per episode, which is neither compressed by columns, nor
# splittable, nor checked for finite numbers on arrival. Columns without rows have no chunk; their dtypes and order of
# keys travel in the head.
#
# Reading. `EpisodeReader` is the state machine of one stream: closed, or open with the step that must come next.
# Delivery is in order and complete, so rows that do not continue the open episode come from a damaged or hostile
# worker. They are refused once for the whole episode (`_refused`), and the next head begins anew. Peer bytes are never
# trusted: the head is converted to its type, the number of rows bounds the body, and `max_bytes` bounds the memory of
# one open episode.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from tmrl_core.decodable import decodable
from tmrl_core.errors import CodecError, SampleRefusedError
from tmrl_core.multiagent.trajectory import Columns, Experiences
from tmrl_core.samples import Chunk, Segment, Version, decode_value, encode_value
from tmrl_core.samples.columns import Tree, join_trees
from tmrl_core.samples.concatenation import same_layout
from tmrl_core.samples.segments import NO_VERSION

STATE, ACTION, REWARD = "state", "action", "reward"
_FIELDS = (STATE, ACTION, REWARD)
MAX_EPISODE_BYTES = 256 << 20
"""Default of the maximum size of one episode."""
FORMAT = 1


@dataclass(slots=True, kw_only=True)
class PlayedEpisode:
    """One episode of a worker.

    Attributes:
        experiences: columns by agent, with at least `state`, `action` and `reward`.
        performance: the environment's metrics; any value that samples support.
        epsilons: exploration rate of each agent in this episode.
        seed: seed of the episode; None: it was not set.
        number: id of the episode, unique in its stream.
        version: version of the policies that acted.
        length: number of the environment's steps.
    """

    experiences: Experiences
    performance: Any = None
    epsilons: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    number: int = 0
    version: Version = NO_VERSION
    length: int = 0


_Rows = Annotated[int, Meta(ge=0, le=2**48)]


@decodable
class _Head(msgspec.Struct, frozen=True):
    """Info of an episode's first row.

    Attributes:
        format: version of this structure.
        agents: for each agent in order: its name, its number of rows, and the index of its keys.
        keys: different lists of an agent's columns, in order.
        empty: columns of agents without experiences.
        performance, epsilons, seed, length: see `PlayedEpisode`.
    """

    format: int
    agents: list[tuple[str, _Rows, _Rows]]
    keys: list[list[str]]
    empty: dict[str, dict[str, Any]]
    performance: Any
    epsilons: dict[str, float]
    seed: int | None
    length: _Rows

    def check(self) -> None:
        """Check that the parts belong together.

        Raises:
            SampleRefusedError: they do not.
        """
        names = [name for name, _, _ in self.agents]
        if self.format != FORMAT:
            raise SampleRefusedError(f"an episode in format {self.format}, and this trainer reads format {FORMAT}")
        if len(set(names)) != len(names):
            raise SampleRefusedError("an episode that names an agent twice")
        if any(index >= len(self.keys) for _, _, index in self.agents):
            raise SampleRefusedError("an episode that does not list the columns of an agent")
        if any(len(set(keys)) != len(keys) for keys in self.keys):
            raise SampleRefusedError("an episode that lists a column twice")
        for name, rows, index in self.agents:
            if rows == 0 and list(self.empty.get(name, ())) != self.keys[index]:
                raise SampleRefusedError(f"an episode without the empty columns of agent {name!r:.100}")


# --- writing ----------------------------------------------------------------------------------------------------------


def chunks_of(episode: PlayedEpisode, *, max_bytes: int = MAX_EPISODE_BYTES, max_head_bytes: int) -> list[Chunk]:
    """Return an episode as chunks, which share the memory of its arrays: they must not change before they are sent.

    Args:
        episode: the episode, whose experiences a manager has checked (`experience_problem`).
        max_bytes: maximum size of the experiences.
        max_head_bytes: maximum size of the head, which travels in one message.

    Raises:
        CodecError: a part has values that samples do not support, or the episode is too large.
    """
    keys: dict[tuple[str, ...], int] = {}
    agents: list[tuple[str, int, int]] = []
    empty: Experiences = {}
    chunks: list[Chunk] = []
    step = 1
    for name, columns in episode.experiences.items():
        rows = len(columns[REWARD])
        agents.append((name, rows, keys.setdefault(tuple(columns), len(keys))))
        if rows:
            chunks.append(_experience_chunk(episode, columns, rows, step))
            step += rows
        else:
            empty[name] = columns
    size = sum(chunk.nbytes for chunk in chunks)
    if size > max_bytes:
        raise CodecError(
            f"the experiences of one episode have {size} bytes, multiagent.max_episode_bytes allows {max_bytes}; raise "
            "it for workers and trainer, or end episodes earlier"
        )
    head = msgspec.structs.asdict(
        _Head(
            FORMAT,
            agents,
            [list(names) for names in keys],
            empty,
            episode.performance,
            {name: float(epsilon) for name, epsilon in episode.epsilons.items()},
            episode.seed,
            episode.length,
        )
    )
    encoded = encode_value(head)
    if len(encoded) > max_head_bytes:
        raise CodecError(
            f"the performance of one episode and the names of its agents have {len(encoded)} bytes, allowed: "
            f"{max_head_bytes}, part of network.max_message_bytes; raise that, or return less in the environment's "
            "metrics"
        )
    # The environment may change its metrics before the head is sent.
    head = decode_value(encoded, max_bytes=len(encoded))
    return [
        _bare_chunk(episode, 0, {0: head}, ended=False),
        *chunks,
        _bare_chunk(episode, step, {}, ended=True),
    ]


def _experience_chunk(episode: PlayedEpisode, columns: Columns, rows: int, step: int) -> Chunk:
    reward = columns[REWARD]
    assert isinstance(reward, np.ndarray)
    return Chunk(
        rows=rows,
        action=columns[ACTION],
        action_present=np.ones(rows, np.bool_),
        observation=columns[STATE],
        reward=reward,
        terminated=np.zeros(rows, np.bool_),
        truncated=np.zeros(rows, np.bool_),
        extras={key: tree for key, tree in columns.items() if key not in _FIELDS},
        segments=(Segment(rows, episode.number, step, *episode.version),),
    )


def _bare_chunk(episode: PlayedEpisode, step: int, info: dict[int, dict[Any, Any]], ended: bool) -> Chunk:
    """Return a row without experience. The end has an action flag, because only such a row can end an episode."""
    return Chunk(
        rows=1,
        action=(),
        action_present=np.array([ended]),
        observation=(),
        reward=np.zeros(1, np.float32),
        terminated=np.zeros(1, np.bool_),
        truncated=np.array([ended]),
        info=info,
        segments=(Segment(1, episode.number, step, *episode.version),),
    )


# --- reading ----------------------------------------------------------------------------------------------------------


class _Open:
    """An episode whose end has not arrived."""

    def __init__(self, head: _Head, number: int, version: Version) -> None:
        self.head = head
        self.number = number
        self.version = version
        self.rows = sum(rows for _, rows, _ in head.agents)
        self.step = 1
        """Step of the next row."""
        self.nbytes = 0
        self.pieces: list[Chunk] = []


class EpisodeReader:
    """Join the rows of one stream to episodes. Sans-I/O.

    A run of rows that is damaged, or that no worker of this project sends, is refused with the reason; the next head
    begins a new episode. The memory in use is limited to one episode.

    Args:
        max_bytes: maximum size of one episode.
    """

    def __init__(self, max_bytes: int = MAX_EPISODE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._open: _Open | None = None
        self._refused: int | None = None
        """Id of the episode refused last, so that its other rows cause no further refusal."""

    def skips(self, run: Segment) -> bool:
        """Return True if the rows of a run belong to a refused episode, so that `take` would discard them."""
        return self._open is None and self._refused == run.episode and run.first_step != 0

    def take(self, run: Segment, rows: Chunk) -> PlayedEpisode | None:
        """Return the episode that ends with the next run of the stream; None: none does.

        The arrays of the episode are copies, which the caller may change.

        Args:
            run: its episode, version and first step.
            rows: its rows.

        Raises:
            SampleRefusedError: the episode is refused, once for all of its rows.
        """
        try:
            return self._take(run, rows)
        except SampleRefusedError:
            self._open, self._refused = None, run.episode
            raise

    def _take(self, run: Segment, rows: Chunk) -> PlayedEpisode | None:
        step = run.first_step
        nbytes = rows.nbytes
        if step == 0:
            self._open, self._refused = _Open(_head_of(rows), run.episode, run.version), None
            if rows.terminated[0] or rows.truncated[0]:
                raise SampleRefusedError("an episode that ends with its first row")
            rows, step = rows.slice(1, rows.rows), 1
        current = self._open
        if current is None or (current.number, current.version, current.step) != (run.episode, run.version, step):
            if self.skips(run):
                return None
            raise SampleRefusedError(
                f"rows from step {step} of episode {run.episode}, of which the rows before them did not arrive"
            )
        current.nbytes += nbytes
        if current.nbytes > self._max_bytes:
            raise SampleRefusedError(
                f"an episode of more than {self._max_bytes} bytes, the limit of multiagent.max_episode_bytes"
            )
        body = min(rows.rows, current.rows + 1 - step)
        ended = rows.terminated | rows.truncated
        if ended[:body].any():
            raise SampleRefusedError(f"an episode that ends before its {current.rows} experiences")
        if body:
            current.pieces.append(rows.slice(0, body))
            current.step += body
        if body == rows.rows:
            return None
        if rows.rows - body > 1 or not ended[body]:
            raise SampleRefusedError(f"an episode with more than its {current.rows} experiences")
        self._open = None
        return _played(current)


def _head_of(rows: Chunk) -> _Head:
    try:
        head = msgspec.convert(rows.info.get(0), _Head)
    except msgspec.ValidationError as exc:
        raise SampleRefusedError(f"samples that are not episodes of many agents: {exc}") from None
    head.check()
    return head


def _played(current: _Open) -> PlayedEpisode:
    """Return the episode of all rows.

    Raises:
        SampleRefusedError: the rows do not have the columns that the head lists.
    """
    head = current.head
    pieces = iter(current.pieces)
    piece, used = None, 0
    experiences: Experiences = {}
    for name, rows, index in head.agents:
        parts: list[Chunk] = []
        left = rows
        while left:
            if piece is None or used == piece.rows:
                piece, used = next(pieces), 0
            stop = min(piece.rows, used + left)
            parts.append(piece.slice(used, stop))
            left -= stop - used
            used = stop
        experiences[name] = _columns_of(name, head.keys[index], parts) if rows else head.empty[name]
    return PlayedEpisode(
        experiences=experiences,
        performance=head.performance,
        epsilons=head.epsilons,
        seed=head.seed,
        number=current.number,
        version=current.version,
        length=head.length,
    )


def _columns_of(name: str, keys: Sequence[str], parts: Sequence[Chunk]) -> Columns:
    first = parts[0]
    if {*_FIELDS, *first.extras} != set(keys):
        raise SampleRefusedError(
            f"the experiences of agent {name!r:.100} have the columns {sorted({*_FIELDS, *first.extras})!r:.300}, "
            f"their head lists {sorted(keys)!r:.300}"
        )
    if not all(same_layout(first, part) for part in parts[1:]):
        raise SampleRefusedError(f"the experiences of agent {name!r:.100} differ in structure, dtype or shape")
    return {key: join_trees([_column_of(part, key) for part in parts]) for key in keys}


def _column_of(part: Chunk, key: str) -> Tree:
    fields = {STATE: part.observation, ACTION: part.action, REWARD: part.reward}
    return fields[key] if key in fields else part.extras[key]
