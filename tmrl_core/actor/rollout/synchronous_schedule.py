"""Synchronous schedule: a maximum of environment steps for each received model, and the wait for models.

A worker with a seed takes turns with the trainer, so that runs are repeatable. It collects as much as the ratio allows
with each version, reports that, and waits. The trainer trains on these samples until it publishes the next version, and
then gives the turn back (`Progress.turn`). Without a seed both run concurrently.
"""

from __future__ import annotations

import logging
import math
import time

from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.actor.rollout.uplink import WAIT_S
from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import turn_text
from tmrl_core.rate_limit import RateLimit

logger = logging.getLogger(__name__)


TURNLESS_S = 10.0
"""Seconds with a policy and no turn after which a worker assumes that its trainer has no seed, and gives no turns."""


class SynchronousSchedule:
    """Keep the ratio of environment steps to models received, for one run.

    First, `initial_steps` are collected without waiting. Then the worker waits until the ratio allows them. Then steps
    are counted from 0, and the ratio holds before each step, or with `end_episodes` before each episode.

    Args:
        collector: the collector.
        max_steps_per_update: the limit; infinite: no limit.
        initial_steps, nb_steps: number of steps before the ratio holds, and after that.
        end_episodes: True: wait between episodes only.
        send_every: number of steps after which samples are also sent within an episode; 0: at episode ends.
        update_each_step: True: load new weights as soon as they have arrived.
        verbose: log waits at INFO.

    Raises:
        ValueError: `max_steps_per_update` is not above 0.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        max_steps_per_update: float,
        initial_steps: float,
        nb_steps: float,
        end_episodes: bool,
        send_every: int,
        update_each_step: bool,
        verbose: bool,
    ) -> None:
        if not max_steps_per_update > 0:
            raise ValueError(f"max_steps_per_update must be above 0, got {max_steps_per_update}")
        self._collector = collector
        self._uplink = collector.uplink
        self._recorder = collector.recorder
        self._limit = RateLimit(max_steps_per_update)
        self._models = 0
        self._initial_steps = initial_steps
        self._nb_steps = nb_steps
        self._end_episodes = end_episodes
        self._send_every = send_every
        self._update_each_step = update_each_step
        self._verbose = verbose
        self._origin = self._uplink.steps_that_count()
        self._turns = collector.seeded and self._uplink.link is not None and not math.isinf(max_steps_per_update)
        self._begun = not self._turns
        self._turnless_since = math.inf
        self.counting = False
        """True: the initial steps are complete."""

    @property
    def steps(self) -> int:
        """Number of counted steps: the initial ones at first, later those after them."""
        return self._uplink.steps_that_count() - self._origin

    def run(self, test_episode_interval: int) -> None:
        """Collect as `Worker.run_synchronous` documents."""
        episodes = 0
        while self._go_on():
            if self.counting:
                if self._end_episodes and test_episode_interval and episodes % test_episode_interval == 0:
                    self._collector.test()
                episodes += 1
            self._collector.train(self._allow)
            self._collector.log_episode(self._verbose)
            self._uplink.send()

    def _go_on(self) -> bool:
        """Wait until another episode may begin. Return False when the run ends.

        Raises:
            StarvedError: worker and trainer wait for each other.
        """
        if self._uplink.ending():
            return False
        if not self._begun:
            self._begun = True
            if not self._wait():
                return False
        if not self.counting:
            return self.steps < self._initial_steps or (self._leave_initial_steps() and self._has_room())
        return self._has_room() and self._wait()

    def _allow(self) -> int:
        """Return the maximum number of steps of the next slice; 0: the episode ends here.

        Raises:
            StarvedError: worker and trainer wait for each other.
        """
        if self._uplink.ending():
            return 0
        longest = self._collector.loop.steps_until_poll
        if self._update_each_step:
            self._uplink.take_policy(verbose=self._verbose)
            longest = 1
        if self._send_every:
            if len(self._recorder.buffer) >= self._send_every:
                self._uplink.send()
            longest = max(1, min(longest, self._send_every - len(self._recorder.buffer)))
        if self._end_episodes:
            if not self._send_every:
                self._collector.tell_if_unsent()
            return longest
        if not self.counting:
            left = self._initial_steps - self.steps
            if left > 0:
                return int(min(longest, math.ceil(left)))
            if not self._leave_initial_steps():
                return 0
        elif not self._has_room() or not self._wait():
            return 0
        steps = self.steps
        room = min(longest, self._limit.most(1 + self._models) - steps)
        return int(min(room, math.ceil(max(0, min(self._nb_steps - steps, longest)))))

    def _allowed(self) -> bool:
        return self._limit.allows(self.steps + 1, 1 + self._models)

    def _has_room(self) -> bool:
        return self.steps < self._nb_steps

    def _leave_initial_steps(self) -> bool:
        if not self._wait():
            return False
        self.counting = True
        self._origin = self._uplink.steps_that_count()
        return True

    def _wait(self) -> bool:
        """Wait for models until one more step is allowed. False: the run ends."""
        if not self._recorder.recording or not self._allowed():
            self._models += self._uplink.update_policy(verbose=self._verbose)
        if not self._recorder.recording:
            self._collector.obey()
        try:
            return self._wait_for_models()
        finally:
            if self._uplink.link is not None:
                self._uplink.link.say_waits("")

    def _wait_for_models(self) -> bool:
        watch: StarvationWatch | None = None
        while not (self._allowed() and self._has_turn()):
            if self._uplink.ending():
                return False
            link = self._uplink.link
            if link is None:
                raise StarvedError(
                    f"max_steps_per_update is {self._limit.ratio:g} and there is no trainer to send models: the worker "
                    "is standalone. Leave max_steps_per_update out."
                )
            self._uplink.send()
            if watch is None:
                watch = StarvationWatch(self._collector.loop.longest_episode_s)
                self._log_wait()
            if self._collector.evaluate_if_due():
                continue
            models = self._uplink.update_policy(verbose=self._verbose)
            self._models += models
            queued = link.counts.queued_samples
            if self._allowed():
                if not self._has_turn():
                    self._await_turn(link)
                continue
            if watch.starving(link.progress, link.versions_published, queued):
                raise StarvedError(self._describe_wait())
            # The trainer's turn begins here, when it has all samples of this worker.
            if not self._turns:
                link.say_waits("" if queued or models else self._waits())
            elif not (queued or models) and self._has_turn():
                link.say_waits(turn_text(self._uplink.latest_version) + self._waits())
            if not models:
                link.wait_change(WAIT_S)
        return not self._uplink.ending()

    def _await_turn(self, link: RolloutLink) -> None:
        """Wait a short time for this worker's turn, without reporting again to the trainer."""
        if self._uplink.latest_version == (0, 0):
            link.say_waits(turn_text((0, 0)) + "it has not received a version yet")
        elif link.progress.turn == (0, 0):
            now = time.monotonic()
            self._turnless_since = min(self._turnless_since, now)
            if now - self._turnless_since > TURNLESS_S:
                logger.warning("this trainer takes no turns, so another run of the same seed may differ")
                self._turns = False
        link.wait_change(WAIT_S)

    def _has_turn(self) -> bool:
        """Return True if the trainer has given this worker the turn, for the worker's present policy."""
        link = self._uplink.link
        if not self._turns or link is None:
            return True
        turn = link.progress.turn
        return turn == self._uplink.latest_version != (0, 0) and not self._collector.evaluate_if_due()

    def _log_wait(self) -> None:
        if self._verbose:
            logger.info(
                "worker %s waits for a model: (%d steps + 1) / (1 + %d models received) is above %g",
                self._recorder.name,
                self.steps,
                self._models,
                self._limit.ratio,
            )

    def _waits(self) -> str:
        return (
            f"({self.steps} steps + 1) / (1 + {self._models} models received) is above "
            f"worker.max_steps_per_update = {self._limit.ratio:g}"
        )

    def _describe_wait(self) -> str:
        link = self._uplink.link
        progress = link.progress if link is not None else None
        trainer = f"with {progress.samples} samples and {progress.updates} updates: {progress.lack}" if progress else ""
        return (
            f"worker and trainer wait for each other. The worker: {self._waits()}. The trainer, {trainer}. "
            "Raise worker.max_steps_per_update, worker.initial_steps or trainer.max_training_steps_per_env_step, or "
            "lower trainer.update_model_interval or trainer.start_training."
        )
