"""A takeover, step by step: the person's action overrides the policy's, and the executed one is recorded."""

# Theory of operation
#
# One step with a person, in the order of the calls of `EnvironmentLoop`:
#
#     decide    after the policy has acted: asks the source; the person's action replaces the policy's
#     outcome   after env.step: flags of the person's events; what the environment says of the executed action
#     record    the row: the executed action, with the extras `is_intervention` and `policy_action`
#
# What was *executed* is what a learner must see. The action that left this file is not always it: a robot's driver
# clips, and some environments let the person act inside (gym-hil). So
# the environment has the last word: `info[executed]`, `teleop_action` by default, replaces the recorded action, and
# `info["is_intervention"]` sets the flag, `info["rerecord_episode"]` discards. Recorded infos leave these keys out. An
# info's `success` is not taken for the person's: many environments report it at each step, beside an end of their own.
#
# The policy acts at every step, also while the person does. Its recurrent state and its generator therefore continue
# as if it had been alone, a noise that is held over several steps (`actor/policies/numpy/residual.py`) is held on, and
# `policy_action` tells at each step what it would have done. A taken-over step carries the version of that policy: its
# lag is that of the steps around it.
#
# Events end episodes here, since only the person sees that a real robot has succeeded:
#
#     success            terminated, reward `success_reward`, info is_success True
#     failure            terminated, the environment's reward, info is_success False
#     terminate_episode  truncated: no judgement, so the last state keeps its value
#     rerecord_episode   the episode is discarded
#
# With several in one step, the last of this list that is present wins, except that success goes before failure.
#
# Discarding is simple where an episode is sent at its end, the default (`worker.send_every: 0`): its rows are still in
# the Buffer, are dropped there, and no record of the episode is left. Rows that were sent before, with `send_every` or
# in an earlier round of lockstep, stay in the memory; a warning says how many. Rejected: a mark that follows them. A
# memory holds transitions without the ids of their episodes, and each of its rows is valid by construction, so a mark
# would need an index of open episodes and samplers that skip rows, for a case that one setting avoids.
#
# An action of the person that cannot be executed (another shape, NaN) ends the worker, after its safe action, and so
# does a device that fails: if the person cannot act any more, the policy must not either. A person's action beyond a
# Box is moved to its bounds: sticks are calibrated badly.
#
# In test episodes and evaluations the person can act too, for safety. Such an episode says little about the policy, so
# its record has the rate of interventions, and a warning follows.

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.interventions import (
    EVENTS,
    FAILURE,
    IS_INTERVENTION,
    KEY,
    POLICY_ACTION,
    RERECORD,
    SUCCESS,
    TERMINATE,
    InterventionSource,
)
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.errors import ConfigError, TakeoverError
from tmrl_core.samples.finite import is_finite
from tmrl_core.samples.segments import INTERVENTION_RATE, IS_SUCCESS, TAKEOVERS
from tmrl_core.storage import FolderLock

logger = logging.getLogger(__name__)

Result = tuple[Any, Any, Any, Any, Any]
"""Result of a step of an environment."""


