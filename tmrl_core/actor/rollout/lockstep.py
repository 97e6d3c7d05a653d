"""The lockstep schedule: exactly what the trainer asks for, with exactly that version of the policy.

The request comes as a `Collect` in the trainer's directive for this stream, and holds until another one comes.
Steps that are asked for go on in the open episode; whole episodes are sent whole. Evaluations are played before the
next share is begun, never within one, so that what a seeded worker does depends on nothing but what it is told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tmrl_core.actor.rollout.player import Player
from tmrl_core.actor.rollout.uplink import WAIT_S
from tmrl_core.errors import RemoteProtocolError, StarvedError
from tmrl_core.networking.protocol.messages import Collect, decode_body
from tmrl_core.samples import Chunk

logger = logging.getLogger(__name__)

SEND_S = 1.0
"""Seconds after which collected samples of a share leave, so that a worker that dies loses few."""


class LockstepSchedule:
    """Collect the worker's share of each round, and wait for the next one in between.

    Args:
        player: collects.
        send_every: send every so many steps too; 0: only as time passes, and at the end of a share.
        verbose: log shares at INFO.
        clock: seconds.
    """

    def __init__(
        self,
        player: Player,
        *,
        send_every: int = 0,
        verbose: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._player = player
        self._uplink = player.uplink
        self._recorder = player.recorder
        self._send_every = send_every
        self._level = logging.INFO if verbose else logging.DEBUG
        self._clock = clock
        self._body: bytes | None = None
        self._asked: Collect | None = None
        self._open: Collect | None = None
        """The share that is being collected, or was the last."""
        self._sent = 0
        """Steps of it that were sent, or episodes that ended."""
        self._fresh = False
        """It begins with a new episode, and the old one is still open."""
        self._sent_at = clock()

    @property
    def collected(self) -> int:
        """Collected part of the latest share: a number of steps or of episodes, as it asks for."""
        share = self._open
        if share is None:
            return 0
        return self._sent if share.episodes is not None else self._sent + steps_in(self._recorder.buffer.chunks)

    def run(self) -> None:
        """Collect until the end of the run.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            StarvedError: the worker is standalone.
            TmrlError: the link has failed for good.
        """
        while True:
            self._fresh = False
            if not self._wait():
                break
            if self._player.train(self._allow):
                self._count_episode()
        self._uplink.send()

    def _count_episode(self) -> None:
        share = self._open
        if share is not None and share.episodes is not None:
            self._sent += 1
            self._send()

    def _allow(self) -> int:
        """Return the most steps of the next slice; 0: the episode ends here."""
        if self._uplink.ending():
            return 0
        share = self._asked_now()
        if share != self._open and share is not None and self._open is not None and _same(share, self._open):
            self._open = share  # more of the same, or less
        if share != self._open or (share is not None and share.episodes is None and self._left() <= 0):
            if share != self._open:
                self._abandon()
            if not self._wait():
                return 0
        if self._fresh and self._recorder.recording:
            return 0
        self._fresh = False
        share = self._open
        assert share is not None
        if share.episodes is not None:
            return self._player.loop.slice_length
        unsent = steps_in(self._recorder.buffer.chunks)
        if unsent and (self._clock() - self._sent_at >= SEND_S or (self._send_every and unsent >= self._send_every)):
            self._send()
        longest = min(self._player.loop.slice_length, self._left())
        return longest if not self._send_every else max(1, min(longest, self._send_every))

    def _left(self) -> int:
        return self._open.amount - self.collected if self._open is not None else 0

    def _asked_now(self) -> Collect | None:
        link = self._uplink.link
        body = link.directive.collect if link is not None else None
        if body != self._body:
            self._body = body
            try:
                self._asked = decode_body(body, Collect) if body is not None else None
            except RemoteProtocolError as exc:
                logger.error("what the trainer asks for cannot be read, so nothing is collected: %s", exc)
                self._asked = None
        return self._asked

    def _abandon(self) -> None:
        """The share is not wanted any more; whole episodes that cannot be finished are of no use."""
        share = self._open
        if share is not None and share.episodes is not None and self._recorder.recording:
            self._player.give_up_episode()
        self._send()

    def _send(self) -> None:
        share = self._open
        if share is not None and share.episodes is None:
            self._sent += steps_in(self._recorder.buffer.chunks)
        self._uplink.send()
        self._sent_at = self._clock()

    def _wait(self) -> bool:
        """Wait until there is a share with something left of it, and its policy is here; False: the run ends."""
        link = self._uplink.link
        if link is None:
            raise StarvedError(
                "lockstep collects what a trainer asks for, and there is none: the worker is standalone. Use "
                "run_episodes, or worker.collection: asynchronous."
            )
        try:
            while not self._uplink.ending():
                share = self._asked_now()
                if share is not None and self._open is not None and _same(share, self._open):
                    self._open = share
                if share is not None and share == self._open and self._left() > 0:
                    return True
                self._send()
                if self._player.evaluate_if_due():
                    continue
                if share is not None and share != self._open and not link.directive.pause and self._begin(share):
                    continue
                waits = self._waits(share)
                link.say_waits("" if link.counts.queued_samples else waits)
                link.wait_change(WAIT_S)
            return False
        finally:
            link.say_waits("")

    def _begin(self, share: Collect) -> bool:
        """Begin another share, if its policy is here."""
        if self._recorder.version != share.version:
            self._uplink.take_policy(verbose=False)
            if self._recorder.version != share.version:
                return False
        before = self._open
        # A trainer that has been started anew knows nothing of what an open episode began with.
        anew = before is None or before.version[0] != share.version[0]
        self._fresh = (anew or share.seed is not None or share.episodes is not None) and self._recorder.recording
        if share.seed is not None:
            self._player.seed_next_episode(share.seed)
        self._open, self._sent, self._sent_at = share, 0, self._clock()
        logger.log(self._level, "worker %s collects %s of round %d", self._recorder.name, share.amount, share.round)
        return True

    def _waits(self, share: Collect | None) -> str:
        if share is None:
            return "the trainer's next round"
        if share == self._open:
            return share.done
        mine = self._recorder.version
        return (
            f"version {share.version[0]}.{share.version[1]} of the policy, to collect round {share.round} with; it has "
            f"{mine[0]}.{mine[1]}"
        )


def _same(first: Collect, second: Collect) -> bool:
    """Return True if both are the same share, of which one may ask for more."""
    return (first.round, first.version, first.episodes is None) == (
        second.round,
        second.version,
        second.episodes is None,
    )


def steps_in(chunks: Sequence[Chunk]) -> int:
    """Return the number of environment steps in these chunks; a reset, step 0 of its episode, is none."""
    return sum(segment.rows - (1 if segment.first_step == 0 else 0) for chunk in chunks for segment in chunk.segments)
