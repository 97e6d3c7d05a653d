"""Lockstep schedule: collect exactly the requested amount, with exactly the requested version of the policy.

The request arrives as a `Collect` in the trainer's directive for this stream, and stays in force until another one
arrives. Steps continue the open episode; whole episodes are sent completely. Evaluations run before the next
assignment, never within one, so that a seeded worker depends only on its directives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tmrl_core.actor.rollout.loop import Hook
from tmrl_core.actor.rollout.uplink import WAIT_S, Uplink
from tmrl_core.errors import RemoteProtocolError, StarvedError
from tmrl_core.networking.protocol.messages import NEXT_ROUND, Collect, Version, decode_body
from tmrl_core.samples import Chunk

logger = logging.getLogger(__name__)

SEND_S = 1.0
"""Seconds after which collected samples of an assignment are sent, so that a killed worker loses few."""


class LockstepCollector(Protocol):
    """Collector of episodes for `LockstepSchedule`. `Collector` implements it."""

    @property
    def uplink(self) -> Uplink:
        """Return the uplink to the trainer."""

    @property
    def name(self) -> str:
        """Return the worker's label."""

    @property
    def version(self) -> Version:
        """Return the version of the acting policy."""

    @property
    def recording(self) -> bool:
        """True: an episode is open."""

    @property
    def unsent(self) -> Sequence[Chunk]:
        """Return the samples that were not passed to the link."""

    @property
    def steps_until_poll(self) -> int:
        """Return the number of steps to take before the link is polled again."""

    def train(self, allow: Hook, /) -> bool:
        """Collect an episode; True: it ended in order.

        Args:
            allow: called before the episode and before each slice of it; returns the maximum number of its steps. 0, or
                a call of `give_up_episode` meanwhile: the episode ends here.
        """

    def give_up_episode(self) -> None:
        """End the open episode immediately, and drop its unsent samples."""

    def evaluate_if_due(self) -> bool:
        """Run the evaluation that the trainer requests, if it is new and its policy has arrived; it ends an episode."""

    def seed_next_episode(self, seed: int, /) -> None:
        """Begin the next episode with this seed, and seed the exploration with it."""


class LockstepSchedule:
    """Collect the worker's assignment of each round, and wait for the next one in between.

    Args:
        collector: the collector.
        send_every: number of steps after which samples are also sent; 0: only after some time, and at the end of an
            assignment.
        verbose: log assignments at INFO.
        clock: seconds.
    """

    def __init__(
        self,
        collector: LockstepCollector,
        *,
        send_every: int = 0,
        verbose: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._collector = collector
        self._uplink = collector.uplink
        self._send_every = send_every
        self._level = logging.INFO if verbose else logging.DEBUG
        self._clock = clock
        self._body: bytes | None = None
        self._requested: Collect | None = None
        self._current: Collect | None = None
        """The assignment that is being collected, or the latest one."""
        self._sent = 0
        """Number of its steps that were sent, or of its episodes that ended."""
        self._fresh = False
        """True: the assignment begins with a new episode, and the old one is still open."""
        self._sent_at = clock()

    @property
    def collected(self) -> int:
        """Collected part of the latest assignment: a number of steps or of episodes, as requested."""
        request = self._current
        if request is None:
            return 0
        return self._sent if request.episodes is not None else self._sent + steps_in(self._collector.unsent)

    def run(self) -> None:
        """Collect as `Worker.run_lockstep` documents."""
        while True:
            self._fresh = False
            if not self._wait():
                break
            if self._collector.train(self._allow):
                self._count_episode()
        self._uplink.send()

    def _count_episode(self) -> None:
        request = self._current
        if request is not None and request.episodes is not None:
            self._sent += 1
            self._send()

    def _allow(self) -> int:
        """Return the maximum number of steps of the next slice; 0: the episode ends here."""
        if self._uplink.ending():
            return 0
        request = self._requested_now()
        if (
            request != self._current
            and request is not None
            and self._current is not None
            and _same(request, self._current)
        ):
            self._current = request  # the same assignment with a larger or smaller amount
        if request != self._current or (request is not None and request.episodes is None and self._left() <= 0):
            if request != self._current:
                self._abandon()
            if not self._wait():
                return 0
        if self._fresh and self._collector.recording:
            return 0
        self._fresh = False
        request = self._current
        assert request is not None
        if request.episodes is not None:
            return self._collector.steps_until_poll
        unsent = steps_in(self._collector.unsent)
        if unsent and (self._clock() - self._sent_at >= SEND_S or (self._send_every and unsent >= self._send_every)):
            self._send()
        longest = min(self._collector.steps_until_poll, self._left())
        return longest if not self._send_every else max(1, min(longest, self._send_every))

    def _left(self) -> int:
        return self._current.amount - self.collected if self._current is not None else 0

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

    def _abandon(self) -> None:
        """End a cancelled assignment. Drop an unfinished episode if whole episodes were requested."""
        request = self._current
        if request is not None and request.episodes is not None and self._collector.recording:
            self._collector.give_up_episode()
        self._send()

    def _send(self) -> None:
        request = self._current
        if request is not None and request.episodes is None:
            self._sent += steps_in(self._collector.unsent)
        self._uplink.send()
        self._sent_at = self._clock()

    def _wait(self) -> bool:
        """Wait for an incomplete assignment and its policy. Return False when the run ends."""
        link = self._uplink.link
        if link is None:
            raise StarvedError(
                "lockstep collects what a trainer asks for, and there is none: the worker is standalone. Use "
                "run_episodes, or worker.collection: asynchronous."
            )
        try:
            while not self._uplink.ending():
                request = self._requested_now()
                if request is not None and self._current is not None and _same(request, self._current):
                    self._current = request
                if request is not None and request == self._current and self._left() > 0:
                    return True
                self._send()
                if self._uplink.next_evaluation() is not None:
                    link.say_waits("")  # it does not wait meanwhile, and the trainer asks only workers that do
                if self._collector.evaluate_if_due():
                    continue
                if (
                    request is not None
                    and request != self._current
                    and not link.directive.pause
                    and self._begin(request)
                ):
                    continue
                waits = self._waits(request)
                link.say_waits("" if link.counts.queued_samples else waits)
                link.wait_change(WAIT_S)
            return False
        finally:
            link.say_waits("")

    def _begin(self, request: Collect) -> bool:
        """Begin another assignment, if its policy has arrived."""
        if self._collector.version != request.version:
            self._uplink.take_policy(verbose=False)
            if self._collector.version != request.version:
                return False
        before = self._current
        # A restarted trainer does not know the beginning of an open episode.
        restarted = before is None or before.version[0] != request.version[0]
        self._fresh = (
            restarted or request.seed is not None or request.episodes is not None
        ) and self._collector.recording
        if request.seed is not None:
            self._collector.seed_next_episode(request.seed)
        self._current, self._sent, self._sent_at = request, 0, self._clock()
        logger.log(
            self._level, "worker %s collects %s of round %d", self._collector.name, request.amount, request.round
        )
        return True

    def _waits(self, request: Collect | None) -> str:
        if request is not None and request == self._current:
            return request.done
        mine = self._collector.version
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


def steps_in(chunks: Sequence[Chunk]) -> int:
    """Return the number of environment steps in these chunks; a reset, step 0 of its episode, does not count."""
    return sum(segment.rows - (1 if segment.first_step == 0 else 0) for chunk in chunks for segment in chunk.segments)
