"""Findings of one pass over a dataset of another tool: counted, and told once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tmrl_core.errors import StorageError
from tmrl_core.sessions.inner_ends import InnerEnds
from tmrl_core.sessions.session import Session

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Reading:
    """Counts what a pass over a dataset changes or leaves out.

    Attributes:
        skip_bad: leave out episodes that cannot be read, instead of ending with the first one.
        ends: splits sequences.
        left_out: number of episodes by part of them that is left out, with the reason.
        episodes: number of episodes.
        bad: number of episodes that are left out.
        first_bad: the first of them, with the reason.
    """

    skip_bad: bool = False
    ends: InnerEnds = field(default_factory=InnerEnds)
    left_out: dict[str, int] = field(default_factory=dict)
    episodes: int = 0
    bad: int = 0
    first_bad: str = ""

    def episode(
        self, dataset: object, read: Callable[[], Iterable[Session]], errors: tuple[type[Exception], ...]
    ) -> Iterator[Session]:
        """Yield the sessions of the next episode.

        Args:
            dataset: its name.
            read: reads the episode.
            errors: exceptions of an episode that cannot be read.

        Raises:
            StorageError: it cannot be read, and bad episodes are not skipped; the message names it.
        """
        number = self.episodes
        self.episodes += 1
        # As a whole: half an episode must not reach the learner before its end turns out to be damaged.
        try:
            found = list(read())
        except errors as exc:
            problem = f"episode {number}, cannot be read: {exc}"
            if not self.skip_bad:
                raise StorageError(f"{dataset}, {problem}") from exc
            self.bad += 1
            self.first_bad = self.first_bad or problem
            return
        yield from found

    def leave_out(self, part: str) -> None:
        """Count an episode of which a part is left out."""
        self.left_out[part] = self.left_out.get(part, 0) + 1

    def finish(self, dataset: object) -> None:
        """Log the findings.

        Raises:
            StorageError: no episode could be read.
        """
        # Leaving out all of them is no success, whatever the option says.
        if self.bad == self.episodes > 0:
            raise StorageError(
                f"{dataset}: none of its {self.episodes} episodes can be read; the first: {self.first_bad}"
            )
        if self.bad:
            logger.warning(
                "%s: %d of %d episodes are left out because they cannot be read; the first: %s",
                dataset,
                self.bad,
                self.episodes,
                self.first_bad,
            )
        if self.left_out:
            logger.warning(
                "%s: left out: %s",
                dataset,
                "; ".join(f"{part} (in {count} of {self.episodes} episodes)" for part, count in self.left_out.items()),
            )
        self.ends.tell(dataset)
