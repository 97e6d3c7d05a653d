"""The contract between a client session and the agent that acts and learns in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedEpisode:
    """An episode that a client has ended with a done message. The learning curve of its agent consists of these."""

    ended_at: float
    """Seconds since 1970."""
    agent: str
    session_id: str
    key_id: str
    steps: int
    episode_return: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionInfo:
    """An open session, as the owner's pages list it."""

    session_id: str
    agent: str
    key_id: str
    opened_at: float
    """Seconds since 1970."""
    idle_s: float
    steps: int
    episodes: int
    """Number of finished episodes."""


class Player(Protocol):
    """Act and learn for one client session. The event loop's thread calls every method, one call at a time.

    Only `close` may also be called while `begin` or `step` waits, which then raises a `TmrlError`.

    A failure is a `TmrlError` whose text may be shown to the client; the episode stays as it was before the call, so
    that the client may repeat its request.
    """

    async def begin(self, obs: Any, info: dict[str, Any]) -> Any:
        """Begin an episode with the observation of a reset; return the action for it."""

    async def step(self, obs: Any, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        """Record the result of the pending action; return the next action, or None if a flag is set.

        It returns at the end of an episode without waiting for samples to be sent or for new weights.
        """

    async def close(self) -> None:
        """End the session. An open episode is kept as truncated."""


class GatewayAgent(Protocol):
    """An agent of the gateway: all of its sessions, and what they share."""

    @property
    def name(self) -> str:
        """Name of the agent in the configuration and in its API keys."""

    @property
    def mode(self) -> str:
        """`central` or `advice`."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space that observations of clients are converted to."""

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Space of the actions that clients receive."""

    @property
    def saves_folder(self) -> Path | None:
        """Folder of the agent's saves (`*.save`); None if the agent keeps none."""

    async def start(self) -> None:
        """Begin to work; called once, before the first session."""

    def open(self, session_id: str, key_id: str = "") -> Player:
        """Return the player of a new session.

        Args:
            session_id: public id of the session in logs, lists and saves; not its secret key.
            key_id: of the API key that opens it; keys share what is scarce equally.

        Raises:
            TmrlError: the agent cannot take another session now.
        """

    async def close(self) -> None:
        """Stop working, after all sessions have been closed: send and save what is left."""
