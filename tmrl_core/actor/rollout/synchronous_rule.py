"""Synchronous collection: a maximum of environment steps for each received model.

With a seed, worker and trainer take turns, so that runs are repeatable.
"""

# Theory of operation
#
# The rule keeps (steps + 1) / (1 + models received) at or below `max_steps_per_update`. The ones make the first step
# possible without a model. With a limit of 2: one step at first (2 / 1), then one model allows two more (4 / 2), and so
# on.
#
# `initial_steps` come first and must fit the ratio too: the worker collects them, then waits until enough models have
# come, then counts its steps from 0, while models are counted from the beginning. So a trainer that starts late gives
# no allowance for steps that were made long before.
#
# Turns make a run repeatable, if the worker has a seed. Free running, the number of samples in the memory at an update
# depends on when messages arrive. With turns it does not:
#
#     worker   collects with v what the ratio allows, sends it, reports "turn v" (`turn_text`)
#     trainer  has all samples now; trains up to its next publication, evaluates if it is due, publishes v + 1, and
#              gives the turn back (`Progress.turn` = v + 1)
#     worker   loads v + 1, sees that the turn is its own, collects
#
# A turn is compared with the latest version that has *arrived*, so that a policy that this worker refuses does not stop
# the run. During the trainer's turn the report stays as it is (`report` returns None): a new one would look like
# another turn.
#
# A trainer without a seed gives no turns. After 10 s with a policy and without a turn, the worker runs freely, with a
# warning; the trainer does the same after 60 s. It waits only if it has a single worker: with several nothing is
# repeatable, and one of them could block the others.
#
# Rejected: fixed points in the trainer's loop with a fixed number of samples (half a message would have to wait
# uncommitted); acting with exactly the version that a step is due (workers store only the latest).

from __future__ import annotations

import logging
import math
import time

from tmrl_core.actor.rollout.asynchronous_rule import EpisodeRule
from tmrl_core.actor.rollout.loop import EnvironmentLoop
from tmrl_core.networking.protocol.messages import turn_text
from tmrl_core.rate_limit import RateLimit

logger = logging.getLogger(__name__)


TURNLESS_S = 10.0
"""Seconds with a policy and no turn after which a worker assumes that its trainer has no seed, and gives no turns."""


class SynchronousRule(EpisodeRule):
    """Keep the ratio of environment steps to models received, for one run.

    First, `initial_steps` are collected without waiting. Then the worker waits until the ratio allows them. Then steps
    are counted from 0, and the ratio holds before each step, or with `end_episodes` before each episode.

    Args:
        loop, test_episode_interval, verbose: see `EpisodeRule`; tests only with `end_episodes`.
        max_steps_per_update: the limit; infinite: no limit.
        initial_steps, nb_steps: number of steps before the ratio holds, and after that.
        end_episodes: True: wait between episodes only.

    Raises:
        ValueError: `max_steps_per_update` is not above 0.
    """

    advice = (
        "Raise worker.max_steps_per_update, worker.initial_steps or trainer.max_training_steps_per_env_step, or lower "
        "trainer.update_model_interval or trainer.start_training."
    )

    def __init__(
        self,
        loop: EnvironmentLoop,
        test_episode_interval: int,
        verbose: bool,
        *,
        max_steps_per_update: float,
        initial_steps: float,
        nb_steps: float,
        end_episodes: bool,
    ) -> None:
        if not max_steps_per_update > 0:
            raise ValueError(f"max_steps_per_update must be above 0, got {max_steps_per_update}")
        super().__init__(loop, test_episode_interval if end_episodes else 0, verbose)
        self.within = not end_episodes
        self.logs_waits = verbose
        self.alone = (
            f"max_steps_per_update is {max_steps_per_update:g} and there is no trainer to send models: the worker is "
            "standalone. Leave max_steps_per_update out."
        )
        self.counting = False
        self._limit = RateLimit(max_steps_per_update)
        self._models = 0
        self._initial_steps = initial_steps
        self._nb_steps = nb_steps
        self._origin = self._uplink.steps_that_count()
        self.turns = loop.seeded and self._uplink.link is not None and not math.isinf(max_steps_per_update)
        self._begun = not self.turns
        self._turnless_since = math.inf

    @property
    def steps(self) -> int:
        """Number of counted steps: the initial ones at first, later those after them."""
        return self._uplink.steps_that_count() - self._origin

    @property
    def starves(self) -> bool:  # type: ignore[override]
        """False: the worker waits for its turn only."""
        return not self._allowed()

    @property
    def done(self) -> bool:  # type: ignore[override]
        """True: all steps are collected."""
        return self.counting and self.steps >= self._nb_steps

    def take(self) -> bool:
        """Load the latest policy, and count the models since the last one."""
        models = self._uplink.update_policy(verbose=self._verbose)
        self._models += models
        return models > 0

    def room(self) -> float:
        """Return the number of steps that the ratio allows; before it holds, the rest of the initial ones."""
        if not self.counting:
            left = self._initial_steps - self.steps
            if left > 0 and self._begun:
                return left
        if not (self._allowed() and self._has_turn()):
            return 0
        self._begun = True
        if not self.counting:
            if left > 0:
                return left
            self.counting = True
            self._origin = self._uplink.steps_that_count()
        return min(self._limit.most(1 + self._models), self._nb_steps) - self.steps

    def _allowed(self) -> bool:
        return self._limit.allows(self.steps + 1, 1 + self._models)

    def _has_turn(self) -> bool:
        """Return True if the trainer has given this worker the turn, for the worker's present policy."""
        link = self._uplink.link
        if not self.turns or link is None:
            return True
        turn = link.progress.turn
        return turn == self._uplink.latest_version != (0, 0) and not self._loop.evaluate_if_due()

    def reason(self) -> str:
        """Return the numbers of the ratio."""
        return (
            f"({self.steps} steps + 1) / (1 + {self._models} models received) is above "
            f"worker.max_steps_per_update = {self._limit.ratio:g}"
        )

    def report(self, reason: str) -> str | None:
        """See `Rule`. The trainer is told when its turn begins. The worker's own turn is awaited silently."""
        link = self._uplink.link
        if not self.turns or link is None:
            return reason
        latest = self._uplink.latest_version
        if not self._allowed():
            # The trainer's turn begins here, when it has all samples of this worker.
            return turn_text(latest) + reason if self._has_turn() else None
        if latest == (0, 0):
            return turn_text(latest) + "it has not received a version yet"
        if link.progress.turn == (0, 0):
            now = time.monotonic()
            self._turnless_since = min(self._turnless_since, now)
            if now - self._turnless_since > TURNLESS_S:
                logger.warning("this trainer takes no turns, so another run of the same seed may differ")
                self.turns = False
        return None
