"""ShepherdEnv-v0: an environment whose steps happen at a client, and the channel to this client.

A learner that owns its loop calls `step` and `reset` in a thread of its own. The client's side, such as the event loop
of the gateway, posts one message at a time and gets a future of the action. The environment simulates nothing.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from tmrl_core.envs.json_spaces import space_from_json
from tmrl_core.errors import ConfigError, LocalProtocolError, SessionClosedError

MAX_MESSAGES = 2
"""Limit of the observation queue: the end of an episode, which is answered at once, and the next opening message."""


@dataclass(frozen=True, slots=True)
class Message:
    """An observation of a client, with the result of the action that was answered last.

    Attributes:
        obs: in the observation space.
        reward: of the action answered last; 0.0 in an opening message.
        terminated: the action ended the episode.
        truncated: the episode was cut after the action.
        info: of the step or of the reset.
        opening: the observation is that of a reset.
    """

    obs: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    opening: bool = False

    @property
    def ends(self) -> bool:
        """True: the episode is over, and there is no action to answer."""
        return self.terminated or self.truncated


class Channel:
    """The observation queue and the action queue between a client's thread and a learner's thread.

    The client posts a message and waits for the future of its action before it posts the next one. The learner receives
    messages and answers them in order. The end of an episode is answered with None at once, so that the client never
    waits for a learner that is busy. All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by `_changed`.
        self._messages: deque[Message] = deque()
        self._action: Future[Any] | None = None
        self._reason: str | None = None

    def post(self, message: Message) -> Future[Any]:
        """Queue a message of the client; return the future of the action, or of None after the end of an episode.

        The future cannot be cancelled. It raises `SessionClosedError` if the channel closes before the answer.

        Raises:
            SessionClosedError: the channel is closed.
            LocalProtocolError: the action for the message before has not been answered yet.
        """
        action: Future[Any] = Future()
        # From here on it cannot be cancelled: a client that gives up must not end the learner's answer in an error.
        action.set_running_or_notify_cancel()
        with self._changed:
            if self._reason is not None:
                raise SessionClosedError(self._reason)
            if self._action is not None or len(self._messages) >= MAX_MESSAGES:
                raise LocalProtocolError("a client session posts one message at a time; wait for the action first")
            self._messages.append(message)
            if not message.ends:
                self._action = action
            self._changed.notify_all()
        # Outside of the lock, here and below: callbacks of a future run in the thread that sets it, and may post.
        if message.ends:
            action.set_result(None)
        return action

    def receive(self) -> Message:
        """Return the client's next message. Wait for it; a closed channel ends the wait.

        Raises:
            SessionClosedError: the channel is closed, and its messages have all been received.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._reason is not None)
            if not self._messages:
                raise SessionClosedError(self._reason)
            return self._messages.popleft()

    def answer(self, action: Any) -> None:
        """Answer the message received last.

        Raises:
            SessionClosedError: the channel is closed.
            LocalProtocolError: the message is answered already, or ended an episode.
        """
        with self._changed:
            if self._reason is not None:
                raise SessionClosedError(self._reason)
            if self._action is None or self._messages:
                raise LocalProtocolError("there is no message to answer; receive one first")
            pending, self._action = self._action, None
        pending.set_result(action)

    def close(self, reason: str = "the session is closed") -> None:
        """End all waits with `SessionClosedError`. Messages posted before can still be received."""
        with self._changed:
            if self._reason is not None:
                return
            self._reason = reason
            pending, self._action = self._action, None
            self._changed.notify_all()
        if pending is not None:
            pending.set_exception(SessionClosedError(reason))


class ShepherdEnv(gymnasium.Env[Any, Any]):
    """An environment whose steps happen at the client of a channel.

    `step` answers the client's message with the action and returns the client's next message. `reset` returns the
    opening message of the next episode. If the learner itself truncates an episode, the client does not know, and waits
    for an action: its pending observation is then the observation of the reset.

    Without a channel the environment only offers its spaces, such as for a Trainer that learns from clients.

    Args:
        observation_space: a Gymnasium space, or one as JSON: a number n (Discrete), `[shape, low, high]` (Box of
            float32) or a mapping (Dict).
        action_space: likewise.
        env_id: Gymnasium id of an environment with these spaces, instead of the two.
        channel: to the client.

    Raises:
        ConfigError: the spaces are missing, given twice, or invalid.
    """

    def __init__(
        self,
        observation_space: Any = None,
        action_space: Any = None,
        env_id: str | None = None,
        channel: Channel | None = None,
    ) -> None:
        self.observation_space, self.action_space = client_spaces(observation_space, action_space, env_id)
        self.channel = channel
        self._latest: Message | None = None
        """The message received last; None before the first one."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the opening message of an episode; return its observation and info.

        Raises:
            SessionClosedError: the session was closed.
            ConfigError: there is no channel.
        """
        super().reset(seed=seed, options=options)
        channel = self._connected()
        # Else the learner has truncated the episode; the client still waits for an action on this observation.
        if self._latest is None or self._latest.ends:
            self._latest = channel.receive()
        # Copies: a learner that truncates has got this observation from `step` already, and may change either one.
        return copy.deepcopy(self._latest.obs), copy.deepcopy(self._latest.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Answer the client with `action` and wait for the result.

        Raises:
            SessionClosedError: the session was closed.
            ConfigError: there is no channel.
            LocalProtocolError: the episode has ended, or has not begun; call `reset`.
        """
        channel = self._connected()
        if self._latest is None or self._latest.ends:
            raise LocalProtocolError("no episode is open; call reset first")
        channel.answer(action)
        message = self._latest = channel.receive()
        return message.obs, message.reward, message.terminated, message.truncated, message.info

    def _connected(self) -> Channel:
        if self.channel is None:
            raise ConfigError(
                "ShepherdEnv has no client here and only offers its spaces: its steps happen at the clients of a "
                "gateway. Start the gateway (python -m tmrl_core --gateway) instead of a worker."
            )
        return self.channel


def client_spaces(
    observation_space: Any, action_space: Any, env_id: str | None
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the spaces that `ShepherdEnv` is given.

    Raises:
        ConfigError: they are missing, given twice, or invalid.
    """
    if env_id is not None:
        if observation_space is not None or action_space is not None:
            raise ConfigError("found env_id and spaces; give either env_id, or observation_space and action_space")
        try:
            env = gymnasium.make(env_id, disable_env_checker=True)
        except gymnasium.error.Error as exc:
            raise ConfigError(f"env_id: {exc}") from exc
        env.close()  # only its spaces are needed, and it may hold a window or a machine
        return env.observation_space, env.action_space
    if observation_space is None or action_space is None:
        raise ConfigError("the spaces are missing: give observation_space and action_space, or env_id")
    return _space(observation_space, "observation_space"), _space(action_space, "action_space")


def _space(value: Any, name: str) -> gymnasium.Space[Any]:
    return value if isinstance(value, gymnasium.Space) else space_from_json(value, name)
