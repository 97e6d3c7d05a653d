"""The Buffer, which collects the environment loop's samples."""

# Theory of operation
#
# The Buffer is the only place where samples wait inside a worker: finished chunks, then the rows of one writer. It is
# used by one thread, and hands out views, so that nothing is copied between the environment and the encoder.
#
# A *run* is rows of one episode and one version; each becomes a segment. `_run_step` is the step of the writer's row
# `_run_row`, so the step of the next row is known without a count in each step. A run begins with an episode, with a
# new version, and with a new chunk; it does not begin where a chunk was taken, which only cuts it: the next chunk goes
# on with the next step number.
#
# `writer` is set while the next row may be an ordinary one. The recorder then calls `append_plain` itself, which saves
# a call in each step. Everything that changes the place of the next row sets it to None: an end, a version, a limit.
#
# Beyond `maxlen` the oldest rows go. They are skipped first (`_skipped`) and dropped with their whole chunk later,
# because cutting a column costs a copy.
#
# `drop_unsent` goes backwards through the chunks until it finds a row of another episode; rows that were taken are gone
# and stay. `extend` shares arrays with its caller, which must not change them.

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np

from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import Chunk, Sample
from tmrl_core.samples.segments import NO_VERSION, EpisodeRecord, Version
from tmrl_core.samples.writer import FIRST_ROWS, ChunkWriter

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_RECORDS = 65_536
"""Maximum number of episode records in a Buffer. Beyond it, the oldest are dropped."""


class Samples(Sequence[Sample]):
    """Samples of some chunks, created on access.

    A sample's arrays are views of the columns: copy them before changing them.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = list(chunks)
        self._starts = [0, *accumulate(chunk.rows for chunk in self._chunks)]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        """Return one sample, or a list of them."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        chunk = bisect_right(self._starts, position) - 1
        return self._chunks[chunk].sample(position - self._starts[chunk])

    def __iter__(self) -> Iterator[Sample]:
        for chunk in self._chunks:
            for row in range(chunk.rows):
                yield chunk.sample(row)


