"""The collector runs episodes for training, tests and the trainer's evaluations, for a schedule."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tmrl_core.actor.rollout.lateness import lateness_text
from tmrl_core.actor.rollout.loop import EnvironmentLoop, Hook
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.uplink import WAIT_S, Uplink
from tmrl_core.blas_threads import one_blas_thread
from tmrl_core.envs.filmed import Filmed
from tmrl_core.errors import PolicyFailedError
from tmrl_core.long_calls import remarks
from tmrl_core.metrics.text import return_text
from tmrl_core.networking.protocol.messages import Evaluation, Version
from tmrl_core.samples import Chunk

logger = logging.getLogger(__name__)

LOG_EVERY_S = 2.0
"""Minimum seconds between two log lines about episodes, because a simulator may end a hundred per second."""

LONG_EPISODE_S = 30.0
"""Seconds after which a worker says that no sample of an episode has been sent."""


class Collector:
    """Run episodes in an environment loop, and follow the directives of an uplink.

    Args:
        loop: environment loop.
        uplink: uplink to the trainer.
        seed: seed of the first reset, and of resets after evaluations; None: from the operating system.
        seed_of: returns the seed by the worker's number among those of the same name, see `Uplink.own_seed`; None:
            `seed` stays, whoever has it too.

    Attributes:
        loop, uplink: the arguments.
        evaluation_videos: folder for videos of the first episode of each evaluation, if the environment is `Filmed`.
        seeded: True: another run with the same seed must play the same episodes.
    """

    def __init__(
        self,
        loop: EnvironmentLoop,
        uplink: Uplink,
        *,
        seed: int | None = None,
        seed_of: Callable[[int], int | None] | None = None,
    ) -> None:
        self.loop = loop
        self.uplink = uplink
        self.evaluation_videos: Path | None = None
        self.seeded = seed is not None
        self._seed_of = seed_of
        self._evaluating = False
        loop.next_seed = seed
        self._seeds = np.random.default_rng(seed)
        self._rest_logged = False
        self._unsent_logged = self._shows_unsent = False
        self._logged_at = -math.inf

    @property
    def recorder(self) -> StepRecorder:
        """Return the loop's recorder."""
        return self.loop.recorder

    @property
    def name(self) -> str:
        """Return the worker's label."""
        return self.recorder.name

    @property
    def version(self) -> Version:
        """Return the version of the acting policy."""
        return self.recorder.version

    @property
    def recording(self) -> bool:
        """True: an episode is open."""
        return self.recorder.recording

    @property
    def unsent(self) -> Sequence[Chunk]:
        """Return the samples that were not passed to the link."""
        return self.recorder.buffer.chunks

    @property
    def steps_until_poll(self) -> int:
        """Return the number of steps to take before the link is polled again."""
        return self.loop.steps_until_poll

    def seed_next_episode(self, seed: int) -> None:
        """Reset the next episode with this seed, and seed the exploration with it."""
        self._seed_of = None  # this seed is the worker's own
        self.loop.next_seed = seed
        self._seeds = np.random.default_rng(seed)
        self.loop.runner.seed(seed)

    def follow_place(self) -> None:
        """Seed the next episode anew if a worker of the same name has this one's seed. Called before each reset."""
        # The seeds of an evaluation are the trainer's.
        if self._seed_of is not None and not self._evaluating:
            own = self.uplink.own_seed(self._seed_of)
            if own is not None:
                self.seed_next_episode(own)

    # --- episodes -----------------------------------------------------------------------------------------------------

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
        """Run an episode as `EnvironmentLoop.play` does. After an action that is not finite, wait for another policy.

        Args:
            collect, test, seed, evaluation: see `EnvironmentLoop.play`.
            allow: called before each slice of the episode; None: it may continue until the run ends.
            max_samples: number of steps at which the episode is truncated; None: the recorder's limit.

        Raises:
            PolicyFailedError: an action was not finite, and there is no Server.
            ValueError: `max_samples` is below 1.
        """
        limit = self.recorder.max_samples_per_episode if max_samples is None else max_samples
        if not limit >= 1:
            raise ValueError(f"an episode has at least 1 step, got max_samples={limit}")
        self.follow_place()
        try:
            with one_blas_thread:
                return self.loop.play(
                    collect=collect,
                    test=test,
                    limit=limit,
                    allow=self._unless_ending if allow is None else allow,
                    seed=seed,
                    evaluation=evaluation,
                )
        except PolicyFailedError as failure:
            if self.uplink.link is None:
                raise
            self._await_better_policy(failure)
            return False

    def _unless_ending(self) -> int:
        return 0 if self.uplink.ending() else self.loop.steps_until_poll

    def _await_better_policy(self, failure: PolicyFailedError) -> None:
        in_a_row, most = self.loop.policy_failures_in_a_row, self.loop.max_failures
        if in_a_row == 1:
            logger.error("%s. The episode ends here.", failure)
        elif in_a_row == most + 1:
            logger.error(
                "the policy failed %d times in a row: worker %s waits for another", in_a_row, self.recorder.name
            )
        if in_a_row > most:
            self.uplink.await_policy()

    def give_up_episode(self) -> None:
        """End the open episode immediately, and drop its unsent samples."""
        self.recorder.drop_unsent()
        self.recorder.end()

    def tell_if_unsent(self) -> None:
        """Say of a long open episode that its samples are sent at its end: once in the log, and on displays."""
        episode = self.loop.recorder.episode
        lasts_s = time.perf_counter() - episode.began if episode is not None and episode.open else 0.0
        # Called before each slice of an episode, so the common case is short.
        if episode is None or lasts_s < LONG_EPISODE_S or self.uplink.link is None:
            if self._shows_unsent:
                self._shows_unsent = False
                remarks.pop(self._unsent, None)
            return
        text = (
            f"an episode has gone on for {episode.steps} steps and {lasts_s:.0f} s, and its samples are sent when it "
            "ends. Set worker.send_every to send them before, or worker.max_samples_per_episode to end it."
        )
        self._shows_unsent = True
        remarks[self._unsent] = text
        if not self._unsent_logged:
            self._unsent_logged = True
            logger.warning("worker %s: %s", self.name, text)

    @property
    def _unsent(self) -> str:
        return f"unsent samples of {self.name}"

    def log_episode(self, verbose: bool) -> None:
        """Log the latest training episode, if `verbose` and not just after another one."""
        if verbose and time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            recorder = self.recorder
            logger.info(
                "worker %s: episode %d, %d steps, return %s, policy %d.%d%s",
                recorder.name,
                recorder.episodes,
                recorder.buffer.stat_train_steps,
                return_text(recorder.buffer.stat_train_return),
                *recorder.version,
                "" if self.loop.lateness is None else f"; {lateness_text(self.loop.lateness.figures)}",
            )

    # --- directives ---------------------------------------------------------------------------------------------------

    def obey(self) -> None:
        """Run a requested evaluation, and wait during a pause. Called between episodes.

        A worker also waits while no policy of the trainer fits it and its samples are refused. Samples of its untrained
        policy would only use bandwidth.
        """
        uplink = self.uplink
        while uplink.link is not None and not uplink.ending():
            if self.evaluate_if_due():
                continue
            unfit = uplink.unfit
            if not uplink.link.directive.pause and not unfit:
                return
            uplink.send()
            if unfit and not self._rest_logged:
                self._rest_logged = True
                logger.warning("worker %s waits until a policy fits: its samples are refused", self.recorder.name)
            uplink.link.wait_change(WAIT_S)
            if unfit:
                uplink.take_policy(verbose=True)

    def evaluate_if_due(self) -> bool:
        """Run the evaluation that the trainer requests, if it is new and its policy has arrived.

        It ends an open episode, because the trainer may wait only for the evaluation.
        """
        evaluation = self.uplink.due_evaluation()
        if evaluation is None:
            return False
        self.recorder.end()
        self._evaluating = True
        try:
            self._evaluate(evaluation)
        finally:
            self._evaluating = False
        return True

    def _evaluate(self, evaluation: Evaluation) -> None:
        logger.info(
            "worker %s runs %d episodes of evaluation %d", self.recorder.name, len(evaluation.seeds), evaluation.id
        )
        for index, seed in enumerate(evaluation.seeds):
            env = self.loop.environment.env
            if self.evaluation_videos is not None and isinstance(env, Filmed):
                if index == 0:
                    env.start(self.evaluation_videos / f"evaluation-{evaluation.id}.mp4")
                else:
                    env.stop()
            ended = self.play(collect=False, test=True, seed=seed, evaluation=evaluation.id)
            self.uplink.send()
            if not ended:
                self.uplink.postpone_evaluation()
                break
        env = self.loop.environment.env
        if isinstance(env, Filmed):
            env.stop()
        # The last seed determines the environment's generator, so that training would see the same episodes after each
        # evaluation.
        self.loop.next_seed = int(self._seeds.integers(2**31))
