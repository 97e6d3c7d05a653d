"""Evaluations that the trainer asks for, spread over the episodes that clients open."""

# Theory of operation
#
# If the trainer asks for an evaluation, the next episodes that clients open are its episodes, one for each seed:
# deterministic and not collected. The seeds only number them, since clients reset their environments themselves. An
# episode whose client leaves is missing again and is played by another session, so an evaluation waits for clients and
# never counts half an episode.

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tmrl_core.networking.protocol.messages import Evaluation, Version

PATIENCE_S = 60.0
"""Seconds after which an episode that has not ended may be played a second time, by another session."""


class Assignment(NamedTuple):
    """One episode of an evaluation."""

    evaluation: int
    seed: int
    """Tells the episodes of an evaluation apart; clients reset their environments as they like."""


class Evaluations:
    """The trainer's current evaluation: each episode that a client opens is one of it, until none is missing.

    A worker plays an evaluation at once; clients come and go, so any session plays a part of it. The trainer counts
    one episode of each seed, so that a second one does no harm.
    """

    def __init__(self) -> None:
        self._current: int | None = None
        self._missing: deque[int] = deque()
        self._given: dict[int, float] = {}

    def take(self, asked: Evaluation | None, version: Version, now: float) -> Assignment | None:
        """Return the part of the evaluation that the next episode is, or None: it is an ordinary one.

        Args:
            asked: evaluation of the trainer's latest directive.
            version: of the policy that acts. Of another incarnation it may be an older one with a higher number.
            now: time in seconds.
        """
        if asked is None or version < asked.version or version[0] != asked.version[0]:
            return None
        if asked.id != self._current:
            self._current, self._missing, self._given = asked.id, deque(asked.seeds), {}
        if not self._missing:
            self._missing.extend(seed for seed, begun in self._given.items() if now - begun >= PATIENCE_S)
        if not self._missing:
            return None
        seed = self._missing.popleft()
        self._given[seed] = now
        return Assignment(asked.id, seed)

    def finished(self, part: Assignment) -> None:
        """Note that an episode has ended in order."""
        if part.evaluation == self._current:
            self._given.pop(part.seed, None)

    def give_back(self, part: Assignment) -> None:
        """Have another session play this episode, because its client has left."""
        if part.evaluation == self._current and self._given.pop(part.seed, None) is not None:
            self._missing.append(part.seed)
