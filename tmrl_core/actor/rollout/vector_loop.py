"""The loop of several environments that are stepped together: one policy acts for all of them at once."""

# Theory of operation
#
# A schedule plays episode after episode, and has not to know that several are open. `train` therefore returns True once
# for each episode that has ended: it steps all environments until at least one episode ends, and with three ends in one
# step, it returns at once the next two times. Between two calls the environments rest, so evaluations, pauses and waits
# of a rule fall between two steps, with open episodes; these go on afterwards, unless an evaluation needed the
# environments. Their samples are sent with those of the episode that has ended: the trainer joins the parts of each
# lane, so it is of no use to hold them back.
#
# A slice of k is k steps of all rows. A rule that has room for m samples gets m / rows of them, rounded up, so a ratio
# of steps to models may be exceeded by rows - 1 steps for a moment. Rounded down, a ratio of one step for each model
# would never allow a step of eight rows, and worker and trainer would wait for each other.
#
# Tests and evaluations use the same environments, because a second set would double the memory of a simulator. They end
# the open episodes ("aborted", of which all samples stay), reset all rows with the seeds, and let a row idle once its
# episode is over: what it does then is not counted. Waiting for all of them keeps the mean unbiased: the first 8 of 100
# episodes to end are the short ones. For the same reason whole episodes of a lockstep round are refused.

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from tmrl_core.actor.rollout.collector import Hook
from tmrl_core.actor.rollout.loop import EnvironmentLoop
from tmrl_core.actor.rollout.polling import next_slice
from tmrl_core.actor.rollout.recorder import Episode
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.actor.rollout.vector_environment import Restart, VectorEnvironment, info_of
from tmrl_core.actor.rollout.vector_recorder import VectorRecorder
from tmrl_core.errors import ConfigError
from tmrl_core.networking.protocol.messages import Evaluation


