"""The policies of running sessions, with which they advise each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tmrl_core.gateway.advice.combine import Choice, Gaussian

Advice = TypeVar("Advice", Choice, Gaussian)
"""A policy's distribution of actions for one observation."""

Advisor = Callable[[Any], Advice]
"""An immutable policy: observation -> advice. Any thread may call it."""


@dataclass(frozen=True, slots=True)
class _Published(Generic[Advice]):
    trained: int
    advisor: Advisor[Advice]


class Board(Generic[Advice]):
    """Latest policy of each running session of an agent. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._published: dict[str, _Published[Advice]] = {}

    def publish(self, session_id: str, trained: int, advisor: Advisor[Advice]) -> None:
        """Set the policy of a session.

        Args:
            session_id: of the session.
            trained: updates that made the policy.
            advisor: the policy; it never changes.
        """
        with self._lock:
            self._published[session_id] = _Published(trained, advisor)

    def withdraw(self, session_id: str) -> None:
        """Forget the policy of a session that has ended."""
        with self._lock:
            self._published.pop(session_id, None)

    def advisors(self, session_id: str, limit: int) -> list[Advisor[Advice]]:
        """Return the policies of at most `limit` other sessions, the most trained first."""
        with self._lock:
            others = [(-each.trained, name) for name, each in self._published.items() if name != session_id]
            return [self._published[name].advisor for _, name in sorted(others)[:limit]]
