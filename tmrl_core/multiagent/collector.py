"""The worker of many agents: plays whole episodes that the trainer requests, and sends their experiences."""

# Theory of operation
#
# `MultiAgentCollector` is for a `Schedule` the same as the loop of one agent: it plays the episodes that the
# `LockstepRule` allows. It knows nothing of the protocol: its `uplink` sends what the recorder holds and brings
# policies.
#
# Stages. A `Stage` is a manager with an environment. Training has one; evaluations get another, made at the first one,
# so that they draw nothing from the generators of training: a run with evaluations has the same training episodes as
# one without.
#
# One episode. An `Actor` plays it and calls `_before_decision` before each decision is executed. Polling the link at
# every decision would cost more than many a decision, so decisions are counted in slices: `allow()` returns the length
# of a slice, 0 ends the episode, and the next length follows from the time that the last one took (`next_slice`). A
# cancelled assignment, a stop and the end of the run leave the episode by `_EpisodeLeft`, an exception that is no
# failure. An episode is sent whole or not at all: rounds count whole episodes, and half of one would have no end.
#
#     outcome of an episode        what happens
#     ended in order               chunks to the recorder, a record "terminated" or "truncated"
#     left (`_EpisodeLeft`)        dropped; a record "aborted" if it had a step
#     EpisodeError, CodecError     dropped, counted; the next attempt begins with a reset
#     PolicyFailedError            dropped; the worker waits for a better policy
#     max_failures in a row        EnvironmentFailedError: the worker ends
#
# Seeds. A seed is used for the first episode whose environment has really begun (`stage.env.begun`): after a failed
# reset the seed is still the next one, so that a failure does not change the run.
#
# Policies. A version is loaded as a whole, every policy and the epsilons, or not at all: if one part does not fit, the
# models from before are loaded back and the version is refused.
#
# The environment's calls are watched and followed by `take_back`, because environments may install handlers of signals
# when they are made, reset or closed. They are made again after a failed reset, since some cannot be reset after an
# error.

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.rollout.checked_environment import report_failure
from tmrl_core.actor.rollout.collector import Collector, Hook
from tmrl_core.actor.rollout.lockstep_rule import LockstepRule
from tmrl_core.actor.rollout.one_run import OneRun
from tmrl_core.actor.rollout.polling import next_slice
from tmrl_core.actor.rollout.recorder import Episode, StepRecorder
from tmrl_core.actor.rollout.schedule import Schedule
from tmrl_core.actor.rollout.uplink import close_unreferenced
from tmrl_core.errors import CodecError, EpisodeError, PolicyFailedError, WeightsError
from tmrl_core.long_calls import watched
from tmrl_core.multiagent.actor import Actor
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.multiagent.experiences import MAX_EPISODE_BYTES, PlayedEpisode, chunks_of
from tmrl_core.multiagent.manager import AgentManager
from tmrl_core.multiagent.trajectory import Experiences
from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import Blob, Evaluation
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.samples.segments import MOST_METRIC_CHARACTERS, MOST_METRICS
from tmrl_core.signal_handlers import take_back

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class _EpisodeLeft(Exception):
    """The episode ends here, although nothing is wrong with it."""


