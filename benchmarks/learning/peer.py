"""The same learning curve by stable-baselines3 or sb3-contrib, with the same settings, steps, episodes and seeds.

    python benchmarks/learning/peer.py cartpole

Needs both libraries, on which the project does not depend, in
the environment that runs it. It is evaluated after as many environment steps as `run.py`, in an environment of its own,
with the seeds of our evaluations.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import curves
from peer_settings import PeerSettings, peer_settings
from run import HERE, parser_of, run_seed

from tmrl_core.config import Config, load
from tmrl_core.envs import GenericGymEnv

_ACTIVATIONS = {"tanh": "Tanh", "relu": "ReLU"}


def play(env: Any, model: Any, seed: int, prepared: Callable[[Any], Any]) -> float:
    """The return of one deterministic episode; `prepared` makes of an observation what the policy gets."""
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        action, _ = model.predict(prepared(obs), deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        over = terminated or truncated
    return total


def learn(config: Config, settings: PeerSettings, seed: int) -> list[curves.Point]:
    import sb3_contrib
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    began = time.perf_counter()
    points: list[curves.Point] = []
    trained: list[float] = []
    make = partial(GenericGymEnv, **config.environment.kwargs)
    env = make()
    envs: Any = DummyVecEnv([lambda: Monitor(make())] * settings.envs)
    if settings.normalize is not None:
        envs = VecNormalize(envs, **settings.normalize)
    prepared = envs.normalize_obs if settings.normalize is not None else lambda obs: obs
    due = list(settings.evaluate_at)
    seeds = range(config.trainer.evaluation.first_seed, config.trainer.evaluation.first_seed + episodes(config))

    def evaluate(model: Any, steps: int) -> None:
        returns = [play(env, model, one, prepared) for one in seeds]
        seconds = time.perf_counter() - began
        point = curves.Point(
            steps, statistics.fmean(returns), statistics.pstdev(returns), seconds, curves.mean_of(trained)
        )
        points.append(point)
        trained.clear()

    class Evaluate(BaseCallback):
        """Evaluates once it has trained on what a point of the curve asks for."""

        def _on_rollout_start(self) -> None:
            if due and self.num_timesteps >= due[0]:
                evaluate(self.model, due.pop(0))

        def _on_step(self) -> bool:
            trained.extend(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            return True

    kwargs = dict(settings.kwargs)
    policy = dict(kwargs.pop("policy_kwargs"))
    if "activation_fn" in policy:
        policy["activation_fn"] = getattr(torch.nn, _ACTIVATIONS[policy["activation_fn"]])
    library = sb3 if hasattr(sb3, settings.algorithm) else sb3_contrib
    model = getattr(library, settings.algorithm)(
        "MlpPolicy", envs, policy_kwargs=policy, seed=seed, device="cpu", **kwargs
    )
    model.learn(settings.steps, callback=Evaluate())
    if due:
        evaluate(model, due.pop(0))
    return points


def episodes(config: Config) -> int:
    return config.trainer.evaluation.episodes


def main() -> int:
    arguments = parser_of(__doc__).parse_args()
    config = load(HERE / f"{arguments.task}.yaml", arguments.changes, {})
    run_seed(arguments, lambda seed: learn(config, peer_settings(config), seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
