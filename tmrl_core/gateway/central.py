"""The central agent: all of its sessions feed one Trainer through the Server, and act with its latest policy."""

# Theory of operation
#
# This file turns the messages of many client sessions into samples of one stream, and chooses their actions. It knows
# nothing of HTTP, JSON, session keys or limits of clients: `client_sessions.py` and `client_session.py` have checked a
# message before a `CentralPlayer` gets it.
#
# State and threads. The event loop's thread owns everything here: the recorder and the acting state of each player, the
# shared policy, and the tables of unsent and due samples. A step of a session never suspends, so one request is
# complete before the next one begins, and no lock is needed. The sender thread gets only `_outbox` and the link, and
# only between `run_in_executor` and its end, during which the event loop does not touch them. `SharedPolicy` has two
# actors: the sender thread loads new weights into the idle one, and the event loop swaps the two between two steps. An
# answer therefore waits for neither samples nor weights.
#
# One exchange, every `EXCHANGE_S`:
#
#     _gather    event loop: takes the samples that are due from the players' recorders into the outbox
#     _exchange  sender thread: checks the link, sends the outbox (may block), loads a newer policy into the idle actor
#     adopt      event loop: the loaded actor becomes the acting one
#
# If more samples are due than one exchange takes, the next exchange follows at once.
#
# One stream, many sessions. The trainer connects a chunk only with the one before it in its stream, and chunks of
# several sessions alternate. A chunk that continues an episode after another session's chunk therefore begins with the
# last row that was sent. Example: session A has sent rows 0 to 99 of its episode, then B sends, then A has rows 100 to
# 199. A's next chunk has the rows 99 to 199; the memory makes the transition 99 -> 100 from it, and counts 101 samples.
# Without B between them, row 99 is left out (`_latest`). Transitions over n steps and stacks of frames do not extend
# over such a boundary: up to n - 1 transitions before it span fewer steps, with the discount of their own. With 4 and
# 16 sessions, `send_every` 100 and n = 10 this concerned 5 to 7 % of all transitions; with `send_every` 1000, 0 to 3 %.
# Rejected: a stream for each session, which would cost thousands of streams in Server and trainer.
#
# Held steps. A step is recorded when the next message shows that it was not the last one, because a session that
# expires truncates its episode at the last observation that arrived. Up to 16 steps are held (`held_steps`) and
# recorded one after another, which takes a third of the time of single steps between the messages of other clients.
# Each held step keeps the version that chose its action: another version may arrive before it is recorded.
#
# Fairness and limits. Due samples leave in turns of the API keys by bytes, so a key with 500 sessions sends no more
# than one with a single session while the link is slow. All unsent samples share one limit (`unsent_bytes`). Beyond it,
# the largest session of the key with the most loses its own, counted in `samples_dropped`, so a flood costs its sender
# and nobody else.
#
# Failures. An action that is not finite is answered with an error; the session is as it was before the request, which
# may be repeated. A failed exchange drops the outbox, counted, and is logged once per message; sessions go on with the
# policy that they have. After the trainer has finished, episodes are played deterministically and are not recorded,
# until a trainer with another incarnation publishes a policy.
#
# Rejected: a thread for each session (200 threads compete for one interpreter), and a worker process for each agent
# behind the gateway (one more hop for each step).

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heapify, heappop, heapreplace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.shared_policy import SharedPolicy
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.errors import ObservationError, TmrlError
from tmrl_core.gateway.evaluations import Assignment, Evaluations
from tmrl_core.gateway.first_action import try_action
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.samples import Buffer

logger = logging.getLogger(__name__)

EXCHANGE_S = 0.05
"""Seconds between two exchanges with the Server."""
EXCHANGE_BYTES = 4 << 20
"""Bytes of samples that one exchange takes; the last session's go whole."""
_INFO_FACTOR = 20
"""Bytes that an info of small Python objects, such as empty lists, occupies for each byte of its JSON."""
_HELD_STEPS = 16
_HELD_BYTES = 16_384
_ROW_BYTES = 64
"""Bytes of a row besides its observation and info."""
_RECORD_BYTES = 1000
"""Bytes of the record of an episode."""


