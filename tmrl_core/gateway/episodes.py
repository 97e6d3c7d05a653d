"""The finished episodes of each agent: `episodes.csv`, and the learning curve drawn from it."""

from __future__ import annotations

import csv
import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.gateway.contracts import FinishedEpisode
from tmrl_core.metrics import names
from tmrl_core.metrics.curve import picture
from tmrl_core.metrics.records import MetricRecord, episode_values
from tmrl_core.storage import write_whole
from tmrl_core.storage.own_files import open_now, open_own

logger = logging.getLogger(__name__)

HEADER = "ended_at,session,key,steps,return\n"
_QUEUED = 10_000
_INTERVALS = 60
"""Intervals of the curve of steps per second."""


class EpisodeFiles:
    """Write each agent's finished episodes to `FOLDER/AGENT/episodes.csv`, in a thread of its own.

    Full queues drop their oldest episode and full files their oldest quarter. Episodes that cannot be written are
    dropped, and a warning is logged once until writing succeeds again.

    Args:
        folder: folder with a folder for each agent.
        max_episodes: rows of a file.
    """

    def __init__(self, folder: Path, *, max_episodes: int = 100_000) -> None:
        self._folder = folder
        self._max_episodes = max_episodes
        self._queue: deque[FinishedEpisode] = deque(maxlen=_QUEUED)
        self._rows: dict[str, int] = {}
        self._failed = False
        self._closed = False
        self._wake = threading.Condition()  # guards the queue and `_closed`
        self._thread = threading.Thread(target=self._run, name="episodes", daemon=True)
        self._thread.start()

    def path(self, agent: str) -> Path:
        """Return the file of an agent, which may not exist yet."""
        return self._folder / agent / "episodes.csv"

    def add(self, episode: FinishedEpisode) -> None:
        """Take an episode. It neither waits for a file nor raises."""
        with self._wake:
            self._queue.append(episode)
            self._wake.notify()

    def read(self, agent: str) -> list[FinishedEpisode]:
        """Return the stored episodes of an agent, oldest first. Damaged rows are left out.

        Raises:
            OSError: the file exists and cannot be read.
        """
        try:
            with open(self.path(agent), newline="", encoding="utf-8", errors="replace", opener=open_now) as file:
                rows = [_episode(agent, row) for row in csv.reader(file)]
        except FileNotFoundError:
            return []
        return [row for row in rows if row is not None]

    def close(self) -> None:
        """Write the rest and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        closed = False
        while not closed:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._closed)
                episodes, closed = list(self._queue), self._closed
                self._queue.clear()
            for agent in dict.fromkeys(episode.agent for episode in episodes):
                try:
                    self._append(agent, [episode for episode in episodes if episode.agent == agent])
                    self._failed = False
                except OSError as exc:
                    self._rows.pop(agent, None)  # the last row may be incomplete
                    if not self._failed:
                        logger.warning("%s cannot be written (%s): episodes are missing", self.path(agent), exc)
                    self._failed = True

    def _append(self, agent: str, episodes: Sequence[FinishedEpisode]) -> None:
        path = self.path(agent)
        if agent not in self._rows:
            # Whole rows again, after a process that was killed while it wrote one.
            self._rows[agent] = self._rewrite(agent, self.read(agent))
        with open(path, "a", encoding="utf-8", newline="", opener=open_own) as file:
            file.writelines(map(_row, episodes))
        self._rows[agent] += len(episodes)
        if self._rows[agent] > self._max_episodes:
            self._rows[agent] = self._rewrite(agent, self.read(agent)[-(self._max_episodes * 3 // 4) :])

    def _rewrite(self, agent: str, episodes: Sequence[FinishedEpisode]) -> int:
        write_whole(self.path(agent), (HEADER + "".join(map(_row, episodes))).encode())
        return len(episodes)


def learning_curve(agent: str, episodes: Sequence[FinishedEpisode]) -> bytes:
    """Return the learning curve of an agent as PNG.

    Args:
        agent: name for the title.
        episodes: finished episodes, oldest first.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return picture(curve_records(episodes), f"Agent {agent}", collectors="sessions", extra="gateway")


def curve_records(episodes: Sequence[FinishedEpisode]) -> list[MetricRecord]:
    """Return the records that the learning curve is drawn of."""
    records: list[MetricRecord] = []
    steps = steps_before = 0
    elapsed_s = elapsed_before_s = 0.0
    last = episodes[0].ended_at if episodes else 0.0
    for number, episode in enumerate(episodes, 1):
        steps += episode.steps
        elapsed_s += max(0.0, episode.ended_at - last)  # the clock may have been set back
        last = episode.ended_at
        values = episode_values(
            worker=episode.session_id,
            mode="train",
            episode_return=episode.episode_return,
            length=episode.steps,
            samples_received=steps,
        )
        made = MetricRecord(
            time_s=episode.ended_at, elapsed_s=elapsed_s, step=0, kind="episode", values=values, env_steps=steps
        )
        records.append(made)
        if number % math.ceil(len(episodes) / _INTERVALS) == 0 and elapsed_s > elapsed_before_s:
            rate = (steps - steps_before) / (elapsed_s - elapsed_before_s)
            records.append(
                MetricRecord(
                    time_s=made.time_s,
                    elapsed_s=elapsed_s,
                    step=0,
                    kind="network",
                    values={names.SAMPLES_PER_S: rate},
                    env_steps=steps,
                )
            )
            steps_before, elapsed_before_s = steps, elapsed_s
    return records


def _row(episode: FinishedEpisode) -> str:
    return f"{episode.ended_at:.3f},{episode.session_id},{episode.key_id},{episode.steps},{episode.episode_return!r}\n"


def _episode(agent: str, row: Sequence[str]) -> FinishedEpisode | None:
    try:
        ended_at, session_id, key_id, steps, episode_return = row
        return FinishedEpisode(
            ended_at=float(ended_at),
            agent=agent,
            session_id=session_id,
            key_id=key_id,
            steps=int(steps),
            episode_return=float(episode_return),
        )
    except ValueError:
        return None
