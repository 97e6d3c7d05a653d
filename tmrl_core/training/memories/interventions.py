"""Replay memory of the steps that persons took over, which other samples never displace."""

# Theory of operation
#
# The memory gets the same chunks as that of all samples, builds the same transitions, and keeps those whose action a
# person chose: the extra `is_intervention` of the action, over n steps of the first one. Filtering built transitions,
# and not rows, keeps the neighbours: the first step of a takeover begins with the observation that the policy saw last.
#
# Copies, and not marks in the other memory: that one drops its oldest samples, and of a run of ten hours the first
# takeovers are the rarest. They are few, so a copy costs little.

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tmrl_core.actor.interventions import IS_INTERVENTION, taken_over
from tmrl_core.samples import Chunk
from tmrl_core.training.memories.layout import TreeSpec
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.transition_builder import TransitionBuilder
from tmrl_core.training.memories.transitions import ChunkExtras, Tail, TransitionColumns


class InterventionBuilder(TransitionBuilder):
    """Build the transitions whose action a person chose."""

    def _join(
        self,
        chunk: Chunk,
        tail: Tail | None,
        observation: TreeSpec,
        action: TreeSpec | None,
        extras: ChunkExtras,
    ) -> tuple[TransitionColumns | None, Tail | None]:
        flags = {IS_INTERVENTION: [taken_over(chunk)]}
        columns, after = super()._join(chunk, tail, observation, action, {**extras, **flags})
        return None if columns is None else _chosen(columns), after


def _chosen(columns: TransitionColumns) -> TransitionColumns | None:
    """Return the transitions of persons, without the flag; None: there are none."""
    extras = dict(columns.sample_extras)
    keep = extras.pop(IS_INTERVENTION)[0] > 0
    count = int(keep.sum())
    if not count:
        return None
    return replace(
        columns,
        count=count,
        prev_obs=[[np.concatenate(parts)[keep]] for parts in columns.prev_obs],
        act=[leaf[keep] for leaf in columns.act],
        rew=columns.rew[keep],
        new_obs=[leaf[keep] for leaf in columns.new_obs],
        terminated=columns.terminated[keep],
        truncated=columns.truncated[keep],
        version=columns.version[keep],
        rows=columns.rows[keep],
        skipped=0,
        extras={name: column[keep] for name, column in columns.extras.items()},
        sample_extras={name: [leaf[keep] for leaf in leaves] for name, leaves in extras.items()},
    )


class InterventionMemory(ReplayMemory):
    """Replay of the newest `memory_size` transitions whose action a person chose.

    The arguments are those of `ReplayMemory`. It is in RAM.
    """

    type_id = "interventions"
    type_version = 1

    def _make_builder(self, rows: Rows) -> TransitionBuilder:
        return InterventionBuilder(rows, self.n_step, self.gamma, self.downcast_float64, self.keep_extras)
