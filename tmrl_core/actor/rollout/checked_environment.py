"""An environment with checked results, which is recreated after a failed reset."""

# Theory of operation
#
# This is the border to other people's code. Behind it, an observation is of its space, a reward is one finite float,
# and an exception says whose fault it is. It knows no policy, no recorder and no episode.
#
# Who is at fault? `fault` is set to an exception of the environment, or of a check of its results; the loop compares by
# identity, so an exception from elsewhere is never mistaken for the environment's.
#
#     first results wrong in type or shape    ContractError: each further attempt would repeat it. The role ends with
#                                             exit status 2, and nothing restarts it.
#     the same after a valid result           a failure, such as a camera's without a picture; a fresh reset follows.
#     NaN, an exception                       a failure from the beginning.
#     reset failed                            `_broken`: the environment is made anew before the next reset, because
#                                             nobody knows what a half-done reset has left.
#
# "Valid before" is kept for reset and step apart: a reset that works says nothing about the shape of a reward.
#
# A remade environment with other spaces ends the worker: the policy was made for the old ones.
#
# `step` holds the most common case in line (a short float vector, a reward of the usual type): one comparison each, and
# a sum that shows that all numbers are finite. A call of `StepCheck.step` would double its cost of about 1 us.
#
# The environment gets a copy of the action (`keep`) while samples are collected: some environments scale actions in
# place, and the recorded action must be the policy's.
#
# Signal handlers are taken back after each call in which user code may have installed its own: constructor, reset, the
# first step, close. Otherwise Ctrl-C would reach a simulator in place of the worker, and samples would be lost.
#
# The safe action is executed once after a reset, not before any: a machine that never moved needs none. It is a plain
# step, unchecked, in a `try`: a machine must be stopped even if the result is nonsense. rtgym's environments are paused
# after it in any case, or they would repeat the last action.

from __future__ import annotations

import logging
from collections.abc import Callable
from math import isfinite
from numbers import Real
from types import TracebackType
from typing import Any

import msgspec
from numpy import ndarray

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.lateness import Timed
from tmrl_core.actor.rollout.real_time import ActsAtReset, RealTimeEnv, accept_action, keep_sent_action
from tmrl_core.actor.rollout.step_checks import StepCheck, copy_action, failure, reset_problem, unpacking_hint
from tmrl_core.config.environment_contract import Batch, as_environment
from tmrl_core.config.references import place_of
from tmrl_core.envs.identity import unwrapped
from tmrl_core.envs.json_spaces import observation_reader
from tmrl_core.errors import ConfigError, ContractError, EnvironmentFailedError, ObservationError
from tmrl_core.long_calls import watched
from tmrl_core.signal_handlers import take_back

logger = logging.getLogger(__name__)


