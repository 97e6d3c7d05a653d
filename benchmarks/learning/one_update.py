"""Updates of SAC by both sides, from the same weights, batches and noise: what is left is how they compute.

    python benchmarks/learning/one_update.py

stable-baselines3's memory is filled with random transitions of Pendulum, our agent gets its weights, and both make the
same updates with the settings of `pendulum.yaml`. The noise is that of torch's generator, which both ask for the
current policy's actions first, then for the next ones. Printed is how far apart the weights of each network are after
1, 10 and 100 updates, as a share of the way that they have gone (both as Euclidean norms).

One difference is in the algorithms: log(1 - tanh(u)^2) is exact here, and 1e-6 is added to its argument there, so that
it ends at -13.8. So theirs is compared as it is, and with the exact one. Needs stable-baselines3.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from run import HERE
from torch import Tensor
from torch.nn import functional

from tmrl_core.config import Config, load
from tmrl_core.envs import GenericGymEnv
from tmrl_core.training import SacAgent

ROWS = 5000
UPDATES = (1, 10, 100)
TOLERANCE = 1e-3
"""With the exact logarithm. In one update the slow critics move by little more than rounding."""


def pairs(theirs: Any, ours: SacAgent) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each parameter of theirs with the one of ours, of the same shape, and which network it is of."""
    actor = ours.model.actor
    for left, right in zip(
        (*theirs.actor.latent_pi, theirs.actor.mu, theirs.actor.log_std),
        (*actor.net, actor.mu, actor.log_std),
        strict=True,
    ):
        for one, other in zip(left.parameters(), right.parameters(), strict=True):
            yield "policy", one, other
    for name, critics, ensemble in (
        ("critics", theirs.critic, ours.critics),
        ("slow critics", theirs.critic_target, ours.target_critics),
    ):
        for number, critic in enumerate(critics.q_networks):
            for left, right in zip(critic, ensemble.net, strict=True):
                if hasattr(left, "weight"):
                    yield name, left.weight, right.weight[number].T
                    yield name, left.bias, right.bias[number, 0]
    yield "temperature (logarithm)", theirs.log_ent_coef, ours.log_alpha.reshape(1)


def both(config: Config) -> tuple[Any, SacAgent]:
    """Both sides, with a memory of theirs that is filled, and equal weights."""
    import stable_baselines3 as sb3
    from peer_settings import peer_settings
    from stable_baselines3.common.logger import Logger

    env = GenericGymEnv(**config.environment.kwargs)
    settings = peer_settings(config)
    theirs = getattr(sb3, settings.algorithm)("MlpPolicy", env, seed=0, device="cpu", **settings.kwargs)
    theirs.set_logger(Logger(None, []))
    ours = SacAgent(env.observation_space, env.action_space, "cpu", **{**config.agent.kwargs, "compile": False})
    with torch.no_grad():
        for _, left, right in pairs(theirs, ours):
            right.copy_(left)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    for _ in range(ROWS):
        action = env.action_space.sample()
        new_obs, reward, terminated, truncated, _ = env.step(action)
        done = np.array([terminated or truncated])
        scaled = theirs.policy.scale_action(action[None])
        theirs.replay_buffer.add(
            obs[None], new_obs[None], scaled, np.array([reward]), done, [{"TimeLimit.truncated": truncated}]
        )
        obs = env.reset()[0] if done[0] else new_obs
    return theirs, ours


def exact_log_prob(theirs: Any) -> None:
    """Have their policy take the exact logarithm, of the Gaussian's sample instead of the action."""
    distribution = theirs.actor.action_dist

    def log_prob(actions: Tensor, gaussian_actions: Tensor) -> Tensor:
        u = gaussian_actions
        squashing = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
        gaussian: Tensor = distribution.distribution.log_prob(u)
        return (gaussian - squashing).sum(dim=1)

    distribution.log_prob = log_prob


def compare(config: Config, exact: bool) -> dict[int, dict[str, float]]:
    """After so many updates, how far apart each network is, as a share of its way."""
    theirs, ours = both(config)
    if exact:
        exact_log_prob(theirs)
    before = [left.detach().clone() for _, left, _ in pairs(theirs, ours)]
    drawn: list[Any] = []
    sample = theirs.replay_buffer.sample

    def noted(*args: Any, **kwargs: Any) -> Any:
        drawn.append(sample(*args, **kwargs))
        return drawn[-1]

    theirs.replay_buffer.sample = noted
    found: dict[int, dict[str, float]] = {}
    for update in range(1, max(UPDATES) + 1):
        torch.manual_seed(update)
        theirs.train(1, theirs.batch_size)
        one = drawn.pop()
        action = torch.from_numpy(theirs.policy.unscale_action(one.actions.numpy()))
        torch.manual_seed(update)
        ended = one.dones[:, 0]
        ours.train((one.observations, action, one.rewards[:, 0], one.next_observations, ended, torch.zeros_like(ended)))
        if update in UPDATES:
            found[update] = _shares(list(pairs(theirs, ours)), before)
    return found


def _shares(now: list[tuple[str, Tensor, Tensor]], before: list[Tensor]) -> dict[str, float]:
    apart: dict[str, float] = {}
    moved: dict[str, float] = {}
    with torch.no_grad():
        for (name, left, right), old in zip(now, before, strict=True):
            apart[name] = apart.get(name, 0.0) + float((left - right).double().square().sum())
            moved[name] = moved.get(name, 0.0) + float((left - old).double().square().sum())
    return {name: math.sqrt(apart[name] / moved[name]) for name in apart}


def main() -> int:
    torch.set_num_threads(1)
    config = load(HERE / "pendulum.yaml", [], {})
    reached, headed = True, False
    for exact in (True, False):
        for update, shares in compare(config, exact).items():
            if not headed:
                print(f"| logarithm | updates | {' | '.join(shares)} |")
                print(f"| --- | --- |{' --- |' * len(shares)}")
                headed = True
            cells = (f"{share:.1e}" for share in shares.values())
            print(f"| {'exact' if exact else 'theirs'} | {update} | {' | '.join(cells)} |")
            reached = reached and (not exact or max(shares.values()) <= TOLERANCE)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
