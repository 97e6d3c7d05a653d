"""The recorder of several environments that are stepped together: one call for each step of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tmrl_core.actor.rollout.info_metrics import InfoMetrics
from tmrl_core.actor.rollout.recorder import Episode, StepRecorder
from tmrl_core.actor.rollout.vector_environment import Restart, info_of
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Version
from tmrl_core.samples.batch_writer import BatchWriter, Slot
from tmrl_core.samples.segments import LANE_BITS

End = Literal["terminated", "truncated", "aborted"]


class VectorRecorder(StepRecorder):
    """Record the steps of several environments; see `StepRecorder`.

    All rows are reset together at first. Then each row begins its next episode by itself.

    Args:
        buffer: receives samples and records.
        rows: number of environments.
        name, info_metrics: see `StepRecorder`.

    Attributes:
        running: True: the rows have been reset, and their episodes go on.
    """

    def __init__(self, buffer: Buffer, rows: int, *, name: str = "", info_metrics: Sequence[str] = ()) -> None:
        super().__init__(buffer, name=name, info_metrics=info_metrics)
        self.rows = rows
        self.running = False
        self._metric_keys = info_metrics
        self._metrics = self.new_metrics()
        self._open: list[Episode | None] = [None] * rows
        # Sums of an array, because they change with each step of each row.
        self._totals = np.zeros(rows)
        self._ticks = 0
        """Number of steps of all rows."""
        self._begun = [0] * rows
        """Value of `_ticks` at the reset of each row."""
        self._left_out: set[str] = set()
        self._writer = BatchWriter(rows, self._left_out)

    def new_metrics(self) -> list[InfoMetrics]:
        """Return collections of metrics for an episode of each row."""
        return [InfoMetrics(self._metric_keys) for _ in range(self.rows)]

    @property
    def recording(self) -> bool:
        """True: episodes go on."""
        return self.running

    @property
    def unsent(self) -> int:
        """Number of samples that were not taken."""
        return len(self.buffer) + self._writer.rows

    @property
    def unsent_steps(self) -> int:
        """Number of environment steps among them; a reset is none."""
        return super().unsent_steps + self._writer.steps

    # --- steps --------------------------------------------------------------------------------------------------------

    def begin_rows(self, restart: Restart, extras: Mapping[str, Any], seeds: Sequence[int | None] = ()) -> None:
        """Begin episodes with the results of resets.

        Args:
            restart: rows that were reset.
            extras: stored with each reset, in the columns of the steps' extras.
            seeds: of the resets, for the records; empty: none was chosen.
        """
        self.running = True
        rows, none = restart.rows, np.zeros(self.rows, np.bool_)
        shape = (self.rows,)
        extras_B = {name: np.broadcast_to(value, shape + np.shape(value)) for name, value in extras.items()}
        self._write(
            Slot(
                restart.obs_B,
                None,
                np.zeros(self.rows),
                none,
                none,
                False,
                extras_B,
                self._infos(restart.infos, np.flatnonzero(rows).tolist()),
                rows,
                None if rows.all() else rows,
            ),
            seeds,
        )

    def step_rows(
        self,
        action_B: Any,
        obs_B: Any,
        reward_B: np.ndarray,
        terminated_B: np.ndarray,
        truncated_B: np.ndarray,
        infos_B: Mapping[str, Any],
        extras_B: Mapping[str, Any],
        begun: np.ndarray | None = None,
        reset_extras: Mapping[str, Any] | None = None,
    ) -> int:
        """Record one step of all rows; episodes end with their flags.

        Args:
            action_B, obs_B, reward_B, terminated_B, truncated_B, infos_B: of the step.
            extras_B: further values by name, each stored in a column of its own.
            begun: rows that began an episode instead, with this observation; None: none did.
            reset_extras: extras of these rows.

        Returns:
            Number of episodes that have ended.
        """
        if begun is not None:
            reward_B = np.where(begun, 0.0, reward_B)
            values = reset_extras or {}
            extras_B = {
                name: _with_rows(value_B, begun, values[name]) if name in values else value_B
                for name, value_B in extras_B.items()
            }
        infos = self._infos(infos_B, range(self.rows)) if infos_B else {}
        # Of few rows, lists are searched faster than arrays.
        ended = (terminated_B | truncated_B).tolist()
        rows = [row for row, over in enumerate(ended) if over] if True in ended else []
        self._write(Slot(obs_B, action_B, reward_B, terminated_B, truncated_B, bool(rows), extras_B, infos, begun), ())
        self._totals += reward_B
        self._ticks += 1
        if self._adds_steps:
            for row, metrics in enumerate(self._metrics):
                if begun is None or not begun[row]:
                    metrics.add(infos.get(row, {}))
        for row in rows:
            self._end_row(row, "terminated" if terminated_B[row] else "truncated", infos.get(row, {}))
        return len(rows)

    def _infos(self, infos_B: Mapping[str, Any], rows: Sequence[int]) -> dict[int, dict[str, Any]]:
        return {row: info for row in rows if (info := info_of(infos_B, row))}

    def _write(self, slot: Slot, seeds: Sequence[int | None]) -> None:
        if slot.resets is not None:
            for row in np.flatnonzero(slot.resets).tolist():
                number = row << LANE_BITS | next(self._numbers)
                self._open[row] = self.episode = Episode(number, True, False, seeds[row] if seeds else None)
                self._writer.begin_run(row, number, 0, self.version)
                self._metrics[row].begin()
                # A reset that comes with the other rows' next step counts as that step; others come after it.
                self._begun[row] = self._ticks + (slot.only is None and slot.action is not None)
                self.episodes += 1
            self._totals[slot.resets] = 0.0
        before = self._writer.rows
        if not self._writer.append(slot):
            self._flush(slot.resets)
            before = 0
            fits = self._writer.append(slot)
            assert fits, "a slot has to fit the chunk that was made for it"
        self.steps_collected += self._writer.rows - before

    def _flush(self, begun: np.ndarray | None = None) -> None:
        """Move the rows of the writer into the Buffer. Rows in `begun` begin with the next slot."""
        chunk = self._writer.finish()
        if chunk is not None:
            self.buffer.extend([chunk])
        self._writer = BatchWriter(self.rows, self._left_out)
        for row, episode in enumerate(self._open):
            if episode is not None:
                step = 0 if begun is not None and begun[row] else self._step_of(row) + 1
                self._writer.begin_run(row, episode.number, step, self.version)

    def set_version(self, version: Version) -> None:
        """Store this policy version with the samples from the next ones on."""
        if version != self.version:
            self.version = version
            for row, episode in enumerate(self._open):
                if episode is not None:
                    self._writer.begin_run(row, episode.number, self._step_of(row) + 1, version)

    def _step_of(self, row: int) -> int:
        return self._ticks - self._begun[row]

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _end_row(self, row: int, end: End, info: Mapping[str, Any]) -> None:
        episode, self._open[row] = self._open[row], None
        if episode is not None:
            episode.total, episode.steps = float(self._totals[row]), self._step_of(row)
            self.finish(episode, end, {} if end == "aborted" else self._metrics[row].take(info))

    def end(self, record: bool = True) -> None:
        """End the open episodes where they are. All rows have to be reset next.

        Args:
            record: leave records that say aborted; False: only of episodes some of whose samples were sent.
        """
        self.running = False
        self.episode = None
        for row, episode in enumerate(self._open):
            if episode is not None and (record or episode.sent):
                self._end_row(row, "aborted", {})
            self._open[row] = None

    def played(self, episode: Episode, end: End, metrics: Mapping[str, float]) -> None:
        """Leave the record of an episode that was not collected, whose number is given here."""
        self.episodes += 1
        episode.number = next(self._numbers)
        self.finish(episode, end, metrics)

    # --- samples ------------------------------------------------------------------------------------------------------

    def take(self, *, repeat_last: bool = False) -> tuple[list[Chunk], list[EpisodeRecord]]:
        """Return samples and records, and forget them. Open episodes go on; their lanes need no repeated rows."""
        self._flush()
        for episode in self._open:
            if episode is not None:
                episode.sent = True
        return super().take()

    def discard(self) -> None:
        """Remove the samples. The records stay."""
        self._flush()
        super().discard()

    def drop_unsent(self) -> int:
        """Remove the samples of open episodes that were not taken; return their number."""
        self._flush()
        chunks, records = self.buffer.take()
        numbers = [episode.number for episode in self._open if episode is not None]
        kept = [chunk.where(~np.isin(chunk.episode, numbers)) for chunk in chunks]
        self.buffer.extend(kept, records)
        dropped = sum(chunk.rows for chunk in chunks) - sum(chunk.rows for chunk in kept)
        self.samples_dropped += dropped
        return dropped


def _with_rows(value_B: Any, rows: np.ndarray, value: Any) -> np.ndarray:
    """Return a copy of a batch with this value in some rows."""
    changed: np.ndarray = np.array(value_B)
    changed[rows] = value
    return changed
