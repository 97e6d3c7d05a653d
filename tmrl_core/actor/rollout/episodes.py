"""Playing episodes: the environment, the actor and the Buffer in one fast loop, and what happens when one fails.

`EpisodePlayer.reset` and `step` are the public, single steps. `_advance` plays many: it does exactly what calls of
`step` would do, with everything in local variables, and falls back to calling `step` where a compressor, a
preprocessor, `crc_debug` or an overridden method asks for it.

An exception that the environment raised (or a bad value that it returned) is remembered as the *fault*. Only the fault
leads to a fresh reset; an error of the policy, of a compressor or of the codec is the user's to see. An action that is
not finite is never executed: the episode ends there, with what was collected of it (`PolicyFailedError`).
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.guard import (
    is_finite,
    make_guard,
    one_number,
    own_action,
    reset_problem,
    reward_problem,
    unpacking_hint,
)
from tmrl_core.actor.rollout.info_metrics import InfoMetrics
from tmrl_core.actor.rollout.pacing import Slices
from tmrl_core.config.references import as_environment
from tmrl_core.errors import ConfigError, EnvironmentFailedError, PolicyFailedError
from tmrl_core.samples import Buffer, EpisodeRecord, Version

logger = logging.getLogger(__name__)

FORGIVEN_AFTER_STEPS = 1000
"""So many good steps in one episode, and earlier failures are not in a row with the next any more."""

_FEW = 16
"""Up to so many numbers, Python adds them faster than NumPy is called."""

Hook = Callable[[], int]
"""Asked before each slice of an episode for the longest it may be; 0: end the episode here."""


def _users_part(fault: Exception) -> tuple[type[Exception], Exception, TracebackType | None]:
    """The exception with its traceback from where our code called the environment on."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return type(fault), fault, trace if trace is not None else fault.__traceback__


