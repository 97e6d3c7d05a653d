"""The step recorder: makes samples and episode records of steps, whichever code makes the steps.

An environment loop, or a server of environments that run elsewhere, pushes each step. The recorder knows neither the
environment nor the policy. It records one episode at a time, for one thread at a time.
"""

# Theory of operation
#
# The recorder is told of steps; it makes none. It knows neither environment, policy nor link, so an environment loop, a
# service whose environments run on other machines, and a test drive it alike.
#
# State: the open episode (`Episode`), the Buffer, and a few counters. `begin`, `step` and `end` change them, and the
# thread that steps is the only one that calls. An episode is in one of three states:
#
#     none open   begin   -> open       the reset becomes row 0, without an action, with reward 0.0
#     open        step    -> open       row n: the action, and the observation, reward and flags it led to
#     open        step    -> none open  a flag is set, or the limit is reached; its record is left
#     open        end     -> none open  nobody knows how it would have gone on: its record says "aborted"
#     open        begin   -> open       ends it first, as `end`
#
# A row holds the observation *after* its action, so the trainer needs two neighbouring rows for a transition, and the
# reset is a row. With a limit of 3, an episode is rows 0 to 3, and row 3 is truncated.
#
# Order matters in `step`: the row is appended before the episode's numbers change. If the codec refuses a value, the
# exception finds an episode that still agrees with its rows.
#
# A record is made from the environment's rewards, not from the rows: a compressor may change the rows, and rows may be
# dropped for lack of space, while the return that a user reads stays that of the episode.
#
# `set_version` is called between two steps. Rows from then on carry the new version, since it chose the next action;
# the row before it was made by the old one. The version lives here, and not with the policy, because the only question
# about it is "which policy made this row".
#
# Failures: `drop_unsent` removes what a failed environment has made and nobody has seen; the part that was sent stays,
# and ends as aborted. `put_back` returns what a link did not take; order does not change, because nothing was recorded
# in between.
#
# Rejected: a queue between loop and recorder (a copy and a thread for each step, to save about 2 us of the loop).

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tmrl_core.actor.rollout.info_metrics import InfoMetrics
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Version

SampleCompressor = Callable[[Any, Any, Any, Any, Any, Any], Any]
"""`(prev_act, obs, rew, terminated, truncated, info)` -> the same, changed."""


@dataclass(slots=True)
class Episode:
    """The state of an episode that is being recorded.

    Attributes:
        number: its id.
        collect: its samples go to the Buffer.
        test: True: a deterministic episode; one step that explores makes it False.
        seed: of its reset, if it was chosen.
        limit: number of steps after the reset at which it is truncated.
        evaluation: id of the evaluation that it belongs to.
        began: `time.perf_counter` at its reset.
        steps: after the reset.
        total: sum of the rewards.
        info: of the latest step.
        open: False: it has ended.
        sent: some of its samples have left the Buffer.
    """

    number: int
    collect: bool
    test: bool
    seed: int | None = None
    limit: float = math.inf
    evaluation: int | None = None
    began: float = field(default_factory=time.perf_counter)
    steps: int = 0
    total: Any = 0.0
    info: Any = None
    open: bool = True
    sent: bool = False


