"""Builder of a memory: it makes transitions from chunks and keeps the tails of streams between chunks."""

# Theory of operation
#
# A chunk is a run of one stream's rows and may begin or end anywhere in an episode. The builder keeps the last rows of
# each stream whose episode is open, its *tail*, and joins the next chunk of the stream to it. It knows nothing of where
# rows are stored, except that it asks the store for its layout and for room.
#
# The tail of transitions over one step is one observation. Over n steps it is the rows of the open run whose
# transitions are still incomplete, at most n (n_steps.py); for sequences, at most a sequence (sequences.py). A tail
# ends when its episode does, when a message is missing (the first row of the chunk does not follow it), when a chunk
# has another structure, or when there is no room for it (held_rows.py).
#
# The order within `columns_of` matters. The tail is taken out before anything can fail: a chunk that is refused ends
# the stream's open episode, because the rows after it do not follow the rows before it. The chunk is compared with the
# layout before the layout is made, and the layout is made only by a chunk that completes a transition: a reset alone
# has no action, so it could not say what an action looks like. Until then, tails carry the specs of their extras
# themselves.
#
# For a memory on disk, `changed` names the streams whose tails differ from the last record. The next commit writes
# these and no others, so a record grows with the streams that sent something, not with all streams. A tail whose stream
# ended its episode is written as None, so that the state in the files does not keep it.
#
# Only as many transitions as the memory holds are made of one chunk in RAM (`most`): older ones would be overwritten in
# the same call. On disk all are written, since those beyond the capacity leave with their file.

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk
from tmrl_core.training.memories.disk_rows import DiskRows
from tmrl_core.training.memories.held_rows import MAX_HELD_BYTES, HeldRows
from tmrl_core.training.memories.layout import Array, Column, TreeSpec
from tmrl_core.training.memories.memory import rows_that_follow
from tmrl_core.training.memories.n_steps import join_n_steps
from tmrl_core.training.memories.row_schema import RowSchema, zero_extras
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.transitions import ChunkExtras, Tail, TransitionColumns, join_pairs, tail_of_pairs
from tmrl_core.training.value_types import State, Tree

MOST_HELD = 16
"""Rows of each stream for which the tails have room at most, over several steps and for sequences: 4 GB."""


