"""What a rollout needs of the link to the Server. `tmrl_core.networking.links.WorkerLink` is one."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tmrl_core.networking.protocol.messages import Directive, PolicyUpdate, Progress
from tmrl_core.samples import Chunk, EpisodeRecord


class LinkCounts(Protocol):
    """Samples that went this way, counted since the link was made."""

    @property
    def samples_refused(self) -> int:
        """Refused by the trainer's memory."""

    @property
    def samples_dropped(self) -> int:
        """Dropped here, the queue being full."""

    @property
    def queued_samples(self) -> int:
        """Handed to the link and not acknowledged, refused or dropped yet."""


class Farewell(NamedTuple):
    """What became of the samples of a worker that has ended."""

    acknowledged: int
    """By the trainer."""
    handed_over: int
    """To the Server, which stands in for the trainer."""
    neither: int
    """Lost with this process; those that were refused or dropped are counted elsewhere."""


class RolloutLink(Protocol):
    """Samples out, policies and directives in; every method may be called from the thread that collects."""

    expert: bool
    """True: the samples are of a policy that is not the trainer's on purpose; the trainer accepts them."""

    def send(self, chunks: list[Chunk], records: list[EpisodeRecord], timeout_s: float | None = None) -> None:
        """Hand samples over; waits for room if the link was made to.

        Raises:
            LinkClosedError: the link is closed, or no room came in time.
        """

    def check(self) -> None:
        """Raise what has ended this link, if something has.

        Raises:
            LinkClosedError: it was closed.
            TmrlError: what made it fail for good.
        """

    def take_policy(self) -> PolicyUpdate | None:
        """The newest policy not yet taken; never waits."""

    def wait_change(self, timeout_s: float) -> bool:
        """Wait until a policy, directive or progress arrives or the link closes; False: nothing has."""

    def say_waits(self, text: str) -> None:
        """Tell the trainer what this worker waits for, with its numbers; empty: it collects again."""

    @property
    def closed(self) -> bool:
        """True: the link was closed, or has failed for good."""

    @property
    def versions_published(self) -> int:
        """How many versions were published, as `update_actor_weights` counts them; never falls."""

    @property
    def directive(self) -> Directive:
        """The latest."""

    @property
    def progress(self) -> Progress:
        """The latest."""

    @property
    def finished(self) -> bool:
        """True: the trainer has said that this run is over."""

    @property
    def counts(self) -> LinkCounts:
        """Where the samples are."""

    def close(self, drain: bool = True) -> tuple[int, int, int]:
        """End the link, by default after waiting for acknowledgements; returns what `Farewell` holds."""
