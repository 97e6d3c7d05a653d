"""Environment loop: environment, policy and recorder, step by step and episode by episode.

It runs episodes for training, tests and the trainer's evaluations, and follows the directives of its uplink.
"""

# Theory of operation
#
# The loop steps one environment with one policy. It knows no mode of collection: a hook, `allow`, is asked before each
# episode and before each slice of it, and answers with the number of steps that may be made, 0 for "end here". All
# waiting, sending and loading of weights happens inside that hook, thus never within a slice.
#
# A slice makes polling cheap: after a slice of k steps that took t seconds, the next one has 0.2 s / (t / k) steps,
# four times as many as before at most. A Pendulum of 25 us a step reaches 4,096 steps a slice; a robot of 20 Hz makes
# 4, so it notices a directive in 0.2 s too. See `polling.py`.
#
# `_advance_by_itself` is where a worker spends its time: about 4 us a step beside environment and policy. Therefore it
# repeats what `step` does, with local variables and without calls that can be avoided; a test holds both equal. A
# subclass of `Worker` that overrides `step` or `reset` gets its episodes through `_advance_by_stepper` instead.
#
# The episode's state is the recorder's, but for `_obs`, the observation to act on. An episode that was ended from
# within the hook (an evaluation, a lockstep round that was cancelled) is found by identity: after `allow`, the
# recorder's episode is another one, or closed.
#
# Three kinds of failures, told apart by who raised:
#
# 1. The environment: an exception of its own, or of a check of its results (`CheckedEnvironment.fault`). Unsent samples
#    of the episode are dropped, since the failure may have made them wrong, and a fresh reset follows. After
#    `max_failures` in a row the worker gives up. 1,000 good steps within one episode forgive earlier failures: a camera
#    that fails every hour would otherwise end a run whose episodes last a day.
# 2. The policy: an action that is not finite. It is *not executed*. What was collected so far is right and stays. A
#    fresh reset would not help, so the worker waits for other weights.
# 3. Anything else (a compressor, the codec, a preprocessor) is a bug of the user's code or of ours, and propagates.
#
# Seeds: `next_seed` is used once. After an evaluation, whose seeds fixed the environment's generator, the next training
# episode gets a seed of its own (`_seeds`), or training would repeat the same episodes after each evaluation.

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment, report_failure
from tmrl_core.actor.rollout.collector import Collector, Hook
from tmrl_core.actor.rollout.lateness import Lateness, lateness_text
from tmrl_core.actor.rollout.pictures import Frame, NoPictureError, picture_in, rendered
from tmrl_core.actor.rollout.polling import next_slice
from tmrl_core.actor.rollout.recorder import Episode, StepRecorder
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.actor.rollout.same_start import SameStart
from tmrl_core.actor.rollout.step_checks import unpacking_hint
from tmrl_core.actor.rollout.takeover import Takeover
from tmrl_core.blas_threads import one_blas_thread
from tmrl_core.config.references import reason_of
from tmrl_core.envs.filmed import Filmed
from tmrl_core.errors import EnvironmentFailedError, ObservationError, PolicyFailedError
from tmrl_core.long_calls import remarks
from tmrl_core.metrics.run_files import latest_video
from tmrl_core.metrics.text import return_text
from tmrl_core.networking.protocol.messages import EPISODE_END, PAUSE_END, Evaluation

logger = logging.getLogger(__name__)

FORGIVEN_AFTER_STEPS = 1000
"""Number of successful steps in one episode after which earlier failures no longer count as consecutive."""

LOG_EVERY_S = 2.0
"""Minimum seconds between two log lines about episodes, because a simulator may end a hundred per second."""

_REMEDY = "Set worker.send_every to send them before, or worker.max_samples_per_episode to end it."
LONG_EPISODE_S = 30.0
"""Seconds after which a worker says that no sample of an episode has been sent."""