class VectorLoop(EnvironmentLoop):
    """Run a policy in several environments, and record their steps.

    Args:
        environment, runner, recorder: as those of `EnvironmentLoop`, with one number of rows.
        max_failures, seed, seed_of: see `EnvironmentLoop`.
    """

    environment: VectorEnvironment
    recorder: VectorRecorder

    def __init__(
        self,
        environment: VectorEnvironment,
        runner: PolicyRunner,
        recorder: VectorRecorder,
        *,
        max_failures: int = 3,
        seed: int | None = None,
        seed_of: Callable[[int], int | None] | None = None,
    ) -> None:
        super().__init__(environment, runner, recorder, max_failures=max_failures, seed=seed, seed_of=seed_of)
        self._ends = 0
        """Number of episodes that have ended, without those that `train` has returned."""
        self._episode_seeds: Sequence[int | None] = ()
        """Seeds of the episodes of an evaluation; empty: any."""
        self._begin_next: np.ndarray | None = None
        """Rows whose next episodes begin with the next step."""

    def reset(self, collect_samples: bool) -> NoReturn:
        """Refuse to reset one environment.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"worker.envs: {self.recorder.rows}: reset, step and run_env_benchmark are for a worker with one "
            "environment. Set worker.envs: 1, or collect with one of the run methods"
        )

    def step(self, *args: object, **kwargs: object) -> NoReturn:
        """Refuse to step one environment, as `reset` does."""
        self.reset(False)

    # --- training -----------------------------------------------------------------------------------------------------

    def _play(self, collect: bool, test: bool, limit: float, allow: Hook, evaluation: int | None) -> bool:
        if not collect:
            return self._play_each(test, limit, allow, evaluation)
        recorder = self.recorder
        if self._one_ended():
            return True
        if not recorder.running or self.next_seed is not None:
            self._reset_all()
        while True:
            longest = allow()
            if not recorder.running:  # the hook has given the episodes up, or run an evaluation
                return False
            if not longest:
                recorder.end()
                return False
            began = time.perf_counter()
            played = self._advance(longest)
            self.steps_until_poll = next_slice(self.steps_until_poll, played, time.perf_counter() - began)
            if self._one_ended():
                self._note_success()
                return True

    def _one_ended(self) -> bool:
        """Return True once for each episode that has ended."""
        ended = self._ends > 0
        self._ends -= ended
        return ended

    def _reset_all(self) -> None:
        """Begin an episode in each row, to be collected."""
        seed, rows = self.next_seed, self.recorder.rows
        self.recorder.end()
        obs_B, infos = self._reset_rows(seed)
        seeds = (
            [seed + row if self.environment.by_row or not row else None for row in range(rows)]
            if isinstance(seed, int)
            else []
        )
        extras = self.runner.reset_extras() or {}
        self.recorder.begin_rows(Restart(np.ones(rows, np.bool_), obs_B, infos), extras, seeds)
        self._obs, self._begin_next, self._ends = obs_B, None, 0

    def _reset_rows(self, seeds: int | Sequence[int | None] | None) -> tuple[Any, dict[str, Any]]:
        reset = self.environment.reset_rows(seeds)
        self.next_seed = None
        for row in range(self.recorder.rows):
            self.runner.reset(row)
        return reset

    def _advance(self, longest: int) -> int:
        """Step all rows up to `longest` times, until an episode ends. Return the number of steps."""
        runner, environment, recorder = self.runner, self.environment, self.recorder
        played = 0
        while played < longest and not self._ends and not self._stopping:
            begun, self._begin_next = self._begin_next, None
            action_B, extras_B = runner.decide_rows(self._obs, False, True, begun)
            obs_B, reward_B, terminated_B, truncated_B, infos = environment.step(action_B, True)
            reset_extras = None if begun is None else runner.reset_extras()
            self._ends = recorder.step_rows(
                action_B, obs_B, reward_B, terminated_B, truncated_B, infos, extras_B, begun, reset_extras
            )
            played += 1
            self._obs = obs_B
            if self._ends:
                restart = environment.restart()
                if restart is None:
                    self._begin_next = terminated_B | truncated_B
                else:
                    begun, self._obs = restart.rows, restart.obs_B
                    recorder.begin_rows(restart, runner.reset_extras() or {})
            if begun is not None:
                for row in np.flatnonzero(begun).tolist():
                    runner.reset(row)
        return played

    # --- tests and evaluations ----------------------------------------------------------------------------------------

    def evaluate(self, evaluation: Evaluation, index: int) -> bool:
        """See `Collector`: play the episodes of as many seeds as there are environments, from `index` on."""
        self._episode_seeds = evaluation.seeds[index : index + self.recorder.rows]
        try:
            return self.play(collect=False, test=True, evaluation=evaluation.id)
        finally:
            self._episode_seeds = ()

    def _play_each(self, test: bool, limit: float, allow: Hook, evaluation: int | None) -> bool:
        """Play one episode in each row, without collecting it; in the first ones, if there are fewer seeds."""
        recorder, rows = self.recorder, self.recorder.rows
        recorder.end()
        obs_B, _ = self._reset_rows(self._episode_seeds or self.next_seed)
        given = self._episode_seeds or [None] * rows
        open_ = np.arange(rows) < len(given)
        totals, steps, all_metrics = np.zeros(rows), 0, recorder.new_metrics()
        ended: np.ndarray | None = None
        while open_.any():
            longest = allow()
            if not longest:
                return False
            for _ in range(longest):
                action_B, _ = self.runner.decide_rows(obs_B, test, False, ended)
                obs_B, reward_B, terminated_B, truncated_B, infos = self.environment.step(action_B)
                restart = self.environment.restart()
                totals[open_] += reward_B[open_]
                steps += 1
                for row in np.flatnonzero(open_).tolist():
                    metrics, info = all_metrics[row], info_of(infos, row)
                    if metrics.each_step:
                        metrics.add(info)
                    if terminated_B[row] or truncated_B[row] or steps >= limit:
                        open_[row] = False
                        episode = Episode(0, False, test, given[row], evaluation=evaluation)
                        episode.steps, episode.total = steps, float(totals[row])
                        recorder.played(episode, "terminated" if terminated_B[row] else "truncated", metrics.take(info))
                ended = terminated_B | truncated_B if restart is None else None
                if restart is not None:
                    obs_B = restart.obs_B
                if self._stopping or not open_.any():
                    break
        return True
