"""A pool of sessions of equal structure: sequences to train from."""

# Theory of operation
#
# For: batches of whole sequences from many recorded sessions, drawn at random, as recurrent learners need them. The
# pool knows arrays and their declared shapes. It knows neither agents nor episodes: what a tick means is its user's
# matter.
#
# Stored are ticks, one session behind the other, without padding (`runs.py`); returned are batches with padding. In
# numbers: 1,000 sessions, of which one has 2,000 ticks and the others 100, are 101,900 ticks in memory, where a padded
# array would have 2,000,000. A batch of 32 is padded to 2,000 ticks, the longest of the pool, and not to the longest of
# the batch, so that all batches have one shape and a compiled update is compiled once.
#
# State: all of it is one frozen `_Content`, replaced as a whole by the last statement of a change. A change that fails
# anywhere (a wrong shape in the fifth argument, a full disk) leaves the pool as it was.
#
# The order of a change: `get_session_updates` checks and converts everything given, naming the argument, the session
# and the tick that do not fit; then `_stored` copies. A user may keep or send the result of the first, so
# `apply_updates` checks it again.
#
# Two kinds of columns: those with ticks (observations, actions, rewards), and those with one row for each session
# (memories before tick 0, observations after the last action). Both are `Runs`; of the second kind, each has length 1.
#
# Padding of zeros takes no memory, but any other padding is kept: a session whose arrays go on after its end comes back
# as it was given. So the number of stored ticks is that of the last one that is alive or not zero (`_trimmed`).
#
# The end of a session: `terminated`, or truncated, which needs a final observation, since its value is what a learner
# bootstraps from. A truncated session without one is refused when it is loaded; at the first update it would be too
# late.

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tmrl_core.envs.replay.recorded import SessionBatchEnvironment
from tmrl_core.envs.replay.runs import Runs
from tmrl_core.envs.replay.sequences import ItemFormat, array_of, check_alive, checked, item_formats, listed
from tmrl_core.errors import ConfigError, MissingExtraError, SampleRefusedError
from tmrl_core.samples.columns import Array, leaves
from tmrl_core.sessions.session import Session

if TYPE_CHECKING:
    import gymnasium
    from torch import Tensor

