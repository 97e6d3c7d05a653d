"""Asynchronous schedule: collect, send, and load new weights without waiting for them."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator

from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.actor.rollout.uplink import WAIT_S
from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import Progress
from tmrl_core.rate_limit import RateLimit

logger = logging.getLogger(__name__)

SEND_PAUSE_S = 0.02
"""Minimum seconds between two sends. Waking the I/O thread costs an environment's loop about half a millisecond, as
much as thirty steps of Pendulum."""


class AsynchronousSchedule:
    """Collect without waiting for weights.

    Episodes that end within `send_pause_s` are sent together. All samples are sent before any wait.

    Args:
        collector: the collector.
        send_every: number of steps after which samples are also sent within an episode; 0: at episode ends.
        update_each_step: load new weights as soon as they have arrived; False: between episodes.
        max_env_steps_per_update: limit on the environment steps of all workers together for each update, once training
            has begun; None: never wait.
        send_pause_s: maximum seconds between the ends of episodes that are sent together.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        send_every: int = 0,
        update_each_step: bool = False,
        max_env_steps_per_update: float | None = None,
        send_pause_s: float = SEND_PAUSE_S,
    ) -> None:
        self._collector = collector
        self._uplink = collector.uplink
        self._send_every = send_every
        self._update_each_step = update_each_step
        self._limit = None if max_env_steps_per_update is None else RateLimit(max_env_steps_per_update)
        self._send_pause_s = send_pause_s
        self._sent_at = -math.inf

    def run(self, test_episode_interval: int, nb_episodes: float, verbose: bool, expert: bool) -> None:
        """Collect as `Worker.run` documents."""
        collector, uplink = self._collector, self._uplink
        if uplink.link is not None:
            uplink.link.expert = expert
        for episode in count_to(nb_episodes):
            if uplink.ending():
                break
            if not expert and test_episode_interval and episode % test_episode_interval == 0:
                collector.test()
            collector.train(lambda: self._allow(expert))
            collector.log_episode(verbose)
            self._send_unless_just_now()
            if expert:
                uplink.ignore_policy()
            else:
                uplink.update_policy(verbose=False)
                collector.obey()
            self._wait_for_limiter(expert)
        uplink.send()

    def _allow(self, expert: bool) -> int:
        """Return the maximum number of steps of the next slice; 0: the episode ends here."""
        uplink, buffer = self._uplink, self._collector.recorder.buffer
        if uplink.ending():
            return 0
        longest = self._collector.loop.steps_until_poll
        if self._update_each_step and not expert:
            uplink.take_policy(verbose=False)
            longest = 1
        if self._send_every:
            if len(buffer) >= self._send_every:
                uplink.send()
                self._wait_for_limiter(expert)
                if uplink.ending():
                    return 0
            longest = max(1, min(longest, self._send_every - len(buffer)))
        else:
            self._collector.tell_if_unsent()
        return longest

    def _send_unless_just_now(self) -> None:
        now = time.perf_counter()
        if now - self._sent_at >= self._send_pause_s:
            self._sent_at = now
            self._uplink.send()

    def _wait_for_limiter(self, expert: bool) -> None:
        """Wait while the trainer has more environment steps than its updates require.

        Raises:
            StarvedError: the trainer waits too.
        """
        link = self._uplink.link
        if link is None or self._limit is None:
            return
        try:
            self._wait_for_updates(link, self._limit, expert)
        finally:
            link.say_waits("")

    def _wait_for_updates(self, link: RolloutLink, limit: RateLimit, expert: bool) -> None:
        collector, uplink = self._collector, self._uplink
        watch: StarvationWatch | None = None
        while (
            too_many(link.progress, limit, link.counts.queued_samples + len(collector.recorder.buffer))
            and not uplink.ending()
        ):
            uplink.send()
            if not expert:
                uplink.take_policy(verbose=False)
                if collector.evaluate_if_due():
                    continue
            progress, queued = link.progress, link.counts.queued_samples
            watch = watch or StarvationWatch(collector.loop.longest_episode_s)
            waits = (
                f"{progress.samples} samples are above trainer.start_training = {progress.start_training} and "
                f"worker.max_env_steps_per_update = {limit.ratio:g} for each of {progress.updates} + 1 updates"
            )
            if watch.starving(progress, link.versions_published, queued):
                raise StarvedError(
                    f"workers and trainer wait for each other. The worker: {waits}. The trainer: {progress.lack}. "
                    "Raise worker.max_env_steps_per_update or trainer.max_training_steps_per_env_step: their product "
                    "must be at least 1."
                )
            # Training continues, so the wait is not starvation.
            link.say_waits(waits if progress.lack and not queued else "")
            link.wait_change(WAIT_S)


def too_many(progress: Progress, limit: RateLimit, unacknowledged: int) -> bool:
    """Return True if the trainer has more environment steps than its updates require.

    The limit has a slack of one update, so that a trainer at its own limit makes one update more, never one less.

    Args:
        progress: the trainer's latest progress.
        limit: environment steps for each update.
        unacknowledged: number of this worker's samples that the trainer has not counted yet.
    """
    collected = progress.samples + unacknowledged - progress.start_training
    return not limit.allows(collected, progress.updates + 1)


def count_to(number: float) -> Iterator[int]:
    """Count from 0 up to a number, which is excluded and may be infinite."""
    return itertools.count() if number == math.inf else iter(range(int(number)))