class RestartedEnvironment(EventEnvironment):
    """An environment that is made again after a failed reset, and whose calls are watched.

    Args:
        make: makes the environment.

    Attributes:
        begun: True: the episode has its first event. Its owner assigns False before an episode.
        truncated: True: the metrics of the latest step say that a limit cut the episode.
    """

    def __init__(self, make: Callable[[], EventEnvironment]) -> None:
        self._make = make
        try:
            self.env = make()
        finally:
            take_back()
        self.begun = self.truncated = False
        self._broken = False

    def set_seed(self, seed: int) -> None:
        """See `EventEnvironment`."""
        self.env.set_seed(seed)

    @watched("the environment's reset")
    def reset(self) -> None:
        """See `EventEnvironment`. Make the environment again first if its last reset failed."""
        try:
            if self._broken:
                try:
                    self.env.close()
                except Exception:
                    logger.warning("the environment that failed could not be closed either", exc_info=True)
                self.env = self._make()
            self._broken = True
            self.env.reset()
            self._broken = False
        finally:
            take_back()

    @watched("the environment's step")
    def step(self, action: Any) -> tuple[Any, Any, bool]:
        """See `EventEnvironment`."""
        result = self.env.step(action)
        if action is None:
            take_back()
            self.begun = True
        metrics = result[0] if isinstance(result, tuple) and result else None
        self.truncated = isinstance(metrics, Mapping) and bool(metrics.get("truncated"))
        return result

    @property
    def snapshot_list(self) -> Any:
        """See `EventEnvironment`."""
        return self.env.snapshot_list

    @property
    def metrics(self) -> Any:
        """See `EventEnvironment`."""
        return self.env.metrics

    @watched("the environment's close")
    def close(self) -> None:
        """See `EventEnvironment`."""
        try:
            self.env.close()
        finally:
            take_back()


class Stage:
    """A manager and an environment that play episodes together.

    Args:
        manager: a manager in mode `inference`.
        make_environment: makes the environment.
        max_decisions: maximum number of decisions in an episode.
    """

    def __init__(
        self, manager: AgentManager, make_environment: Callable[[], EventEnvironment], max_decisions: int
    ) -> None:
        self.manager = manager
        self.env = RestartedEnvironment(make_environment)
        self.actor = Actor(self.env, manager, max_decisions=max_decisions)


