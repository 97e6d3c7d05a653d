"""Segments that count how often they are looked at, so that tests need no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tmrl_core.samples import Segment


class CountedSegments(tuple[Segment, ...]):
    """Segments of a chunk. Beyond `most` looks, they raise: quadratic work would last for hours.

    Attributes:
        looks: number of segments that were read.
        most: allowed number.
    """

    looks = 0
    most = 0

    def _look(self, number: int) -> None:
        self.looks += number
        assert self.looks <= self.most, f"more than {self.most} looks at {len(self)} segments"

    def __iter__(self) -> Iterator[Segment]:
        for segment in super().__iter__():
            self._look(1)
            yield segment

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        self._look(len(found) if isinstance(item, slice) else 1)
        return found


def counted(segments: list[Segment], times: int = 10) -> CountedSegments:
    """Return segments that may be looked at `times` times each."""
    made = CountedSegments(segments)
    made.most = times * len(segments)
    return made


def one_row_segments(kind: str, number: int, version: tuple[int, int]) -> CountedSegments:
    """Return segments of one row each.

    Args:
        kind: following: of one episode, step by step; identical: its first step again and again; alternating:
            following, of two versions in turn.
        number: number of segments.
        version: version of all, or of each second one.
    """
    return counted(
        [
            Segment(
                1,
                5,
                0 if kind == "identical" else index,
                version[0],
                version[1] - (kind == "alternating" and index % 2),
            )
            for index in range(number)
        ]
    )


KINDS = ("following", "identical", "alternating")
MANY = 5_000
"""Enough: they count looks, of which quadratic work takes thousands of times as many."""