class Stepper(Protocol):
    """Protocol of single steps. `EnvironmentLoop` and `Worker` implement it."""

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on an observation and step the environment."""


class EnvironmentLoop(Collector):
    """Run a policy in an environment, and record the steps.

    Args:
        environment: the environment.
        runner: chooses the actions.
        recorder: records the steps.
        obs_preprocessor: applied to each observation before the policy and the recorder get it.
        max_failures, seed, seed_of: see `Collector`; the seed is also that of resets after evaluations.

    Attributes:
        evaluation_videos: folder for videos of the first episode of each evaluation, if the environment is `Filmed`.
        whole: True: samples are sent at the ends of episodes, so a long one is reported.
        seeded: True: another run with the same seed must play the same episodes.
        stepper: object that makes the steps of `play`; None: this loop. For subclasses of `Worker` that override its
            methods.
        lateness: lateness of the steps; None: the environment has no rate.
        takeover: lets a person act in place of the policy; None: only the policy acts. See `let_take_over`.
        env_step: step of the environment, which records its lateness.
        record: records a step, as `StepRecorder.step`.
    """

    def __init__(
        self,
        environment: CheckedEnvironment,
        runner: PolicyRunner,
        recorder: StepRecorder,
        *,
        obs_preprocessor: Callable[[Any], Any] | None = None,
        max_failures: int = 3,
        seed: int | None = None,
        seed_of: Callable[[int], int | None] | None = None,
    ) -> None:
        super().__init__(recorder, max_failures=max_failures, seed=seed, seed_of=seed_of)
        self.environment = environment
        self.runner = runner
        self.obs_preprocessor = obs_preprocessor
        self.stepper: Stepper | None = None
        self.seeded = seed is not None
        self.whole = True
        self.evaluation_videos: Path | None = None
        self.lateness = Lateness() if environment.time_step is not None else None
        self.env_step = environment.step if self.lateness is None else self._timed_step
        self.record = recorder.step
        self.takeover: Takeover | None = None
        self._obs: Any = None
        self._seeds = np.random.default_rng(seed)
        self._same_start = SameStart()
        self._rest_logged = False
        self._unsent_logged = self._shows_unsent = False
        self._logged_at = -math.inf

    def let_take_over(self, takeover: Takeover) -> None:
        """Let a person act in place of the policy from the next episode on. Without this call, steps cost the same."""
        env_step = self.env_step

        def step(action: Any, keep: bool = False) -> tuple[Any, Any, Any, Any, Any]:
            return takeover.outcome(env_step(action, keep))

        self.takeover, self.runner.override = takeover, takeover.decide
        self.env_step, self.record = step, takeover.record

    # --- single steps -------------------------------------------------------------------------------------------------

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, as `Worker.reset` documents."""
        if self.recorder.episode is not None and self.recorder.episode.open:
            self.recorder.end()
        seed = self.next_seed
        obs, info = self.environment.reset(seed)
        if self.lateness is not None and self.environment.time_step is not None:
            self.lateness.begin(time.perf_counter(), *self.environment.time_step)
        self.next_seed = None
        if seed is not None:
            self._same_start.note(seed, obs)
        if self.obs_preprocessor is not None:
            obs = self.obs_preprocessor(obs)
        self.runner.reset()
        extras = self.runner.reset_extras() if collect_samples and self.runner.keeps_extras else None
        if self.takeover is not None:
            extras = self.takeover.begin(extras)
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
        truncated = self.record(action, new_obs, reward, terminated, truncated, info, extras, collect_samples, test)
        if terminated or truncated:
            self._note_success()
        return new_obs, reward, terminated, truncated, info

    def _timed_step(self, action: Any, keep: bool = False) -> tuple[Any, Any, Any, Any, Any]:
        assert self.lateness is not None
        result = self.environment.step(action, keep)
        self.lateness.note(time.perf_counter())
        return result

    def seed_next_episode(self, seed: int) -> None:
        """Reset the next episode with this seed, and seed the exploration with it."""
        super().seed_next_episode(seed)
        self._seeds = np.random.default_rng(seed)
        self.runner.seed(seed)

    # --- whole episodes -----------------------------------------------------------------------------------------------

    def train(self, allow: Hook | None = None, max_samples: float | None = None) -> bool:
        """Collect an episode; see `play`."""
        return self.play(True, False, allow, max_samples)

    def test(self, max_samples: float | None = None, explore: bool = False) -> bool:
        """Run an episode without collecting it; see `play`."""
        return self.play(False, not explore, None, max_samples)

    def play(
        self,
        collect: bool,
        test: bool,
        allow: Hook | None = None,
        max_samples: float | None = None,
        seed: int | None = None,
        evaluation: int | None = None,
    ) -> bool:
        """Run one episode to its end. After a failure of the environment, run another one.

        After an action that is not finite, wait for another policy.

        Args:
            collect: store its samples.
            test: the actor does not explore.
            allow: called before the reset and before each slice; None: the episode may continue until the run ends.
            max_samples: number of steps after the reset at which it is truncated; None: the recorder's limit.
            seed: seed of the reset; None: `next_seed`.
            evaluation: id of the evaluation that the episode belongs to.

        Returns:
            True: the episode ended in order. False: `allow` or a bad action ended it, or `allow` began another one.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            PolicyFailedError: an action was not finite, and there is no Server.
            ValueError: `max_samples` is below 1.
        """
        limit = self.recorder.max_samples_per_episode if max_samples is None else max_samples
        if not limit >= 1:
            raise ValueError(f"an episode has at least 1 step, got max_samples={limit}")
        if allow is None:
            allow = self._unless_ending
        self.follow_place()
        while True:
            started = time.perf_counter()
            try:
                if not allow():
                    return False
                if seed is not None:
                    self.next_seed = seed
                with one_blas_thread:
                    if not self._play(collect, test, limit, allow, evaluation):
                        return False
                if self.takeover is not None and self.takeover.pop_discarded():
                    continue
            except PolicyFailedError as failure:
                self.recorder.end()
                self._await_better_policy(failure)
                return False
            except Exception as exc:
                if exc is not self.environment.fault and not isinstance(exc, ObservationError):
                    raise
                self.environment.fault = None
                self._recover(exc)
                continue
            self.longest_episode_s = max(self.longest_episode_s, time.perf_counter() - started)
            return True

    def _play(self, collect: bool, test: bool, limit: float, allow: Hook, evaluation: int | None) -> bool:
        before = self.recorder.episode
        (self.stepper or self).reset(collect)
        episode = self.recorder.episode
        if episode is None or episode is before:
            raise RuntimeError(f"{type(self.stepper).__name__}.reset did not call the reset that it overrides")
        episode.limit, episode.test, episode.evaluation = limit, test, evaluation
        advance = self._advance_by_itself if self.stepper is None else self._advance_by_stepper
        while episode.open:
            longest = allow()
            if episode is not self.recorder.episode or not episode.open:
                return False
            if not longest:
                self.recorder.end()
                return False
            began = time.perf_counter()
            if self.whole and (began - episode.began >= LONG_EPISODE_S or self._shows_unsent):
                self._tell_unsent(episode, began - episode.began)
            played = advance(episode, longest)
            self.steps_until_poll = next_slice(self.steps_until_poll, played, time.perf_counter() - began)
            if self._failures_in_a_row and episode.steps >= FORGIVEN_AFTER_STEPS:
                self._failures_in_a_row = 0
        return True

    def give_up_episode(self) -> None:
        """End the open episode immediately, and drop its unsent samples."""
        self.recorder.drop_unsent()
        self.recorder.end()

    def _tell_unsent(self, episode: Episode, lasts_s: float) -> None:
        """Say of a long open episode that its samples are sent at its end: once in the log, and on displays."""
        shown = self._shows_unsent
        self._shows_unsent = lasts_s >= LONG_EPISODE_S and episode.collect and not episode.sent
        key = f"unsent samples of {self.name}"
        link = self.uplink.link
        if link is not None and shown != self._shows_unsent:
            link.say_waits(f"{EPISODE_END}, when its samples are sent. {_REMEDY}" if self._shows_unsent else "")
        if not self._shows_unsent or link is None:
            remarks.pop(key, None)
            return
        remarks[key] = text = (
            f"an episode has gone on for {episode.steps} steps and {lasts_s:.0f} s, and its samples are sent when it "
            f"ends. {_REMEDY}"
        )
        if not self._unsent_logged:
            self._unsent_logged = True
            logger.warning("worker %s: %s", self.name, text)

    def log_episode(self) -> None:
        """Log the latest training episode, unless another one was logged just before."""
        if time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            recorder = self.recorder
            logger.info(
                "worker %s: episode %d, %d steps, return %s, policy %d.%d%s",
                recorder.name,
                recorder.episodes,
                recorder.buffer.stat_train_steps,
                return_text(recorder.buffer.stat_train_return),
                *recorder.version,
                "" if self.lateness is None else f"; {lateness_text(self.lateness.figures)}",
            )

    def _advance_by_itself(self, episode: Episode, longest: int) -> int:
        """Run up to `longest` steps of the open episode. Return their number."""
        # The same as `step`, with local variables only, because a worker spends most of its time here.
        runner, env_step, record = self.runner, self.env_step, self.record
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
            self._note_success()
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
            str(fault) if found_here else f"{type(fault).__name__}: {reason_of(fault)}{unpacking_hint(fault)}",
            "see what its reset and step return" if found_here else "fix it",
            in_a_row=self._failures_in_a_row,
            most=self.max_failures,
            dropped=f"{dropped} samples of the episode that were not yet sent are dropped",
            cause=raised,
            show=not found_here or raised is not fault,
        )

    # --- directives ---------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Run a requested evaluation, and wait during a pause. Called between episodes.

        A worker also waits while no policy of the trainer fits it and its samples are refused. Samples of its untrained
        policy would only use bandwidth.
        """
        uplink, paused = self.uplink, False
        while uplink.link is not None and not uplink.ending():
            directive = uplink.link.directive
            if directive.evaluation is not None and self.evaluate_if_due():
                continue
            unfit = bool(uplink.refusal) and uplink.unfit
            if not directive.pause and paused:
                paused = False
                uplink.link.say_waits("")
            if not directive.pause and not unfit:
                return
            uplink.send()
            if directive.pause:
                paused = True
                uplink.link.say_waits(PAUSE_END)
            if unfit and not self._rest_logged:
                self._rest_logged = True
                logger.warning("worker %s waits until a policy fits: its samples are refused", self.name)
            uplink.wait()
            if unfit:
                uplink.take_policy(verbose=True)

    def evaluate_if_due(self) -> bool:
        """See `Collector`."""
        if not super().evaluate_if_due():
            return False
        env = self.environment.env
        if isinstance(env, Filmed):
            env.stop()
        # The last seed determines the environment's generator, so that training would see the same episodes after each
        # evaluation.
        self.next_seed = int(self._seeds.integers(2**31))
        return True

    def evaluate(self, evaluation: Evaluation, index: int) -> bool:
        """See `Collector`. The first episode of an evaluation is filmed."""
        env = self.environment.env
        if isinstance(env, Filmed) and self.evaluation_videos is not None:
            if index == 0:
                env.start(self.evaluation_videos / f"evaluation-{evaluation.id}.mp4")
            else:
                env.stop()
        return self.play(collect=False, test=True, seed=evaluation.seeds[index], evaluation=evaluation.id)

    def frame(self) -> Frame:
        """See `Collector`: what the environment renders, or the picture in the latest observation."""
        env = self.environment.env
        mode: object = getattr(env, "render_mode", None)  # it need not be a gymnasium.Env
        return rendered(env) if mode == "rgb_array" else picture_in(self._obs)

    def latest_video(self) -> Path:
        """See `Collector`."""
        folder = self.evaluation_videos
        path = None if folder is None else latest_video(folder)
        if path is None:
            raise NoPictureError(
                "this worker records no videos of evaluations: set worker.evaluation_videos: true (extra `video`)"
                if folder is None
                else "this worker has played no evaluation yet"
            )
        return path

    def close(self) -> None:
        """Close the environment, and release the device of a person."""
        self.environment.close()
        if self.takeover is not None:
            self.takeover.close()
