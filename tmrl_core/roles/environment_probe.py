"""Trial of the environment in a process of its own, before roles start: it is made and reset once, and closed.

It never steps: the first action may move something.
"""

# Theory of operation
#
# `--local` and `--worker --workers N` first start `--probe`, a process that makes the environment, resets it once,
# makes the NumPy policy and closes it. A process, because a constructor may crash, hang, exit, or leave threads and
# processes behind; the parent imports its display meanwhile, so the start of a run takes no longer.
#
# Only environments that Gymnasium's registry makes are tried by default, without rtgym's, and those with a rate are not
# reset: another one may be a machine that must not be started twice (`environment.probe`). Without a trial, the first
# worker starts alone, in the environment that it goes on to use. The other roles start after its first valid step
# (where it waits for the trainer before: after its constructor), or after 10 s, because an environment may wait for
# that of another worker. So a breach of contract ends the command before they have started, and no machine is started
# for a trial. Rejected: a trial in the parent, and one in each role.

from __future__ import annotations

from typing import Any

from tmrl_core.config import Config
from tmrl_core.config.algorithms import (
    action_space_problem,
    actor_of,
    algorithm_of,
    policy_kwargs,
    policy_problem,
    stacks_problem,
)
from tmrl_core.config.references import named_failures
from tmrl_core.config.room_sections import kind_of_run
from tmrl_core.errors import ConfigError
from tmrl_core.roles.from_config import GYMNASIUM_ENVIRONMENTS, environment_of
from tmrl_core.roles.kinds_of_run import parts_of

PROBED = "the environment has been made and reset once"
"""Line that the process prints at the end of a trial in order."""


def is_probed(config: Config) -> bool:
    """Return True if the environment is tried: one of Gymnasium's, unless the configuration says otherwise.

    Any other may be a machine that must not be started twice, as those of rtgym are.
    """
    wanted = config.environment.probe
    if wanted is not None:
        return wanted
    registered = kind_of_run(config) is None and config.environment.cls in GYMNASIUM_ENVIRONMENTS
    if not registered:
        return False
    from tmrl_core.envs.real_time import ONE_THREAD, THREAD_PER_STEP

    id_ = str(config.environment.kwargs.get("id"))
    return id_.rpartition(":")[2] not in (ONE_THREAD, THREAD_PER_STEP)


def probe_environment(config: Config) -> None:
    """Make the environment, reset it, make a policy for it if that needs no torch, and close the environment.

    Raises:
        ConfigError: the environment does not exist, breaks Gymnasium's contract, or does not fit the algorithm, the
            policy or the memory; the message names the alternatives.
        EnvironmentFailedError: its constructor or its reset failed.
        Exception: exceptions of its close propagate.
    """
    if (kind := kind_of_run(config)) is not None:
        return parts_of(kind).probe_environment(config)
    from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment

    make, strict = environment_of(config), config.worker.strict_spaces
    if config.worker.envs > 1:
        from tmrl_core.actor.rollout.vector_environment import VectorEnvironment

        environment: CheckedEnvironment = VectorEnvironment(make, config.worker.envs, strict_spaces=strict)
    else:
        environment = CheckedEnvironment(make, strict_spaces=strict)
    env = environment.one
    problem = _space_problem(config, env.observation_space, env.action_space)
    if problem is not None:
        raise ConfigError(problem)
    # A rate shows a machine behind a registered id, which only a reset starts.
    if environment.time_step is None or config.environment.probe:
        with named_failures(f"environment.cls: {config.environment.cls!r}"):
            environment.reset(_seed(config))
    _make_policy(config, env)
    environment.close()


def _space_problem(config: Config, observation_space: Any, action_space: Any) -> str | None:
    """Return the reason why a built-in algorithm, policy or memory does not fit the environment; None: all fit."""
    algorithm = algorithm_of(config.agent.cls)
    if algorithm is not None:
        problem = action_space_problem(config.agent.cls, algorithm.action_spaces, action_space)
        if problem is not None:
            return problem
    return policy_problem(config, action_space) or stacks_problem(config, observation_space)


def _seed(config: Config) -> int | None:
    """Return a seed if the run's workers reset with one."""
    evaluation = config.trainer.evaluation
    return config.run.seed if evaluation.every_updates == 0 else evaluation.first_seed


def _make_policy(config: Config, env: Any) -> None:
    from tmrl_core.actor import numpy_backend_of

    if actor_of(config.actor.cls) is None or config.worker.backend == "torch" or config.worker.device != "cpu":
        return
    make = numpy_backend_of(config.actor.cls, policy_kwargs(config))
    if make is not None:
        make(observation_space=env.observation_space, action_space=env.action_space)
