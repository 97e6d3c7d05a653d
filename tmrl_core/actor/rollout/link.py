"""Protocol of a worker's link to the Server. `tmrl_core.networking.links.WorkerLink` implements it."""

from __future__ import annotations

from typing import Protocol

from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import Directive, PolicyUpdate, Progress
from tmrl_core.samples import Chunk, EpisodeRecord


class LinkCounts(Protocol):
    """Numbers of samples since the link was created."""

    @property
    def samples_refused(self) -> int:
        """Number of samples that the trainer's memory refused."""

    @property
    def samples_dropped(self) -> int:
        """Number of samples dropped because the queue was full."""

    @property
    def queued_samples(self) -> int:
        """Number of samples passed to the link and not yet acknowledged, refused or dropped."""


class RolloutLink(Protocol):
    """A worker's link: it sends samples and receives policies and directives.

    The collecting thread calls every method.
    """

    expert: bool
    """True: this worker is an expert with its own policy, whose samples the trainer accepts."""

    def send(self, chunks: list[Chunk], records: list[EpisodeRecord], timeout_s: float | None = None) -> None:
        """Queue samples. Wait for free space if the link is configured to.

        Raises:
            LinkClosedError: the link is closed, or there was no free space in time.
        """

    def check(self) -> None:
        """Raise the error that has ended this link, if any.

        Raises:
            LinkClosedError: the link was closed.
            TmrlError: the link failed permanently.
        """

    def take_policy(self) -> PolicyUpdate | None:
        """Return the latest policy that has not been taken yet, without waiting."""

    def wait_change(self, timeout_s: float) -> bool:
        """Wait until anything has changed since the last call, or the link closes; return False after the timeout."""

    def wake(self) -> None:
        """End the present or the next call of `wait_change`, without a lock."""

    @property
    def place(self) -> int:
        """Number of this worker among those of the same label, which stays the same; 0: it is the first, so far."""

    def say_waits(self, text: str) -> None:
        """Send the trainer the reason why this worker waits, with its numbers; empty: it collects again."""

    @property
    def closed(self) -> bool:
        """True: the link was closed, or has failed permanently."""

    @property
    def versions_published(self) -> int:
        """Number of versions published, as `update_actor_weights` counts them. It never decreases."""

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
        """Return the counters of the samples."""

    def close_soon(self) -> None:
        """Begin to close the link, without waiting and without a lock."""

    def close(self, drain: bool = True) -> CloseReport:
        """End the link, by default after a wait for acknowledgements."""
