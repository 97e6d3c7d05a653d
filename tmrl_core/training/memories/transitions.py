"""Transitions as columns, and their construction from neighbouring rows. `n_steps.py` makes longer ones.

The rows of a chunk are joined with the last rows of their stream, its *tail*, which a memory keeps between chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from tmrl_core.samples import Chunk
from tmrl_core.training.memories.layout import Array, TreeSpec, tree_spec
from tmrl_core.training.memories.memory import LastRow, last_row_of
from tmrl_core.training.memories.trees import leaves_of, rebuild
from tmrl_core.training.value_types import Tree

ChunkExtras = Mapping[str, list[Array]]
"""Extras of samples: for each name, leaves [rows, *shape]."""
NO_EXTRAS: ChunkExtras = MappingProxyType({})


@dataclass(frozen=True)
class Tail(LastRow):
    """The last rows of a stream whose episode is open; the next chunk may join them.

    Args:
        spec: spec of the observation.
        observation: its leaves, [held, *shape]: one row for transitions of one step, up to n rows for n steps,
            up to `length` rows for sequences.
        action_spec: spec of the action; None: no row has one, or transitions have one step.
        action: its leaves, [held, *shape]; like the following, for n steps and sequences only.
        reward: [held].
        version: [held, 2].
        extras: the samples' extras: for each name, leaves [held, *shape].
        extra_specs: specs of them, while the memory has no layout.
    """

    spec: TreeSpec
    observation: list[Array]
    action_spec: TreeSpec | None = None
    action: list[Array] = field(default_factory=list)
    reward: Array | None = None
    version: Array | None = None
    extras: dict[str, list[Array]] = field(default_factory=dict)
    extra_specs: Mapping[str, TreeSpec] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the size of the rows in bytes."""
        columns = [*self.observation, *self.action, *itertools.chain.from_iterable(self.extras.values())]
        return sum(leaf.nbytes for leaf in columns)

    def fits(self, observation: TreeSpec, action: TreeSpec | None, extras: ChunkExtras = NO_EXTRAS) -> bool:
        """Return True if a chunk of these specs and extras may join the tail."""
        same_action = action is None or self.action_spec is None or self.action_spec == action
        return (
            self.spec == observation
            and same_action
            and all(
                [leaf.shape[1:] for leaf in extras[name]] == [leaf.shape[1:] for leaf in leaves]
                for name, leaves in self.extras.items()
                if name in extras
            )
        )

    def plain(self) -> Tree:
        """Return all but episode and step as a tree of arrays; `from_plain` undoes it."""
        observation = rebuild(self.spec.shape, self.observation)
        if self.reward is None:
            return observation
        action = () if self.action_spec is None else rebuild(self.action_spec.shape, self.action)
        found = {"observation": observation, "action": action, "reward": self.reward, "version": self.version}
        specs = self.extra_specs
        if self.extras:
            found["extras"] = {name: tuple(leaves) for name, leaves in self.extras.items() if name not in specs}
        if specs:
            found["extra_trees"] = {name: rebuild(spec.shape, self.extras[name]) for name, spec in specs.items()}
        return found

    @classmethod
    def from_plain(cls, episode: int, step: int, tree: Tree, single_row: bool, downcast_float64: bool) -> Tail:
        """Undo `plain`; `single_row`: it holds nothing but an observation.

        Raises:
            ValueError, TypeError, KeyError: the tree is invalid.
            SampleRefusedError: a leaf is not a numeric array.
        """
        observation = tree if single_row else tree["observation"]
        spec = tree_spec(observation, "the observation", downcast_float64)
        leaves = leaves_of(observation)
        if single_row:
            return cls(episode, step, spec, leaves)
        action, trees = tree["action"], tree.get("extra_trees", {})
        present = not isinstance(action, tuple) or len(action) > 0
        return cls(
            episode,
            step,
            spec,
            leaves,
            tree_spec(action, "the action", downcast_float64) if present else None,
            leaves_of(action) if present else [],
            tree["reward"],
            tree["version"],
            {name: list(leaves) for name, leaves in tree.get("extras", {}).items()}
            | {name: leaves_of(extra) for name, extra in trees.items()},
            {name: tree_spec(extra, f"the extra {name}", downcast_float64) for name, extra in trees.items()},
        )


