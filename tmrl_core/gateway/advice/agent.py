"""The agent of the mode `advice`: a learner for each session, in a thread of its own."""

# Theory of operation
#
# The event loop must never wait for a learner, and a learner's library may own its loop. So each session has a thread,
# and a `Channel` between the two: the event loop posts one message and awaits the future of its action; the thread
# receives, answers, and learns afterwards. The end of an episode is answered at once, while the learner may still be
# updating.
#
# A thread starts with the session's first message, so a login costs none. Torch gets one thread in each: learners use
# the cores by running beside each other.
#
# Order of the end of a session: close the channel, which wakes the learner with `SessionClosedError`; wait for
# `_ended`, which it sets when it has saved; join the thread. `_ended` counts as running from the start, because a
# cancelled task that waits for it must not cancel it.
#
# Failures stay in their session: the channel closes with a reason that the client reads, the log has the rest, and the
# save before the failure stays the newest one. At the gateway's start, a learner is made from the newest save and acts
# once (`_try`), so that settings that do not fit are an error of the start and not of each session.

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium
import torch

from tmrl_core.errors import SessionClosedError, TmrlError
from tmrl_core.gateway.advice.advisors import Board
from tmrl_core.gateway.advice.learner import Learner, SessionContext
from tmrl_core.gateway.advice.saves import Saves
from tmrl_core.gateway.first_action import try_action
from tmrl_core.gateway.settings import GatewayAgentSection
from tmrl_core.gateway.shepherd import Channel, Message
from tmrl_core.rate_limited_log import RateLimitedLog
from tmrl_core.samples.finite import is_finite

logger = logging.getLogger(__name__)

AGAIN = "Log in again to continue from the latest save."

MakeLearner = Callable[[SessionContext], Learner]


class AdviceAgent:
    """A `GatewayAgent` with a learner for each session, in a thread of its own.

    Args:
        name: of the agent.
        settings: of the agent.
        observation_space: of the clients' observations.
        action_space: of the clients' actions.
        make_learner: makes the learner of a session, in the session's thread.
        saves_folder: of the saves that all sessions share.
        seed: of the sessions' random numbers; None: from the operating system.
        max_bad_updates: see `SessionContext`.
    """

    mode = "advice"

    def __init__(
        self,
        name: str,
        settings: GatewayAgentSection,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        make_learner: MakeLearner,
        saves_folder: Path,
        *,
        seed: int | None = None,
        max_bad_updates: int = 10,
    ) -> None:
        self.name = name
        self.observation_space = observation_space
        self.action_space = action_space
        self.board: Board[Any] = Board()
        self._settings = settings
        self._make_learner = make_learner
        self._saves = Saves(saves_folder, settings.keep_saves)
        self._seed = seed
        self._max_bad_updates = max_bad_updates
        self._failure_line = RateLimitedLog(logger.error, "failures of sessions")
        self._failure_lock = threading.Lock()
        self._opened = 0
        self._open: dict[str, AdvicePlayer] = {}

    @property
    def saves_folder(self) -> Path:
        """Folder of the agent's saves."""
        return self._saves.folder

    async def start(self) -> None:
        """Make a learner from the newest save and let it act once, so that failures come now and not in a session.

        Raises:
            TmrlError: the settings cannot be used, the newest save does not fit them, or the policy cannot act.
        """
        await asyncio.to_thread(self._try)

    def _try(self) -> None:
        self._saves.remove_unfinished()
        learner = self._make_learner(self._context("start", Channel()))
        learner.load()
        try_action(self.name, self.observation_space, self.action_space, learner.act)

    def _context(self, session_id: str, channel: Channel) -> SessionContext:
        return SessionContext(
            session_id=session_id,
            channel=channel,
            board=self.board,
            saves=self._saves,
            settings=self._settings,
            observation_space=self.observation_space,
            action_space=self.action_space,
            seed=None if self._seed is None else self._seed + self._opened,
            max_bad_updates=self._max_bad_updates,
            log_failure=self._log_failure,
        )

    def _log_failure(self, text: str) -> None:
        with self._failure_lock:
            self._failure_line(text, time.monotonic())

    def open(self, session_id: str, key_id: str = "") -> AdvicePlayer:
        """Return the player of a new session. Its learner starts with the first message."""
        self._opened += 1
        context = self._context(session_id, Channel())
        player = self._open[session_id] = AdvicePlayer(
            context, self._make_learner, lambda: self._open.pop(session_id, None)
        )
        return player

    async def close(self) -> None:
        """End all sessions, each with a save."""
        await asyncio.gather(*(player.close() for player in list(self._open.values())))


class AdvicePlayer:
    """A `Player` that hands messages to a learner's thread and awaits its actions.

    Args:
        context: of the session.
        make_learner: makes its learner.
        on_closed: called when the session has closed.
    """

    def __init__(self, context: SessionContext, make_learner: MakeLearner, on_closed: Callable[[], object]) -> None:
        self._context = context
        self._make_learner = make_learner
        self._on_closed = on_closed
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # the task that waits may be cancelled, the thread goes on
        self._thread: threading.Thread | None = None

    async def begin(self, obs: Any, info: dict[str, Any]) -> Any:
        """Begin an episode; return the learner's action.

        Raises:
            SessionClosedError: the session was closed, or its learner has failed.
        """
        return await self._exchange(Message(obs, info=info, opening=True))

    async def step(self, obs: Any, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        """Hand over the result of the action answered last; return the next one, or None at the end of an episode.

        Raises:
            SessionClosedError: the session was closed, or its learner has failed.
        """
        return await self._exchange(Message(obs, reward, terminated, truncated, info))

    async def _exchange(self, message: Message) -> Any:
        channel = self._context.channel
        answer = channel.post(message)
        if self._thread is None:
            self._start()
        action = await asyncio.wrap_future(answer)
        if action is not None and not is_finite(action):
            reason = f"the policy of this session returned an action that is not finite. {AGAIN}"
            channel.close(reason)
            raise SessionClosedError(reason)
        return action

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"learner {self._context.session_id}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:  # the system's limit of threads
            self._context.channel.close(f"no learner can be started now: {exc}. Log in again later.")
        else:
            self._thread = thread

    async def close(self) -> None:
        """End the session; return when its learner has saved and its thread has ended."""
        self._context.channel.close()
        if self._thread is not None:
            await asyncio.wrap_future(self._ended)
            self._thread.join()
        self._on_closed()

    def _run(self) -> None:
        context = self._context
        # Of this thread: learners share the cores by running beside each other.
        torch.set_num_threads(1)
        try:
            learner = self._make_learner(context)
            learner.load()
            learner.run()
        except SessionClosedError:
            pass
        except TmrlError as exc:
            context.log_failure(f"the learner of session {context.session_id} has failed: {exc}")
            context.channel.close(f"the learner of this session has failed: {str(exc).rstrip('.')}. {AGAIN}")
        except Exception:  # of a learner in code of one's own: it must end its own session only
            context.log_failure(f"the learner of session {context.session_id} has failed:\n{traceback.format_exc()}")
            context.channel.close(f"the learner of this session has failed, see the gateway's log. {AGAIN}")
        finally:
            context.board.withdraw(context.session_id)
            self._ended.set_result(None)
