"""Environment loop: environment, policy and recorder, step by step and episode by episode.

An exception of the environment, or caused by an invalid result of it, leads to a fresh reset; errors of the policy, of
a compressor or of the codec propagate. An action that is not finite is never executed: the episode ends there, with its
samples so far (`PolicyFailedError`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

from numpy import ndarray

from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment, report_failure
from tmrl_core.actor.rollout.lateness import Lateness
from tmrl_core.actor.rollout.polling import PollingInterval
from tmrl_core.actor.rollout.recorder import Episode, StepRecorder
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.actor.rollout.step_checks import unpacking_hint
from tmrl_core.errors import EnvironmentFailedError, ObservationError, PolicyFailedError

logger = logging.getLogger(__name__)

FORGIVEN_AFTER_STEPS = 1000
"""Number of successful steps in one episode after which earlier failures no longer count as consecutive."""

Hook = Callable[[], int]
"""Called before each slice of an episode; returns the maximum number of its steps. 0: end the episode here."""


class Stepper(Protocol):
    """Protocol of single steps. `EnvironmentLoop` and `Worker` implement it."""

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on an observation and step the environment."""


class EnvironmentLoop:
    """Run a policy in an environment, and record the steps.

    Args:
        environment: the environment.
        runner: chooses the actions.
        recorder: records the steps.
        obs_preprocessor: applied to each observation before the policy and the recorder get it.
        max_failures: maximum number of consecutive failures of the environment.

    Attributes:
        stepper: object that makes the steps of `play`; None: this loop. For subclasses of `Worker` that override its
            methods.
        failures: number of failures of the environment.
        policy_failures: number of actions that were not finite; none of them was executed.
        policy_failures_in_a_row: that number since the last episode that ended in order.
        next_seed: seed of the next reset; None: the environment's generator continues.
        longest_episode_s: duration of the longest episode, in seconds.
        lateness: lateness of the steps; None: the environment has no rate.
        env_step: step of the environment, which records its lateness.
    """

    def __init__(
        self,
        environment: CheckedEnvironment,
        runner: PolicyRunner,
        recorder: StepRecorder,
        *,
        obs_preprocessor: Callable[[Any], Any] | None = None,
        max_failures: int = 3,
    ) -> None:
        self.environment = environment
        self.runner = runner
        self.recorder = recorder
        self.obs_preprocessor = obs_preprocessor
        self.max_failures = max_failures
        self.stepper: Stepper | None = None
        self.failures = 0
        self.policy_failures = 0
        self.policy_failures_in_a_row = 0
        self.next_seed: int | None = None
        self.longest_episode_s = 0.0
        self.lateness = Lateness() if environment.time_step is not None else None
        self.env_step = environment.step if self.lateness is None else self._timed_step
        self._failures_in_a_row = 0
        self._polling = PollingInterval()
        self._stopping = False
        self._obs: Any = None

    @property
    def steps_until_poll(self) -> int:
        """Number of steps to take before the link is polled again."""
        return self._polling.length

    def stop(self) -> None:
        """End `play` permanently after the present step. Safe from any thread and signal handlers."""
        self._stopping = True

    # --- single steps -------------------------------------------------------------------------------------------------

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, as `Worker.reset` documents."""
        self.recorder.end()
        seed = self.next_seed
        obs, info = self.environment.reset(seed)
        if self.lateness is not None and self.environment.time_step is not None:
            self.lateness.begin(time.perf_counter(), *self.environment.time_step)
        self.next_seed = None
        if self.obs_preprocessor is not None:
            obs = self.obs_preprocessor(obs)
        self.runner.reset()
        extras = self.runner.reset_extras() if collect_samples else None
        action = self.environment.default_action
        self.recorder.begin(obs, info, collect=collect_samples, limit=math.inf, seed=seed, action=action, extras=extras)
        self._obs = obs
        return obs, info

    def step(
        self,
        obs: Any,
        test: bool,
        collect_samples: bool,
        last_step: bool = False,
        act: Callable[..., Any] | None = None,
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on an observation and step the environment, as `Worker.step` documents.

        Args:
            obs, test, collect_samples, last_step: see `Worker.step`.
            act: replacement of the policy, as in `PolicyRunner.decide`.
        """
        action, extras = self.runner.decide(obs, test, collect_samples, act)
        new_obs, reward, terminated, truncated, info = self.env_step(action, collect_samples)
        if self.obs_preprocessor is not None:
            new_obs = self.obs_preprocessor(new_obs)
        if last_step and not terminated:
            truncated = True
        self._obs = new_obs
        truncated = self.recorder.step(
            action, new_obs, reward, terminated, truncated, info, extras, collect_samples, test
        )
        if terminated or truncated:
            self._failures_in_a_row = self.policy_failures_in_a_row = 0
        return new_obs, reward, terminated, truncated, info

    def _timed_step(self, action: Any, keep: bool = False) -> tuple[Any, Any, Any, Any, Any]:
        assert self.lateness is not None
        result = self.environment.step(action, keep)
        self.lateness.note(time.perf_counter())
        return result

    # --- whole episodes -----------------------------------------------------------------------------------------------

    def play(
        self,
        *,
        collect: bool,
        test: bool,
        limit: float,
        allow: Hook,
        seed: int | None = None,
        evaluation: int | None = None,
    ) -> bool:
        """Run one episode to its end. After a failure of the environment, run another one.

        Args:
            collect: store its samples.
            test: the actor does not explore.
            limit: number of steps after the reset at which the episode is truncated.
            allow: called before the reset and before each slice.
            seed: seed of the reset; None: `next_seed`.
            evaluation: id of the evaluation that the episode belongs to.

        Returns:
            True: the episode ended in order. False: `allow` ended it or began another one.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            PolicyFailedError: an action was not finite; the episode has been ended.
        """
        while True:
            started = time.perf_counter()
            try:
                if not allow():
                    return False
                if seed is not None:
                    self.next_seed = seed
                before = self.recorder.episode
                (self.stepper or self).reset(collect)
                episode = self.recorder.episode
                if episode is None or episode is before:
                    raise RuntimeError(f"{type(self.stepper).__name__}.reset did not call the reset that it overrides")
                episode.limit, episode.test, episode.evaluation = limit, test, evaluation
                while episode.open:
                    longest = allow()
                    if episode is not self.recorder.episode or not episode.open:
                        return False
                    if not longest:
                        self.recorder.end()
                        return False
                    self._polling.begin()
                    self._polling.end(self._advance(episode, longest))
            except PolicyFailedError:
                self.recorder.end()
                self.policy_failures += 1
                self.policy_failures_in_a_row += 1
                raise
            except Exception as exc:
                if exc is not self.environment.fault and not isinstance(exc, ObservationError):
                    raise
                self.environment.fault = None
                self._recover(exc)
                continue
            self.longest_episode_s = max(self.longest_episode_s, time.perf_counter() - started)
            return True

    def _advance(self, episode: Episode, longest: int) -> int:
        """Run up to `longest` steps of the open episode. Return their number."""
        advance = self._advance_by_stepper if self.stepper is not None else self._advance_by_itself
        played = advance(episode, longest)
        if self._failures_in_a_row and episode.steps >= FORGIVEN_AFTER_STEPS:
            self._failures_in_a_row = 0
        return played

    def _advance_by_itself(self, episode: Episode, longest: int) -> int:
        # The same as `step`, with local variables only, because a worker spends most of its time here.
        runner, env_step, record = self.runner, self.env_step, self.recorder.step
        preprocess, test, collect, obs = self.obs_preprocessor, episode.test, episode.collect, self._obs
        act, any_action, few, extras = runner.plain_act(collect), runner.always_finite, runner.few, None
        single = few == (1,)
        played = 0
        try:
            while played < longest and episode.open and not self._stopping:
                if act is None:
                    action, extras = runner.decide(obs, test, collect)
                else:
                    action = act(obs, test)
                    if not any_action and not (
                        # `runner.check` handles all other actions.
                        type(action) is ndarray
                        and action.shape == few
                        and isfinite(action.item() if single else sum(action.tolist()))
                    ):
                        runner.check(action)
                obs, reward, terminated, truncated, info = env_step(action, collect)
                if preprocess is not None:
                    obs = preprocess(obs)
                record(action, obs, reward, terminated, truncated, info, extras, collect, test)
                played += 1
        finally:
            self._obs = obs
        if not episode.open:
            self._failures_in_a_row = self.policy_failures_in_a_row = 0
        return played

    def _advance_by_stepper(self, episode: Episode, longest: int) -> int:
        assert self.stepper is not None
        played = 0
        while played < longest and episode.open and not self._stopping:
            self.stepper.step(self._obs, episode.test, episode.collect, episode.steps + 1 >= episode.limit)
            played += 1
        return played

    def _recover(self, fault: Exception) -> None:
        """Drop the unsent samples of an episode whose environment failed, and end its sent part.

        Raises:
            EnvironmentFailedError: there were too many consecutive failures.
        """
        self.failures += 1
        self._failures_in_a_row += 1
        dropped = self.recorder.drop_unsent()
        episode = self.recorder.episode
        self.recorder.end(record=episode is not None and episode.sent)
        # An invalid result has only our traceback; a failed constructor's exception is the cause.
        found_here = isinstance(fault, EnvironmentFailedError | ObservationError)
        raised = fault.__cause__ if isinstance(fault.__cause__, Exception) else fault
        report_failure(
            str(fault) if found_here else f"{type(fault).__name__}: {fault}{unpacking_hint(fault)}",
            "see what its reset and step return" if found_here else "fix it",
            in_a_row=self._failures_in_a_row,
            most=self.max_failures,
            dropped=f"{dropped} samples of the episode that were not yet sent are dropped",
            cause=raised,
            show=not found_here or raised is not fault,
        )
