"""Data in addition to the columns: runs of one episode and one policy version, and records of finished episodes."""

# Theory of operation
#
# Rows do not say which episode they are of; segments say it of runs of rows. A chunk of 6 rows:
#
#     rows       0 1 2       3 4        5
#     segment    (3, ep. 7,  (2, ep. 7, (1, ep. 8,
#                 from 0,     from 3,    from 0,
#                 v1.4)       v1.5)      v1.5)
#
# New weights arrived before row 3, and row 5 is the next episode's reset. Row n + 1 is a step from row n if both are of
# one episode, their step numbers follow, and row n ended nothing. This needs nothing but the two segments, so it holds
# however chunks were cut, lost, refused or mixed with others: a gap shows as a jump of the numbers, and no transition
# is made across it. An id is used once in a process, so that "the same episode" needs no context.
#
# A run costs some 6 to 20 bytes on the wire; a column of ids would cost 8 for each row, before compression.
#
# The upper bound of all numbers, 2^62, lets the trainer add rows to them within int64 without a check of each sum.
#
# A record tells of a whole episode, and travels beside the rows: test episodes have no rows at all, and rows may be
# lost or dropped. What a record says is thus the worker's word, and the trainer uses it for display and evaluation
# only.

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Version = tuple[int, int]
"""(incarnation, counter) of a policy; (0, 0) means that there was none yet."""

NO_VERSION: Version = (0, 0)

# The upper bound leaves space to add a number of rows within int64.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


LANE_BITS = 40
"""The bits of an episode's id from this one on are its lane: the environment that it is of, among those of one worker.

Rows of one lane follow each other in a stream; rows of others may stand between them."""
MAX_LANES = 256
"""Maximum number of environments of a worker."""

IS_SUCCESS = "is_success"
"""Key of the info with which environments report that an episode reached its goal."""
INTERVENTION_RATE, TAKEOVERS = "intervention_rate", "takeovers"
"""Metrics of an episode beside a person: the share of its steps that the person acted, and the number of takeovers."""
MOST_METRICS, MOST_METRIC_CHARACTERS = 32, 100
"""Maximum number of metrics of an episode, and of characters in a metric's name."""

_Name = Annotated[str, msgspec.Meta(max_length=MOST_METRIC_CHARACTERS)]
_Metrics = Annotated[dict[_Name, float], msgspec.Meta(max_length=MOST_METRICS)]


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A run of neighbouring rows of one episode, acted by one policy version.

    Row `i` of the segment is step `first_step + i` of its episode; step 0 is the reset.

    Attributes:
        rows: number of rows, at least 1.
        episode: id of the episode, unique within the stream of one worker process.
        first_step: step index of the first row.
        incarnation: first half of the policy's version.
        counter: second half of the policy's version.
    """

    rows: _Count
    episode: _Count
    first_step: _Count
    incarnation: _Count = 0
    counter: _Count = 0

    @property
    def version(self) -> Version:
        """Return the policy's version, `(incarnation, counter)`."""
        return self.incarnation, self.counter

    @property
    def lane(self) -> int:
        """Return the lane of the episode, see `LANE_BITS`."""
        return self.episode >> LANE_BITS


class EpisodeRecord(msgspec.Struct, frozen=True, array_like=True):
    """One finished episode.

    Attributes:
        agent: id of the agent; "" with a single agent.
        episode_return: sum of the rewards, undiscounted.
        length: environment steps after the reset.
        mode: "train", or "test" for a deterministic episode.
        end: "terminated", "truncated" (cut by a limit), or "aborted" (the environment or the worker ended it).
        episode: id of the episode, as in the segments.
        version: policy version at the episode's end.
        seed: seed of the episode's reset, if one was given.
        evaluation: id of the evaluation that requested the episode, if any.
        worker: name of the worker that played it.
        metrics: numbers from the environment's infos: `is_success`, and the keys in `worker.info_metrics`.
    """

    agent: str
    episode_return: float
    length: _Count
    mode: Literal["train", "test"]
    end: Literal["terminated", "truncated", "aborted"]
    episode: _Count = 0
    version: tuple[_Count, _Count] = NO_VERSION
    seed: int | None = None
    evaluation: int | None = None
    worker: str = ""
    metrics: _Metrics = {}