class CheckedEnvironment:
    """Make an environment, and check what its `reset` and `step` return.

    A result of a wrong type or shape is a breach of contract until the first valid result of the same method: it raises
    a ContractError, which is no `fault`. Later it is a failure, such as a camera's without a picture.

    Args:
        make: makes the environment; called again when a reset has failed.
        strict_spaces: True: refuse observations with another dtype, container or order of keys, instead of casting
            them.
        safe_action: action of `make_safe`, of the action space, or the JSON value of one; None: no action.

    Raises:
        ConfigError: the result of `make` is not an environment, or `safe_action` is not in its action space.

    Attributes:
        env: the environment.
        fault: the latest exception that the environment raised, or that an invalid result caused; a fresh reset may
            repair it.
        real_time: the environment of rtgym inside of all wrappers; None: it is another one.
        when_stepped: called after the first valid step.
        default_action: action that the environment executed at its latest reset, as rtgym's do; None: it executed none.
    """

    def __init__(self, make: Callable[[], Any], *, strict_spaces: bool = False, safe_action: Any = None) -> None:
        check_maker("env_cls", make)
        self._make = make
        try:
            self.env = self._made()
        finally:
            take_back()
        self.fault: Exception | None = None
        self.real_time: RealTimeEnv | None
        self._look_inside()
        self._check = StepCheck(self.env.observation_space, strict_spaces)
        self._check.reward_type = None  # the first result is checked in full
        self._broken = False
        self._moving = False
        self._first_step = False
        self._has_reset = self._has_stepped = False
        self.when_stepped: Callable[[], object] = lambda: None
        self._closed = False
        try:
            self._safe_action = None if safe_action is None else _action(self.env.action_space, safe_action)
        except ConfigError:
            self.env.close()
            raise

    def _made(self) -> Any:
        return as_environment(self._make(), f"env_cls: {self._make!r:.100}")

    @property
    def one(self) -> Any:
        """Return an object with the spaces of one environment."""
        return self.env

    @property
    def time_step(self) -> tuple[float, float] | None:
        """Duration of a time step and its elasticity, in seconds; None: the environment has no rate."""
        inner, real_time = self._inner, self.real_time
        # An environment may have something else by that name.
        found: object = inner.time_step_duration if isinstance(inner, Timed) else None
        if not isinstance(found, Real) or found <= 0:
            return None
        duration_s = float(found)
        return duration_s, duration_s if real_time is None else real_time.time_step_timeout

    def _look_inside(self) -> None:
        # Once for each environment, because a check of a protocol takes as long as a step of a simple simulator.
        self._inner: Any = unwrapped(self.env)
        self.real_time = self._inner if isinstance(self._inner, RealTimeEnv) else None
        self._acts_at_reset = isinstance(self._inner, ActsAtReset)
        self.default_action: Any = None

    @watched("the environment's reset")
    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment. Recreate it first if its last reset failed.

        Raises:
            EnvironmentFailedError: the result is not a pair, or its observation does not belong to the space.
            ContractError: the same, and no earlier result was valid.
            Exception: exceptions of the environment propagate, and become the `fault`.
        """
        if self._broken:
            self._renew()
        real_time = self.real_time
        if real_time is not None:
            keep_sent_action(real_time)
        self._moving = self._first_step = True
        try:
            result: Any = self.env.reset() if seed is None else self.env.reset(seed=seed)
            if type(result) is not tuple or len(result) != 2:
                problem = reset_problem(result)
                if problem is not None:
                    raise failure(problem)
            obs, info = result
            obs = self._check.observation(obs, ", after a reset")
            self._has_reset = True
            if real_time is not None:
                self.default_action = real_time.act_buf[-1]
            elif self._acts_at_reset:
                self.default_action = self._inner.default_action
            return obs, info
        except Exception as exc:
            self._broken = True
            self._judge(exc, self._has_reset)
            raise
        finally:
            take_back()

    @watched("the environment's step")
    def step(self, action: Any, keep: bool = False) -> tuple[Any, Any, Any, Any, Any]:
        """Step the environment.

        Args:
            action: action to execute.
            keep: True: pass the environment a copy, because it may change its argument.

        Returns:
            Observation, reward (a float), terminated, truncated, info.

        Raises:
            EnvironmentFailedError: the observation does not belong to the space, or the reward is no finite number.
            ContractError: a result has a wrong type or shape, and no earlier one was valid.
            Exception: exceptions of the environment propagate, and become the `fault`.
        """
        try:
            if keep:
                action = action.copy() if type(action) is ndarray else copy_action(action)
            result: tuple[Any, Any, Any, Any, Any] = self.env.step(action)
            if self._first_step:
                self._first_step = False
                take_back()
            obs, reward, terminated, truncated, info = result
            check = self._check
            if (
                # The most common case avoids a call; `StepCheck.step` handles all others, the first result too.
                type(obs) is ndarray
                and obs.dtype is check.dtype
                and obs.shape == check.few
                and type(reward) is check.reward_type
                and isfinite(reward)
                and isfinite(sum(obs.tolist()))
            ):
                return result if type(reward) is float else (obs, float(reward), terminated, truncated, info)
            obs, reward = check.step(obs, reward)
            if not self._has_stepped:
                self._has_stepped = True
                self.when_stepped()
            return obs, reward, terminated, truncated, info
        except Exception as exc:
            self._judge(exc, self._has_stepped)
            raise

    def _judge(self, exc: Exception, proven: bool) -> None:
        """Record a failure. Raise a ContractError if it shows a wrong interface, and no result was valid before."""
        hint = unpacking_hint(exc)
        if proven or not (isinstance(exc, ContractError) or hint):
            self.fault = exc
        elif hint:
            raise ContractError(f"{type(exc).__name__}: {exc}{hint}") from exc
        elif isinstance(self._inner, Batch):
            raise ContractError(f"{exc}; the environment is a batch of {self._inner.num_envs} (its num_envs)") from exc

    @watched("the environment's safe action")
    def make_safe(self) -> None:
        """Execute the safe action, if there is one, and pause rtgym's environments. Log a failure.

        Only the first call after a reset does so.
        """
        if not self._moving or self._closed:
            return
        self._moving = False
        real_time = self.real_time
        try:
            try:
                if self._safe_action is not None:
                    if real_time is not None:
                        accept_action(real_time)
                    self.env.step(copy_action(self._safe_action))
            finally:
                if real_time is not None:
                    real_time.wait()
        except Exception:
            logger.exception("worker.safe_action failed; the environment is closed without it")

    @watched("the environment's close")
    def close(self) -> None:
        """Make the environment safe, and close it, once."""
        if not self._closed:
            self.make_safe()
            self._closed = True
            try:
                self.env.close()
            finally:
                take_back()

    def _renew(self) -> None:
        """Make the environment again.

        Raises:
            EnvironmentFailedError: the new environment has other spaces, so another attempt is useless.
        """
        old_spaces = self.env.observation_space, self.env.action_space
        try:
            self.env.close()
        except Exception:
            logger.warning("the environment that failed could not be closed either", exc_info=True)
        try:
            self.env = self._made()
            self._look_inside()
        except Exception as exc:
            self.fault = exc
            raise
        finally:
            take_back()
        if (self.env.observation_space, self.env.action_space) != old_spaces:
            raise EnvironmentFailedError(
                f"the recreated environment has other spaces: {self.env.observation_space} and "
                f"{self.env.action_space}, before {old_spaces[0]} and {old_spaces[1]}"
            )
        self._broken = False


def _action(space: Any, value: Any) -> Any:
    try:
        encoded = msgspec.json.encode(value, enc_hook=lambda array: array.tolist())
        action = observation_reader(space, "worker.safe_action")(encoded)
    except (ObservationError, AttributeError) as exc:
        raise ConfigError(f"worker.safe_action: found {value!r}, allowed: an action of {space}: {exc}") from exc
    if not space.contains(action):
        raise ConfigError(f"worker.safe_action: found {value!r}, allowed: an action of {space}")
    return action


def check_maker(name: str, maker: Any) -> None:
    """Reject an object that cannot be called to make another one.

    Raises:
        ConfigError: it cannot be called.
    """
    if not callable(maker) or isinstance(maker, ActorModule):
        raise ConfigError(
            f"{name}: found {maker!r:.100} of type {type(maker).__name__}; wanted: what makes one when it is "
            "called, such as a class, a functools.partial or a lambda"
        )


def report_failure(
    failure: str, advice: str, *, in_a_row: int, most: int, dropped: str, cause: Exception, show: bool
) -> None:
    """Log a failure of the environment, after which a fresh reset follows.

    Args:
        failure: description of the failure.
        advice: the remedy.
        in_a_row: number of consecutive failures.
        most: `worker.max_failures`.
        dropped: what is lost.
        cause: the failure.
        show: True: the user's code raised it; log the traceback, once and not at every attempt.

    Raises:
        EnvironmentFailedError: there were too many consecutive failures.
    """
    if in_a_row > most:
        raise EnvironmentFailedError(
            f"the environment failed {in_a_row} times in a row, worker.max_failures is {most}. The last failure: "
            f"{place_of(cause) if show else ''}{failure}. Nothing can be learned from it: {advice}, or raise "
            "worker.max_failures where it recovers by itself."
        ) from cause
    logger.error(
        "the environment failed (%d in a row, at most %d): %s; %s, a fresh reset follows",
        in_a_row,
        most,
        failure,
        dropped,
        exc_info=users_traceback(cause) if show and in_a_row == 1 else None,
    )


def users_traceback(fault: Exception) -> tuple[type[Exception], Exception, TracebackType | None]:
    """Return the exception with its traceback from the environment's own code on."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != __file__:
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return type(fault), fault, trace if trace is not None else fault.__traceback__
