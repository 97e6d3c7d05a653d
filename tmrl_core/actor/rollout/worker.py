"""Rollout: the life of a worker, asynchronous, synchronous or in lockstep, as an expert, as a test, or deployed."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.linked import WAIT_S, LinkedPlayer
from tmrl_core.actor.rollout.lockstep import LockstepPace
from tmrl_core.actor.rollout.pacing import Brake, Ratio, StarvationWatch
from tmrl_core.actor.rollout.synchronous import SynchronousPace
from tmrl_core.errors import StarvedError
from tmrl_core.metrics.text import return_text

logger = logging.getLogger(__name__)

SEND_PAUSE_S = 0.02
"""Waking the I/O thread costs an environment's loop about half a millisecond, as much as thirty steps of Pendulum."""

SAY_EVERY_S = 2.0
"""Shortest time between two lines about episodes: a simulator ends a hundred a second."""

LONG_EPISODE_S = 100.0
"""Seconds after which a worker says that nothing of an episode has been sent."""


class Rollout(LinkedPlayer):
    """A LinkedPlayer that runs: for so many episodes or steps, or until the trainer finishes.

    Args:
        env_cls, make_actor, ...: as for EpisodePlayer and LinkedPlayer.
        send_every: send every so many steps also within an episode; 0: at episode ends.
        update_weights: `episode`: take new weights between episodes; `step`: as soon as they are there.
        max_env_steps_per_update: of asynchronous collection, see `Brake`; None: never wait.
        send_pause_s: asynchronous: episodes that end within so many seconds of the last sending leave together.
    """

    def __init__(
        self,
        env_cls: Callable[[], Any],
        make_actor: Callable[..., Any],
        *,
        send_every: int = 0,
        update_weights: str = "episode",
        max_env_steps_per_update: float | None = None,
        send_pause_s: float = SEND_PAUSE_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(env_cls, make_actor, **kwargs)
        self._send_every = send_every
        self._update_weights_each_step = update_weights == "step"
        self._brake = Brake(max_env_steps_per_update)
        self._send_pause_s = send_pause_s
        self._sent_at = -math.inf
        self._endless_said = False
        self._said_at = -math.inf

    # --- episodes -----------------------------------------------------------------------------------------------------

    def collect_train_episode(self, max_samples: float | None = None) -> None:
        """Collect one episode into the Buffer; its record too.

        Args:
            max_samples: most steps after the reset; None: `max_samples_per_episode`.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
        """
        self._play(collect=True, test=False, limit=self._limit(max_samples), allow=self._unless_ending)

    def run_episode(self, max_samples: float | None = None, train: bool = False) -> None:
        """Play one episode without collecting it; its record goes to the Buffer.

        Args:
            max_samples: most steps after the reset; None: `max_samples_per_episode`.
            train: the actor explores.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
        """
        self._play(collect=False, test=not train, limit=self._limit(max_samples), allow=self._unless_ending)

    def run_episodes(
        self, max_samples_per_episode: float | None = None, nb_episodes: float = math.inf, train: bool = False
    ) -> None:
        """Play episodes without collecting them, as `run_episode`, until `nb_episodes` or the end of the run."""
        with self._running():
            for _ in _count_to(nb_episodes):
                if self.ending():
                    return
                self.run_episode(max_samples_per_episode, train=train)

    def _limit(self, max_samples: float | None) -> float:
        limit = self.max_samples_per_episode if max_samples is None else max_samples
        if not limit >= 1:
            raise ValueError(f"an episode has at least 1 step, got max_samples={limit}")
        return limit

    # --- asynchronous -------------------------------------------------------------------------------------------------

    def run(
        self,
        test_episode_interval: int = 0,
        nb_episodes: float = math.inf,
        verbose: bool = True,
        expert: bool = False,
    ) -> None:
        """Collect episodes: test, collect, send, take new weights without waiting for them.

        Episodes that end within `send_pause_s` leave together; everything is sent before it waits for anything, and
        before it returns: when `nb_episodes` are collected, the trainer finishes, or after `stop` or `close`.

        Args:
            test_episode_interval: a test episode before every n-th episode, the first included; 0: none.
            nb_episodes: how many to collect.
            verbose: log episodes at INFO, at most one line every two seconds.
            expert: never take weights nor test.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            TmrlError: the link has failed for good.
        """
        with self._running():
            if self._link is not None:
                self._link.expert = expert
            for episode in _count_to(nb_episodes):
                if self.ending():
                    break
                if not expert and test_episode_interval and episode % test_episode_interval == 0:
                    self.run_episode()
                # In pieces where something is to be done within an episode.
                self._play(
                    collect=True,
                    test=False,
                    limit=self.max_samples_per_episode,
                    allow=lambda: self._pace_within_episode(expert),
                )
                self._say(verbose)
                self._send_unless_just_now()
                if expert:
                    self.ignore_actor_weights()
                else:
                    self.update_actor_weights(verbose=False)
                    self.obey()
                self._wait_for_brake(expert)
            self.send_and_clear_buffer()

    def _send_unless_just_now(self) -> None:
        now = time.perf_counter()
        if now - self._sent_at >= self._send_pause_s:
            self._sent_at = now
            self.send_and_clear_buffer()

    def _pace_within_episode(self, expert: bool) -> int:
        if self.ending():
            return 0
        longest = self._slices.length
        self._say_if_endless()
        if self._update_weights_each_step and not expert:
            self.take_policy(verbose=False)
            longest = 1
        if self._send_every:
            waiting = len(self.buffer)
            if waiting >= self._send_every:
                self.send_and_clear_buffer()
                self._wait_for_brake(expert)
                waiting = 0
                if self.ending():
                    return 0
            longest = min(longest, self._send_every - waiting)
        return longest

    def _say_if_endless(self) -> None:
        episode = self._episode
        if self._send_every or self._endless_said or episode is None or self._link is None:
            return
        if episode.open and time.perf_counter() - episode.began >= LONG_EPISODE_S:
            self._endless_said = True
            logger.warning(
                "worker %s: an episode has gone on for %d steps and %.0f s, and its samples are sent when it ends. Set "
                "worker.send_every to send them before, or worker.max_samples_per_episode to end it.",
                self.name,
                episode.steps,
                LONG_EPISODE_S,
            )

    def _wait_for_brake(self, expert: bool) -> None:
        """Wait while the trainer has more environment steps than its updates call for.

        Raises:
            StarvedError: the trainer waits too.
        """
        link = self._link
        if link is None or self._brake.limit is None:
            return
        try:
            self._wait_for_updates(link, expert)
        finally:
            link.say_waits("")

    def _wait_for_updates(self, link: RolloutLink, expert: bool) -> None:
        watch: StarvationWatch | None = None
        while self._brake.holds(link.progress, link.counts.queued_samples + len(self.buffer)) and not self.ending():
            self.send_and_clear_buffer()
            if not expert:
                self.take_policy(verbose=False)
                if self.evaluate_if_due():
                    continue
            progress, queued = link.progress, link.counts.queued_samples
            watch = watch or StarvationWatch(self.longest_episode_s)
            waits = (
                f"{progress.samples} samples are above trainer.start_training = {progress.start_training} and "
                f"worker.max_env_steps_per_update = {self._brake.limit:g} for each of {progress.updates} + 1 updates"
            )
            if watch.starving(progress, link.versions_published, queued):
                raise StarvedError(
                    f"workers and trainer wait for each other. The worker: {waits}. The trainer: {progress.lack}. "
                    "Raise worker.max_env_steps_per_update or trainer.max_training_steps_per_env_step: their product "
                    "must be at least 1."
                )
            # While training goes on, the brake is only what it should be.
            link.say_waits(waits if progress.lack and not queued else "")
            link.wait_change(WAIT_S)

    def _say(self, verbose: bool) -> None:
        if verbose and time.monotonic() - self._said_at >= SAY_EVERY_S:
            self._said_at = time.monotonic()
            logger.info(
                "worker %s: episode %d, %d steps, return %s, policy %d.%d",
                self.name,
                self.episodes,
                self.buffer.stat_train_steps,
                return_text(self.buffer.stat_train_return),
                *self.policy_version,
            )

    # --- synchronous --------------------------------------------------------------------------------------------------

    def run_synchronous(
        self,
        test_episode_interval: int = 0,
        nb_steps: float = math.inf,
        initial_steps: float = 1,
        max_steps_per_update: float = math.inf,
        end_episodes: bool = True,
        verbose: bool = False,
    ) -> None:
        """Collect `initial_steps`, then keep (steps + 1) / (1 + models received) at or below a maximum.

        Steps are environment steps, resets included, less those that were dropped or refused on their way. After the
        initial steps the ratio is reached with them, then steps are counted anew; models are counted from the
        beginning. Everything collected is sent before it waits. Returns when `nb_steps` are collected, the trainer
        finishes, or after `stop` or `close`.

        Args:
            test_episode_interval: a test episode before every n-th episode; 0: none. Only with `end_episodes`.
            nb_steps: how many to collect after the initial ones.
            initial_steps: how many to collect before the ratio holds; whole episodes with `end_episodes`.
            max_steps_per_update: the maximum; need not be whole.
            end_episodes: wait between episodes only.
            verbose: log each step of this at INFO.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            StarvedError: worker and trainer wait for each other.
            TmrlError: the link has failed for good.
        """
        pace = SynchronousPace(
            self,
            Ratio(max_steps_per_update),
            initial_steps=initial_steps,
            nb_steps=nb_steps,
            end_episodes=end_episodes,
            send_every=self._send_every,
            update_each_step=self._update_weights_each_step,
            verbose=verbose,
        )
        with self._running():
            episodes = 0
            while pace.go_on():
                if pace.counting:
                    if end_episodes and test_episode_interval and episodes % test_episode_interval == 0:
                        self.run_episode()
                    episodes += 1
                self._play(collect=True, test=False, limit=self.max_samples_per_episode, allow=pace.allow)
                self._say(verbose)
                self.send_and_clear_buffer()

    # --- lockstep -----------------------------------------------------------------------------------------------------

    def run_lockstep(self, verbose: bool = False) -> None:
        """Collect what the trainer asks for, each share with exactly the version of the policy that it names.

        Waits for the next share in between, and plays the evaluations that the trainer asks for. Returns when the
        trainer finishes, or after `stop` or `close`.

        Args:
            verbose: log each share at INFO.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            StarvedError: the worker is standalone.
            TmrlError: the link has failed for good.
        """
        pace = LockstepPace(self, send_every=self._send_every, verbose=verbose)
        with self._running():
            while pace.go_on():
                if self._play(collect=True, test=False, limit=self.max_samples_per_episode, allow=pace.allow):
                    pace.ended()
            self.send_and_clear_buffer()

    # --- figures ------------------------------------------------------------------------------------------------------

    def run_env_benchmark(self, nb_steps: int, test: bool = False, verbose: bool = True) -> Any:
        """Time the environment and the actor, which takes no action without asking its policy.

        Args:
            nb_steps: how many steps to take.
            test: the actor does not explore.
            verbose: log the result at INFO.

        Returns:
            rtgym's own benchmark where the environment has one that is turned on; else a dict of `steps_per_s` (the
            whole loop), `env_steps_per_s` and `inferences_per_s` (each on its own).

        Raises:
            ValueError: `nb_steps` is not a finite number of at least 1.
        """
        if not 1 <= nb_steps < math.inf:
            raise ValueError(f"nb_steps must be a finite number of at least 1, got {nb_steps}")
        inner = self.env.unwrapped
        own = getattr(inner, "benchmarks", None) if getattr(inner, "benchmark", False) else None
        env_s = act_s = 0.0
        exploration = self.actor.exploration()
        # Drawn from the action space instead, as before anything is learned, an action costs less.
        self.actor.set_exploration({name: 0.0 for name in ("random", "epsilon") if name in exploration})
        with self._running(), contextlib.ExitStack() as after:
            after.callback(self.actor.set_exploration, exploration)
            obs, _ = self.reset(collect_samples=False)
            started = time.perf_counter()
            done = False
            for _ in range(int(nb_steps)):
                if done:
                    obs, _ = self.reset(collect_samples=False)
                begin = time.perf_counter()
                action = self.act(obs, test=test)
                middle = time.perf_counter()
                obs, _, terminated, truncated, _ = self.env.step(action)
                act_s += middle - begin
                env_s += time.perf_counter() - middle
                if self.obs_preprocessor is not None:
                    obs = self.obs_preprocessor(obs)
                done = bool(terminated or truncated)
            elapsed = time.perf_counter() - started
            if self._episode is not None:
                self._episode.open = False
        if own is not None:
            result: Any = own()
        else:
            result = {
                "steps_per_s": nb_steps / max(elapsed, 1e-9),
                "env_steps_per_s": nb_steps / max(env_s, 1e-9),
                "inferences_per_s": nb_steps / max(act_s, 1e-9),
            }
        if verbose:
            logger.info("benchmark of %d steps: %s", nb_steps, result)
        return result


def _count_to(number: float) -> Iterator[int]:
    return itertools.count() if number == math.inf else iter(range(int(number)))