class _Held(NamedTuple):
    """A step that is not recorded yet. The latest one waits for the next message: a session's end truncates it."""

    action: Any
    obs: Any
    reward: float
    info: dict[str, Any]
    extras: dict[str, Any] | None
    version: Version


class CentralAgent:
    """An agent that one Trainer trains for all sessions.

    Args:
        name: of the agent in the configuration.
        observation_space, action_space: of the clients' environments.
        policy: acts in all sessions.
        link: to the Server.
        label: of the gateway in messages and in the Server's status; beginning of the labels of the sessions.
        send_every: send the samples of a session after so many steps, also within an episode.
        learning: False: sessions act deterministically, and nothing is recorded.
        obs_preprocessor: applied to each observation before the policy and the recorder get it.
        make_recorder: `(buffer, name=, numbers=)` makes the recorder of a session.
        unsent_bytes: most bytes of samples that wait in all sessions together. Beyond it the API key with the most
            loses those of its largest session, counted.
        files: keep the policy.
        drain_timeout_s: longest wait for room in the link's queue at the end, in seconds.
        on_close: called at the very end.

    Attributes:
        samples_dropped: number of samples that were dropped before the link got them.
        policy_failures: number of actions that were not finite; none of them was answered.
    """

    mode = "central"
    saves_folder: Path | None = None

    def __init__(
        self,
        name: str,
        *,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        policy: SharedPolicy,
        link: RolloutLink,
        label: str = "gateway",
        send_every: int = 100,
        learning: bool = True,
        obs_preprocessor: Callable[[Any], Any] | None = None,
        make_recorder: Callable[..., StepRecorder] = StepRecorder,
        unsent_bytes: int = 64 << 20,
        files: PolicyFiles | None = None,
        drain_timeout_s: float = 10.0,
        on_close: Callable[[], Any] = lambda: None,
    ) -> None:
        self.name = name
        self.observation_space = observation_space
        self.action_space = action_space
        self.policy = policy
        self.link = link
        self.label = label
        self.learning = learning
        self.send_every = send_every
        self.obs_preprocessor = obs_preprocessor
        self.row_bytes = _space_bytes(observation_space) + _ROW_BYTES
        self.held_steps = max(1, min(send_every, _HELD_STEPS, _HELD_BYTES // self.row_bytes))
        """Steps without an info that a session holds before it records them."""
        self.evaluations = Evaluations()
        self.samples_dropped = 0
        self.policy_failures = 0
        self._make_recorder = partial(make_recorder, numbers=itertools.count())
        self._unsent_limit = unsent_bytes
        self._unsent_bytes = 0
        self._unsent: dict[CentralPlayer, int] = {}
        self._due: dict[CentralPlayer, None] = {}
        self._turns: dict[str, int] = {}
        """Turn of the next samples of each API key that has sent lately: bytes sent for it, without unused turns."""
        self._turn = 0
        self._latest: CentralPlayer | None = None
        # The event loop's thread and the sender thread use it in turn, never at the same time.
        self._outbox = StepRecorder(Buffer(None), name=label)
        self._uplink = Uplink(link, self._outbox, policy, files=files, drain_timeout_s=drain_timeout_s)
        self._on_close = on_close
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="tmrl-gateway-sender")
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure = ""
        self._finished_incarnation: int | None = None
        """Incarnation of the trainer that has ended the run."""

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open(self, session_id: str, key_id: str = "") -> CentralPlayer:
        """Return the player of a new session."""
        return CentralPlayer(self, self._make_recorder(Buffer(None), name=f"{self.label}/{session_id}"), key_id)

    def assign(self) -> tuple[bool, Assignment | None]:
        """Return True if the next episode is recorded, and the evaluation that it belongs to."""
        if not self.learning or self._trainer_has_finished():
            return False, None
        return True, self.evaluations.take(self.link.directive.evaluation, self.policy.version, time.monotonic())

    def _trainer_has_finished(self) -> bool:
        """Return True until a trainer with another incarnation publishes a policy. The directive itself stays."""
        if not self.link.finished:
            self._finished_incarnation = None
            return False
        if self._finished_incarnation is None:
            self._finished_incarnation = self.policy.version[0]
        return self._finished_incarnation == self.policy.version[0]

    def note_policy_failure(self, failure: TmrlError) -> None:
        """Count an action that was not finite, and log the first."""
        if not self.policy_failures:
            logger.error("agent %s cannot answer its clients until a better policy arrives: %s", self.name, failure)
        self.policy_failures += 1

    def note_unsent(self, player: CentralPlayer, size: int) -> None:
        """Note a row that a session has recorded, and keep the limit of all of them."""
        self._unsent[player] = self._unsent.get(player, 0) + size
        self._unsent_bytes += size
        while self._unsent_bytes > self._unsent_limit and self._unsent:
            largest = self._largest()
            chunks, records = largest.recorder.take()
            largest.repeats = False
            largest.recorder.put_back([], records[-10:])
            if not self.samples_dropped:
                logger.warning(
                    "agent %s drops samples, because the link takes them more slowly than clients send", self.name
                )
            self.samples_dropped += sum(chunk.rows for chunk in chunks)
            self._forget(largest)

    def _largest(self) -> CentralPlayer:
        """Return the session with the most unsent bytes, of the API key with the most."""
        of_keys: Counter[str] = Counter()
        for player, size in self._unsent.items():
            of_keys[player.key_id] += size
        return max(self._unsent, key=lambda player: (of_keys[player.key_id], self._unsent[player]))

    def note_due(self, player: CentralPlayer) -> None:
        """Send the samples of a session with the next exchange."""
        self._due[player] = None

    def _forget(self, player: CentralPlayer) -> None:
        self._unsent_bytes -= self._unsent.pop(player, 0)

    # --- the exchange with the Server ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to exchange samples and policies with the Server.

        Raises:
            ConfigError: the policy cannot act.
        """
        try_action(self.name, self.observation_space, self.action_space, self._first_action)
        self._task = asyncio.create_task(self._exchange_all(), name=f"gateway-{self.name}")
        self._task.add_done_callback(self._note_end)

    def _first_action(self, obs: Any) -> Any:
        self.policy.reset()
        return self.policy.decide(obs if self.obs_preprocessor is None else self.obs_preprocessor(obs), True, True)[0]

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("agent %s learns nothing any more: its exchange failed", self.name, exc_info=failure)

    async def _exchange_all(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            self._gather(EXCHANGE_BYTES)
            try:
                await loop.run_in_executor(self._sender, self._exchange)
            except TmrlError as exc:
                self._note_failure(exc)
            if self.policy.version != self._outbox.version:
                self.policy.adopt(self._outbox.version)
            if self._due:
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), EXCHANGE_S)

    def _exchange(self) -> None:
        self.link.check()
        self._uplink.send()
        self._uplink.update_policy(verbose=False)

    def _note_failure(self, failure: TmrlError) -> None:
        self.samples_dropped += sum(chunk.rows for chunk in self._outbox.take()[0])
        if str(failure) != self._failure:
            self._failure = str(failure)
            logger.error("agent %s learns nothing, its sessions act with the latest policy: %s", self.name, failure)

    def _gather(self, most_bytes: float) -> None:
        """Take samples that are due, about `most_bytes` of them, in turns of the API keys by bytes.

        While the link is slower than the clients, each key thus sends as much as any other that has samples.
        """
        due: dict[str, deque[CentralPlayer]] = {}
        for player in self._due:
            due.setdefault(player.key_id, deque()).append(player)
        # Start-time fair queueing: a key that had nothing to send has saved nothing up.
        turns = [(max(self._turns.get(key, 0), self._turn), place, key) for place, key in enumerate(due)]
        heapify(turns)
        ahead = {key: turn for key, turn in self._turns.items() if turn > self._turn}
        self._turns = {**ahead, **{key: turn for turn, _, key in turns}}
        taken = 0
        while turns and taken < most_bytes:
            self._turn, place, key = turns[0]
            player = due[key].popleft()
            del self._due[player]
            size = max(1, self._unsent.get(player, 0))
            taken += size
            self._turns[key] += size
            if due[key]:
                heapreplace(turns, (self._turns[key], place, key))
            else:
                heappop(turns)
            chunks, records = player.recorder.take(repeat_last=True)
            # The repeated row connects an episode where samples of another session have been sent in between.
            if player.repeats and (self._latest is player or len(chunks) == 1):
                del chunks[0]
            player.repeats = len(player.recorder.buffer) > 0
            if chunks:
                self._latest = player
            self._outbox.put_back(chunks, records)
            self._forget(player)

    async def close(self) -> None:
        """Send what is left, wait for acknowledgements up to the drain timeout, and close the link."""
        self._closing.set()
        self._uplink.stop()
        if self._task is not None:
            await self._task
        self._gather(math.inf)
        try:
            await asyncio.get_running_loop().run_in_executor(self._sender, self._uplink.close)
        finally:
            if self.samples_dropped:
                logger.warning(
                    "agent %s: %d samples were dropped before they were sent", self.name, self.samples_dropped
                )
            self._sender.shutdown(wait=False)
            self._on_close()


class CentralPlayer:
    """One session of a central agent: recorder, acting state, and the action that its client has yet to answer.

    Args:
        agent: of the session.
        recorder: of the session.
        key_id: of the API key that opened it.

    Attributes:
        repeats: True: the recorder's first chunk is a row that was sent before.
    """

    def __init__(self, agent: CentralAgent, recorder: StepRecorder, key_id: str) -> None:
        self.recorder = recorder
        self.key_id = key_id
        self.repeats = False
        self._agent = agent
        self._carried = agent.policy.carried
        self._action: Any = None
        self._extras: dict[str, Any] | None = None
        self._version: Version = (0, 0)
        self._held: list[_Held] = []
        self._part: Assignment | None = None
        """Part of an evaluation that the open episode is; None: its steps are samples."""
        self._explores = False

    async def begin(self, obs: Any, info: dict[str, Any]) -> Any:
        """Begin an episode with the observation of a reset; return the action for it."""
        obs = self._prepared(obs)
        action, extras, assigned = self._decide_anew(obs)
        self._end(aborted=True)
        self._open(obs, info, *assigned)
        return self._answer(action, extras)

    async def step(self, obs: Any, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        """Record the result of the pending action; return the next action, or None if a flag is set."""
        obs = self._prepared(obs)
        episode, held = self.recorder.episode, self._held
        records = episode is not None and episode.open
        result = _Held(self._action, obs, reward, info, self._extras, self._version)
        if terminated or truncated:
            self._finish(result, terminated, truncated)
            return None
        if records and episode is not None and episode.steps + len(held) + 1 >= episode.limit:
            # The client does not know of this end: its observation is also the reset of the next episode.
            action, extras, assigned = self._decide_anew(obs)
            self._finish(result, False, True)
            self._open(obs, {}, *assigned)
            return self._answer(action, extras)
        action, extras = self._decide(obs, self._explores)
        if records:
            if info or len(held) >= self._agent.held_steps:
                self._record_held()
            held.append(result)
        return self._answer(action, extras)

    async def close(self) -> None:
        """End the session. An open episode is kept as truncated."""
        self._end(aborted=False)
        self._agent.note_due(self)

    # --- acting -------------------------------------------------------------------------------------------------------

    def _prepared(self, obs: Any) -> Any:
        preprocess = self._agent.obs_preprocessor
        return obs if preprocess is None else preprocess(obs)

    def _decide(self, obs: Any, explores: bool, anew: bool = False) -> tuple[Any, dict[str, Any] | None]:
        """Choose an action. After a failure the session is as before, so that the client may repeat its request."""
        policy = self._agent.policy
        if anew:
            policy.reset()
        else:
            policy.carried = self._carried
        try:
            found = policy.decide(obs, not (explores and policy.explores), explores)
        except TmrlError as exc:
            if not isinstance(exc, ObservationError):  # the client's fault, and not the policy's
                self._agent.note_policy_failure(exc)
            raise
        self._carried, self._explores = policy.carried, explores
        return found

    def _decide_anew(self, obs: Any) -> tuple[Any, dict[str, Any] | None, tuple[bool, Assignment | None]]:
        """Choose the first action of an episode, and decide of what kind it is."""
        records, part = assigned = self._agent.assign()
        try:
            return *self._decide(obs, records and part is None, anew=True), assigned
        except TmrlError:
            if part is not None:
                self._agent.evaluations.give_back(part)
            raise

    def _answer(self, action: Any, extras: dict[str, Any] | None) -> Any:
        self._action, self._extras, self._version = action, extras, self._agent.policy.version
        return action

    # --- recording ----------------------------------------------------------------------------------------------------

    def _open(self, obs: Any, info: dict[str, Any], records: bool, part: Assignment | None) -> None:
        if not records:
            return
        self._part = part
        collect = part is None
        recorder = self.recorder
        recorder.set_version(self._agent.policy.version)
        episode = recorder.begin(
            obs,
            info,
            collect=collect,
            seed=None if part is None else part.seed,
            extras=self._agent.policy.reset_extras() if collect else None,
        )
        if part is not None:
            episode.evaluation = part.evaluation
        else:
            self._agent.note_unsent(self, self._agent.row_bytes)

    def _record_held(self) -> None:
        """Record all steps that are held. One after another takes a third of the time that each would take alone."""
        while self._held:
            self._record(self._held.pop(0), False, False)
        if len(self.recorder.buffer) >= self._agent.send_every:
            self._agent.note_due(self)

    def _record(self, step: _Held, terminated: bool, truncated: bool) -> None:
        recorder = self.recorder
        action, obs, reward, info, extras, version = step
        if recorder.version != version:
            recorder.set_version(version)
        recorder.step(action, obs, reward, terminated, truncated, info, extras, test=self._part is not None)
        if self._part is None:
            size = self._agent.row_bytes
            if info:
                size += _INFO_FACTOR * len(msgspec.json.encode(info))
            self._agent.note_unsent(self, size)

    def _finish(self, last: _Held, terminated: bool, truncated: bool) -> None:
        """Record the last step of an episode that ends in order, if it is recorded."""
        self._record_held()
        if not self.recorder.recording:
            return
        self._record(last, terminated, truncated)
        if self._part is not None:
            self._agent.evaluations.finished(self._part)
        self._part = None
        self._agent.note_unsent(self, _RECORD_BYTES)
        self._agent.note_due(self)

    def _end(self, aborted: bool) -> None:
        """End the open episode where it is.

        Args:
            aborted: the client has begun another one. False: the session ends, and the last step is truncated.
        """
        last = self._held.pop() if self._held else None
        self._record_held()
        recorder = self.recorder
        if not recorder.recording:
            return
        if last is not None and self._part is None:
            self._record(last, False, not aborted)
        if self._part is not None:
            self._agent.evaluations.give_back(self._part)
        # An episode without a step, or of an evaluation, leaves no record.
        recorder.end(record=recorder.episode is not None and recorder.episode.steps > 0)
        self._part = None
        self._agent.note_due(self)


def _space_bytes(space: gymnasium.Space[Any]) -> int:
    """Return the size of an observation in a column."""
    if isinstance(space, spaces.Dict):
        return sum(map(_space_bytes, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(_space_bytes, space.spaces))
    return math.prod(space.shape or ()) * np.dtype(space.dtype or np.float64).itemsize