_REWARD = ItemFormat((), np.dtype(np.float32))
_ALIVE = ItemFormat((), np.dtype(np.uint8))
_FLAG = ItemFormat((), np.dtype(np.bool_))
_OPTIONAL = ("preceding_agent_memories.", "final_observations.")
_PADDED_BYTES = 64 << 20
"""Size with padding of the recorded sessions that are stored at once."""
_ONCE = ("terminated", *_OPTIONAL)
"""Beginnings of the names of arrays without ticks."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SessionBatch:
    """Sessions as arrays of their own; those shorter than the longest of the pool are padded with zeros.

    Attributes:
        selector: [batch], index in the pool of each.
        observations: each declared observation, [batch, tick, ...].
        actions: each declared action, chosen on the observation of the same tick; likewise.
        rewards: [batch, tick] float32, for the action of the same tick.
        is_alive: [batch, tick] uint8, 1 through the terminal tick, then 0.
        preceding_agent_memories: each declared memory before tick 0, [batch, ...]; None if none were loaded.
        terminated: [batch] bool; False: the session was truncated.
        final_observations: each declared observation after the last action, [batch, ...]; None if none were loaded.
    """

    selector: Array
    observations: list[Array]
    actions: list[Array]
    rewards: Array
    is_alive: Array
    preceding_agent_memories: list[Array] | None
    terminated: Array
    final_observations: list[Array] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """The stored sessions. It is replaced as a whole, so a failure leaves the pool as it was."""

    ticks: Runs
    """Observations, actions, rewards."""
    once: Runs | None
    """Memories and final observations, one row for each session; None: neither was loaded."""
    alive: Array
    """[sessions] int32, number of ticks that are alive."""
    padded: Array
    """[sessions] int32, number of ticks that were loaded."""
    terminated: Array
    """[sessions] bool."""
    width: int
    """Number of ticks of a batch."""
    all_alive: bool
    """All ticks of all batches are alive."""
    has_memories: bool
    has_final: bool


class SessionPool:
    """A sequence memory of recorded sessions. Not thread-safe.

    Tick t of a session is observation t, the action chosen on it, and the reward for that action. Ticks are stored
    without padding, in RAM or in files that are mapped, never on a GPU. Sequence arguments are one array or a list in
    declared order, [batch, tick, ...]; shorter sessions are padded and marked in `is_alive`. Padding of zeros takes no
    memory.

    Args:
        observations: their number, each float32 [batch, tick, unit], whose unit size the first sessions set. Instead of
            a number, one Gymnasium space or a list of them fixes shape and dtype. Bounds of spaces are not checked.
        actions: their number, each a scalar [batch, tick]; or spaces.
        agent_memories: number of an agent's memories, flat float32 vectors [batch, unit]; or spaces. 0 is allowed.
        default_action_dtype: dtype of actions whose declaration states none.
        rng_seed: seed of the sampler.
        folder: of temporary files that hold the sessions, removed at the end of the process; None: sessions are in RAM.

    Raises:
        ConfigError: an argument is invalid.

    Attributes:
        rng: generator of the sampler.
    """

    def __init__(
        self,
        observations: int | gymnasium.Space[Any] | Sequence[gymnasium.Space[Any]] = 1,
        actions: int | gymnasium.Space[Any] | Sequence[gymnasium.Space[Any]] = 1,
        agent_memories: int | gymnasium.Space[Any] | Sequence[gymnasium.Space[Any]] = 1,
        default_action_dtype: npt.DTypeLike = "int32",
        rng_seed: int = 1337,
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._observations = item_formats(observations, "observations", shape=None, dtype=np.float32, least=1)
        self._actions = item_formats(actions, "actions", shape=(), dtype=default_action_dtype, least=1)
        self._memories = item_formats(agent_memories, "agent_memories", shape=None, dtype=np.float32, least=0)
        if isinstance(rng_seed, bool) or not isinstance(rng_seed, (int, np.integer)) or rng_seed < 0:
            raise ConfigError(f"rng_seed is {rng_seed!r}; allowed are integers of at least 0")
        # Its own: another user of a shared generator would change which sessions a seeded run draws.
        self.rng = np.random.default_rng(rng_seed)
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None and not self._folder.is_dir():
            raise ConfigError(f"{self._folder} is no folder; create it, or pass folder=None to keep sessions in RAM")
        self._content: _Content | None = None

    def __len__(self) -> int:
        """Return the number of sessions."""
        return 0 if self._content is None else len(self._content.alive)

    # -- content ------------------------------------------------------------------------------------------------------

    def load_sessions(
        self,
        observation_sequences: npt.ArrayLike | Sequence[npt.ArrayLike],
        action_sequences: npt.ArrayLike | Sequence[npt.ArrayLike],
        reward_seq: npt.ArrayLike,
        is_alive: npt.ArrayLike | None = None,
        prev_memories: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
        *,
        terminated: npt.ArrayLike | None = None,
        final_observations: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        """Replace the content.

        Args:
            observation_sequences: [batch, tick, ...] each.
            action_sequences: likewise.
            reward_seq: [batch, tick].
            is_alive: [batch, tick], 1 through the terminal tick and 0 after it; None: all ones.
            prev_memories: the agent's memories before tick 0, [batch, ...] each.
            terminated: [batch]; False: the session was truncated, so its final observation has a value. None: all True.
            final_observations: the observations after the last action, [batch, ...] each; needed if a session was
                truncated.

        Raises:
            SampleRefusedError: a shape, length, dtype or number does not fit; the message names the argument and the
                place. The pool is unchanged.
            StorageError: the folder cannot be written; likewise.
        """
        self._content = self._stored(
            self.get_session_updates(
                observation_sequences,
                action_sequences,
                reward_seq,
                is_alive,
                prev_memories,
                terminated=terminated,
                final_observations=final_observations,
            )
        )

    def load_recording(self, sessions: Iterable[Session]) -> None:
        """Replace the content by recorded sessions. Their lengths may differ widely: they are not padded all at once.

        Args:
            sessions: at least one, all with the same structure; see `padded_sequences`.

        Raises:
            SampleRefusedError: as `padded_sequences` and `load_sessions`. The pool is unchanged.
            StorageError: as `load_sessions`, or of reading the sessions; likewise.
        """
        content: _Content | None = None
        first = 0
        for group in _groups(sessions):
            try:
                content = self._stored(self.get_session_updates(**padded_sequences(group)), content)
            except SampleRefusedError as exc:
                raise SampleRefusedError(f"in the sessions from number {first} on: {exc}") from exc
            first += len(group)
        if content is None:
            raise SampleRefusedError("there are no sessions; a recording has at least one")
        self._content = content

    def append_sessions(
        self,
        observation_sequences: npt.ArrayLike | Sequence[npt.ArrayLike],
        action_sequences: npt.ArrayLike | Sequence[npt.ArrayLike],
        reward_seq: npt.ArrayLike,
        is_alive: npt.ArrayLike | None = None,
        prev_memories: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
        max_pool_size: int | None = None,
        *,
        terminated: npt.ArrayLike | None = None,
        final_observations: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        """Add sessions behind the others.

        Either all or none of the sessions in a pool have preceding memories, and likewise final observations.

        Args:
            observation_sequences: these and the others as in `load_sessions`.
            action_sequences: likewise.
            reward_seq: likewise.
            is_alive: likewise.
            prev_memories: likewise.
            max_pool_size: maximum number of sessions; the last ones are kept. None: all are kept.
            terminated: as in `load_sessions`.
            final_observations: likewise.

        Raises:
            SampleRefusedError: as in `load_sessions`, or `max_pool_size` is no positive number.
            StorageError: as in `load_sessions`.
        """
        if not (max_pool_size is None or _is_positive(max_pool_size)):
            raise SampleRefusedError(
                f"max_pool_size is {max_pool_size!r}; allowed are positive integers, and None for all"
            )
        updates = self.get_session_updates(
            observation_sequences,
            action_sequences,
            reward_seq,
            is_alive,
            prev_memories,
            terminated=terminated,
            final_observations=final_observations,
        )
        self._content = self._stored(updates, self._content if len(self) else None, max_pool_size)

    def get_session_updates(
        self,
        observation_sequences: npt.ArrayLike | Sequence[npt.ArrayLike],
        action_sequences: npt.ArrayLike | Sequence[npt.ArrayLike],
        reward_seq: npt.ArrayLike,
        is_alive: npt.ArrayLike | None = None,
        prev_memory: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
        cast_dtypes: bool = True,
        *,
        terminated: npt.ArrayLike | None = None,
        final_observations: npt.ArrayLike | Sequence[npt.ArrayLike] | None = None,
    ) -> dict[str, Array]:
        """Return sessions as `apply_updates` takes them, without changing the pool.

        Args:
            observation_sequences: these and the others as in `load_sessions`.
            action_sequences: likewise.
            reward_seq: likewise.
            is_alive: likewise.
            prev_memory: the `prev_memories` of `load_sessions`.
            cast_dtypes: convert the arrays to the dtypes of the pool. Real numbers are rounded; an integer that the
                dtype cannot hold is refused. False: arrays keep their dtypes.
            terminated: as in `load_sessions`.
            final_observations: likewise.

        Returns:
            `observations.0`, `observations.1`, ..., `actions.0`, ..., `rewards`, `is_alive`, `terminated` and, if they
            are given, `preceding_agent_memories.0`, ... and `final_observations.0`, ....

        Raises:
            SampleRefusedError: as in `load_sessions`.
        """
        given = {
            **_listed(observation_sequences, self._observations, "observations", "observation_sequences"),
            **_listed(action_sequences, self._actions, "actions", "action_sequences"),
            "rewards": ("reward_seq", reward_seq, _REWARD),
        }
        if is_alive is not None:
            given["is_alive"] = ("is_alive", is_alive, _ALIVE)
        if terminated is not None:
            given["terminated"] = ("terminated", terminated, _FLAG)
        if prev_memory is not None:
            given |= _listed(prev_memory, self._memories, "preceding_agent_memories", "prev_memories")
        if final_observations is not None:
            given |= _listed(final_observations, self._observations, "final_observations", "final_observations")
        return _checked(given, cast_dtypes)

    def apply_updates(self, updates: Mapping[str, npt.ArrayLike]) -> None:
        """Replace the content by the result of `get_session_updates`.

        Raises:
            SampleRefusedError: as in `load_sessions`; also if a dtype is not the pool's. The pool is unchanged.
            StorageError: as in `load_sessions`.
        """
        formats: dict[str, ItemFormat] = {
            **_numbered("observations", self._observations),
            **_numbered("actions", self._actions),
            "rewards": _REWARD,
            "is_alive": _ALIVE,
            "terminated": _FLAG,
            **_numbered("preceding_agent_memories", self._memories),
            **_numbered("final_observations", self._observations),
        }
        given = tuple(prefix for prefix in _OPTIONAL if any(name.startswith(prefix) for name in updates))
        needed = {name for name in formats if not name.startswith(_OPTIONAL) or name.startswith(given)}
        if updates.keys() != needed:
            missing, unknown = sorted(needed - updates.keys()), sorted(map(str, updates.keys() - needed))
            raise SampleRefusedError(
                f"updates lack {missing or 'nothing'} and have the unknown keys {unknown or 'none'}; pass the result "
                "of get_session_updates"
            )
        in_order = {name: (name, updates[name], format_) for name, format_ in formats.items() if name in needed}
        checked_updates = _checked(in_order, cast_dtypes=False)
        for name, array in checked_updates.items():
            if array.dtype != formats[name].dtype:
                raise SampleRefusedError(
                    f"{name} has the dtype {array.dtype}, the pool's is {formats[name].dtype}; "
                    "get_session_updates(cast_dtypes=True) converts it"
                )
        self._content = self._stored(checked_updates)

    def _stored(
        self, updates: dict[str, Array], before: _Content | None = None, max_pool_size: int | None = None
    ) -> _Content:
        """Return the content with these sessions behind those of `before`."""
        # New sessions beyond the limit would be stored and dropped at once.
        kept = slice(None if max_pool_size is None else -max_pool_size, None)
        updates = {name: array[kept] for name, array in updates.items()}
        count = len(updates["terminated"])
        columns = [*_parts(updates, "observations"), *_parts(updates, "actions"), updates["rewards"]]
        memories, final = _parts(updates, "preceding_agent_memories"), _parts(updates, "final_observations")
        stored, columns = _trimmed(columns, updates["is_alive"])
        ones = np.ones(count, np.int64)
        alive = updates["is_alive"].sum(axis=1, dtype=np.int32)
        padded = np.full(count, updates["is_alive"].shape[1], np.int32)
        terminated = updates["terminated"].astype(np.bool_)
        if before is None:
            ticks = Runs.of(stored, columns, self._folder)
            once = Runs.of(ones, [*memories, *final], self._folder) if memories or final else None
        else:
            _check_same(before, updates)
            ticks = before.ticks.extended(stored, columns, max_pool_size)
            once = None if before.once is None else before.once.extended(ones, [*memories, *final], max_pool_size)
            alive = np.concatenate([before.alive, alive])
            padded = np.concatenate([before.padded, padded])
            terminated = np.concatenate([before.terminated, terminated])
        alive, padded = alive[kept], padded[kept]
        return _Content(
            ticks,
            once,
            alive,
            padded,
            terminated[kept],
            width=(width := int(padded.max(initial=0))),
            # A pool of sessions of one length, which is common, needs no masks: they took a third of a batch's time.
            all_alive=bool((alive == width).all()),
            has_memories=bool(memories),
            has_final=bool(final),
        )

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def observations(self) -> list[Array]:
        """All observations, [batch, tick, ...] each; a copy."""
        return self._all(slice(len(self._observations)), self._observations)

    @property
    def actions(self) -> list[Array]:
        """All actions, [batch, tick, ...] each; a copy."""
        first = len(self._observations)
        return self._all(slice(first, first + len(self._actions)), self._actions)

    @property
    def rewards(self) -> Array:
        """All rewards, [batch, tick] float32; a copy."""
        return self._all(slice(-1, None), [_REWARD])[0]

    @property
    def is_alive(self) -> Array:
        """[batch, tick] uint8, 1 through the terminal tick of each session, then 0."""
        if self._content is None:
            return np.zeros((0, 0), np.uint8)
        return _alive_mask(self._content, np.arange(len(self)))

    @property
    def preceding_agent_memories(self) -> list[Array] | None:
        """All memories before tick 0, [batch, ...] each; a copy. None if none were loaded."""
        content = self._content
        if content is None or content.once is None or not content.has_memories:
            return None
        return _once(content, np.arange(len(self)), len(self._memories))[0]

    def _all(self, columns: slice, formats: Sequence[ItemFormat]) -> list[Array]:
        if self._content is None:
            return [np.zeros((0, 0, *((0,) if one.shape is None else one.shape)), one.dtype) for one in formats]
        return self._content.ticks.gather(np.arange(len(self)), self._content.width, columns)

    def select(self, selector: npt.ArrayLike) -> SessionBatch:
        """Return sessions as arrays, in the order of their indices.

        Args:
            selector: [batch] indices, each at least 0 and less than the number of sessions.

        Raises:
            SampleRefusedError: the pool is empty, or the selector has no such indices.
        """
        content = self._filled()
        chosen = np.asarray(selector)
        if not chosen.size:
            chosen = chosen.astype(np.int64)  # of an empty list, floating-point
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise SampleRefusedError(
                f"selector has the shape {list(chosen.shape)} and the dtype {chosen.dtype}; expected is [batch] with "
                "integers (numpy.flatnonzero makes indices of a mask)"
            )
        # Negative ones too: NumPy would take -1, often a search that found nothing, for the last session.
        outside = np.flatnonzero((chosen < 0) | (chosen >= len(self)))
        if len(outside):
            raise SampleRefusedError(
                f"selector[{outside[0]}] is {chosen[outside[0]]}; the pool has the sessions 0 to {len(self) - 1}"
            )
        return self._batch(content, chosen)

    def sample(
        self, max_n_samples: int, replace: bool = False, selector_dtype: npt.DTypeLike = "int32"
    ) -> SessionBatch:
        """Return sessions as arrays, drawn uniformly with the pool's generator; each call draws anew.

        Args:
            max_n_samples: number of sessions. Without replacement, at most all of the pool are returned.
            replace: draw with replacement.
            selector_dtype: dtype of the drawn indices.

        Raises:
            SampleRefusedError: the pool is empty, or an argument is invalid.
        """
        content = self._filled()
        if not _is_positive(max_n_samples):
            raise SampleRefusedError(f"max_n_samples is {max_n_samples!r}; allowed are positive integers")
        try:
            dtype = np.dtype(selector_dtype)
        except TypeError as exc:
            raise SampleRefusedError(f"selector_dtype is {selector_dtype!r}; allowed are integer dtypes") from exc
        if dtype.kind not in "iu" or (len(self) - 1).bit_length() > 8 * dtype.itemsize - (dtype.kind == "i"):
            raise SampleRefusedError(
                f"selector_dtype is {dtype}; allowed are integer dtypes that hold {len(self) - 1}, the last index"
            )
        if replace:
            chosen = self.rng.integers(0, len(self), max_n_samples)
        else:
            chosen = self.rng.choice(len(self), min(int(max_n_samples), len(self)), replace=False)
        return self._batch(content, chosen.astype(dtype))  # not by `select`: what was drawn need not be checked

    def _batch(self, content: _Content, chosen: Array) -> SessionBatch:
        sequences = content.ticks.gather(chosen, content.width)
        first = len(self._observations)
        memories, final = _once(content, chosen, len(self._memories))
        return SessionBatch(
            selector=chosen,
            observations=sequences[:first],
            actions=sequences[first:-1],
            rewards=sequences[-1],
            is_alive=_alive_mask(content, chosen),
            preceding_agent_memories=memories if content.has_memories else None,
            terminated=content.terminated[chosen],
            final_observations=final if content.has_final else None,
        )

    def _filled(self) -> _Content:
        if self._content is None or not len(self):
            raise SampleRefusedError("the pool is empty; load_sessions or append_sessions first")
        return self._content

    # -- as environments ----------------------------------------------------------------------------------------------

    def select_session_batch(self, selector: npt.ArrayLike) -> SessionBatchEnvironment:
        """Return an environment that replays sessions, in the order of their indices; see `select`. It needs torch."""
        return _environment(self.select(selector))

    def sample_session_batch(
        self, max_n_samples: int, replace: bool = False, selector_dtype: npt.DTypeLike = "int32"
    ) -> SessionBatchEnvironment:
        """Return an environment that replays sessions drawn uniformly; see `sample`. It needs torch."""
        return _environment(self.sample(max_n_samples, replace, selector_dtype))

    def replay(self) -> SessionBatchEnvironment:
        """Return an environment that replays all sessions; see `select`. It needs torch."""
        return self.select_session_batch(np.arange(len(self)))


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def padded_sequences(sessions: Iterable[Session]) -> dict[str, Any]:
    """Return recorded sessions as the keyword arguments of `SessionPool.load_sessions` and `append_sessions`.

    The parts of Dict and Tuple observations and actions are sequences of their own, in their order. Sessions are padded
    with zeros to the length of the longest.

    Args:
        sessions: at least one, all with the same structure.

    Raises:
        SampleRefusedError: there is none, or they differ in structure; the message names the first that differs.
    """
    given = list(sessions)
    if not given:
        raise SampleRefusedError("there are no sessions; a recording has at least one")
    lengths = np.array([len(session) for session in given])
    alive = np.arange(lengths.max()) < lengths[:, None]

    def padded(rows: Sequence[Sequence[Any]], name: str) -> list[Array]:
        """Return each column of all sessions as one array."""
        found = [np.zeros((*alive.shape, *np.shape(column)[1:]), np.asarray(column).dtype) for column in rows[0]]
        for number, (columns, length) in enumerate(zip(rows, lengths, strict=True)):
            shapes = [(np.shape(column)[1:], np.asarray(column).dtype) for column in columns]
            if shapes != [(array.shape[2:], array.dtype) for array in found]:
                raise SampleRefusedError(f"session {number} differs from the first one in its {name}: {shapes}")
            for array, column in zip(found, columns, strict=True):
                array[number, :length] = column[:length]
        return found

    observations = [list(leaves(session.observations)) for session in given]
    found = padded(observations, "observations")
    return {
        "observation_sequences": found,
        "action_sequences": padded([list(leaves(session.actions)) for session in given], "actions"),
        "reward_seq": padded([[session.rewards] for session in given], "rewards")[0],
        "is_alive": alive.astype(np.uint8),
        "terminated": np.array([session.terminated for session in given]),
        "final_observations": [np.stack([columns[at][-1] for columns in observations]) for at in range(len(found))],
    }


def _groups(sessions: Iterable[Session]) -> Iterator[list[Session]]:
    """Yield the sessions in groups of which each has at most `_PADDED_BYTES` with padding, or one session."""
    group: list[Session] = []
    longest = tick_bytes = 0
    for session in sessions:
        ticks = len(session)
        columns = [*leaves(session.observations), *leaves(session.actions)]
        of_tick = sum(np.asarray(column[:1]).nbytes for column in columns)
        longest, tick_bytes = max(longest, ticks), max(tick_bytes, of_tick)
        if group and longest * tick_bytes * (len(group) + 1) > _PADDED_BYTES:
            yield group
            group, longest, tick_bytes = [], ticks, of_tick
        group.append(session)
    if group:
        yield group


def _environment(batch: SessionBatch) -> SessionBatchEnvironment:
    try:
        from torch import from_numpy
    except ModuleNotFoundError as exc:
        raise MissingExtraError(
            "torch", "trainer", "An environment of sessions (select and sample give arrays)"
        ) from exc

    def tensors(arrays: list[Array] | None) -> list[Tensor] | None:
        return None if arrays is None else [from_numpy(array) for array in arrays]

    return SessionBatchEnvironment(
        [from_numpy(array) for array in batch.observations],
        [array.shape[2:] for array in batch.observations],
        tensors(batch.actions),
        [array.shape[2:] for array in batch.actions],
        from_numpy(batch.rewards),
        from_numpy(batch.is_alive),
        tensors(batch.preceding_agent_memories),
        terminated=from_numpy(batch.terminated),
        final_observations=tensors(batch.final_observations),
    )


def _listed(
    given: Any, formats: Sequence[ItemFormat], name: str, argument: str
) -> dict[str, tuple[str, Any, ItemFormat]]:
    parts = listed(given, len(formats), argument, name.replace("_", " "))
    return {
        f"{name}.{index}": (*part, format_) for index, (part, format_) in enumerate(zip(parts, formats, strict=True))
    }


def _numbered(name: str, formats: Sequence[ItemFormat]) -> dict[str, ItemFormat]:
    return {f"{name}.{index}": format_ for index, format_ in enumerate(formats)}


def _parts(updates: Mapping[str, Array], name: str) -> list[Array]:
    return [array for key, array in updates.items() if key.startswith(f"{name}.")]


def _checked(given: Mapping[str, tuple[str, Any, ItemFormat]], cast_dtypes: bool) -> dict[str, Array]:
    """Return the arrays of updates: checked, with those that were left out, in the order of `given`.

    Args:
        given: name in messages, value and format of each.
        cast_dtypes: see `get_session_updates`.
    """
    updates: dict[str, Array] = {}
    lead: tuple[int, ...] = ()
    for key, (name, value, format_) in given.items():
        array = array_of(value, name)
        once = key.startswith(_ONCE)
        if not lead:
            if array.ndim < 2:
                raise SampleRefusedError(f"{name} has the shape {list(array.shape)}; expected is [batch, tick, ...]")
            lead = array.shape[:2]
            if lead[0] and not lead[1]:
                raise SampleRefusedError(f"{name} has 0 ticks; a session has at least one")
        if key == "is_alive":
            check_alive(checked(array, format_, name, lead, cast=False))
        updates[key] = checked(array, format_, name, lead[:1] if once else lead, cast=cast_dtypes)
        if key.startswith("final_") and array.shape[1:] != (shape := updates[key.removeprefix("final_")].shape[2:]):
            raise SampleRefusedError(
                f"{name} has items of the shape {list(array.shape[1:])}, the observations {list(shape)}"
            )
    updates.setdefault("is_alive", np.ones(lead, np.uint8))
    updates.setdefault("terminated", np.ones(lead[:1], np.bool_))
    truncated = np.flatnonzero(updates["terminated"] == 0)
    if len(truncated) and "final_observations.0" not in updates:
        raise SampleRefusedError(
            f"session {truncated[0]} is not terminated and has no final observation, so its end has no value; pass "
            "final_observations"
        )
    return updates


def _check_same(before: _Content, updates: Mapping[str, Array]) -> None:
    """Refuse sessions that differ in structure from those of the pool."""
    for has, name in ((before.has_memories, "preceding_agent_memories"), (before.has_final, "final_observations")):
        if has != bool(_parts(updates, name)):
            raise SampleRefusedError(
                f"the sessions in the pool have {name if has else f'no {name}'}, these have "
                f"{'none' if has else 'some'}; load them with all sessions or with none"
            )
    columns = [*before.ticks.columns, *(before.once.columns if before.once is not None else ())]
    names = [name for name in updates if name not in ("is_alive", "terminated")]
    for name, column in zip(names, columns, strict=True):
        shape, stored = updates[name].shape[1 if name.startswith(_ONCE) else 2 :], column.rows.shape[1:]
        if shape != stored:
            raise SampleRefusedError(
                f"{name} has items of the shape {list(shape)}, those in the pool have {list(stored)}; load_sessions "
                "replaces the sessions in the pool"
            )


def _trimmed(columns: Sequence[Array], alive: Array) -> tuple[Array, list[Array]]:
    """Return the lengths of the sessions without padding of zeros, and the columns of these ticks, [ticks, ...]."""
    # At least one tick each, also of a session that is all zeros and never alive: it keeps its index.
    used = alive.astype(np.bool_)
    batch, width = used.shape
    if not used.all():
        dead = ~used
        for column in columns:
            found = column[dead]
            used[dead] |= found.any(axis=tuple(range(1, found.ndim)))
    lengths = np.maximum((used * np.arange(1, width + 1)).max(axis=1, initial=0), 1)
    if (lengths == width).all():
        return lengths, [column.reshape(batch * width, *column.shape[2:]) for column in columns]
    kept = np.arange(width) < lengths[:, None]
    return lengths, [column[kept] for column in columns]


def _alive_mask(content: _Content, selector: Array) -> Array:
    if content.all_alive:
        return np.ones((len(selector), content.width), np.uint8)
    mask: Array = np.arange(content.width) < content.alive[selector][:, None]
    return mask.view(np.uint8)


def _once(content: _Content, selector: Array, memories: int) -> tuple[list[Array], list[Array]]:
    """Return preceding memories and final observations; empty where none were loaded."""
    rows = [] if content.once is None else [rows[:, 0] for rows in content.once.gather(selector, 1)]
    return (rows[:memories], rows[memories:]) if content.has_memories else ([], rows)
