"""The schedule: collect episode after episode, and wait where a rule allows no further step.

The modes of collection differ in their rules only: `asynchronous_rule.py`, `synchronous_rule.py`, `lockstep_rule.py`. A
rule answers one question from what the link knows: how many steps may be taken now? The schedule asks between episodes,
and before each slice of an episode if the rule holds there too. While the answer is 0, it sends all samples, follows
the trainer's directives, tells the trainer why it waits, and asks again when something has arrived.
"""

# Theory of operation
#
# One schedule runs all modes of collection; a rule answers with *room*, the number of steps that may be taken now.
# Asynchronous: unlimited, unless the trainer has more steps than its updates require. Synchronous: what the ratio of
# steps to models allows, in the worker's turn. Lockstep: the rest of the assignment.
#
# Example: synchronous, `max_env_steps_per_update` 2 and models after 50 updates each: one model gives room for 100
# steps. An episode of 200 steps is collected in two slices. Without room, all samples are sent first, because the
# trainer may wait for exactly these; then a due evaluation runs; then the rule takes what has arrived; then the trainer
# learns the reason; and only then the schedule waits, for the next change of the link.
#
# Rejected: a queue between loop and recorder (one more copy and thread per step); one class per mode derived from a
# common worker (the earlier design); a context dict passed through the parts (untyped).

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod

from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.errors import StarvedError

logger = logging.getLogger(__name__)


class Rule(ABC):
    """Rule of a schedule: may the next step be taken?

    Attributes:
        within: True: it limits steps within episodes too; False: only the beginning of an episode.
        obeys: True: the trainer's evaluations are run during waits.
        turns: True: trainer and worker take turns, so that a report of a wait stays until the next one.
        whole: True: the samples of an episode are sent together, at its end.
        pause_s: minimum seconds between the ends of episodes after which samples are sent.
        hold_s: maximum seconds that samples of an open episode are held; infinite: until its end.
        done: True: everything is collected.
        logs_waits: True: log each wait at INFO.
        starves: True: a wait in which nothing changes ends with an error.
        advice: next step for the user after that error.
        alone: message of the error of a wait without a trainer.
    """

    within = True
    obeys = True
    turns = False
    logs_waits = False
    done = False
    whole = False
    pause_s = 0.0
    hold_s = math.inf
    starves = False
    advice = ""
    alone = ""

    @abstractmethod
    def room(self) -> float:
        """Return the number of steps that may be taken now; 0: wait."""

    @abstractmethod
    def take(self) -> bool:
        """Take what has arrived: a policy, an assignment. Return True to ask for room again without a wait."""

    @abstractmethod
    def reason(self) -> str:
        """Return the reason of a wait, with its numbers."""

    def report(self, reason: str) -> str | None:
        """Return the reason as the trainer is told; empty: a wait of no interest; None: what it was told last stays."""
        return reason

    def between(self) -> None:  # noqa: B027  # not abstract: a rule may have nothing to do
        """Prepare the wait between two episodes."""

    def begin(self) -> None:  # noqa: B027
        """Prepare an episode that is about to begin."""

    def ended(self, in_order: bool) -> bool:
        """Note that an episode is over. Return True to send its samples, unless others were sent just before."""
        return True


class Schedule:
    """Collect episodes as a rule allows.

    Episodes that end within the rule's pause are sent together. All samples are sent before any wait.

    Args:
        collector: the collector.
        rule: the rule.
        send_every: number of rows after which samples are also sent within an episode; 0: at its end.
        update_each_step: load new weights as soon as they have arrived; False: between episodes, and during waits.
    """

    def __init__(
        self, collector: Collector, rule: Rule, *, send_every: int = 0, update_each_step: bool = False
    ) -> None:
        self._collector = collector
        self._uplink = collector.uplink
        self._rule = rule
        self._send_every = send_every
        self._update_each_step = update_each_step

    def run(self, nb_episodes: float = math.inf) -> None:
        """Collect episodes until the rule is done or the run ends.

        Raises:
            StarvedError: worker and trainer wait for each other, or a wait has no trainer.
        """
        rule, episodes = self._rule, 0
        while not self._uplink.ending():
            rule.between()
            if not self._wait() or episodes >= nb_episodes:
                break
            rule.begin()
            over = rule.ended(self._collector.train(self._allow))
            episodes += 1
            if over and time.perf_counter() - self._uplink.sent_at >= rule.pause_s:
                self._uplink.send()
        self._uplink.send()

    def _allow(self) -> int:
        """Return the maximum number of steps of the next slice, each of all environments; 0: the episode ends here."""
        collector, rule = self._collector, self._rule
        if self._uplink.ending():
            return 0
        rows = collector.recorder.rows
        longest: float = collector.steps_until_poll * rows
        if self._update_each_step:
            self._uplink.take_policy(verbose=False)
            longest = rows
        if rule.within:
            room = rule.room()
            if room <= 0:
                if rule.done or not self._wait():
                    return 0
                room = rule.room()
            longest = min(longest, room)
        unsent, send_every = collector.recorder.unsent, 0 if rule.whole else self._send_every
        held_s = 0.0 if rule.whole else time.perf_counter() - self._uplink.sent_at
        if unsent and (0 < send_every <= unsent or held_s > rule.hold_s):
            self._uplink.send()
            unsent = 0
        if send_every:
            longest = min(longest, max(1, send_every - unsent))
        return math.ceil(longest / rows)

    def _wait(self) -> bool:
        """Wait until the rule allows a step. Return False when the run ends or the rule is done."""
        rule, uplink, link = self._rule, self._uplink, self._uplink.link
        watch: StarvationWatch | None = None
        logs = rule.logs_waits
        try:
            while not (uplink.ending() or rule.done):
                if rule.room() > 0:
                    return True
                if link is None:
                    raise StarvedError(rule.alone)
                uplink.send()
                if rule.obeys and link.directive.evaluation is not None and uplink.next_evaluation() is not None:
                    if not rule.turns:
                        link.say_waits("")  # it does not wait meanwhile, and the trainer asks only workers that do
                    self._collector.evaluate_if_due()
                    continue
                if rule.take():
                    continue
                progress, queued, reason = link.progress, link.counts.queued_samples, rule.reason()
                if rule.starves:
                    watch = watch or StarvationWatch(self._collector.longest_episode_s)
                    if watch.starving(progress, link.versions_published, queued):
                        raise StarvedError(
                            f"workers and trainer wait for each other. The worker: {reason}. The trainer, with "
                            f"{progress.samples} samples and {progress.updates} updates: {progress.lack}. {rule.advice}"
                        )
                report = rule.report(reason)
                if report is not None:
                    link.say_waits("" if queued else report)
                if report and logs:
                    logs = False
                    logger.info("worker %s waits: %s", self._collector.name, reason)
                uplink.wait()
            return False
        finally:
            if link is not None:
                link.say_waits("")
