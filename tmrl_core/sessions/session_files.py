"""Recorded sessions in a folder: `SessionWriter` writes them, `read_sessions` reads them."""

# Theory of operation
#
# For: episodes on disk, written as they are played or as whole sessions, and read for training, for a list, or for an
# export. A folder has:
#
#     spaces.json           the spaces of observations and actions
#     actions.json          smallest and largest value of each dimension of the actions (action_ranges.py)
#     000000000001.seg ...  a log of records (tmrl_core/storage)
#
# This file knows folders, records and spaces. `session.py` knows how samples become sessions, `storage/` how records
# survive a crash.
#
# The content of a record is a message of samples as a worker sends it, not a session. So a worker that records needs no
# memory for its episode, a killed process loses the samples of one message, and there is one encoding. The price is
# that sessions are joined when they are read (`SessionJoiner`), which also bounds the memory of reading.
#
# The note of a record is the id of the stream: 8 random bytes for each opening of the folder, and a letter. Ids of
# episodes are unique within a stream only, so two processes that record one after the other do not mix episode 3 of
# both. The letter says whether returns can be compared with the episodes' records (a worker's compressor may change
# rewards), and keeps the ids of whole sessions (`write`) apart from those of a worker's episodes (`append`).
#
# In numbers: two episodes of 1,000 steps, sent every 400 steps, are records of 400, 400, 400, 400 and 400 samples; the
# third holds the end of the first episode and the beginning of the second. The record of an episode (seed, return, end)
# goes with the message that has its last sample (`_with_their_ends`), so that a reader knows the seed when the session
# is complete.
#
# Order of a write: first `actions.json` if a range became wider, then the samples. A process that dies in between
# leaves ranges that are too wide. The other way round they could be too narrow, and actions outside of the space would
# be learned from without a word.
#
# Order of a read: all checksums of all files first, then the first session. A training that has begun must not find out
# after an hour that the last file is damaged. Only the last file may end in an incomplete record, which is left out
# with a warning, because its writer died or still writes; the same in another file is damage.
#
# The size of each file is noted at the check, and reading stops there: a recording that grows meanwhile is read as it
# was.
#
# What fails: a folder of other spaces, of another version or with other files is refused before anything is written. A
# full disk or `max_bytes` raises, and what was written stays.
#
# Rejected: one file for each episode (a million files for a million short ones, and a crash loses the whole episode).

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium

from tmrl_core.errors import CodecError, StorageError, StorageFullError
from tmrl_core.samples import Chunk, EpisodeRecord, decode_message, encode_message_buffers, same_layout, split_chunk
from tmrl_core.samples.images import ImageDecoder
from tmrl_core.sessions.action_ranges import ActionRanges
from tmrl_core.sessions.session import Session, SessionJoiner
from tmrl_core.sessions.spaces import completed, space_of_json, space_to_json
from tmrl_core.storage import FolderLock, Record, RecordLog, SegmentReader, read_whole, write_whole
from tmrl_core.storage.segment_file import storage_error

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

FORMAT = "sessions"
VERSION = 1
SPACES_FILE = "spaces.json"
MAX_SPACES_BYTES = 64 << 20
RECORD_BYTES = 4 << 20
"""Size of the parts in which samples are written, about; one sample may be larger."""
MAX_RECORD_BYTES = 1 << 30
"""Maximum size of a record that is read."""

_AS_PLAYED, _COMPRESSED, _WHOLE = b"p", b"c", b"w"
"""Last bytes of a stream's id: samples of a worker, the same behind a compressor, whole sessions."""

Spaces: TypeAlias = "tuple[gymnasium.Space[Any], gymnasium.Space[Any]]"
"""Those of observations and actions."""


