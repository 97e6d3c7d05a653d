"""Asynchronous collection: no step waits for weights, and at most a limit of the trainer's updates holds an episode."""

from __future__ import annotations

import math

from tmrl_core.actor.rollout.loop import EnvironmentLoop
from tmrl_core.actor.rollout.schedule import Rule
from tmrl_core.rate_limit import RateLimit

SEND_PAUSE_S = 0.02
"""Minimum seconds between two sends. Waking the I/O thread costs an environment's loop about half a millisecond, as
much as thirty steps of Pendulum."""


class EpisodeRule(Rule):
    """Base of the rules with tests between the episodes, which follow the trainer's directives there.

    Args:
        loop: environment loop.
        test_episode_interval: run a test episode before every n-th episode, including the first; 0: no test episodes.
        verbose: log episodes at INFO, at most one line every two seconds.

    Attributes:
        episodes: number of training episodes begun, without preliminary ones.
    """

    starves = True
    counting = True
    """False: the episodes so far are preliminary, and without tests."""

    def __init__(self, loop: EnvironmentLoop, test_episode_interval: int, verbose: bool) -> None:
        self._loop = loop
        self._uplink = loop.uplink
        self._test_episode_interval = test_episode_interval
        self._verbose = verbose
        self.episodes = 0

    def between(self) -> None:
        """Load new weights, run a requested evaluation, and wait during a pause."""
        self.take()
        self._loop.obey()

    def begin(self) -> None:
        """Run a test episode if it is time."""
        if self.counting:
            if self._test_episode_interval and self.episodes % self._test_episode_interval == 0:
                self._loop.test()
            self.episodes += 1

    def ended(self, in_order: bool) -> bool:
        """Log the episode, which is sent now."""
        if self._verbose:
            self._loop.log_episode()
        return True


class AsynchronousRule(EpisodeRule):
    """Keep at most a ratio of environment steps to updates.

    Args:
        loop, test_episode_interval, verbose: see `EpisodeRule`.
        max_env_steps_per_update: limit on the environment steps of all workers together for each update, once training
            has begun; None: never wait.
        within: True: the limit holds within episodes too, since their samples are sent before they end.
        expert: True: discard weights, and follow no directives.
        pause_s: maximum seconds between the ends of episodes that are sent together.
    """

    advice = (
        "Raise worker.max_env_steps_per_update or trainer.max_training_steps_per_env_step: their product must be at "
        "least 1."
    )

    def __init__(
        self,
        loop: EnvironmentLoop,
        test_episode_interval: int,
        verbose: bool,
        *,
        max_env_steps_per_update: float | None = None,
        within: bool = False,
        expert: bool = False,
        pause_s: float = SEND_PAUSE_S,
    ) -> None:
        super().__init__(loop, test_episode_interval, verbose)
        self._limit = None if max_env_steps_per_update is None else RateLimit(max_env_steps_per_update)
        self.obeys = not expert
        self.within = within
        self.pause_s = pause_s

    def between(self) -> None:
        """See `EpisodeRule`. An expert follows no directives. The first episode waits for nothing."""
        if self.episodes or not self.obeys:
            self.take()
        if self.episodes and self.obeys:
            self._loop.obey()

    def take(self) -> bool:
        """Load the latest policy, or discard it."""
        if self.obeys:
            self._uplink.update_policy(verbose=False)
        else:
            self._uplink.ignore_policy()
        return False

    def room(self) -> float:
        """Return 0 while the trainer has more environment steps than its updates require; otherwise infinite.

        The limit has a slack of one update, so that a trainer at its own limit makes one update more, never one less.
        """
        link, limit = self._uplink.link, self._limit
        if link is None or limit is None or not self.episodes:
            return math.inf
        progress = link.progress
        # The trainer has not counted this worker's latest samples yet.
        unacknowledged = link.counts.queued_samples + self._loop.recorder.unsent
        collected = progress.samples + unacknowledged - progress.start_training
        return math.inf if limit.allows(collected, progress.updates + 1) else 0

    def reason(self) -> str:
        """Return the numbers of the limit."""
        assert self._uplink.link is not None
        assert self._limit is not None
        progress = self._uplink.link.progress
        return (
            f"{progress.samples} samples are above trainer.start_training = {progress.start_training} and "
            f"worker.max_env_steps_per_update = {self._limit.ratio:g} for each of {progress.updates} + 1 updates"
        )

    def report(self, reason: str) -> str:
        """See `Rule`. While training continues, the wait is no starvation."""
        link = self._uplink.link
        return reason if link is not None and link.progress.lack else ""
