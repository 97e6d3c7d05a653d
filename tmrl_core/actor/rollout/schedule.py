"""The schedule: collect episode after episode, and wait where a rule allows no further step.

The rules are `asynchronous_rule.py`, `synchronous_rule.py` and `lockstep_rule.py`.
"""

# Theory of operation
#
# One schedule runs all modes of collection, since they differ in one question: how many steps may be made now? A rule
# answers it from what the link knows, and changes nothing by it; so the schedule may ask as often as it likes.
#
#     run      between, wait, begin, train, ended, send; and again, until the run ends or the rule is done
#     _wait    while there is no room: send all, run a due evaluation, let the rule take what has arrived, say why
#     _allow   before each slice of an episode: the length of the slice, 0 to end the episode
#
# The order in `_wait` is what keeps two sides from waiting for each other for ever. Samples are sent *before* the wait:
# the trainer may need just these. An evaluation runs before the rule takes a new policy, since it may be the one that
# everybody waits for. The reason is told only once all samples are acknowledged (`queued` is 0): before that, the
# trainer could believe in a starvation that the samples on their way will end.
#
# Starvation: the worker waits for models, the trainer for samples, and neither comes. The trainer decides, because it
# knows all workers; a worker ends by itself only after a minute without any change (`StarvationWatch`). The error holds
# the numbers of both sides, because one ratio alone is never wrong.
#
# Polling is by slices and not by steps: a look at the link at each step would cost more than recording the step.
# `send_every` and the rule's room cut slices shorter, so both are exact.
#
# Rejected: one class for each mode derived from a common worker (three loops, which differed in their waits); a context
# dict passed through the parts (untyped).

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
