"""The learner of one session, with an off-policy agent of the project."""

# Theory of operation
#
# A learner plays one client session in a thread of its own: it receives messages from a `Channel`, answers with
# actions, and learns from the results. It knows nothing of HTTP, of the event loop and of other sessions, except for
# the policies that these publish on the `Board`.
#
# Order of one message: record it, answer, and only then update, so that updates run while the client
# takes its step. The end of an episode needs no answer. `updates_per_step` is a rate: with 0.5, `_updates_due` reaches
# 1.0 at every second step, and the rest stays for the next one. Every `PUBLISH_EVERY` updates the board gets a copy of
# the policy; copies never change, so advisors read them without a lock. A session without updates advises no other.
#
# State. The thread of `run` owns the agent, the memory, the recorder and the generator. Only the channel, the board and
# the saves are shared, and each has its own lock.
#
# Saves. A save has the state of the agent (networks, optimizers, counters) and the newest transitions, at most
# `SAVED_MEMORY_BYTES`. After a login the learner acts by the loaded policy at once, and updates at once if the saved
# transitions are at least `start_training`; with its own few samples alone it would unlearn. Two sessions from one save
# are two branches: the one with more steps is the newest.
#
# Failures. Saved transitions may be bad or of another structure. The first update with them that is not finite, or the
# first sample that does not fit, drops them with a warning (`_drop_memory`); otherwise one bad save would end each
# session that loads it. Any other failure ends the session without a save of the present state, and the other sessions
# go on. A save that cannot be written is logged, and tried again after `save_every_steps`.
#
# Rejected: a process for each learner (each would load torch, 200 MB); averaging the weights of sessions (networks that
# were trained apart have no common coordinates).

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.errors import CheckpointError, SampleRefusedError, SessionClosedError, TmrlError
from tmrl_core.gateway.advice.advisors import Board
from tmrl_core.gateway.advice.policies import advised_policy
from tmrl_core.gateway.advice.saves import Save, Saves
from tmrl_core.gateway.settings import GatewayAgentSection
from tmrl_core.gateway.shepherd import Channel, Message
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.checkpoints.capture import Captured, capture_part
from tmrl_core.training.checkpoints.restore import decoded, restore_part
from tmrl_core.training.constructor_settings import constructed_settings
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.updates.skipped_updates import SKIPPED, BadUpdates

logger = logging.getLogger(__name__)

PUBLISH_EVERY = 100
"""Updates between two policies with which a session advises others."""