class Takeover:
    """Let a person act in place of the policy, and record what was executed.

    Args:
        source: the person.
        action_space: a Box, Discrete, MultiDiscrete or MultiBinary.
        recorder: records the steps.
        executed: key of the environment's infos with the executed action; an info without it: the action that was
            passed to the environment.
        success_reward: reward of a step that the person marks as a success.
        held: the device's lock, released with it.

    Raises:
        ConfigError: the action space is of another kind.
    """

    def __init__(
        self,
        source: InterventionSource,
        action_space: Any,
        recorder: StepRecorder,
        *,
        executed: str = "teleop_action",
        success_reward: float = 1.0,
        held: FolderLock | None = None,
    ) -> None:
        if not isinstance(action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ConfigError(
                f"{KEY}: the action space is {action_space}; allowed: Box, Discrete, MultiDiscrete, MultiBinary"
            )
        self.source = source
        self._held = held
        self._space = action_space
        self._bounds = (action_space.low, action_space.high) if isinstance(action_space, spaces.Box) else None
        self._recorder = recorder
        self._executed = executed
        self._own_keys = frozenset({executed, IS_INTERVENTION, RERECORD})
        self._success_reward = success_reward
        dtype = np.int64 if isinstance(action_space, spaces.Discrete) else action_space.dtype
        self._reset_extras = {IS_INTERVENTION: np.False_, POLICY_ACTION: np.zeros(action_space.shape or (), dtype)}
        self._extras: dict[str, Any] = {}
        self._says_executed: Any = None
        self._discarding = self._discarded = False
        self._active = False
        self._warned = False
        self._steps = self._taken = self._takeovers = 0
        recorder.own_metrics = self._metrics

    # --- the steps of an episode --------------------------------------------------------------------------------------

    def begin(self, extras: Mapping[str, Any] | None) -> dict[str, Any]:
        """Begin an episode. Return the extras of its reset, those of the policy included."""
        self._call(self.source.begin_episode)
        self._discarding = self._active = False
        self._extras, self._says_executed = {}, None
        self._steps = self._taken = self._takeovers = 0
        return {**(extras or {}), **self._reset_extras}

    def decide(self, obs: Any, action: Any, extras: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the action to execute, and the extras to store with it; an `Override`.

        Raises:
            TakeoverError: the source fails, or returns something that is no action.
        """
        person = self._call(self.source.poll, obs)
        self._extras = {**extras, IS_INTERVENTION: np.bool_(person is not None), POLICY_ACTION: np.asarray(action)}
        return (action if person is None else self._person_action(person, action)), self._extras

    def outcome(self, result: Result) -> Result:
        """Return the result of the environment's step with the flags of the person's events.

        Raises:
            TakeoverError: the source fails or reports an unknown event, or the executed action is no action.
        """
        obs, reward, terminated, truncated, info = result
        said = set(self._call(self.source.events))
        if not said.issubset(EVENTS):
            raise TakeoverError(f"{KEY}: the source reports {sorted(map(str, said))}; allowed: {', '.join(EVENTS)}")
        if isinstance(info, Mapping):
            if info.get(RERECORD):
                said.add(RERECORD)
            if self._extras and info.get(IS_INTERVENTION):
                self._extras[IS_INTERVENTION] = np.True_
            self._says_executed = info.get(self._executed)
            if not self._own_keys.isdisjoint(info):
                info = {key: value for key, value in info.items() if key not in self._own_keys}
        if RERECORD in said:
            self._discarding = True
        elif TERMINATE in said and not terminated and not said & {SUCCESS, FAILURE}:
            truncated = True
        elif said & {SUCCESS, FAILURE}:
            terminated, truncated = True, False
            reward = self._success_reward if SUCCESS in said else reward
            info = {**info, IS_SUCCESS: SUCCESS in said}
        return obs, reward, terminated, truncated, info

    def record(
        self,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict[str, Any],
        extras: dict[str, Any] | None = None,
        collect: bool | None = None,
        test: bool = True,
    ) -> Any:
        """Record one step as `StepRecorder.step` does, with the executed action; or discard its episode."""
        if self._discarding:
            return self._discard()
        if self._says_executed is not None:
            action = self._as_action(self._says_executed, action, f"info[{self._executed!r}]")
        taken = bool(self._extras.get(IS_INTERVENTION, False))
        if extras is not None:
            # With a recurrent state, these are a copy of what `decide` returned, without what the environment has said.
            extras = {**extras, IS_INTERVENTION: np.bool_(taken)}
        self._steps += 1
        self._taken += taken
        self._takeovers += taken and not self._active
        self._active = taken
        return self._recorder.step(action, obs, reward, terminated, truncated, info, extras, collect, test)

    def pop_discarded(self) -> bool:
        """Return True once after an episode was discarded."""
        discarded, self._discarded = self._discarded, False
        return discarded

    def close(self) -> None:
        """Release the device."""
        self.source.close()
        if self._held is not None:
            self._held.close()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _discard(self) -> bool:
        recorder, episode = self._recorder, self._recorder.episode
        self._discarded = True
        self._discarding = False
        dropped = recorder.drop_unsent()
        sent = 0
        if episode is not None and episode.collect:
            sent = max(0, episode.steps + 1 - dropped) if episode.sent else 0
        recorder.end(record=False)
        logger.info("worker %s: the person discarded an episode; %d samples are dropped", recorder.name, dropped)
        if sent:
            logger.warning(
                "worker %s: %d samples of the discarded episode had been sent before and stay in the memory. With "
                "worker.send_every: 0, episodes are sent at their end",
                recorder.name,
                sent,
            )
        return True

    def _metrics(self) -> dict[str, float]:
        """Return the metrics of the episode that ends."""
        episode = self._recorder.episode
        if self._taken and episode is not None and episode.evaluation is not None and not self._warned:
            self._warned = True
            logger.warning(
                "worker %s: a person took over %d of %d steps of an episode of evaluation %d, so its return is not the "
                "policy's alone",
                self._recorder.name,
                self._taken,
                self._steps,
                episode.evaluation,
            )
        return {INTERVENTION_RATE: self._taken / max(1, self._steps), TAKEOVERS: float(self._takeovers)}

    def _person_action(self, person: Any, action: Any) -> Any:
        found = self._as_action(person, action, "the source's action")
        if self._bounds is not None:
            return np.clip(found, *self._bounds)
        if not self._space.contains(found):
            raise TakeoverError(f"{KEY}: the source's action is {found!s:.100}; allowed: an action of {self._space}")
        return found

    def _as_action(self, value: Any, like: Any, what: str) -> Any:
        """Return a value in the type of the policy's action, so that one column holds both."""
        pattern = np.asarray(like)
        try:
            array = np.asarray(value, pattern.dtype)
        except (TypeError, ValueError) as exc:
            raise TakeoverError(f"{KEY}: {what} is {value!r:.100}; allowed: an action of {self._space}") from exc
        if array.shape != pattern.shape or not is_finite(array):
            raise TakeoverError(
                f"{KEY}: {what} is {value!s:.100} of shape {list(array.shape)}; allowed: finite numbers of shape "
                f"{list(pattern.shape)}, as the action space {self._space} has"
            )
        return array if isinstance(like, np.ndarray) else array[()]

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as exc:
            raise TakeoverError(
                f"{KEY}: the source failed with {type(exc).__name__}: {exc}. The worker stops, because the person "
                "cannot take over any more: connect the device again, and start the worker"
            ) from exc
