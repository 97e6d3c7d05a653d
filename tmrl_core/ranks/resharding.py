"""Number of ranks at the start of a run, compared with that of its checkpoints."""

# Theory of operation
#
# A stream belongs to a Server, and its rows and its offset to that Server's rank. So ranks are never merged or divided:
# a Server that is added brings a rank that begins with the networks of rank 0 and an empty memory, and one that is
# removed leaves its rank's samples behind. The order of `server.endpoints` is the order of the ranks, so both happen at
# its end; a Server that changed its place would bring its streams to a rank that does not know their offsets, which
# would store samples a second time.
#
# Each rank tells what it sees (`Seen`), since each may have a disk of its own, and all compute the same plan from the
# same list. Example: parts.json says 2 ranks, and 3 are started. Ranks 0 and 1 have checkpoints of updates 2,000 and
# 3,000, rank 2 has none: all begin at 3,000, rank 2 from `rank-0/`. It writes a checkpoint of its own before parts.json
# says 3, so that a kill in between changes nothing.
#
# `memory.capacity` is the whole run's and a stored memory's cannot change, so it has to grow with the ranks.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import CheckpointError


@decodable
class Seen(msgspec.Struct, frozen=True):
    """Checkpoints that one rank sees.

    Args:
        updates: numbers of updates of its own checkpoints, ascending.
        ranks: number of ranks of the run's checkpoints; 1: one process wrote them; None: it sees none.
        servers: endpoints of these ranks, as far as they are known.
        capacity: transitions of its memory, by the configuration.
        capacity_before: the same in its checkpoints; None: unknown.
    """

    updates: list[int]
    ranks: int | None = None
    servers: list[str] = []
    capacity: int = 0
    capacity_before: int | None = None


@dataclass(frozen=True)
class Plan:
    """Beginning of a run with ranks.

    Args:
        at: number of updates of the checkpoint that all resume from; None: the run is new.
        before: number of ranks that wrote it.
    """

    at: int | None
    before: int


def plan_of(seen: Sequence[Seen], servers: Sequence[str], folder: Path) -> Plan:
    """Return the beginning of a run whose ranks see these checkpoints.

    Args:
        seen: of each rank.
        servers: endpoints of the ranks.
        folder: of the run's checkpoints, for messages.

    Raises:
        CheckpointError: the ranks cannot resume; the message has what was found and what to do.
    """
    size = len(seen)
    before = max(one.ranks or 0 for one in seen) or size
    if before == 1:
        raise CheckpointError(
            f"{folder} holds checkpoints of one process, and {size} ranks were started. Start one process, or choose "
            "another run.name: its samples and offsets belong to that process"
        )
    earlier = next((one.servers for one in seen if one.servers), [])
    for rank, server in enumerate(earlier):
        if server in servers and servers.index(server) != rank:
            raise CheckpointError(
                f"server.endpoints: {server} was the Server of rank {rank} and is that of rank "
                f"{servers.index(server)}, which does not know how far its workers' samples are stored. Keep the "
                f"order: add Servers at the end, and remove the last ones. It was {', '.join(earlier)}"
            )
    resuming, new = seen[:before], seen[before:]
    if not any(one.updates for one in resuming):
        return Plan(None, size)
    common = set(resuming[0].updates).intersection(*(one.updates for one in resuming))
    if not common:
        each = "; ".join(f"rank {rank}: {one.updates or 'none'}" for rank, one in enumerate(resuming))
        raise CheckpointError(
            f"no checkpoint in {folder} is one of all ranks; the updates of their checkpoints are {each}. Choose "
            "another run.name, or move the folder away to start from scratch"
        )
    for rank, one in enumerate(new, before):
        if one.updates:
            raise CheckpointError(
                f"rank {rank} is new, and {folder / f'rank-{rank}'} holds checkpoints up to update {one.updates[-1]}, "
                f"when this run had more ranks. Move it and the memory of rank {rank} away"
            )
    for one in resuming if size != before else ():
        if one.capacity_before not in (None, one.capacity):
            raise CheckpointError(
                f"memory.capacity: the memory of each rank has space for {one.capacity_before} transitions, which "
                f"cannot change. With {size} ranks, set memory.capacity to {size * (one.capacity_before or 0)}"
            )
    return Plan(max(common), before)