class Buffer:
    """Samples in the order of collection, and the records of finished episodes.

    Samples are written into columns when they are appended. Arrays are copied, so that an environment may reuse its
    arrays. Only one thread at a time may use a Buffer.

    Args:
        maxlen: capacity in samples. Beyond it, the oldest are dropped and counted in `dropped`. None: no limit. May be
            a float such as 1e6.

    Raises:
        ValueError: `maxlen` is not at least 1.

    Attributes:
        episodes: one `EpisodeRecord` per finished episode, in order; at most `MAX_RECORDS`.
        dropped: number of samples dropped beyond `maxlen`.
        writer: accepts the next row with `append_plain`, if it is an ordinary row; None: only `append_sample` accepts
            it.
        stat_train_return, stat_test_return: undiscounted return of the latest episode of that mode; 0.0 before the
            first.
        stat_train_steps, stat_test_steps: length of that episode in environment steps; 0 before the first.
    """

    def __init__(self, maxlen: float | None = None) -> None:
        self._maxlen = _capacity(maxlen)
        self.episodes: list[EpisodeRecord] = []
        self.dropped = 0
        self.stat_train_return = 0.0
        self.stat_test_return = 0.0
        self.stat_train_steps = 0
        self.stat_test_steps = 0
        self._chunks: list[Chunk] = []  # finished chunks
        self._writer: ChunkWriter | None = None  # writer of the rows after them
        self._finished_rows = 0
        self._skipped = 0  # number of dropped oldest rows, less than the length of the first chunk
        self._rows_hint = FIRST_ROWS
        self._ragged: set[str] = set()
        self._left_out: set[str] = set()
        self._version: Version = NO_VERSION
        self._episode = 0
        # A run is a sequence of rows of one episode and version. `_run_step` is the step index of the writer's row
        # `_run_row`.
        self.writer: ChunkWriter | None = None
        self._run_begins = True
        self._run_row = 0
        self._run_step = 0
        self._episode_over = False

    @property
    def maxlen(self) -> int | None:
        """Maximum number of samples; None: no limit. A smaller one drops the oldest samples at once."""
        return None if self._maxlen == math.inf else int(self._maxlen)

    @maxlen.setter
    def maxlen(self, maxlen: float | None) -> None:
        self._maxlen = _capacity(maxlen)
        self.writer = None  # the room that it knows is another now
        if len(self) > self._maxlen:
            self._drop_oldest(len(self) - int(self._maxlen))

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._finished_rows - self._skipped + (self._writer.rows if self._writer else 0)

    # Writing

    def append_sample(self, sample: Sequence[Any], extras: dict[str, Any] | None = None) -> None:
        """Append a sample.

        Without `start_episode`, a sample begins a new episode if it follows a terminal sample or has no action.

        Args:
            sample: `(act, new_obs, rew, terminated, truncated, info)`; `act` is None for a reset without one.
            extras: further values by name, each with a column of its own.

        Raises:
            CodecError: a field of the sample holds an unsupported value; the message names it. Nothing is appended.
                Unsupported entries of the info are left out instead, with one warning.
        """
        action, observation, reward, terminated, truncated, info = sample
        open_run = self.writer
        if (
            open_run is not None
            and not extras
            and open_run.append_plain(action, observation, reward, terminated, truncated, info)
        ):
            return
        if action is None and not self._run_begins and self._next_step():
            self._episode_over = True
        if self._run_begins or self._episode_over:
            self._begin_run(observation, reward, extras)
        writer = self._writer
        if writer is None or not writer.append(action, observation, reward, terminated, truncated, info, extras):
            self._seal()
            self._begin_run(observation, reward, extras)
            assert self._writer is not None
            fits = self._writer.append(action, observation, reward, terminated, truncated, info, extras)
            assert fits, "a sample has to fit the chunk that was made for it"
        room = self._maxlen - len(self)
        if room < 0:
            self._drop_oldest(int(-room))
        if terminated or truncated:
            self._episode_over, self.writer = True, None
        elif self._writer is not None:
            self._writer.allow(room)
            self.writer = self._writer

    def start_episode(self, episode: int, version: Version | None = None) -> None:
        """Begin an episode: the next sample is its reset, step 0.

        Args:
            episode: its id, at least 0, not used before in this process.
            version: version of the acting policy; None: the present one.

        Raises:
            ValueError: an id or version is negative.
        """
        if episode < 0:
            raise ValueError(f"an episode's id is at least 0, got {episode}")
        if version is not None:
            self.set_version(version)
        self._episode = int(episode)
        self._run_step, self._run_row = 0, self._writer.rows if self._writer else 0
        self._run_begins, self._episode_over, self.writer = True, False, None

    def set_version(self, version: Version) -> None:
        """Set the policy version of the samples from the next one on.

        Raises:
            ValueError: the version has a negative number.
        """
        incarnation, counter = version
        if incarnation < 0 or counter < 0:
            raise ValueError(f"a version is two numbers of at least 0, got {version}")
        if version != self._version:
            self._run_step = self._next_step()
            self._run_row = self._writer.rows if self._writer else 0
            self._version = (int(incarnation), int(counter))
            self._run_begins, self.writer = True, None

    def end_episode(self, record: EpisodeRecord) -> None:
        """Add the record of a finished episode; NumPy numbers in it become Python's.

        Raises:
            CodecError: a field is of the wrong type or out of range.
        """
        try:
            record = _RECORD_DECODER.decode(_RECORD_ENCODER.encode(record))
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise CodecError(f"a record of an episode cannot be sent: {error}. It is {record}") from error
        self._add_records((record,))

    def drop_unsent(self) -> int:
        """Drop the samples of the open episode that are still in the Buffer, because its environment failed.

        The next sample begins another episode.

        Returns:
            Number of dropped samples, without those taken before.
        """
        dropped = 0
        if not self._episode_over and not (self._run_begins and self._next_step() == 0):
            dropped = self._drop_last_rows_of(self._episode, self._next_step())
        self._episode_over, self.writer = True, None
        return dropped

    # Reading

    @property
    def chunks(self) -> list[Chunk]:
        """Return the samples as columns, oldest first: views that later appends do not change."""
        chunks = list(self._chunks)
        if self._writer is not None and self._writer.rows:
            chunks.append(self._writer.view())
        if self._skipped:
            chunks[0] = chunks[0].slice(self._skipped, chunks[0].rows)
        return chunks

    @property
    def memory(self) -> Samples:
        """Return the samples as tuples, oldest first, created on access."""
        return Samples(self.chunks)

    def take(self) -> tuple[list[Chunk], list[EpisodeRecord]]:
        """Return the samples and the records without copying them, and empty the Buffer.

        An open episode continues with its step indices.
        """
        rows = self._writer.rows if self._writer else 0
        self._seal()
        chunks, records = self.chunks, self.episodes
        if rows:
            self._rows_hint = 1 << (rows - 1).bit_length()
        self._empty()
        self.episodes = []
        return chunks, records

    def clear(self) -> None:
        """Remove the samples. The statistics and `episodes` stay."""
        self._seal()
        self._empty()

    def extend(self, chunks: Iterable[Chunk], records: Iterable[EpisodeRecord] = ()) -> None:
        """Append chunks and records. Rows are not copied: the Buffer shares the chunks' arrays from now on."""
        self._seal()
        for chunk in chunks:
            if chunk.rows:
                self._chunks.append(chunk)
                self._finished_rows += chunk.rows
        if len(self) > self._maxlen:
            self._drop_oldest(len(self) - int(self._maxlen))
        self._add_records(records)

    def __iadd__(self, other: Buffer) -> Self:
        """Append the samples of another Buffer, which stays unchanged."""
        self.extend(other.chunks, list(other.episodes))
        return self

    def __repr__(self) -> str:
        return f"Buffer({len(self)} samples, {len(self.episodes)} episode records, maxlen={self.maxlen})"

    # Inside

    def _next_step(self) -> int:
        return self._run_step + (self._writer.rows if self._writer else 0) - self._run_row

    def _begin_run(self, observation: Any, reward: Any, extras: dict[str, Any] | None) -> None:
        if self._episode_over:
            self._episode += 1
            self._run_step = 0
            self._run_row = self._writer.rows if self._writer else 0
        self._run_begins = self._episode_over = False
        if self._writer is None:
            self._writer = ChunkWriter(observation, reward, extras, self._ragged, self._rows_hint, self._left_out)
        self._writer.begin_run(self._episode, self._run_step, self._version)

    def _seal(self) -> None:
        """Finish the chunk that is being written; the next sample begins another."""
        writer = self._writer
        if writer is None:
            return
        self._run_step, self._run_row, self._run_begins = self._next_step(), 0, True
        self._writer = self.writer = None
        if writer.rows:
            self._chunks.append(writer.view())
            self._finished_rows += writer.rows

    def _empty(self) -> None:
        self._chunks = []
        self._finished_rows = self._skipped = 0

    def _drop_oldest(self, excess: int) -> None:
        """Drop the oldest samples; rows of a chunk are skipped until the whole chunk can be dropped."""
        self.dropped += excess
        self._skipped += excess
        if not self._chunks and self._skipped >= max(self._maxlen, FIRST_ROWS):
            self._seal()
        self._forget_skipped()

    def _forget_skipped(self) -> None:
        gone = 0
        while gone < len(self._chunks) and self._skipped >= self._chunks[gone].rows:
            self._skipped -= self._chunks[gone].rows
            self._finished_rows -= self._chunks[gone].rows
            gone += 1
        del self._chunks[:gone]

    def _drop_last_rows_of(self, episode: int, at_most: int) -> int:
        self._seal()
        dropped = 0
        at_most = min(at_most, len(self))
        while self._chunks and dropped < at_most:
            chunk = self._chunks.pop()
            others = chunk.episode != episode
            keep = max(int(np.flatnonzero(others)[-1]) + 1 if others.any() else 0, chunk.rows - (at_most - dropped))
            dropped += chunk.rows - keep
            self._finished_rows -= chunk.rows - keep
            if keep:
                self._chunks.append(chunk.slice(0, keep))
                break
        self._forget_skipped()
        return dropped

    def _add_records(self, records: Iterable[EpisodeRecord]) -> None:
        for record in records:
            self.episodes.append(record)
            if record.mode == "train":
                self.stat_train_return, self.stat_train_steps = record.episode_return, record.length
            else:
                self.stat_test_return, self.stat_test_steps = record.episode_return, record.length
        if len(self.episodes) > MAX_RECORDS:
            del self.episodes[:-MAX_RECORDS]


def _capacity(maxlen: float | None) -> float:
    if maxlen is not None and not maxlen >= 1:
        raise ValueError(f"maxlen must be None or at least 1, got {maxlen}")
    return math.inf if maxlen is None or maxlen == math.inf else int(maxlen)


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} in it")


_RECORD_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain_number)
_RECORD_DECODER = msgspec.msgpack.Decoder(EpisodeRecord)