@dataclass(frozen=True)
class TransitionColumns:
    """Transitions as columns, in the order in which they are to be stored.

    Args:
        count: number of transitions.
        prev_obs: values of each leaf of an observation, in consecutive parts [part, *shape].
        act: leaves of the action, [count, *shape].
        rew, terminated, truncated: [count].
        new_obs: leaves of the observation, [count, *shape].
        version: [count, 2] version of the policy that chose the action.
        extras: further columns by name, [count].
        sample_extras: the samples' extras: for each name, leaves [count, *shape].
        rows: for each transition, the row of the chunk that ends it; -1: a row of an earlier chunk.
        skipped: number of older transitions that are left out because they would be overwritten immediately.
    """

    count: int
    prev_obs: list[list[Array]]
    act: list[Array]
    rew: Array
    new_obs: list[Array]
    terminated: Array
    truncated: Array
    version: Array
    rows: Array
    skipped: int = 0
    extras: dict[str, Array] = field(default_factory=dict)
    sample_extras: dict[str, list[Array]] = field(default_factory=dict)


def join_pairs(
    chunk: Chunk, follows: Array, tail: Tail | None, most: int | None = None, extras: ChunkExtras = NO_EXTRAS
) -> TransitionColumns:
    """Make the transitions of neighbouring rows.

    Args:
        chunk: its rows end the transitions.
        follows: [rows] bool: the rows that end a transition; see `rows_that_follow`. At least one is True.
        tail: tail of the stream; needed if the first row follows it.
        most: maximum number of transitions; the newest ones are made.
        extras: extras of the chunk's samples.
    """
    new_rows = np.flatnonzero(follows)
    skipped = max(0, len(new_rows) - most) if most is not None else 0
    new_rows = new_rows[skipped:]
    count = len(new_rows)
    # Rows are usually consecutive. Slices then replace a gather.
    first, last = int(new_rows[0]), int(new_rows[-1])
    rows: slice | Array = slice(first, last + 1) if last - first + 1 == count else new_rows
    from_tail = first == 0
    previous: slice | Array
    if isinstance(rows, slice):
        previous = slice(max(first - 1, 0), last)
    else:
        previous = (new_rows[1:] if from_tail else new_rows) - 1
    observation = leaves_of(chunk.observation)
    if from_tail:
        assert tail is not None
        prev_obs = [[before, taken(leaf, previous)] for before, leaf in zip(tail.observation, observation, strict=True)]
    else:
        prev_obs = [[taken(leaf, previous)] for leaf in observation]
    versions = {segment.version for segment in chunk.segments}
    if len(versions) == 1:
        version = np.empty((count, 2), np.int64)
        version[:] = versions.pop()
    else:
        version = taken(chunk.version, rows)
    return TransitionColumns(
        count,
        prev_obs,
        [taken(leaf, rows) for leaf in leaves_of(chunk.action)],
        taken(chunk.reward, rows),
        [taken(leaf, rows) for leaf in observation],
        taken(chunk.terminated, rows),
        taken(chunk.truncated, rows),
        version,
        new_rows,
        skipped,
        sample_extras={name: [taken(leaf, rows) for leaf in leaves] for name, leaves in extras.items()},
    )


def tail_of_pairs(chunk: Chunk, spec: TreeSpec) -> Tail | None:
    """Return the last row of a chunk; None: it ended its episode."""
    if chunk.terminated[-1] or chunk.truncated[-1]:
        return None
    last = last_row_of(chunk)
    return Tail(last.episode, last.step, spec, [np.array(leaf[-1:]) for leaf in leaves_of(chunk.observation)])


def taken(values: Array, rows: slice | Array) -> Array:
    """Return `values[rows]`; NumPy's `take` is several times faster than an index where rows are short."""
    return values[rows] if isinstance(rows, slice) else values.take(rows, axis=0)


def joined_leaves(first: Sequence[Array], second: Sequence[Array]) -> list[Array]:
    """Concatenate the rows of two lists of leaves, leaf by leaf."""
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]