SAVED_MEMORY_BYTES = 8 << 20
"""Limit of the transitions in a save, the newest ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionContext:
    """The surroundings of a session's learner.

    Attributes:
        session_id: public id of the session.
        channel: to the client.
        board: policies of the agent's running sessions.
        saves: of the agent.
        settings: of the agent.
        observation_space: of the client's observations.
        action_space: of the client's actions.
        seed: of the learner's own random numbers; None: from the operating system.
        max_bad_updates: updates in a row that may be skipped, as they were not finite.
        log_failure: logs a failure of the session.
    """

    session_id: str
    channel: Channel
    board: Board[Any]
    saves: Saves
    settings: GatewayAgentSection
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    seed: int | None = None
    max_bad_updates: int = 10
    log_failure: Callable[[str], None] = logger.error


class Learner:
    """Acts and learns in one session, in a thread of its own, with a replay memory and a step recorder.

    Updates follow the answer, while the client takes its step.

    Args:
        context: of the session.
        make_agent: `(observation_space=, action_space=, device=)` makes an `OffPolicyAgent`.

    Attributes:
        algorithm: name of the algorithm, which alone reads its saves.
        steps: environment steps learned from, those before the loaded save included.
    """

    def __init__(self, context: SessionContext, make_agent: Callable[..., Any]) -> None:
        self.context = context
        self.steps = 0
        self._saved_at = 0
        settings = context.settings
        spaces = {"observation_space": context.observation_space, "action_space": context.action_space}
        self.agent = make_agent(**spaces, device="cpu")
        self.algorithm: str = type(self.agent).type_id
        self._constructed = constructed_settings(self.agent, "agent")
        self._policy = advised_policy(self.agent.get_actor(), settings.temperature)
        self._rng = np.random.default_rng(context.seed)
        self._recorder = StepRecorder(Buffer())
        self._memory = self._make_memory()
        self._memory_is_restored = False
        self._bad = BadUpdates(context.max_bad_updates)
        self._updates_due = 0.0
        self._published = 0

    def run(self) -> None:
        """Play until the session closes, and save then.

        Raises:
            TmrlError: the learner has failed; nothing was saved after the failure.
        """
        try:
            self._play()
        except SessionClosedError:
            if self.steps > self._saved_at:
                self.save()

    def load(self) -> None:
        """Continue from the newest save; without one, from scratch.

        Raises:
            CheckpointError: it belongs to other settings.
        """
        save = self.context.saves.newest()
        if save is None:
            return
        try:
            if save.algorithm != self.algorithm:
                raise CheckpointError(f"it is of {save.algorithm}, and the agent learns with {self.algorithm}")
            self._restore(save.tree, save.arrays)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, TmrlError) as exc:
            raise CheckpointError(
                f"the newest save in {self.context.saves.folder} does not fit: {exc}. Restore the settings, or move "
                "the saves to another folder."
            ) from exc
        self.steps = self._saved_at = save.steps

    def save(self) -> None:
        """Write a save. A failure is logged: the session goes on, and the next save may succeed."""
        captured = self._capture()
        context = self.context
        self._saved_at = self.steps
        try:
            context.saves.write(
                Save(self.algorithm, self.steps, context.session_id, {"learner": captured.tree}, captured.arrays)
            )
        except OSError as exc:
            context.log_failure(
                f"session {context.session_id} cannot be saved in {context.saves.folder}: {exc}. It goes on, and is "
                f"saved again after {context.settings.save_every_steps} steps."
            )

    def _make_memory(self) -> ReplayMemory:
        settings = self.context.settings
        memory = ReplayMemory(
            "cpu", memory_size=settings.capacity, batch_size=settings.batch_size, seed=self.context.seed
        )
        memory.expect_agent(self.agent)
        return memory

    @property
    def updates(self) -> int:
        """Updates of the agent, those before the loaded save included."""
        return int(self.agent.updates_asked)

    def _play(self) -> None:
        """Answer and learn from the client until the channel raises `SessionClosedError`."""
        context, learns = self.context, self.context.settings.enable_learning
        action: Any = None
        if learns and self.updates:
            self._publish()
        while True:
            message = context.channel.receive()
            if learns:
                self._record(message, action)
            if not message.ends:
                action = self.act(message.obs)
                context.channel.answer(action)
            if learns and not message.opening:
                self._learn()
                if self.steps - self._saved_at >= context.settings.save_every_steps:
                    self.save()

    def act(self, obs: Any) -> Any:
        """Return an action for an observation, with the advice of other sessions unless it learns nothing."""
        actor = self.agent.get_actor()
        context = self.context
        if not context.settings.enable_learning:
            return actor.act_(obs, test=True)
        advisors = context.board.advisors(context.session_id, context.settings.max_advisors)
        return self._policy.act(obs, advisors, self._rng)

    def _record(self, message: Message, action: Any) -> None:
        # Infos are the client's business, and no learner reads them.
        if message.opening:
            self._recorder.begin(message.obs, {})
            return
        self._recorder.step(action, message.obs, message.reward, message.terminated, message.truncated, {})
        self.steps += 1

    def _learn(self) -> None:
        for chunk in self._recorder.take()[0]:
            self._append(chunk)
        settings = self.context.settings
        if not len(self._memory) or len(self._memory) < settings.start_training:
            return
        self._updates_due += settings.updates_per_step
        while self._updates_due >= 1.0:
            self._updates_due -= 1.0
            batch = self._memory.sample()
            metrics = self.agent.train(batch)
            if self._memory_is_restored and bool(metrics.get(SKIPPED)):
                self._drop_memory("an update with them was not finite")
                return
            self._bad.note(self.updates, metrics, batch)
        if self.updates >= self._published + PUBLISH_EVERY:
            self._publish()

    def _append(self, chunk: Chunk) -> None:
        try:
            self._memory.append_chunk(chunk)
        except SampleRefusedError as exc:
            if not self._memory_is_restored:
                raise
            self._drop_memory(str(exc))
            self._memory.append_chunk(chunk)

    def _drop_memory(self, reason: str) -> None:
        """Continue without the transitions of the save. Otherwise bad ones would end each session that loads them."""
        logger.warning("session %s: the transitions of its save are dropped: %s", self.context.session_id, reason)
        self._memory = self._make_memory()
        self._memory_is_restored = False

    def _publish(self) -> None:
        self._published = self.updates
        self.context.board.publish(self.context.session_id, self.updates, self._policy.snapshot())

    def _capture(self) -> Captured:
        """Return a copy of the learner's state."""
        parts = {"agent": self.agent, "constructed": self._constructed, "memory": self._newest_transitions()}
        captured = {name: capture_part(part, name) for name, part in parts.items()}
        arrays = {name: array for part in captured.values() for name, array in part.arrays.items()}
        return Captured({name: part.tree for name, part in captured.items()}, arrays)

    def _newest_transitions(self) -> dict[str, Any] | None:
        """Return the layout of the memory, and the newest rows of each of its arrays; None: it is empty."""
        memory = self._memory
        if memory.layout is None:
            return None
        row_bytes = sum(ring[0].nbytes for ring in memory.row_arrays)
        count = min(len(memory), SAVED_MEMORY_BYTES // row_bytes)
        places = np.arange(memory.written - count, memory.written) % memory.memory_size
        saved = {"layout": memory.layout.describe(), "rows": [ring[places] for ring in memory.row_arrays]}
        # An agent with values between fixed bounds would otherwise see rewards of another size.
        return saved if memory.returns is None else {**saved, "returns": memory.returns.state()}

    def _restore(self, tree: Any, arrays: dict[str, np.ndarray]) -> None:
        """Continue from a state."""
        state = tree["learner"]
        restore_part(self.agent, "agent", state["agent"], arrays, decoded(state["constructed"], arrays))
        saved = decoded(state["memory"], arrays)
        if saved is not None and self.context.settings.enable_learning:
            memory = self._memory
            rows = [values[-memory.memory_size :] for values in saved["rows"]]
            state = {**memory.state_dict(), "layout": saved["layout"], "written": len(rows[0])}
            if "returns" in saved:
                state["returns"] = saved["returns"]
            memory.load_state_dict(state, rows)
            self._memory_is_restored = True
