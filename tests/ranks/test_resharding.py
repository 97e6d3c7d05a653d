"""Number of ranks at a start, compared with that of the run's checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.errors import CheckpointError
from tmrl_core.ranks.resharding import Plan, Seen, plan_of

FOLDER = Path("checkpoint")
SERVERS = ["a:1", "b:2", "c:3"]


def seen(*updates: list[int], ranks: int | None = None, before: int | None = 5000) -> list[Seen]:
    """Ranks that see these checkpoints; those without any are new and may have another disk."""
    return [
        Seen(own, ranks if own else None, SERVERS[: ranks or 0] if own else [], 5000, before if own else None)
        for own in updates
    ]


@pytest.mark.parametrize(
    ("ranks", "plan"),
    [
        (seen([], []), Plan(None, 2)),
        (seen([2000, 3000], [1000, 2000], ranks=2), Plan(2000, 2)),
        (seen([2000, 3000], [3000], [], ranks=2), Plan(3000, 2)),
        (seen([2000], [2000], ranks=3), Plan(2000, 3)),
    ],
    ids=["new", "resumed", "one more", "one less"],
)
def test_all_ranks_begin_at_one_update(ranks: list[Seen], plan: Plan) -> None:
    assert plan_of(ranks, SERVERS[: len(ranks)], FOLDER) == plan


@pytest.mark.parametrize(
    ("ranks", "servers", "message"),
    [
        (seen([2000], [2000], ranks=1), SERVERS[:2], "holds checkpoints of one process, and 2 ranks were started"),
        (seen([2000], [1000], ranks=2), SERVERS[:2], r"rank 0: \[2000\]; rank 1: \[1000\]"),
        (seen([2000], [], ranks=2), SERVERS[:2], r"rank 0: \[2000\]; rank 1: none"),
        (
            seen([2000], [2000], [], ranks=2),
            ["new:9", "a:1", "b:2"],
            "a:1 was the Server of rank 0 and is that of rank 1, .* It was a:1, b:2",
        ),
        (seen([2000], [2000], [500], ranks=2), SERVERS, r"rank 2 is new, and checkpoint.rank-2 holds .* update 500"),
        (seen([2000], [2000], [], ranks=2, before=7500), SERVERS, "With 3 ranks, set memory.capacity to 22500"),
    ],
)
def test_what_cannot_be_resumed_is_refused(ranks: list[Seen], servers: list[str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        plan_of(ranks, servers, FOLDER)