class StepRecorder:
    """Record steps as samples of a Buffer, and each finished episode as an `EpisodeRecord`.

    Observations are recorded as they are given, and rewards as floats: check both first, see `step_checks.StepCheck`.

    Args:
        buffer: receives samples and records.
        name: of the worker, in the records.
        sample_compressor: changes each sample before it is stored; None: samples are stored as they are. Of a class,
            each recorder makes an object of its own.
        crc_debug: store the original transition in each sample's info.
        max_samples_per_episode: number of steps after the reset at which an episode is truncated; infinite: none is.
        info_metrics: keys of infos that become metrics of the episode; see `InfoMetrics`.
        numbers: ids of episodes. Recorders that send over one uplink share it, so that no two episodes have one id.

    Raises:
        ValueError: `max_samples_per_episode` is below 1.
        ConfigError: `info_metrics` are too many or too long.

    Attributes:
        episode: the latest; None before the first.
        episodes: number of episodes begun.
        version: (incarnation, counter) of the acting policy; see `set_version`.
        steps_collected: number of samples recorded, resets included.
        samples_dropped: number of samples that `drop_unsent` has removed.
        compared: number of samples that were stored with their original transition.
        own_metrics: returns metrics of the episode that ends, besides those of its infos; None: there are none.
    """

    rows = 1
    """Number of environments that are stepped together."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        name: str = "",
        sample_compressor: SampleCompressor | type[SampleCompressor] | None = None,
        crc_debug: bool = False,
        max_samples_per_episode: float = math.inf,
        info_metrics: Sequence[str] = (),
        numbers: Iterator[int] | None = None,
    ) -> None:
        if not max_samples_per_episode >= 1:
            raise ValueError(f"max_samples_per_episode must be at least 1, got {max_samples_per_episode}")
        self.buffer = buffer
        self.max_samples_per_episode = max_samples_per_episode
        self.name = name
        self.sample_compressor = sample_compressor() if isinstance(sample_compressor, type) else sample_compressor
        self.crc_debug = crc_debug
        self.episode: Episode | None = None
        self.episodes = 0
        self._numbers = itertools.count() if numbers is None else numbers
        self.version: Version = (0, 0)
        self.steps_collected = 0
        self.samples_dropped = 0
        self._info_metrics = InfoMetrics(info_metrics)
        self._adds_steps = self._info_metrics.each_step
        self.compared = 0
        self.own_metrics: Callable[[], Mapping[str, float]] | None = None
        self._last_obs: Any = None

    @property
    def unsent(self) -> int:
        """Number of samples that were not taken."""
        return len(self.buffer)

    @property
    def unsent_steps(self) -> int:
        """Number of environment steps among them; a reset is none."""
        return steps_in(self.buffer.chunks)

    @property
    def recording(self) -> bool:
        """True: an episode is open."""
        return self.episode is not None and self.episode.open

    def begin(
        self,
        obs: Any,
        info: dict[str, Any],
        *,
        collect: bool = True,
        limit: float | None = None,
        seed: int | None = None,
        action: Any = None,
        extras: dict[str, Any] | None = None,
    ) -> Episode:
        """Begin an episode with the result of a reset. An episode that is open is ended first.

        Args:
            obs: first observation.
            info: of the reset.
            collect: store its samples, the reset first; False: count its steps and rewards only.
            limit: number of steps at which it is truncated; None: `max_samples_per_episode`.
            seed: of the reset, for the record.
            action: stored with the reset; None: there was none.
            extras: stored with the reset, in the columns of the steps' extras.

        Returns:
            The episode, whose `limit`, `test` and `evaluation` may be changed.

        Raises:
            CodecError: something cannot be stored; the message names it.
        """
        if self.episode is not None and self.episode.open:
            self.end()
        if self._adds_steps:
            self._info_metrics.begin()
        episode = self.episode = Episode(next(self._numbers), collect, not collect, seed)
        episode.limit = self.max_samples_per_episode if limit is None else limit
        self.episodes += 1
        if self.crc_debug:
            self._last_obs = None
        if collect:
            self.buffer.start_episode(episode.number, self.version)
            self._append(action, obs, 0.0, False, False, info, extras)
        elif self.crc_debug:
            self._last_obs = copy.deepcopy(obs)
        return episode

    def step(
        self,
        action: Any,
        obs: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: dict[str, Any],
        extras: dict[str, Any] | None = None,
        collect: bool | None = None,
        test: bool = True,
    ) -> Any:
        """Record one step of the open episode; it ends with the step if a flag is set or its limit is reached.

        Args:
            action: as it was executed.
            obs: the observation that the step led to.
            reward: of the step.
            terminated: the step ended the episode.
            truncated: the step cut the episode.
            info: of the step.
            extras: further values by name, stored in columns of their own.
            collect: store the step as a sample; None: as the episode says.
            test: False: the step explored.

        Returns:
            `truncated`, which is True too where the limit ended the episode.

        Raises:
            CodecError: something cannot be stored; the message names it.
        """
        if type(reward) is not float:
            reward = float(reward)  # one type for an episode, from its reset's 0.0 on
        episode = self.episode
        if episode is None or not episode.open:
            # A script may step on after the end. The Buffer begins another episode by itself.
            if collect is None or collect:
                self._append(action, obs, reward, terminated, truncated, info, extras)
            return truncated
        steps = episode.steps + 1
        if steps >= episode.limit and not terminated:
            truncated = True
        if collect is None:
            collect = episode.collect
        if collect and self.sample_compressor is None and not self.crc_debug:
            writer = self.buffer.writer
            if writer is None or extras or not writer.append_plain(action, obs, reward, terminated, truncated, info):
                self.buffer.append_sample((action, obs, reward, terminated, truncated, info), extras)
            self.steps_collected += 1
        elif collect:
            self._append(action, obs, reward, terminated, truncated, info, extras)
        episode.info = info
        if self._adds_steps:
            self._info_metrics.add(info)
        episode.total += reward
        episode.steps = steps
        if not test:
            episode.test = False
        if terminated or truncated:
            self.finish(episode, "terminated" if terminated else "truncated")
        return truncated

    def end(self, record: bool = True) -> None:
        """End the open episode where it is. Samples that follow are not joined with it.

        Args:
            record: leave a record that says aborted, if the episode collects.
        """
        episode = self.episode
        if episode is None or not episode.open:
            return
        if record and episode.collect:
            self.finish(episode, "aborted")
        episode.open = False

    def set_version(self, version: Version) -> None:
        """Store this policy version with the samples from the next one on."""
        self.version = version
        if self.episode is not None and self.episode.open and self.episode.collect:
            self.buffer.set_version(version)

    def drop_unsent(self) -> int:
        """Remove the open episode's samples that are still in the Buffer; return their number."""
        episode = self.episode
        dropped = self.buffer.drop_unsent() if episode is not None and episode.open and episode.collect else 0
        self.samples_dropped += dropped
        return dropped

    def take(self, *, repeat_last: bool = False) -> tuple[list[Chunk], list[EpisodeRecord]]:
        """Return samples and records, and forget them. The open episode goes on.

        Args:
            repeat_last: begin the open episode's next samples with its last row again, as a chunk of its own. The
                transition between them then needs no earlier chunk, so that chunks of several recorders may share a
                stream in any order.
        """
        chunks, records = self.buffer.take()
        episode = self.episode
        if chunks and episode is not None and episode.open and episode.collect:
            episode.sent = True
            if repeat_last:
                self.buffer.extend([chunks[-1].last_row()])
        return chunks, records

    def discard(self) -> None:
        """Remove the samples. The records stay."""
        self.buffer.clear()

    @property
    def samples_lost(self) -> int:
        """Number of samples that left the Buffer without being taken: dropped, or beyond its capacity."""
        return self.samples_dropped + self.buffer.dropped

    def put_back(self, chunks: list[Chunk], records: list[EpisodeRecord]) -> None:
        """Keep what was taken and could not be sent."""
        self.buffer.extend(chunks, records)

    def _append(
        self, action: Any, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any, extras: Any
    ) -> None:
        if self.crc_debug:
            info = self._with_original(action, obs, reward, terminated, truncated, info)
        sample: Any = (action, obs, reward, terminated, truncated, info)
        if self.sample_compressor is not None:
            sample = self.sample_compressor(*sample)
        self.buffer.append_sample(sample, extras)
        self.steps_collected += 1

    def _with_original(
        self, action: Any, obs: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> dict[str, Any]:
        # Deep copies: an environment may write its next observation over this one.
        self.compared += 1
        previous, self._last_obs = self._last_obs, copy.deepcopy(obs)
        original = previous, copy.deepcopy(action), self._last_obs, reward, bool(terminated), bool(truncated)
        step = 0 if previous is None else 1 + (self.episode.steps if self.episode is not None else 0)
        return {**info, "crc_sample": original, "crc_sample_ts": (self.compared, step)}

    def add(self, chunks: list[Chunk]) -> None:
        """Add samples that were made elsewhere."""
        self.buffer.extend(chunks)
        self.steps_collected += sum(chunk.rows for chunk in chunks)

    def finish(
        self,
        episode: Episode,
        end: Literal["terminated", "truncated", "aborted"],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """End an episode, and leave its record.

        Args:
            episode: the open one.
            end: its end.
            metrics: its metrics; None: those of its infos.
        """
        episode.open = False
        if metrics is None:
            metrics = {} if end == "aborted" else self._info_metrics.take(episode.info)
            if self.own_metrics is not None:
                metrics = {**metrics, **self.own_metrics()}
        self.buffer.end_episode(
            EpisodeRecord(
                agent="",
                episode_return=float(episode.total),
                length=episode.steps,
                mode="test" if episode.test else "train",
                end=end,
                episode=episode.number,
                version=self.version,
                seed=episode.seed,
                evaluation=episode.evaluation,
                worker=self.name,
                metrics=dict(metrics),
            )
        )


def steps_in(chunks: Sequence[Chunk]) -> int:
    """Return the number of environment steps in these chunks; a reset, step 0 of its episode, does not count."""
    return sum(segment.rows - (segment.first_step == 0) for chunk in chunks for segment in chunk.segments)