class TransitionBuilder:
    """Build transitions of neighbouring rows, or over n steps.

    Args:
        rows: store for the transitions.
        n_step: steps in a transition.
        gamma: discount factor of a step.
        downcast_float64: float64 columns are stored as float32.
        keep_extras: the samples' own extras are stored.
        sequence: length and stride of sequences, which a derived class makes in place of transitions.

    Attributes:
        schema: schema of the rows.
        tails: tails of the streams with an open episode.
        changed: streams whose tails have changed since the last commit.
        expanded: columns that are stored in place of larger ones, with the functions that restore the larger ones.
    """

    def __init__(
        self,
        rows: Rows,
        n_step: int,
        gamma: float,
        downcast_float64: bool,
        keep_extras: bool,
        sequence: tuple[int, int] | None = None,
    ) -> None:
        self.rows = rows
        self.sequence = sequence
        self.n_step = n_step
        self.gamma = gamma
        self.downcast_float64 = downcast_float64
        self.schema = RowSchema(rows, downcast_float64, keep_extras, sequence)
        self.changed: set[bytes] = set()
        held = n_step if sequence is None else sequence[0]
        self.tails: HeldRows[Tail] = HeldRows(
            operator.attrgetter("nbytes"), MAX_HELD_BYTES * min(held, MOST_HELD), self.changed.add
        )
        self.expanded: dict[Column, Callable[[Array], Array]] = {}

    @property
    def single_rows(self) -> bool:
        """Return True if a tail is one observation."""
        return self.n_step == 1 and self.sequence is None

    def build(self, chunk: Chunk) -> Iterator[TransitionColumns]:
        """Yield the transitions that end in a chunk, in parts.

        The caller stores each part before it requests the next one.

        Raises:
            SampleRefusedError: the chunk does not fit what the memory holds. Nothing was yielded, and the stream's open
                episode ends here.
        """
        columns = self.columns_of(chunk)
        if columns is not None:
            yield columns

    def columns_of(self, chunk: Chunk) -> TransitionColumns | None:
        """Return the transitions that end in a chunk, and replace its stream's tail."""
        self.changed.add(chunk.stream)
        tail = self.tails.pop(chunk.stream, None)
        if chunk.rows == 0:
            return None
        observation, action = self.schema.specs(chunk)
        self.schema.check(chunk, observation, action)
        specs, extras = self.schema.extras(chunk)
        if tail is not None and not tail.fits(observation, action, extras):
            tail = None
        if tail is not None and self.rows.layout is None:
            # A chunk of a reset alone has no extras, but may complete the rows of the tail, which have some.
            missing = {name: spec for name, spec in tail.extra_specs.items() if name not in specs}
            specs, extras = {**specs, **missing}, {**extras, **zero_extras(missing, chunk.rows)}
        columns, after = self._join(chunk, tail, observation, action, extras)
        if columns is not None:
            actions = action or (tail.action_spec if tail is not None else None)
            assert actions is not None
            self.schema.allocate(observation, actions, list(columns.extras), specs)
        if after is not None:
            after = after if self.rows.layout is not None else replace(after, extra_specs=specs)
            self.tails.put(chunk.stream, after, chunk.origin)
        return columns

    def _join(
        self,
        chunk: Chunk,
        tail: Tail | None,
        observation: TreeSpec,
        action: TreeSpec | None,
        extras: ChunkExtras,
    ) -> tuple[TransitionColumns | None, Tail | None]:
        if self.n_step > 1:
            return join_n_steps(chunk, tail, (observation, action), self.n_step, self.gamma, self.most, extras)
        follows = rows_that_follow(chunk, tail)
        made = action is not None and follows.any()
        return join_pairs(chunk, follows, tail, self.most, extras) if made else None, tail_of_pairs(chunk, observation)

    @property
    def most(self) -> int | None:
        """Number of transitions that are made at most: on disk, those beyond the capacity leave with their file."""
        return None if self.rows.durable else self.rows.capacity

    def forget(self, stream: bytes) -> None:
        """Drop a stream's tail: its open episode will not be continued."""
        self.changed.add(stream)
        self.tails.pop(stream, None)

    def restore_tail(self, stream: bytes, tail: Tail | None) -> None:
        """Undo a change of a stream's tail."""
        self.tails.pop(stream, None)
        if tail is not None:
            self.tails[stream] = tail

    def changed_tails(self) -> dict[bytes, Tree]:
        """Return the tails that have changed since the last commit, for the store; None: the stream has no tail."""
        found = {stream: self.tails.get(stream) for stream in self.changed}
        return {
            stream: None if tail is None else [tail.episode, tail.step, tail.plain()] for stream, tail in found.items()
        }

    def first_complete(self, first: int, stop: int) -> int:
        """Return the first of the rows [first, stop) from which on all rows can be restored."""
        return first

    # --- state --------------------------------------------------------------------------------------------------------

    def check_folder(self, disk: DiskRows) -> None:
        """Refuse a folder whose rows another builder has made.

        Raises:
            ConfigError: another builder has made the rows.
        """
        if disk.stacks is not None:
            raise other_folder(
                disk,
                "single frames, each frame once"
                if disk.stacks.stack == 1
                else f"stacks of {disk.stacks.stack} frames, each frame once",
                "keep memory.cls: tmrl_core.training:FrameStackMemory",
            )
        if disk.layout is not None and disk.layout.sequence != self.sequence:
            raise other_folder(
                disk,
                f"{_rows_of(disk.layout.sequence)}, and this memory makes {_rows_of(self.sequence)}",
                "keep the earlier memory.cls and memory.kwargs",
            )

    def open(self, disk: DiskRows) -> None:
        """Load the tails that a folder holds.

        Raises:
            ValueError, TypeError, LookupError, SampleRefusedError: the tails are invalid.
        """
        self.load_tails([[stream, episode, step, tree] for stream, (episode, step, tree) in disk.states.tails.items()])

    def load_tails(self, tails: Sequence[Sequence[Tree]]) -> None:
        """Load tails."""
        found = {
            stream: Tail.from_plain(episode, step, tree, self.single_rows, self.downcast_float64)
            for stream, episode, step, tree in tails
        }
        self.tails.clear()
        self.tails.update(found)

    def state_dict(self) -> State:
        """Return the entries of a checkpoint.

        Tails are columns: a checkpoint keeps a list of numbers, or of equal arrays, as one array. Training stands still
        while thousands of streams are captured.
        """
        tails = self.tails.values()
        return {
            "tails": {
                "streams": [stream.hex() for stream in self.tails],
                "episodes": [tail.episode for tail in tails],
                "steps": [tail.step for tail in tails],
                "trees": [tail.plain() for tail in tails],
            }
        }

    def check_state(self, state: State) -> None:
        """Refuse the state of another builder.

        Raises:
            ValueError: another builder has made the state.
        """
        found = state.get("sequence")
        if found != (None if self.sequence is None else list(self.sequence)):
            raise ValueError(
                f"it was saved with {_rows_of(found)}, and this memory makes {_rows_of(self.sequence)}; keep the "
                "earlier memory.cls and memory.kwargs"
            )

    def load_state_dict(self, state: State) -> None:
        """Load the entries of a checkpoint, after the rows."""
        tails = state["tails"]
        if isinstance(tails, list):  # as earlier checkpoints have them
            self.load_tails(tails)
            return
        streams = map(bytes.fromhex, tails["streams"])
        self.load_tails(list(zip(streams, tails["episodes"], tails["steps"], tails["trees"], strict=True)))


def _rows_of(sequence: Sequence[int] | None) -> str:
    return "transitions" if sequence is None else f"sequences of length {sequence[0]} and stride {sequence[1]}"


def other_folder(disk: DiskRows, found: str, keep: str) -> ConfigError:
    """Return the refusal of a folder whose rows another builder has made."""
    return ConfigError(f"{disk.folder} holds {found}; {keep}, or start again with another run.name.")
