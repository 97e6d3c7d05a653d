"""Several environments in one worker: steps a second, and the worker's own processor time of a step, against one.

    python benchmarks/vector_steps.py [--envs N] [--repetitions N] [--backend numpy|torch]

Rows:

- Pendulum, with the default policy (two layers of 256);
- pictures [84, 84, 4] of an environment whose step costs next to nothing, with the CNN of the default policy;
- own time: processor time of a step of Pendulum in the worker, less that of a plain loop of the same policy and the
  same environments, without checks and without a recorder.

Counted is processor time, of the least of some repetitions, in which one environment and several take turns: other work
on the machine disturbs that less than the clock. The policy's weights are its first ones, and it explores without
random actions, which would leave the network out. There is no Server; the samples are discarded as they would be sent.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from tmrl_core.actor import NumpySquashedGaussianMLPActor
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.actor.rollout.vector_recorder import VectorRecorder
from tmrl_core.actor.rollout.worker import Worker, make_loop
from tmrl_core.blas_threads import one_blas_thread
from tmrl_core.samples import Buffer

LENGTH = 200
BACKEND = "numpy"


class Pictures(gymnasium.Env[Any, Any]):
    """Pictures at no cost."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    picture = np.random.default_rng(0).integers(0, 256, (84, 84, 4), np.uint8)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.picture, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.picture, 0.0, False, self.steps % LENGTH == 0, {}


def make_actor(**spaces_: Any) -> Any:
    if BACKEND == "torch":
        from tmrl_core.actor import SquashedGaussianMLPActor

        return SquashedGaussianMLPActor(**spaces_, random=0.0)
    return NumpySquashedGaussianMLPActor(**spaces_, seed=0, random=0.0)


def worker_of(make: Callable[[], Any], envs: int) -> Worker:
    recorder = StepRecorder(Buffer(None)) if envs == 1 else VectorRecorder(Buffer(None), envs)
    loop = make_loop(make, make_actor, recorder, seed=0)
    loop.uplink = Uplink(None, recorder, loop.runner)
    return Worker(loop)


def worker_loop(make: Callable[[], Any], envs: int) -> Callable[[int], None]:
    """Return a function that makes about so many steps in a worker."""
    worker = worker_of(make, envs)
    return lambda steps: worker.run(nb_episodes=math.ceil(steps / LENGTH), verbose=False)


def plain_loop(make: Callable[[], Any], envs: int) -> Callable[[int], None]:
    """Return a function that makes so many steps with policy and environments only."""
    one = make()
    actor = make_actor(observation_space=one.observation_space, action_space=one.action_space)
    rng = np.random.default_rng(0)
    together: Any = SyncVectorEnv([make] * envs, copy=False)

    def several(steps: int) -> None:
        obs_B, _ = together.reset(seed=0)
        for _ in range(steps // envs):
            obs_B = together.step(actor.act_batch(obs_B, {}, rng, False)[0])[0]

    def single(steps: int) -> None:
        obs, _ = one.reset(seed=0)
        for _ in range(steps):
            obs, _, terminated, truncated, _ = one.step(actor.act_(obs))
            if terminated or truncated:
                obs, _ = one.reset()

    return single if envs == 1 else several


def least(loops: list[Callable[[int], None]], steps: int, repetitions: int) -> list[float]:
    """Return the least processor time of a step of each loop, in microseconds."""
    found = [math.inf] * len(loops)
    with one_blas_thread:
        for _ in range(repetitions + 1):
            for place, loop in enumerate(loops):
                began = time.process_time()
                loop(steps)
                found[place] = min(found[place], (time.process_time() - began) / steps * 1e6)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--envs", type=int, default=8)
    arguments.add_argument("--repetitions", type=int, default=7)
    arguments.add_argument("--backend", choices=("numpy", "torch"), default="numpy")
    given = arguments.parse_args()
    global BACKEND
    BACKEND = given.backend
    if BACKEND == "torch":
        import torch

        torch.set_num_threads(1)
    envs = given.envs

    def pendulum() -> Any:
        return gymnasium.make("Pendulum-v1")

    sides = (1, envs)
    loops = [worker_loop(pendulum, n) for n in sides] + [plain_loop(pendulum, n) for n in sides]
    one, several, plain_one, plain_several = least(loops, envs * LENGTH * 5, given.repetitions)
    picture_one, picture_several = least([worker_loop(Pictures, n) for n in sides], envs * LENGTH, given.repetitions)
    print(f"| what | 1 environment | {envs} environments | ratio |\n| --- | --- | --- | --- |")
    for what, first, second in (
        ("Pendulum, steps/s", 1e6 / one, 1e6 / several),
        ("Pendulum, policy and environments alone, steps/s", 1e6 / plain_one, 1e6 / plain_several),
        ("Pictures and a CNN, steps/s", 1e6 / picture_one, 1e6 / picture_several),
        ("own processor time of a step, us", one - plain_one, several - plain_several),
    ):
        print(f"| {what} | {first:,.1f} | {second:,.1f} | {second / first:.2f} |")


if __name__ == "__main__":
    main()
