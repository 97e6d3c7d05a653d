"""The link to the Server as a worker uses it. `tmrl_core.networking.links.WorkerLink` is one."""

from __future__ import annotations

from typing import Protocol

from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import Directive, PolicyUpdate, Progress
from tmrl_core.samples import Chunk, EpisodeRecord


class LinkCounts(Protocol):
    """Numbers of samples since the link was made."""

    @property
    def samples_refused(self) -> int:
        """Refused by the trainer's memory."""

    @property
    def samples_dropped(self) -> int:
        """Dropped because the queue was full."""

    @property
    def queued_samples(self) -> int:
        """Given to the link, and not acknowledged, refused or dropped yet."""


class RolloutLink(Protocol):
    """Samples out, policies and directives in. The collecting thread calls every method."""

    expert: bool
    """True: another policy than the trainer's collects the samples on purpose; the trainer accepts them."""

    def send(self, chunks: list[Chunk], records: list[EpisodeRecord], timeout_s: float | None = None) -> None:
        """Queue samples; wait for free space if the link was made to.

        Raises:
            LinkClosedError: the link is closed, or there was no free space in time.
        """

    def check(self) -> None:
        """Raise the error that has ended this link, if any.

        Raises:
            LinkClosedError: it was closed.
            TmrlError: it failed for good.
        """

    def take_policy(self) -> PolicyUpdate | None:
        """Return the latest policy that has not been taken yet, without waiting."""

    def wait_change(self, timeout_s: float) -> bool:
        """Wait until a policy, directive or progress arrives or the link closes; return False after the timeout."""

    def say_waits(self, text: str) -> None:
        """Send the trainer the reason why this worker waits, with its numbers; empty: it collects again."""

    @property
    def closed(self) -> bool:
        """True: the link was closed, or has failed for good."""

    @property
    def versions_published(self) -> int:
        """Number of versions published, as `update_actor_weights` counts them; never falls."""

    @property
    def directive(self) -> Directive:
        """The latest directive."""

    @property
    def progress(self) -> Progress:
        """The latest progress of the trainer."""

    @property
    def finished(self) -> bool:
        """True: the trainer has ended this run."""

    @property
    def counts(self) -> LinkCounts:
        """Counters of the samples."""

    def close(self, drain: bool = True) -> CloseReport:
        """End the link, by default after a wait for acknowledgements."""