class SessionWriter:
    """Writes sessions, or the samples of episodes as they arrive, to a folder. Not thread-safe.

    A folder that holds sessions of the same spaces is continued. One process at a time writes to a folder.

    Args:
        folder: created if it is missing.
        observation_space: of the environment.
        action_space: likewise.
        max_bytes: maximum size of the files; None: no limit.
        compressed: the samples are those of a worker's `sample_compressor`, which may change rewards: the returns of
            sessions are not compared with the records of their episodes.

    Raises:
        ConfigError: a space cannot be recorded.
        FolderLockedError: another process records into the folder.
        StorageError: the folder cannot be written, holds sessions of other spaces, or is damaged. It is unchanged.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        max_bytes: int | None = None,
        compressed: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._max_bytes = max_bytes
        self._episodes = 0
        # Random, not a counter: two recordings may be copied into one folder.
        self._stream = secrets.token_bytes(8) + (_COMPRESSED if compressed else _AS_PLAYED)
        text = _spaces_text(observation_space, action_space)
        self._lock = FolderLock(self.folder, "recorded sessions")
        try:
            if (self.folder / SPACES_FILE).exists():
                found, given = read_spaces(self.folder), (observation_space, action_space)
                # Equal, not only compatible: bounds decide which actions are refused.
                if found != given:
                    problem = spaces_problem(found, given) or "only one of the two has bounds"
                    raise StorageError(
                        f"{self.folder} holds sessions of another environment: {problem}. Record into another folder."
                    )
                # Before the log opens the file, which would cut damage off as if it were an incomplete record.
                _check(_files(self.folder)[-1:])
            elif any(self.folder.glob("*.seg")):
                raise StorageError(f"{self.folder} holds other files of records. Record into another folder.")
            else:
                write_whole(self.folder / SPACES_FILE, text)
            self._ranges = ActionRanges(action_space)
            self._wider = False
            self._ranges.read(self.folder)
            self._log = RecordLog(self.folder, FORMAT, {"version": VERSION})
        except OSError as exc:
            self._lock.close()
            raise StorageError(f"{self.folder} cannot be written: {exc}. Record into another folder.") from exc
        except BaseException:  # also an interrupt: the folder would stay locked until the process ends
            self._lock.close()
            raise

    def write(self, session: Session) -> None:
        """Write a whole session.

        Raises:
            StorageError, CodecError: as `append`.
        """
        self._episodes += 1
        record = EpisodeRecord(
            agent="",
            episode_return=session.episode_return,
            length=len(session),
            mode="train",
            end="terminated" if session.terminated else "truncated" if session.truncated else "aborted",
            episode=self._episodes,
            version=session.version,
            seed=session.seed,
            worker=session.source,
        )
        # A stream of its own: the episodes of `append` have ids of their own.
        self._append([session.chunk(self._episodes)], [record], self._stream + _WHOLE)

    def append(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord] = ()) -> None:
        """Write the next samples of the episodes that one worker plays, and the records of finished ones.

        Raises:
            StorageFullError: there is no room, or `max_bytes` is reached. What was written before is unchanged.
            StorageError: they cannot be written for another reason; likewise.
            CodecError: a value cannot be written.
        """
        self._append(chunks, records, self._stream)

    def _append(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord], stream: bytes) -> None:
        # Writing to a file without a name succeeds, and nothing would be left of it.
        if self._log.numbers and not self._log.path(self._log.numbers[-1]).exists():
            raise StorageError(f"{self.folder} was removed while sessions were recorded into it")
        self._note_ranges(chunks)
        for group, ended in _with_their_ends(_groups(chunks), records):
            buffers = encode_message_buffers(group, ended)
            if self._max_bytes is not None:
                size = self._log.bytes + sum(memoryview(buffer).nbytes for buffer in buffers)
                if size > self._max_bytes:
                    raise StorageFullError(f"{self.folder} has reached its maximum size of {self._max_bytes} bytes")
            self._log.append(stream, buffers)

    def _note_ranges(self, chunks: Sequence[Chunk]) -> None:
        # Before the samples: a process that dies in between leaves ranges that are too wide, never too narrow.
        for chunk in chunks:
            self._wider |= self._ranges.add(chunk.action, chunk.action_present)
        if self._wider:
            try:
                self._ranges.write(self.folder)
            except OSError as exc:
                raise storage_error(f"{self.folder} cannot be written", exc) from exc
            self._wider = False

    def close(self) -> None:
        """Let another process use the folder; a second call does nothing."""
        self._log.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_sessions(path: str | os.PathLike[str]) -> Iterator[Session]:
    """Return an iterator of the sessions of a folder, or of all folders in it, in the order in which they ended.

    The checksums of all files are compared before the first session is returned. A folder may be read while another
    process records into it: sessions that end later are not included. An incomplete last record, of a process that died
    or is still writing, is left out with a warning.

    Args:
        path: a folder that `SessionWriter` wrote, or a folder of such folders, read in the order of their names.

    Raises:
        StorageError: there is no recording, or it is damaged; the message names the file and the offset.
    """
    return _read([_check(_files(folder)) for folder in folders_of(path)])


def read_spaces(path: str | os.PathLike[str]) -> Spaces:
    """Return the spaces of observations and actions of a folder of sessions, or of all folders in it.

    Bounds that one folder does not know are those of another.

    Raises:
        StorageError: there is no recording, or it is damaged; or the folders differ in their spaces.
    """
    folders = folders_of(path)
    found = [read_spaces_file(folder / SPACES_FILE) for folder in folders]
    merged = found[0]
    # One after another: a folder that knows a bound completes those that do not, in any order of names.
    for folder, other in zip(folders, found, strict=True):
        problem = spaces_problem(other, merged)
        merged = completed(merged[0], other[0]), completed(merged[1], other[1])
        if problem:
            raise StorageError(
                f"{folder} and {folders[0]} hold sessions of different environments: {problem}. "
                "Name one of the two folders, or move one away."
            )
    return merged


def read_action_ranges(path: str | os.PathLike[str]) -> ActionRanges:
    """Return the ranges of the actions in a folder of sessions, or in all folders in it.

    Raises:
        StorageError: as `read_spaces`, or a file of ranges is damaged.
    """
    found = ActionRanges(read_spaces(path)[1])
    for folder in folders_of(path):
        found.read(folder)
    return found


def folders_of(path: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of sessions that a path names: itself, or those in it.

    Raises:
        StorageError: there is none.
    """
    folder = Path(path)
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise StorageError(
            f"{folder} {found}. A recording is a folder: check the path, or record with "
            "`python -m tmrl_core --expert --record DIR --episodes 20`"
        )
    found_in = (
        [folder] if (folder / SPACES_FILE).is_file() else sorted(p.parent for p in folder.glob(f"*/{SPACES_FILE}"))
    )
    if not found_in:
        below = sorted({str(file.parent.parent) for file in folder.glob(f"*/*/{SPACES_FILE}")})
        advice = "Check the path, or record with `python -m tmrl_core --expert --record DIR --episodes 20`"
        if below:
            advice = f"Recordings lie deeper: name one of {', '.join(below[:8])}{', ...' * (len(below) > 8)}"
        raise StorageError(
            f"{folder} holds no recorded sessions: there is no {SPACES_FILE} in it or in its folders. {advice}"
        )
    return found_in