def exploration_seed(seed: int) -> int:
    """What an actor is seeded with beside an environment that gets `seed`.

    Both make a generator of NumPy's default kind of it: of one seed, the environment's noise would be the policy's.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0])


def _not_finite(action: Any) -> PolicyFailedError:
    return PolicyFailedError(
        f"the policy's action is not finite, so it is not executed: {str(action)[:200]}. Its weights or the "
        "observation's numbers are too large, or its computation is wrong"
    )


def _finite_reward(reward: Any) -> Any:
    """Return a reward as a number.

    Raises:
        EnvironmentFailedError: it is none, or not finite.
    """
    number = one_number(reward)
    problem = reward_problem(number)
    if problem is not None:
        raise EnvironmentFailedError(problem)
    return number


class Episode:
    """The state of the episode being played.

    Args:
        number: unique within the worker process.
        collect: its samples go to the Buffer.
        seed: that it was reset with, if it was chosen.

    Attributes:
        test: False as soon as one step explored.
        limit: most steps after the reset; infinite: none.
        evaluation: id of the evaluation that it belongs to, if any.
        obs, steps, total: the latest observation, the steps after the reset, the sum of their rewards.
        info: the latest step's.
        began: time of `time.perf_counter` at its reset.
        open: it goes on.
        sent: some of its samples have left the Buffer.
    """

    __slots__ = (
        "began",
        "collect",
        "evaluation",
        "info",
        "limit",
        "number",
        "obs",
        "open",
        "seed",
        "sent",
        "steps",
        "test",
        "total",
    )

    def __init__(self, number: int, collect: bool, seed: int | None) -> None:
        self.number = number
        self.collect = collect
        self.seed = seed
        self.test = not collect
        self.limit = math.inf
        self.evaluation: int | None = None
        self.obs: Any = None
        self.info: Any = None
        self.began = time.perf_counter()
        self.steps = 0
        self.total: Any = 0.0
        self.open = True
        self.sent = False


class EpisodePlayer:
    """An environment and an actor, played episode by episode into a Buffer.

    Args:
        env_cls: makes the environment; called again when a reset fails.
        make_actor: `(observation_space=, action_space=)` makes the actor.
        buffer: where samples and records go.
        sample_compressor: `(prev_act, obs, rew, terminated, truncated, info)` -> the same, changed.
        obs_preprocessor: applied to each observation before act and compressor.
        crc_debug: every sample's info carries the original transition.
        max_samples_per_episode: longer episodes are truncated; infinite: none are.
        max_failures: how often in a row the environment may fail.
        strict_spaces: an observation of another dtype, container or order of keys fails; False: it is cast where its
            values survive.
        info_metrics: keys of infos that become metrics of the episode; see `InfoMetrics`.
        device: where the actor runs.
        name: of the worker, for the records.
        seed: of the first reset and of the actor's exploration; None: from the operating system.

    Raises:
        ConfigError: what is to make the environment or the actor does not.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        make_actor: Callable[..., Any],
        *,
        buffer: Buffer,
        sample_compressor: Callable[..., Any] | None = None,
        obs_preprocessor: Callable[[Any], Any] | None = None,
        crc_debug: bool = False,
        max_samples_per_episode: float = math.inf,
        max_failures: int = 3,
        strict_spaces: bool = False,
        info_metrics: Sequence[str] = (),
        device: Any = "cpu",
        name: str = "",
        seed: int | None = None,
    ) -> None:
        if not max_samples_per_episode >= 1:
            raise ValueError(f"max_samples_per_episode must be at least 1, got {max_samples_per_episode}")
        self.buffer = buffer
        self.sample_compressor = sample_compressor
        self.obs_preprocessor = obs_preprocessor
        self.crc_debug = crc_debug
        self.max_samples_per_episode = max_samples_per_episode
        self.max_failures = max_failures
        self.strict_spaces = strict_spaces
        self._info_metrics = InfoMetrics(info_metrics)
        self.device = device
        self.name = name
        self.steps_collected = 0
        """Environment steps collected since construction, resets included."""
        self.samples_dropped = 0
        """Samples of failed episodes that were dropped before they were sent."""
        self.failures = 0
        """How often the environment has failed since construction."""

        self._make_env = env_cls
        self._stopping = False
        self._version: Version = (0, 0)
        self._episode: Episode | None = None
        self._episodes = 0
        self.policy_failures = 0
        """Actions since construction that were not finite; none of them was executed."""
        self._failures_in_a_row = 0
        self._policy_failures_in_a_row = 0
        self._fault: BaseException | None = None
        self._env_is_broken = False
        self.seeded = seed is not None
        """True: another run of the same seed is to play the same episodes."""
        self._seeds = np.random.default_rng(seed)
        self._next_seed = seed
        self._slices = Slices()
        self.longest_episode_s = 0.0
        """How long the longest episode took, in seconds."""
        self._total_steps = 0

        for what, maker in (("env_cls", env_cls), ("actor_module_cls", make_actor)):
            if not callable(maker) or isinstance(maker, ActorModule):
                raise ConfigError(
                    f"{what}: found {maker!r:.100} of type {type(maker).__name__}; wanted: what makes one when it is "
                    "called, such as a class, a functools.partial or a lambda"
                )
        self.env = as_environment(env_cls(), f"env_cls: {env_cls!r:.100}")
        self._adopt_spaces()
        actor = make_actor(observation_space=self.env.observation_space, action_space=self.env.action_space)
        if not isinstance(actor, ActorModule):
            raise ConfigError(
                f"actor_module_cls made a {type(actor).__name__}; wanted: an actor derived from "
                "tmrl_core.actor.ActorModule, or from TorchActorModule"
            )
        self.actor: ActorModule = actor.to_device(device)
        if seed is not None:
            self.actor.seed(exploration_seed(seed))

    def _adopt_spaces(self) -> None:
        space = self.env.observation_space
        self._guard = make_guard(space)
        self._cast: Callable[[Any], Any] | None = None
        plain = type(space) is spaces.Box and space.shape != ()
        self._shape: tuple[int, ...] | None = space.shape if plain else None
        self._dtype = space.dtype
        # Whether all numbers are finite, in one number: the sum of a few of them, or a product with zeros, is NaN or
        # infinite when one of them is. A tenth and a third of the price of isfinite().all(). A sum that overflows, too,
        # only leads to the exact check.
        floating = plain and np.issubdtype(space.dtype, np.floating)
        self._few = floating and len(space.shape) == 1 and space.shape[0] <= _FEW
        self._zeros = np.zeros(space.shape, space.dtype).ravel() if floating and not self._few else None
        # Actions alike: None where they are integers, and False where they are looked at one by one.
        acts = self.env.action_space
        vector = type(acts) is spaces.Box and len(acts.shape) == 1 and acts.shape[0] <= _FEW
        whole = isinstance(acts, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
        self._few_acts: tuple[int, ...] | None = acts.shape if vector else None
        self._check_acts = not (whole or (isinstance(acts, spaces.Box) and not np.issubdtype(acts.dtype, np.floating)))

    @property
    def slice_length(self) -> int:
        """How many steps to take before looking at anything but the environment again."""
        return self._slices.length

    @property
    def between_episodes(self) -> bool:
        """True: no episode is open."""
        return self._episode is None or not self._episode.open

    @property
    def episodes(self) -> int:
        """Episodes begun since construction, of every kind."""
        return self._episodes

    # --- single steps -------------------------------------------------------------------------------------------------

    def act(self, obs: Any, test: bool = False) -> Any:
        """The actor's action for an observation that has been preprocessed already."""
        return self.actor.act_(obs, test=test)

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Start a new episode.

        Args:
            collect_samples: the reset is appended to the Buffer as a sample.

        Returns:
            The (preprocessed) observation and the info.

        Raises:
            EnvironmentFailedError: the observation does not belong to the space. What the environment raises passes.
        """
        self._close_episode()
        if self._env_is_broken:
            self._renew_env()
        seed, self._next_seed = self._next_seed, None
        try:
            default_action = getattr(getattr(self.env, "unwrapped", self.env), "default_action", None)
            result: Any = self.env.reset() if seed is None else self.env.reset(seed=seed)
            problem = reset_problem(result)
            if problem is not None:
                raise EnvironmentFailedError(problem)
            obs, info = result
            obs = self._admitted(obs, ", after a reset")
        except Exception as exc:
            self._fault = exc
            self._env_is_broken = True
            self._next_seed = seed
            raise
        if self.obs_preprocessor is not None:
            obs = self.obs_preprocessor(obs)
        self._info_metrics.begin()
        episode = Episode(self._episodes, collect_samples, seed)
        self._episodes += 1
        self._episode = episode
        if collect_samples:
            self.buffer.start_episode(episode.number, self._version)
            extras = self.actor.reset_extras() if self._keeps_extras() else None
            self._collect(None, default_action, obs, 0.0, False, False, info, extras)
            self.steps_collected += 1
        episode.obs = obs
        return obs, info

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on an observation and step the environment.

        Args:
            obs: the previous (preprocessed) observation.
            test: passed to the actor.
            collect_samples: the step is appended to the Buffer as a sample.
            last_step: the episode is cut here: `truncated` is set unless it has terminated.

        Returns:
            The (preprocessed) observation, reward, terminated, truncated, info.

        Raises:
            EnvironmentFailedError: the observation does not belong to the space, or the reward is no finite number.
                What the environment raises passes.
        """
        extras: dict[str, Any] | None = None
        if collect_samples and self._keeps_extras():
            act, extras = self.actor.act_with_extras(obs, test=test)
        else:
            act = self.act(obs, test=test)
        if self._check_acts and not is_finite(act):
            raise _not_finite(act)
        if self.crc_debug:
            obs = copy.deepcopy(obs)  # an environment may write its next observation over this one
        try:
            given = own_action(act) if collect_samples else act
            new_obs, rew, terminated, truncated, info = self.env.step(given)
            new_obs, rew = self._admitted(new_obs), _finite_reward(rew)
        except Exception as exc:
            self._fault = exc
            raise
        if self.obs_preprocessor is not None:
            new_obs = self.obs_preprocessor(new_obs)
        if last_step and not terminated:
            truncated = True
        if collect_samples:
            self._collect(obs, act, new_obs, rew, terminated, truncated, info, extras)
            self.steps_collected += 1
        episode = self._episode
        if episode is not None and episode.open:
            episode.obs, episode.info = new_obs, info
            if self._info_metrics.each_step:
                self._info_metrics.note(info)
            episode.total += rew
            episode.steps += 1
            episode.test = episode.test and test
            if terminated or truncated:
                self._finish_episode("terminated" if terminated else "truncated")
        return new_obs, rew, terminated, truncated, info

    def _admitted(self, obs: Any, where: str = "") -> Any:
        """Return an observation as its space wants it, cast if need be.

        Raises:
            EnvironmentFailedError: it does not belong to the space.
        """
        if self._cast is not None:
            obs = self._cast(obs)
        problem = self._guard.problem(obs)
        if problem is None:
            return obs
        if self._cast is None and not self.strict_spaces:
            fitting = self._guard.cast(obs)
            if self._guard.problem(fitting) is None:
                self._cast = self._guard.cast
                logger.warning("%s%s: it is cast, as all that follow (worker.strict_spaces refuses it)", problem, where)
                return fitting
        raise EnvironmentFailedError(problem + where)

    def _keeps_extras(self) -> bool:
        """Whether this actor has more to say of an action than the action."""
        return type(self.actor).act_with_extras is not ActorModule.act_with_extras

    def _collect(
        self,
        prev_obs: Any,
        act: Any,
        obs: Any,
        rew: Any,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        extras: dict[str, Any] | None = None,
    ) -> None:
        self._total_steps += 1
        if self.crc_debug:
            # Deep copies: an environment may write its next observation over this one.
            original = copy.deepcopy((prev_obs, act, obs, rew, bool(terminated), bool(truncated)))
            steps = self._episode.steps if self._episode is not None else 0
            place = (self._total_steps, 0 if prev_obs is None else steps + 1)
            info = {**info, "crc_sample": original, "crc_sample_ts": place}
        sample: Any = (act, obs, rew, terminated, truncated, info)
        if self.sample_compressor is not None:
            sample = self.sample_compressor(*sample)
        self.buffer.append_sample(sample, extras)

    def _finish_episode(self, end: Any) -> None:
        """Close the open episode and leave its record in the Buffer."""
        episode = self._episode
        if episode is None or not episode.open:
            return
        episode.open = False
        if end != "aborted":
            self._failures_in_a_row = self._policy_failures_in_a_row = 0
        self.buffer.end_episode(
            EpisodeRecord(
                agent="",
                episode_return=float(episode.total),
                length=episode.steps,
                mode="test" if episode.test else "train",
                end=end,
                episode=episode.number,
                version=self._version,
                seed=episode.seed,
                evaluation=episode.evaluation,
                worker=self.name,
                metrics={} if end == "aborted" else self._info_metrics.take(episode.info),
            )
        )

    def _close_episode(self) -> None:
        """Close an episode that is left open: collected samples are not to be joined with what follows."""
        episode = self._episode
        if episode is None or not episode.open:
            return
        if episode.collect:
            self._finish_episode("aborted")
        episode.open = False

    # --- whole episodes -----------------------------------------------------------------------------------------------

    def _play(
        self,
        *,
        collect: bool,
        test: bool,
        limit: float,
        allow: Hook,
        seed: int | None = None,
        evaluation: int | None = None,
    ) -> bool:
        """Play one episode to its end, anew after a failure of the environment.

        Returns:
            True: it ended in order. False: `allow` ended it, or an action that was not finite, or another episode was
            begun meanwhile.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            PolicyFailedError: an action was not finite, and no other policy is to be expected.
        """
        while True:
            started = time.perf_counter()
            try:
                if not allow():
                    return False
                if seed is not None:
                    self._next_seed = seed
                self.reset(collect)
                episode = self._episode
                if episode is None:
                    raise RuntimeError(f"{type(self).__name__}.reset did not call the reset that it overrides")
                episode.limit, episode.test, episode.evaluation = limit, test, evaluation
                while episode.open:
                    longest = allow()
                    if episode is not self._episode:
                        return False
                    if not longest:
                        self._close_episode()
                        return False
                    self._slices.begin()
                    played = self._advance(longest)
                    self._slices.end(played)
            except PolicyFailedError as exc:
                self._close_episode()
                self.policy_failures += 1
                self._policy_failures_in_a_row += 1
                self._policy_failed(exc)
                return False
            except Exception as exc:
                if exc is not self._fault:
                    raise
                self._fault = None
                self._recover(exc)
                continue
            self.longest_episode_s = max(self.longest_episode_s, time.perf_counter() - started)
            return True

    def _advance(self, longest: int) -> int:
        """Play up to `longest` steps of the open episode; returns how many."""
        episode = self._episode
        if episode is None:
            raise RuntimeError("there is no episode to go on with; reset begins one")
        longest = int(min(longest, episode.limit - episode.steps))
        advance = self._advance_fast if self._fast() else self._advance_by_steps
        played = advance(episode, longest)
        if self._failures_in_a_row and episode.steps >= FORGIVEN_AFTER_STEPS:
            self._failures_in_a_row = 0
        return played

    def _fast(self) -> bool:
        kind = type(self)
        return (
            self.obs_preprocessor is None
            and self.sample_compressor is None
            and not self.crc_debug
            and self._shape is not None
            and kind.step is EpisodePlayer.step
            and kind.act is EpisodePlayer.act
            and "step" not in self.__dict__
            and "act" not in self.__dict__
        )

    def _advance_by_steps(self, episode: Episode, longest: int) -> int:
        played = 0
        while played < longest and episode.open and not self._stopping:
            last = episode.steps + 1 >= episode.limit
            self.step(episode.obs, episode.test, episode.collect, last)
            played += 1
        return played

    def _advance_fast(self, episode: Episode, longest: int) -> int:
        actor = self.actor
        # Two calls less per step where an actor has no preparation of its own.
        act = actor.act if type(actor).act_ is ActorModule.act_ else actor.act_
        env_step = self.env.step
        append = self.buffer.append_sample
        shape, dtype, few, zeros = self._shape, self._dtype, self._few, self._zeros
        few_acts, check_acts = self._few_acts, self._check_acts
        cast = self._cast
        note = self._info_metrics.note if self._info_metrics.each_step else None
        array, isfinite, vdot = np.ndarray, math.isfinite, np.vdot
        obs, total, test, collect = episode.obs, episode.total, episode.test, episode.collect
        cut = episode.limit - episode.steps
        act_more = actor.act_with_extras if collect and self._keeps_extras() else None
        extras: dict[str, Any] | None = None
        reward_type: Any = float
        played = 0
        terminated = truncated = False
        info: Any = episode.info
        try:
            while played < longest and not self._stopping:
                if act_more is None:
                    action = act(obs, test)
                else:
                    action, extras = act_more(obs, test)
                if (
                    check_acts
                    and not (type(action) is array and action.shape == few_acts and isfinite(sum(action.tolist())))
                    and not is_finite(action)
                ):
                    raise _not_finite(action)
                try:
                    # What an environment does to its action is not what was chosen.
                    given = action if not collect else action.copy() if type(action) is array else own_action(action)
                    new_obs, rew, terminated, truncated, info = env_step(given)
                    if cast is not None:
                        new_obs = cast(new_obs)
                    good = (
                        type(new_obs) is array
                        and new_obs.dtype is dtype
                        and new_obs.shape == shape
                        and type(rew) is reward_type
                        and isfinite(rew)
                        and (
                            isfinite(sum(new_obs.tolist())) if few else zeros is None or isfinite(vdot(new_obs, zeros))
                        )
                    )
                    if not good:
                        new_obs = self._admitted(new_obs)
                        cast = self._cast
                        rew = _finite_reward(rew)
                        reward_type = type(rew)
                except Exception as exc:
                    self._fault = exc
                    raise
                obs = new_obs
                played += 1
                total += rew
                if note is not None:
                    note(info)
                if played == cut and not terminated:
                    truncated = True
                if collect:
                    append((action, obs, rew, terminated, truncated, info), extras)
                if terminated or truncated:
                    break
        finally:
            episode.obs, episode.total, episode.info = obs, total, info
            episode.steps += played
            if collect:
                self.steps_collected += played
        if terminated or truncated:
            self._finish_episode("terminated" if terminated else "truncated")
        return played

    # --- failures -----------------------------------------------------------------------------------------------------

    def _policy_failed(self, failure: PolicyFailedError) -> None:
        """Handle a non-finite action, after the episode was closed. A player without a link gets no other policy.

        Raises:
            PolicyFailedError: always.
        """
        raise failure

    def _recover(self, fault: Exception) -> None:
        """After a failure of the environment: drop what was not sent of the episode, close what was.

        Raises:
            EnvironmentFailedError: it failed too often in a row.
        """
        self.failures += 1
        self._failures_in_a_row += 1
        episode = self._episode
        dropped = 0
        if episode is not None and episode.open:
            if episode.collect:
                dropped = self.buffer.drop_unsent()
                self.samples_dropped += dropped
                if episode.sent:
                    self._finish_episode("aborted")
            episode.open = False
        # Found here, in what it returned, it has no traceback but ours; else the user's, once and not at every try.
        found_here = isinstance(fault, EnvironmentFailedError)
        failure = str(fault) if found_here else f"{type(fault).__name__}: {fault}{unpacking_hint(fault)}"
        if self._failures_in_a_row > self.max_failures:
            advice = "see what its reset and step return" if found_here else "mend it"
            raise EnvironmentFailedError(
                f"the environment failed {self._failures_in_a_row} times in a row, worker.max_failures is "
                f"{self.max_failures}. The last failure: {failure}. "
                f"Nothing can be learned from it: {advice}, or raise worker.max_failures where it recovers by itself."
            ) from fault
        logger.error(
            "the environment failed (%d in a row, at most %d): %s; %d samples of the episode that were not yet "
            "sent are dropped, a fresh reset follows",
            self._failures_in_a_row,
            self.max_failures,
            failure,
            dropped,
            exc_info=None if found_here or self._failures_in_a_row > 1 else _users_part(fault),
        )

    def _renew_env(self) -> None:
        """Make the environment anew: its reset has failed.

        Raises:
            EnvironmentFailedError: the new one has other spaces; no further try would help. What `env_cls` raises
                passes, as a fault.
        """
        old_spaces = self.env.observation_space, self.env.action_space
        try:
            self.env.close()
        except Exception:
            logger.warning("the environment that failed could not be closed either", exc_info=True)
        try:
            self.env = self._make_env()
        except Exception as exc:
            self._fault = exc
            raise
        if (self.env.observation_space, self.env.action_space) != old_spaces:
            raise EnvironmentFailedError(
                f"the environment made anew has other spaces: {self.env.observation_space} and "
                f"{self.env.action_space}, before {old_spaces[0]} and {old_spaces[1]}"
            )
        self._env_is_broken = False
