"""The worker: public methods over the parts that collect. It depends on neither configuration nor sockets.

No lock is held while an episode runs. `stop` may be called from any thread and from a signal handler, `close` from any
thread.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.asynchronous_rule import SEND_PAUSE_S, AsynchronousRule
from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment, check_maker
from tmrl_core.actor.rollout.lateness import LatenessFigures, lateness_text
from tmrl_core.actor.rollout.link import RolloutLink
from tmrl_core.actor.rollout.lockstep_rule import LockstepRule
from tmrl_core.actor.rollout.loop import EnvironmentLoop
from tmrl_core.actor.rollout.one_run import OneRun
from tmrl_core.actor.rollout.real_time import Benchmarked, benchmark_lines
from tmrl_core.actor.rollout.recorder import SampleCompressor, StepRecorder
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.actor.rollout.schedule import Rule, Schedule
from tmrl_core.actor.rollout.synchronous_rule import SynchronousRule
from tmrl_core.actor.rollout.vector_environment import VectorEnvironment
from tmrl_core.actor.rollout.vector_loop import VectorLoop
from tmrl_core.actor.rollout.vector_recorder import VectorRecorder
from tmrl_core.envs.identity import unwrapped
from tmrl_core.errors import ConfigError
from tmrl_core.networking.protocol.delivery import CloseReport
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.samples import Buffer

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


_open: weakref.WeakSet[Worker] = weakref.WeakSet()
"""Workers that are not closed."""


def _close_environments() -> None:
    """Close the environments of open workers when the program ends, so that motors stop."""
    for worker in list(_open):
        worker.stop()
        with contextlib.suppress(Exception), worker.one_run.idle(timeout_s=1.0):
            worker.loop.close()


@functools.cache
def _close_environments_at_exit() -> None:
    atexit.register(_close_environments)


class Worker:
    """Collect samples with an environment loop by one of three rules, or run episodes without collecting.

    A subclass may override `act`, `step` and `reset`. Episodes then use these methods.

    Args:
        loop: runs the episodes; its `uplink` is assigned.
        send_every: number of steps after which samples are also sent within an episode; 0: at episode ends.
        update_weights: `episode`: load new weights between episodes; `step`: as soon as they have arrived.
        max_env_steps_per_update: limit of asynchronous collection, see `AsynchronousRule`; None: never wait.
        send_pause_s: in asynchronous collection, episodes that end within this number of seconds are sent together.

    Attributes:
        loop, runner, recorder, uplink: the parts.
        one_run: guard of the `run` methods.
    """

    def __init__(
        self,
        loop: EnvironmentLoop,
        *,
        send_every: int = 0,
        update_weights: str = "episode",
        max_env_steps_per_update: float | None = None,
        send_pause_s: float = SEND_PAUSE_S,
    ) -> None:
        self.loop = loop
        self.runner = loop.runner
        self.recorder = loop.recorder
        self.uplink = loop.uplink
        self._send_every = send_every
        loop.whole = not send_every
        self._update_each_step = update_weights == "step"
        self._max_env_steps_per_update = max_env_steps_per_update
        self._send_pause_s = send_pause_s
        self.one_run = OneRun()
        _open.add(self)
        _close_environments_at_exit()

    # --- parts and figures --------------------------------------------------------------------------------------------

    @property
    def env(self) -> Any:
        """Return the environment."""
        return self.loop.environment.env

    @property
    def actor(self) -> ActorModule:
        """Return the policy."""
        return self.runner.actor

    @actor.setter
    def actor(self, actor: ActorModule) -> None:
        self.runner.actor = actor

    @property
    def buffer(self) -> Buffer:
        """Return the samples and records that have not been sent yet."""
        return self.recorder.buffer

    @property
    def sample_compressor(self) -> SampleCompressor | None:
        """Return the function that changes each sample before it is stored."""
        return self.recorder.sample_compressor

    @sample_compressor.setter
    def sample_compressor(self, compressor: SampleCompressor | None) -> None:
        self.recorder.sample_compressor = compressor

    @property
    def name(self) -> str:
        """Return the label in logs and metrics."""
        return self.recorder.name

    @property
    def link(self) -> RolloutLink | None:
        """Return the link to the Server; None: there is no Server."""
        return self.uplink.link

    @property
    def standalone(self) -> bool:
        """True: there is no Server."""
        return self.uplink.link is None

    @property
    def model_path(self) -> Path | None:
        """File of the worker's copy of the policy; None: there is none."""
        return self.uplink.files.path

    @property
    def policy_version(self) -> Version:
        """(incarnation, counter) of the policy that acts; (0, 0): none has arrived."""
        return self.recorder.version

    @property
    def latest_version(self) -> Version:
        """Version of the latest policy that has arrived, including refused ones."""
        return self.uplink.latest_version

    @property
    def episodes(self) -> int:
        """Number of episodes begun, of every kind."""
        return self.recorder.episodes

    @property
    def steps_collected(self) -> int:
        """Number of environment steps collected, resets included."""
        return self.recorder.steps_collected

    @property
    def lateness(self) -> LatenessFigures | None:
        """Lateness of the steps so far; None: the environment has no rate."""
        return self.loop.lateness.figures if self.loop.lateness is not None else None

    # --- single steps -------------------------------------------------------------------------------------------------

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the actor's action for a preprocessed observation."""
        return self.runner.act(obs, test)

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Start a new episode.

        Args:
            collect_samples: append the reset to the Buffer as a sample.

        Returns:
            The (preprocessed) observation and the info.

        Raises:
            EnvironmentFailedError: the observation does not belong to the space. Exceptions of the environment
                propagate.
        """
        self.loop.follow_place()
        return self.loop.reset(collect_samples)

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act on an observation and step the environment.

        Args:
            obs: the previous (preprocessed) observation.
            test: passed to the actor.
            collect_samples: append the step to the Buffer as a sample.
            last_step: True: end the episode here. `truncated` is set unless the episode has terminated.

        Returns:
            The (preprocessed) observation, reward, terminated, truncated, info.

        Raises:
            EnvironmentFailedError: the observation does not belong to the space, or the reward is no finite number.
                Exceptions of the environment propagate.
            PolicyFailedError: the action is not finite.
        """
        return self.loop.step(obs, test, collect_samples, last_step, self.act if self._acts_itself else None)

    # --- episodes -----------------------------------------------------------------------------------------------------

    def collect_train_episode(self, max_samples: float | None = None) -> None:
        """Collect one episode and its record into the Buffer.

        Args:
            max_samples: limit of the episode's steps after the reset; None: `max_samples_per_episode`.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
        """
        self._through_overrides()
        self.loop.train(max_samples=max_samples)

    def run_episode(self, max_samples: float | None = None, train: bool = False) -> None:
        """Run one episode without collecting it. Its record is stored in the Buffer.

        Args:
            max_samples: limit of the episode's steps after the reset; None: `max_samples_per_episode`.
            train: the actor explores.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
        """
        self._through_overrides()
        self.loop.test(max_samples, explore=train)

    def run_episodes(
        self, max_samples_per_episode: float | None = None, nb_episodes: float = math.inf, train: bool = False
    ) -> None:
        """Run episodes as `run_episode` does, until `nb_episodes` or the end of the run."""
        with self._running():
            episodes = 0
            while episodes < nb_episodes and not self.uplink.ending():
                self.run_episode(max_samples_per_episode, train=train)
                episodes += 1

    # --- schedules ----------------------------------------------------------------------------------------------------

    def run(
        self,
        test_episode_interval: int = 0,
        nb_episodes: float = math.inf,
        verbose: bool = True,
        expert: bool = False,
    ) -> None:
        """Collect episodes: test, collect, send, and load new weights without waiting for them.

        Episodes that end within `send_pause_s` are sent together. All samples are sent before any wait and before the
        method returns. It returns when `nb_episodes` are collected, the trainer finishes, or after `stop` or `close`.

        Args:
            test_episode_interval: run a test episode before every n-th episode, including the first; 0: no test
                episodes.
            nb_episodes: number of episodes to collect.
            verbose: log episodes at INFO, at most one line every two seconds.
            expert: discard weights, and do not test.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            TmrlError: the link has failed permanently.
        """
        if self.link is not None:
            self.link.expert = expert
        self._collect(
            AsynchronousRule(
                self.loop,
                0 if expert else self._check_tests(test_episode_interval),
                verbose,
                max_env_steps_per_update=self._max_env_steps_per_update,
                within=self._send_every > 0,
                expert=expert,
                pause_s=self._send_pause_s,
            ),
            nb_episodes,
            update_each_step=self._update_each_step and not expert,
        )

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

        Steps are environment steps, resets included, without those that were dropped or refused. The initial steps must
        meet the ratio first. Then steps are counted from 0 again, while models are counted from the beginning. All
        samples are sent before any wait. The method returns when `nb_steps` are collected, the trainer finishes, or
        after `stop` or `close`.

        Args:
            test_episode_interval: run a test episode before every n-th episode; 0: no test episodes. Only with
                `end_episodes`.
            nb_steps: number of steps to collect after the initial ones.
            initial_steps: number of steps before the ratio holds; whole episodes with `end_episodes`.
            max_steps_per_update: the maximum, which need not be an integer.
            end_episodes: wait between episodes only.
            verbose: log each wait at INFO.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            StarvedError: worker and trainer wait for each other.
            TmrlError: the link has failed permanently.
        """
        rule = SynchronousRule(
            self.loop,
            self._check_tests(test_episode_interval),
            verbose,
            max_steps_per_update=max_steps_per_update,
            initial_steps=initial_steps,
            nb_steps=nb_steps,
            end_episodes=end_episodes,
        )
        self._collect(rule, update_each_step=self._update_each_step)

    def run_lockstep(self, verbose: bool = False) -> None:
        """Collect the assignments of the trainer, each with exactly the policy version that it names.

        Between assignments, the worker waits, and runs the evaluations that the trainer requests. The method returns
        when the trainer finishes, or after `stop` or `close`.

        Args:
            verbose: log each assignment at INFO.

        Raises:
            EnvironmentFailedError: the environment failed too often in a row.
            StarvedError: the worker is standalone.
            TmrlError: the link has failed permanently.
        """
        self._collect(LockstepRule(self.loop, verbose))

    def _check_tests(self, interval: int) -> int:
        if interval and self.recorder.rows > 1:
            raise one_environment_only("test_episode_interval", self.recorder.rows)
        return interval

    def _collect(self, rule: Rule, nb_episodes: float = math.inf, *, update_each_step: bool = False) -> None:
        with self._running():
            Schedule(self.loop, rule, send_every=self._send_every, update_each_step=update_each_step).run(nb_episodes)

    # --- samples and policies -----------------------------------------------------------------------------------------

    def send_and_clear_buffer(self) -> None:
        """Send the samples in the Buffer; without a Server, discard them. Statistics stay.

        The worker waits for free space if the link's queue is full and no sample may be dropped. If the worker is
        stopped during the wait, the unsent samples return to the Buffer.

        Raises:
            LinkClosedError: the link is closed.
        """
        self.uplink.send()

    def update_actor_weights(self, verbose: bool = True, blocking: bool = False) -> int:
        """Load the latest policy, if there is a new one.

        Args:
            verbose: log it.
            blocking: wait for a version published since the last call, or for the end of the run.

        Returns:
            Number of versions published since the last call, skipped ones included.

        Raises:
            TmrlError: the link has failed permanently.
        """
        return self.uplink.update_policy(verbose, blocking)

    def ignore_actor_weights(self) -> int:
        """Discard waiting policies, as experts do; return the number of versions published since the last call."""
        return self.uplink.ignore_policy()

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all `run` methods soon and permanently. Safe from any thread and signal handlers."""
        self.loop.stop()

    def close(self) -> CloseReport | None:
        """Stop, send the remaining samples, wait for acknowledgements up to the drain timeout, and close everything.

        Returns:
            Numbers of samples acknowledged, handed over and lost; None without a Server, or if the worker is already
            closed.
        """
        _open.discard(self)
        return self.one_run.close(self.loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _running(self, log: bool = True) -> Iterator[None]:
        """Allow one `run` method at a time. At its end, make the environment safe, and log its lateness if `log`."""
        with self.one_run.running(self.name):
            try:
                self._through_overrides()
                yield
            finally:
                self.loop.environment.make_safe()
                if log:
                    self._log_lateness()

    def _log_lateness(self) -> None:
        figures, env = self.lateness, self.loop.environment.real_time
        if figures is not None and figures.steps:
            logger.info("worker %s: %s", self.name, lateness_text(figures))
        if env is not None and env.benchmark:
            for line in benchmark_lines(env.benchmarks()):
                logger.info("%s", line)

    def _through_overrides(self) -> None:
        """Make the loop use this object's methods for its steps if a subclass or a script has replaced some."""
        kind = type(self)
        inherited = kind.step is Worker.step and kind.reset is Worker.reset and not self._acts_itself
        self.loop.stepper = None if inherited and self.__dict__.keys().isdisjoint(("reset", "step")) else self

    @property
    def _acts_itself(self) -> bool:
        return type(self).act is not Worker.act or "act" in self.__dict__

    # --- figures ------------------------------------------------------------------------------------------------------

    def run_env_benchmark(self, nb_steps: int, test: bool = False, verbose: bool = True) -> Any:
        """Measure the speed of the environment and the policy. All actions are the policy's.

        Args:
            nb_steps: number of steps.
            test: the actor does not explore.
            verbose: log the result at INFO.

        Returns:
            rtgym's own benchmark if the environment has it enabled. Otherwise a dict of `steps_per_s` (the whole loop),
            `env_steps_per_s` and `inferences_per_s` (each separately).

        Raises:
            ValueError: `nb_steps` is not a finite number of at least 1.
        """
        if not 1 <= nb_steps < math.inf:
            raise ValueError(f"nb_steps must be a finite number of at least 1, got {nb_steps}")
        inner = unwrapped(self.env)
        own = inner.benchmarks if isinstance(inner, Benchmarked) and inner.benchmark else None
        env_s = act_s = 0.0
        exploration = self.actor.exploration()
        # Random actions of the action space would cost less than the policy's.
        self.actor.set_exploration({name: 0.0 for name in ("random", "epsilon") if name in exploration})
        with self._running(log=False), contextlib.ExitStack() as after:
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
                obs, _, terminated, truncated, _ = self.loop.env_step(action)
                act_s += middle - begin
                env_s += time.perf_counter() - middle
                if self.loop.obs_preprocessor is not None:
                    obs = self.loop.obs_preprocessor(obs)
                done = bool(terminated or truncated)
            elapsed = time.perf_counter() - started
            self.recorder.end()
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


def make_loop(
    env_cls: Callable[[], Any],
    make_actor: Callable[..., Any],
    recorder: StepRecorder,
    *,
    device: Any = "cpu",
    seed: int | None = None,
    seed_of: Callable[[int], int | None] | None = None,
    obs_preprocessor: Callable[[Any], Any] | None = None,
    max_failures: int = 3,
    strict_spaces: bool = False,
    safe_action: Any = None,
    max_samples_per_episode: float = math.inf,
) -> EnvironmentLoop:
    """Make a loop of an environment, or of several, a policy and a recorder of the steps.

    Args:
        env_cls: creates the environment; called again after a failed reset.
        make_actor: `(observation_space=, action_space=)` creates the actor.
        recorder: records the steps; a `VectorRecorder`: of several environments.
        device: device of the actor.
        seed, seed_of, obs_preprocessor, max_failures: parameters of the loop; the seed is also the policy's.
        strict_spaces, safe_action: parameters of the environment's checks.
        max_samples_per_episode: of several environments; a `StepRecorder` has its own.

    Raises:
        ConfigError: the result of `env_cls` is not an environment, or that of `make_actor` is not an actor; or several
            environments, and a setting that is for one.
    """
    check_maker("actor_module_cls", make_actor)

    def runner_for(one: Any) -> PolicyRunner:
        spaces = one.observation_space, one.action_space
        return PolicyRunner(make_actor, *spaces, device=device, seed=seed, rows=recorder.rows)

    if isinstance(recorder, VectorRecorder):
        for name, value in (("obs_preprocessor", obs_preprocessor), ("safe_action", safe_action)):
            if value is not None:
                raise one_environment_only(name, recorder.rows)
        together = VectorEnvironment(env_cls, recorder.rows, limit=max_samples_per_episode, strict_spaces=strict_spaces)
        runner = runner_for(together.one)
        return VectorLoop(together, runner, recorder, max_failures=max_failures, seed=seed, seed_of=seed_of)
    environment = CheckedEnvironment(env_cls, strict_spaces=strict_spaces, safe_action=safe_action)
    runner = runner_for(environment.env)
    return EnvironmentLoop(
        environment,
        runner,
        recorder,
        obs_preprocessor=obs_preprocessor,
        max_failures=max_failures,
        seed=seed,
        seed_of=seed_of,
    )


def one_environment_only(setting: str, rows: int) -> ConfigError:
    """Return the error of a setting of the section `worker` that needs a worker with one environment."""
    return ConfigError(
        f"worker.envs: found {rows}, and worker.{setting} is for one environment. Set worker.envs: 1, and start more "
        f"workers (--workers), or leave worker.{setting} out"
    )
