"""Lockstep collection: exactly the requested amount, with exactly the requested version of the policy."""

# Theory of operation
#
# The trainer's side is `training/loops/lockstep.py`. This rule sees `Collect`, the latest assignment in the directive,
# and answers with the room that is left of it. Directives are last values, so an assignment may change, be cancelled or
# be skipped between two looks; only the latest counts, and nothing is kept of earlier ones.
#
# Two variables decide: `_requested`, what the trainer wants now, and `_current`, what is being collected. They are the
# same assignment if round, version and kind agree; its amount may grow (it took over a part of another worker) or
# shrink.
#
#     _requested      _current           room
#     none            any                0, NEXT_ROUND is reported
#     round 3, v7     round 2, v6        0 until v7 acts; then `take` begins it
#     round 3, v7     round 3, v7        its amount less what was collected; at 0, `done` is reported
#     round 3, v7,    the same           a larger rest, without a new beginning
#     larger amount
#
# The version must be *exactly* the requested one. A newer one is no substitute: samples of v8 cannot train round 3, and
# the trainer counts them as stale. If the worker has a newer version already, its round has ended without it, and it
# waits for the next one.
#
# In a round of steps, an open episode goes on in the next round: ending it would favour short episodes and waste the
# rest. It is given up if it cannot be continued: the trainer restarted (another incarnation knows no beginning of it),
# the assignment brings a seed, or whole episodes are wanted.
#
# What was collected is counted from what was *sent* plus what waits to be sent, less the number at the beginning, and
# not from steps made: samples that a failed environment has dropped have to be made again, or the round would wait for
# ever.
#
# Evaluations run in `Schedule._wait`, that is between two assignments and never within one. With a seed, what a worker
# plays then depends on its directives only, and not on when they arrive.
#
# Samples of an assignment are sent at its end, and every second before that, so that a killed worker loses little.

from __future__ import annotations

import logging
import math

from tmrl_core.actor.rollout.collector import Collector
from tmrl_core.actor.rollout.schedule import Rule
from tmrl_core.errors import ConfigError, RemoteProtocolError
from tmrl_core.networking.protocol.messages import NEXT_ROUND, PAUSE_END, Collect, decode_body

logger = logging.getLogger(__name__)

SEND_S = 1.0
"""Seconds after which collected samples of an assignment are sent, so that a killed worker loses few."""


class LockstepRule(Rule):
    """Allow the rest of the worker's assignment of each round, and nothing between two assignments.

    Args:
        collector: the collector.
        verbose: log assignments at INFO.
    """

    hold_s = SEND_S
    alone = (
        "lockstep collects what a trainer asks for, and there is none: the worker is standalone. Use run_episodes, or "
        "worker.collection: asynchronous."
    )

    def __init__(self, collector: Collector, verbose: bool = False) -> None:
        self._collector = collector
        self._recorder, self._uplink = collector.recorder, collector.uplink
        self._level = logging.INFO if verbose else logging.DEBUG
        self._body: bytes | None = None
        self._requested: Collect | None = None
        self._current: Collect | None = None
        """The assignment that is being collected, or the latest one."""
        self._origin = 0
        """Number of the steps that had been sent when it began."""
        self._episodes = 0
        """Number of its episodes that have ended."""

    @property
    def whole(self) -> bool:  # type: ignore[override]
        """True: the assignment is of whole episodes."""
        return self._current is not None and self._current.episodes is not None

    @property
    def collected(self) -> int:
        """Collected part of the latest assignment: a number of steps or of episodes, as requested."""
        if self.whole:
            return self._episodes
        return self._uplink.steps_sent + self._recorder.unsent_steps - self._origin

    def room(self) -> float:
        """Return the rest of the assignment; 0 too once it is cancelled, which ends an episode that was to be whole."""
        request, current = self._requested_now(), self._current
        if request is None or current is None or not _same(request, current):
            if self.whole and self._recorder.recording:
                self._collector.give_up_episode()
            return 0
        self._current = request  # the same assignment, perhaps with a larger or smaller amount
        if not self.whole:
            return request.amount - self.collected
        return math.inf if self._recorder.recording or self._episodes < request.amount else 0

    def _requested_now(self) -> Collect | None:
        link = self._uplink.link
        body = link.directive.collect if link is not None else None
        if body != self._body:
            self._body = body
            try:
                self._requested = decode_body(body, Collect) if body is not None else None
            except RemoteProtocolError as exc:
                logger.error("the trainer's collection request cannot be read, so nothing is collected: %s", exc)
                self._requested = None
        return self._requested

    def take(self) -> bool:
        """Begin another assignment, if its policy has arrived.

        Raises:
            ConfigError: it is of whole episodes, and there are several environments.
        """
        collector, request, before, link = self._collector, self._requested, self._current, self._uplink.link
        if request is None or request == before or link is None or link.directive.pause:
            return False
        if request.episodes is not None and self._recorder.rows > 1:
            raise ConfigError(
                f"worker.envs: found {self._recorder.rows}, and the trainer collects whole episodes: of several "
                "environments, the short episodes would end first. Set worker.envs: 1, or trainer.lockstep.steps"
            )
        if self._recorder.version != request.version:
            self._uplink.take_policy(verbose=False)
            if self._recorder.version != request.version:
                return False
        self._current, self._episodes, self._origin = request, 0, self._uplink.steps_sent
        logger.log(self._level, "worker %s collects %s of round %d", collector.name, request.amount, request.round)
        if request.seed is not None:
            collector.seed_next_episode(request.seed)
        # A restarted trainer does not know the beginning of an open episode.
        restarted = before is None or before.version[0] != request.version[0]
        if self._recorder.recording and (restarted or request.seed is not None or self.whole):
            collector.give_up_episode()
        return True

    def ended(self, in_order: bool) -> bool:
        """Count a whole episode, which is sent now. Steps are sent later, with those of the next episode."""
        if not (self.whole and in_order):
            return False
        self._episodes += 1
        return True

    def reason(self) -> str:
        """Return the text for an assignment that is done, or the reason why none has begun."""
        request, mine = self._requested, self._recorder.version
        if request is not None and request == self._current:
            return request.done
        if self._uplink.link is not None and self._uplink.link.directive.pause:
            return PAUSE_END
        # The version of a round that ended without this worker does not arrive any more.
        if request is None or (mine[0] == request.version[0] and mine > request.version):
            return NEXT_ROUND
        return (
            f"version {request.version[0]}.{request.version[1]} of the policy, to collect round {request.round} with; "
            f"it has {mine[0]}.{mine[1]}"
        )


def _same(first: Collect, second: Collect) -> bool:
    """Return True if both are the same assignment, perhaps with different amounts."""
    return (first.round, first.version, first.episodes is None) == (
        second.round,
        second.version,
        second.episodes is None,
    )
