"""The state machine of one client session. Sans-I/O: it opens nothing, and its player acts and learns.

Between episodes, the session waits for a reset's observation. Within an episode, an action has been answered and the
session waits for its result. A message leads to one call of the player at most, and changes the state only after the
player has succeeded: a refused message may be sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmrl_core.gateway.contracts import Player
from tmrl_core.gateway.messages import RequestError, StepMessage


class Session:
    """One client session.

    Args:
        player: acts and learns for this session.
        read: decodes the observation and the info of a message.
        write: makes JSON values of actions, see `json_spaces.action_writer`.
        on_episode: called at the end of an episode with its number of steps and its return.

    Attributes:
        steps: number of results of actions.
        episodes: number of finished episodes.
    """

    def __init__(
        self,
        player: Player,
        read: Callable[[StepMessage], tuple[Any, dict[str, Any]]],
        write: Callable[[Any], Any],
        on_episode: Callable[[int, float], None] = lambda steps, episode_return: None,
    ) -> None:
        self._player = player
        self._read = read
        self._write = write
        self._on_episode = on_episode
        self.steps = 0
        self.episodes = 0
        self._busy = False
        self._acting = False
        self._episode_steps = 0
        self._return = 0.0
        self._number: int | None = None
        self._answer: Any = None

    async def answer(self, message: StepMessage) -> Any:
        """Return the next action as a JSON value, or None at the end of an episode.

        Raises:
            RequestError: another request is in progress, or the message was answered long ago.
            ObservationError: the observation does not belong to the space.
            TmrlError: the player failed. The session is as it was.
        """
        if self._busy:
            raise RequestError(409, "another request of this session is in progress: wait for its answer")
        number, last = message.number, self._number
        if number is not None and last is not None:
            if number == last:
                return self._answer
            if number < last and self._acting:
                raise RequestError(409, f"step {number} was answered before step {last}: count on from {last + 1}")
        obs, info = self._read(message)
        terminated, truncated = message.terminated, message.truncated
        done = terminated or truncated
        action = None
        self._busy = True
        try:
            if self._acting:
                action = await self._player.step(obs, message.reward, terminated, truncated, info)
                self.steps += 1
                self._episode_steps += 1
                self._return += message.reward
            elif not done:
                action = await self._player.begin(obs, info)
        finally:
            self._busy = False
        if done:
            self._end_episode()
            answer = None
        elif action is None:
            raise RuntimeError(f"{type(self._player).__name__} returned no action within an episode")
        else:
            self._acting = True
            answer = self._write(action)
        self._number, self._answer = number, answer
        return answer

    def _end_episode(self) -> None:
        if self._acting:
            self.episodes += 1
            self._on_episode(self._episode_steps, self._return)
            self._acting, self._episode_steps, self._return = False, 0, 0.0

    async def close(self) -> None:
        """End the session. An open episode is kept as truncated."""
        await self._player.close()