def spaces_problem(found: Spaces, expected: Spaces) -> str:
    """Return the difference between the spaces of two recordings; empty: they agree in all bounds that both know."""
    for name, one, other in zip(("observations", "actions"), found, expected, strict=True):
        if completed(one, other) != completed(other, one):
            return f"its {name} are {one}, expected {other}"
    return ""


def _spaces_text(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> bytes:
    found = {
        "version": VERSION,
        "observation_space": space_to_json(observation_space, "the observation space"),
        "action_space": space_to_json(action_space, "the action space"),
    }
    return json.dumps(found, indent=1, allow_nan=False).encode()


def read_spaces_file(file: Path) -> Spaces:
    """Return the spaces that a file `spaces.json` describes.

    Raises:
        StorageError: it cannot be read, or describes no spaces.
    """
    try:
        # Bounds of large pictures are written out where they differ, so some MB are possible.
        if file.stat().st_size > MAX_SPACES_BYTES:
            raise StorageError(f"{file} has more than {MAX_SPACES_BYTES} bytes, so it is no description of spaces")
        value = json.loads(read_whole(file))
        if value["version"] != VERSION:
            raise StorageError(
                f"{file} is of version {value['version']!r:.40}; this version of tmrl_core reads {VERSION}"
            )
        return space_of_json(value["observation_space"]), space_of_json(value["action_space"])
    except OSError as exc:
        raise StorageError(f"{file} cannot be read: {exc}") from exc
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise StorageError(f"{file} is damaged, or describes no spaces: {exc}") from exc


def _groups(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Return the samples in parts of about `RECORD_BYTES`, each of chunks that become one message."""
    groups: list[list[Chunk]] = []
    room = 0
    # A record costs 160 bytes beside its samples, so the tiny hand-overs of a worker that sends every step share one.
    for chunk in chunks:
        for part in [chunk] if chunk.rows == 1 else split_chunk(chunk, RECORD_BYTES):
            size = part.nbytes
            if not groups or size > room or not same_layout(groups[-1][0], part):
                groups.append([])
                room = RECORD_BYTES
            groups[-1].append(part)
            room -= size
    return groups


def _with_their_ends(
    groups: Sequence[list[Chunk]], records: Sequence[EpisodeRecord]
) -> Iterator[tuple[list[Chunk], list[EpisodeRecord]]]:
    """Yield each group with the records of the episodes whose last rows it has; records without rows come last."""
    last = {
        segment.episode: index for index, group in enumerate(groups) for chunk in group for segment in chunk.segments
    }
    for index, group in enumerate(groups):
        yield group, [record for record in records if last.get(record.episode) == index]
    rest = [record for record in records if record.episode not in last]
    if rest:
        yield [], rest


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.seg") if path.stem.isdecimal())


def _check(files: Sequence[Path]) -> list[tuple[Path, int]]:
    """Compare the checksums of files; return them with the number of bytes that may be read.

    Raises:
        StorageError: one is damaged, or holds other records.
    """
    found = []
    for file in files:
        last = file == files[-1]
        if last and not file.stat().st_size:
            break  # a process died before it wrote the file's head
        reader = SegmentReader(file)
        try:
            if reader.format_name != FORMAT or reader.description.get("version") != VERSION:
                raise StorageError(
                    f"{file} holds records of the kind {reader.format_name!r}, {reader.description!r:.80}; this "
                    f"version of tmrl_core reads {FORMAT!r}, version {VERSION}"
                )
            for _ in reader.records():
                pass
            if reader.torn_bytes and not (last and reader.cut_short):
                raise StorageError(
                    f"{file} is damaged at byte {reader.good_bytes} of {reader.size}: a checksum is wrong. Restore the "
                    "file from a copy, or remove it: the other files can be read without it"
                )
            if reader.torn_bytes:
                logger.warning(
                    "%s: its last %d bytes, after byte %d, are an incomplete record (its writer died, or is still "
                    "writing) and are left out",
                    file,
                    reader.torn_bytes,
                    reader.good_bytes,
                )
            found.append((file, reader.good_bytes))
        finally:
            reader.close()
    return found


def _read(folders: Sequence[Sequence[tuple[Path, int]]]) -> Iterator[Session]:
    for files in folders:
        joiner = SessionJoiner()
        images = ImageDecoder(read_spaces_file(files[0][0].parent / SPACES_FILE)[0]) if files else None
        for file, size in files:
            reader = SegmentReader(file, size)
            try:
                for record in reader.records(check_payloads=False):  # `_check` has compared them
                    yield from _sessions_in(record, joiner, file, images)
            finally:
                reader.close()
        yield from joiner.finish()
        if files:
            joiner.tell(files[0][0].parent)


def _sessions_in(record: Record, joiner: SessionJoiner, file: Path, images: ImageDecoder | None) -> list[Session]:
    """Return the sessions that end in a record."""
    try:
        message = decode_message(record.payload, max_bytes=MAX_RECORD_BYTES)
        joiner.compare_returns = not bytes(record.note).endswith(_COMPRESSED)
        if message.chunk is None:
            return joiner.end(record.note, message.records)
        message.chunk.stream = record.note
        if images is not None:
            images.decode(message.chunk)
        return joiner.add(message.chunk, message.records)
    except (CodecError, ValueError) as exc:
        raise StorageError(f"{file}: the record at byte {record.offset} cannot be read: {exc}") from exc