class MultiAgentCollector(Collector):
    """Collect whole episodes of many agents for a `Schedule`; the target of its `uplink`.

    Args:
        make_stage: makes the stage of training episodes, given False, and that of tests, given True, at the first test.
        name: the worker's label.
        max_failures: maximum number of consecutive failures of the environment.
        max_episode_bytes: maximum size of the experiences of an episode.
        max_head_bytes: maximum size of the other values of an episode.
        seed_of: returns the seed of the first episode, and of the first test, by the worker's number among those of the
            same name, see `Collector.follow_place`. None: they are not seeded, unless the trainer does.

    Attributes:
        stage: that of training episodes.
    """

    def __init__(
        self,
        make_stage: Callable[[bool], Stage],
        *,
        name: str,
        max_failures: int = 3,
        max_episode_bytes: int = MAX_EPISODE_BYTES,
        max_head_bytes: int = 1 << 20,
        seed_of: Callable[[int], int | None] = lambda place: None,
    ) -> None:
        super().__init__(
            StepRecorder(Buffer(None), name=name), max_failures=max_failures, seed=seed_of(1), seed_of=seed_of
        )
        self.stage = make_stage(False)
        self._make_stage = make_stage
        self._test_stage: Stage | None = None
        self._max_episode_bytes = max_episode_bytes
        self._max_head_bytes = max_head_bytes
        self._first_seed = self.next_seed
        self._slice = self._left = 0
        """Decisions of the present slice of an episode: all, and those that are left."""
        self._began_s = 0.0
        self._loaded: PolicyBundle | None = None
        """Policies and exploration parameters in use; None: those that the manager was made with."""

    def train(self, allow: Hook) -> bool:
        """Collect an episode; see `Collector`."""
        self.follow_place()
        return self._play(self.stage, allow)

    def give_up_episode(self) -> None:
        """Leave the open episode, which is dropped. Called from within the hook of `train`."""
        if self.recorder.recording:
            raise _EpisodeLeft

    def evaluate(self, evaluation: Evaluation, index: int) -> bool:
        """See `Collector`."""
        return self.test(evaluation.seeds[index], evaluation.id)

    def test(self, seed: int | None = None, evaluation: int | None = None) -> bool:
        """Play an episode in the test environment without exploration, and record its score.

        Returns:
            True: it ended in order.
        """
        if self._test_stage is None:
            self._test_stage = self._make_stage(True)
            seed = self._first_seed if seed is None else seed
        if self._loaded is not None:
            _load(self._test_stage.manager, self._loaded)
        return self._play(self._test_stage, self._unless_ending, seed, evaluation)

    def _play(self, stage: Stage, allow: Hook, seed: int | None = None, evaluation: int | None = None) -> bool:
        """Play one episode to its end. After a failure of the environment, play another one."""
        train = stage is self.stage
        recorder = self.recorder
        while True:
            length = allow()
            if not length:
                return False
            episode = recorder.begin(None, {}, collect=False, seed=self.next_seed if train else seed)
            episode.test, episode.evaluation = not train, evaluation
            stage.env.begun = False
            self._begin_slice(length)
            try:
                performances, experiences = stage.actor.roll_out(
                    seed=episode.seed, test=not train, before_decision=partial(self._before_decision, episode, allow)
                )
                performance = performances["local"]
                episode.total = _score(stage.manager, performance)
                chunks = self._chunks(episode, performance, experiences) if train else []
            except BaseException as exc:
                if train and episode.steps:
                    recorder.finish(episode, "aborted")
                recorder.end()
                if isinstance(exc, EpisodeError | CodecError):
                    self._count_failure(exc)
                    continue
                if isinstance(exc, PolicyFailedError):
                    self._await_better_policy(exc)
                elif not isinstance(exc, _EpisodeLeft):
                    raise
                return False
            finally:
                if train and stage.env.begun:
                    self.next_seed = None
            self._note_success()
            recorder.add(chunks)
            recorder.finish(episode, "truncated" if stage.env.truncated else "terminated", metrics_of(performance))
            return True

    def _before_decision(self, episode: Episode, allow: Hook) -> None:
        """Count a decision, and poll the link if the slice is over.

        Raises:
            _EpisodeLeft: the episode ends here.
        """
        if self._left <= 0:
            elapsed_s = time.perf_counter() - self._began_s
            self.steps_until_poll = next_slice(self.steps_until_poll, self._slice, elapsed_s)
            self._begin_slice(allow())
        if self._stopping or not self._slice:
            raise _EpisodeLeft
        self._left -= 1
        episode.steps += 1

    def _begin_slice(self, length: int) -> None:
        self._slice = self._left = length
        self._began_s = time.perf_counter()

    def _chunks(self, episode: Episode, performance: Any, experiences: Experiences) -> list[Chunk]:
        return chunks_of(
            PlayedEpisode(
                experiences=experiences,
                performance=performance,
                epsilons=self.stage.manager.explorer.epsilons,
                seed=episode.seed,
                number=episode.number,
                version=self.recorder.version,
                length=episode.steps,
            ),
            max_bytes=self._max_episode_bytes,
            max_head_bytes=self._max_head_bytes,
        )

    def _count_failure(self, fault: EpisodeError | CodecError) -> None:
        """Log a failure; the next episode begins with a reset.

        Raises:
            EnvironmentFailedError: there were too many consecutive failures.
        """
        self.failures += 1
        self._failures_in_a_row += 1
        cause = fault.__cause__
        report_failure(
            str(fault),
            "fix the environment or the manager",
            in_a_row=self._failures_in_a_row,
            most=self.max_failures,
            dropped="the episode is dropped",
            cause=cause if isinstance(cause, Exception) else fault,
            show=isinstance(cause, Exception),
        )

    def close(self) -> None:
        """Close the environments."""
        with contextlib.ExitStack() as closing:
            for stage in (self.stage, self._test_stage):
                if stage is not None:
                    closing.callback(stage.env.close)

    # --- target of policies -------------------------------------------------------------------------------------------

    def load_policies(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> None:
        """Load one version: every policy of the manager, and the exploration parameters of its agents.

        Raises:
            WeightsError: policies are missing or unknown, or a part does not fit. The old ones stay.
        """
        manager = self.stage.manager
        if policies.keys() != manager.policies.keys():
            raise WeightsError(
                f"it has the policies {sorted(policies)}, and this worker has {sorted(manager.policies)}; workers and "
                "trainer need the same section multiagent"
            )
        before = self._loaded or PolicyBundle(
            {name: algorithm.get_model() for name, algorithm in manager.policies.items()},
            dict(manager.explorer.epsilons),
        )
        bundle = PolicyBundle(policies, exploration or before.exploration)
        try:
            _load(manager, bundle)
        except Exception as exc:  # an algorithm's `load_model` may raise any error
            _load(manager, before)
            raise WeightsError(str(exc) if isinstance(exc, WeightsError) else f"{type(exc).__name__}: {exc}") from exc
        self._loaded = bundle

    def file_content(self, policies: Mapping[str, Blob], exploration: Mapping[str, float]) -> bytes:
        """Return a version as the content of a file, for `load_file`."""
        return PolicyBundle(policies, exploration).to_bytes()

    def load_file(self, path: Path) -> None:
        """Load policies that `PolicyFiles` or a trainer has stored.

        Raises:
            WeightsError: the file holds something else, or its policies do not fit.
            OSError: the file cannot be read.
        """
        bundle = PolicyBundle.read(path)
        self.load_policies(bundle.policies, bundle.exploration)


class MultiAgentWorker:
    """A worker of many agents.

    Args:
        collector: plays the episodes; its `uplink` is assigned.
        release: called once after `close`.

    Attributes:
        name: the label in logs and metrics.
        collector, recorder, uplink: the parts.
    """

    def __init__(self, collector: MultiAgentCollector, release: Callable[[], object] | None = None) -> None:
        self.collector = collector
        self.name = collector.name
        self.recorder = collector.recorder
        self.uplink = collector.uplink
        self._release = weakref.finalize(self, release) if release is not None else None
        close_unreferenced(self, collector.close, collector.uplink)
        self._one_run = OneRun()

    def run(self) -> None:
        """Collect the assignments of the trainer until it finishes, or after `stop` or `close`.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            StarvedError: there is no Server.
            TmrlError: the link has failed permanently.
        """
        with self._one_run.running(self.name):
            Schedule(self.collector, LockstepRule(self.collector)).run()

    def run_episode(self, seed: int | None = None) -> bool:
        """Play one episode without exploration in the test environment. Its record is stored in the Buffer.

        Returns:
            True: it ended in order. False: the worker was stopped.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            PolicyFailedError: an action was not finite, and there is no Server.
        """
        with self._one_run.running(self.name):
            return self.collector.test(seed)

    def stop(self) -> None:
        """End all `run` methods soon and permanently. Safe from any thread and signal handlers."""
        self.collector.stop()

    def close(self) -> CloseReport | None:
        """Stop, send the remaining episodes, wait for acknowledgements up to the drain timeout, and close everything.

        Returns:
            Numbers of samples acknowledged, handed over and lost; None without a Server, or if already closed.
        """
        try:
            return self._one_run.close(self.collector)
        finally:
            if self._release is not None:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def metrics_of(performance: Any) -> dict[str, float]:
    """Return the first finite numbers of a performance that is a mapping, as metrics of its episode."""
    if not isinstance(performance, Mapping):
        return {}
    numbers = (
        (key, float(value))
        for key, value in performance.items()
        if isinstance(key, str)
        and len(key) <= MOST_METRIC_CHARACTERS
        and isinstance(value, bool | int | float | np.number | np.bool_)
        and not isinstance(value, np.complexfloating)
    )
    return dict(itertools.islice(((key, value) for key, value in numbers if math.isfinite(value)), MOST_METRICS))


def _score(manager: AgentManager, performance: Any) -> float:
    try:
        return float(manager.score(performance))
    except Exception as exc:  # the user's own code
        raise EpisodeError(f"the manager's score failed: {type(exc).__name__}: {exc}") from exc


def _load(manager: AgentManager, bundle: PolicyBundle) -> None:
    """Load policies and exploration parameters into a manager."""
    manager.explorer.epsilons = bundle.exploration
    manager.load_models(bundle.policies)
