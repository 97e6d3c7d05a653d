"""Recorded sessions become samples of a memory, by the same builders as live ones."""

# Theory of operation
#
# A trainer learns from recorded sessions alone (`trainer.offline`: no Server, no credentials), or from recorded and
# live ones (`memory.recorded`). Two keys, because the first has no workers and no limit of updates per sample. Sessions
# are appended as chunks, by the builders of live samples, before the first update; a memory on disk notes the progress
# in the same record as the rows, so a killed trainer appends no session twice.
#
# Recorded actions are compared with the trainer's action space, since recordings come from other machines: a policy
# with bounds learns from actions beyond them without an error, and saturates.

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from tmrl_core.errors import ConfigError, SampleRefusedError, StorageError
from tmrl_core.samples import Buffer
from tmrl_core.samples.segments import NO_VERSION
from tmrl_core.sessions import Session, read_sessions
from tmrl_core.sessions.action_ranges import ActionRanges
from tmrl_core.training.contracts import TrainingMemory
from tmrl_core.training.memories.sample_check import check_samples
from tmrl_core.training.value_types import Space

logger = logging.getLogger(__name__)

STREAM = b"recorded sessions"
"""Stream of their samples in a memory."""
OutsideActions: TypeAlias = Literal["refuse", "clip"] | None
COMMITTED_AT_ONCE = 4 << 20
"""Bytes of samples, about, in one record of a memory on disk."""


class SessionLoader:
    """Appends recorded sessions to a memory once, in the order of the recording.

    Args:
        path: of the recording, see `read_sessions`.
        key: key of the configuration that names it, for messages.
        action_space: of the policy that will be trained, for the bounds of recorded actions; None: do not look at them.
        outside: "refuse" a recording with actions outside, or "clip" them; None: do not look at them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: str,
        action_space: Space | None = None,
        outside: OutsideActions = "refuse",
    ) -> None:
        self._path = path
        self._key = key
        self._action_space = action_space
        self._outside = outside

    def load(self, memory: TrainingMemory, loaded: int) -> int:
        """Append the sessions that the memory does not have yet, after all of them were checked.

        A memory on disk notes the progress with its rows, so that loading continues after a crash.

        Args:
            memory: its rows are appended to.
            loaded: number of sessions in the memory; negative: these are all, and nothing is to be done.

        Returns:
            The number of sessions in the memory, negative.

        Raises:
            ConfigError: there are none, or a session cannot be used; the message names it.
            StorageError: the memory's disk cannot be written.
        """
        if loaded < 0:
            return loaded
        count = self._check()
        deferred, memory.deferred = memory.deferred, True
        size = 0
        try:
            for number, session in enumerate(self._sessions()):
                if number < loaded:
                    continue
                buffer = Buffer(maxlen=None)
                buffer.extend([replace(session, version=NO_VERSION).chunk(number, STREAM)])
                for _, reason in memory.append(buffer) or ():
                    raise self._refused(number, reason)
                size += buffer.chunks[0].nbytes
                if size >= COMMITTED_AT_ONCE:
                    memory.commit(sessions=number + 1)
                    size = 0
            memory.commit(sessions=-count)
        finally:
            memory.deferred = deferred
        if len(memory) >= memory.memory_size > 0:
            logger.warning("memory.capacity: the memory is full with recorded sessions; their oldest may be missing")
        return -count

    def _sessions(self) -> Iterator[Session]:
        ranges = ActionRanges(self._action_space)
        self._moved = 0
        try:
            for session in read_sessions(self._path):
                if self._outside == "clip":
                    actions, moved = ranges.clipped(session.actions)
                    self._moved += moved
                    session = replace(session, actions=actions)
                yield session
        except StorageError as exc:
            raise ConfigError(f"{self._key}: {exc}") from exc

    def _check(self) -> int:
        returns, ticks = [], 0
        ranges, beyond = ActionRanges(self._action_space), 0
        for number, session in enumerate(self._sessions()):
            try:
                check_samples(session.chunk())
            except SampleRefusedError as exc:
                raise self._refused(number, exc) from exc
            if self._outside is not None and ranges.add(session.actions) and not beyond and ranges.problem():
                beyond = number + 1
            returns.append(session.episode_return)
            ticks += len(session)
        if not returns:
            raise ConfigError(f"{self._key}: {self._path} holds no session. Record at least one episode first.")
        if beyond:
            raise ConfigError(
                f"{self._key}: the actions of {self._path} are outside their space, from session {beyond} on: "
                f"{ranges.problem()}. Record them in the space's units, or move them to its bounds with "
                "memory.recorded_actions: clip."
            )
        if self._moved:
            logger.warning(
                "%s: %d of %d actions were outside their space and are moved to its bounds (memory.recorded_actions)",
                self._path,
                self._moved,
                ticks,
            )
        logger.info(
            "%s: %d sessions, %d steps, returns %.4g to %.4g, mean %.4g",
            self._path,
            len(returns),
            ticks,
            min(returns),
            max(returns),
            np.mean(returns),
        )
        return len(returns)

    def _refused(self, number: int, reason: Exception) -> ConfigError:
        return ConfigError(f"{self._key}: session {number + 1} of {self._path} cannot be used: {reason}")
