"""Collector of episodes for a schedule: the parts that environments of one agent and of many share.

It keeps the seed of the next episode, follows the trainer's evaluations, and counts failures. `EnvironmentLoop` plays
episodes of one agent; a room may play those of many.
"""

# Theory of operation
#
# What a worker owes its trainer does not depend on the number of its agents: evaluations with the right policy, seeds
# that no other worker has, and patience with a policy that fails. This class holds that, and knows no environment.
#
# Two workers of one label get one seed from `run.seed`, and would play the same episodes. The Server numbers them
# (`place`), which is known only after joining, perhaps in the middle of an episode. So `follow_place` looks before each
# episode, and not during an evaluation, whose seeds are the trainer's.
#
# An evaluation ends the open episode, since the trainer may wait for nothing else. If one of its episodes does not end
# in order (the run ends, or an action is not finite), it is postponed as a whole: a mean over fewer episodes would look
# like any other.
#
# `stop` sets a flag that every loop looks at after each step, and wakes waits. Nothing else is touched, so that a
# signal handler may call it at any point.

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tmrl_core.actor.rollout.pictures import Frame, NoPictureError
from tmrl_core.actor.rollout.polling import FIRST_STEPS
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.errors import PolicyFailedError
from tmrl_core.networking.protocol.messages import Evaluation

logger = logging.getLogger(__name__)

Hook = Callable[[], int]
"""Called before each slice of an episode; returns the maximum number of its steps. 0: end the episode here."""


class Collector(ABC):
    """Play episodes, and follow the directives of an uplink.

    Args:
        recorder: records the episodes.
        max_failures: maximum number of consecutive failures of the environment.
        seed: seed of the first episode; None: from the operating system.
        seed_of: returns the seed by the worker's number among those of the same name (None: it has none); None: `seed`
            stays, whoever has it too.

    Attributes:
        uplink: uplink to the trainer, assigned once after the constructor.
        steps_until_poll: number of steps to take before the link is polled again.
        failures: number of failures of the environment.
        policy_failures: number of actions that were not finite; none of them was executed.
        policy_failures_in_a_row: that number since the last episode that ended in order.
        longest_episode_s: duration of the longest episode, in seconds, as far as it is known.
        next_seed: seed of the next episode; None: the environment's generator continues.
    """

    uplink: Uplink

    def __init__(
        self,
        recorder: StepRecorder,
        *,
        max_failures: int = 3,
        seed: int | None = None,
        seed_of: Callable[[int], int | None] | None = None,
    ) -> None:
        self.recorder = recorder
        self.max_failures = max_failures
        self.failures = 0
        self.policy_failures = 0
        self.policy_failures_in_a_row = 0
        self.longest_episode_s = 0.0
        self.next_seed = seed
        self._failures_in_a_row = 0
        self.steps_until_poll = FIRST_STEPS
        self._stopping = False
        self._seed_of = seed_of
        self._evaluating = False

    @property
    def name(self) -> str:
        """Return the worker's label."""
        return self.recorder.name

    # --- episodes -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def train(self, allow: Hook, /) -> bool:
        """Collect an episode; True: it ended in order.

        Args:
            allow: called before the episode and before each slice of it; returns the maximum number of its steps. 0, or
                a call of `give_up_episode` meanwhile: the episode ends here.
        """

    @abstractmethod
    def give_up_episode(self) -> None:
        """End the open episode immediately, and drop its unsent samples."""

    @abstractmethod
    def evaluate(self, evaluation: Evaluation, index: int) -> bool:
        """Play an episode of an evaluation, or as many as there are environments; True: they ended in order."""

    def seed_next_episode(self, seed: int) -> None:
        """Begin the next episode with this seed, and seed the exploration with it."""
        self._seed_of = None  # this seed is the worker's own
        self.next_seed = seed

    def follow_place(self) -> None:
        """Seed the next episode anew if a worker of the same name has this one's seed. Called before each episode."""
        link = self.uplink.link
        # The seeds of an evaluation are the trainer's.
        if self._seed_of is None or link is None or link.place <= 1 or self._evaluating:
            return
        seed = self._seed_of(link.place)
        if seed is not None:
            logger.warning(
                "worker %s is number %d of that name in this run, and run.seed would give all of them the same "
                "episodes: its next ones have a seed of their own. Give each worker another worker.name, so that the "
                "seeds do not depend on the order in which they join",
                self.name,
                link.place,
            )
            self.seed_next_episode(seed)

    def evaluate_if_due(self) -> bool:
        """Run the evaluation that the trainer requests, if it is new and its policy has arrived.

        It ends an open episode, because the trainer may wait only for the evaluation.
        """
        evaluation = self.uplink.due_evaluation()
        if evaluation is None:
            return False
        self.recorder.end()
        logger.info("worker %s runs %d episodes of evaluation %d", self.name, len(evaluation.seeds), evaluation.id)
        self._evaluating = True
        try:
            for index in range(0, len(evaluation.seeds), self.recorder.rows):
                ended = self.evaluate(evaluation, index)
                self.uplink.send()
                if not ended:
                    self.uplink.postpone_evaluation()
                    break
        finally:
            self._evaluating = False
        return True

    def frame(self) -> Frame:
        """Return a picture of the environment, for viewers.

        Raises:
            NoPictureError: there is none.
        """
        raise NoPictureError("a worker with many agents shows no camera")

    def latest_video(self) -> Path:
        """Return the file of the latest evaluation's video, for viewers.

        Raises:
            NoPictureError: there is none.
        """
        raise NoPictureError("a worker with many agents records no videos of evaluations")

    # --- failures and the end -----------------------------------------------------------------------------------------

    def _unless_ending(self) -> int:
        return 0 if self.uplink.ending() else self.steps_until_poll

    def _note_success(self) -> None:
        self._failures_in_a_row = self.policy_failures_in_a_row = 0

    def _await_better_policy(self, failure: PolicyFailedError) -> None:
        """Count an action that was not finite. After too many in a row, wait for another policy.

        Raises:
            PolicyFailedError: there is no Server, so that none will arrive.
        """
        self.policy_failures += 1
        self.policy_failures_in_a_row += 1
        if self.uplink.link is None:
            raise failure
        in_a_row, most = self.policy_failures_in_a_row, self.max_failures
        if in_a_row == 1:
            logger.error("%s. The episode ends here.", failure)
        if in_a_row == most + 1:
            logger.error("the policy failed %d times in a row: worker %s waits for another", in_a_row, self.name)
        if in_a_row > most:
            self.uplink.await_policy()

    def stop(self) -> None:
        """End all episodes after the present step, and all waits, permanently.

        Safe from any thread and signal handlers.
        """
        self._stopping = True
        self.uplink.stop()

    @abstractmethod
    def close(self) -> None:
        """Close the environment."""
