"""One round of PPO by both sides, from the same weights and the same samples: what is left is how they compute.

    python benchmarks/learning/one_round.py

stable-baselines3 collects a round of two environments; our agent gets its weights and that round. Printed are the
largest differences of the advantages, and of the weights after five passes over the whole round as one minibatch (so
that the order of minibatches, which each side draws by itself, plays no part). Then, what each side divides rewards by
after some rounds of the same rewards, where episodes go on from round to round. Needs stable-baselines3 and `mujoco`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tmrl_core.envs import GenericGymEnv
from tmrl_core.training import PPOAgent
from tmrl_core.training.batches import ENDS

STEPS = 1024
"""Of each environment."""
ENVS = 2
PASSES = 5
TOLERANCE = 1e-4
"""Of the largest advantage, and of the way that the weights have gone."""


class Collected:
    """What stable-baselines3's buffer does not keep: what followed each step, and whether the episode terminated."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[Any, float, bool, bool]]] = [[] for _ in range(ENVS)]

    def note(self, seen: dict[str, Any]) -> None:
        for index, info in enumerate(seen["infos"]):
            done = bool(seen["dones"][index])
            followed = info["terminal_observation"] if done else seen["new_obs"][index]
            terminated = done and not info.get("TimeLimit.truncated", False)
            self.rows[index].append((followed, float(seen["rewards"][index]), terminated, done))

    def column(self, number: int) -> torch.Tensor:
        """[T] of both environments, one after the other."""
        return torch.tensor(np.array([row[number] for rows in self.rows for row in rows]), dtype=torch.float32)


def pairs(policy: Any, agent: PPOAgent) -> Iterator[tuple[Any, Any]]:
    """Each parameter of theirs with the one of ours."""
    actor: Any = agent.model.actor
    head = actor.logits if hasattr(actor, "logits") else actor.mu
    theirs = [*policy.mlp_extractor.policy_net, policy.action_net, *policy.mlp_extractor.value_net, policy.value_net]
    ours = [*actor.net, head, *agent.model.critic]
    for left, right in zip(theirs, ours, strict=True):
        yield from zip(left.parameters(), right.parameters(), strict=True)
    if hasattr(actor, "log_std"):
        yield policy.log_std, actor.log_std


def compare(env_id: str) -> tuple[float, float]:
    """The largest differences, as shares of what they are differences of."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    collected = Collected()

    class Note(BaseCallback):
        """Hands every step on."""

        def _on_step(self) -> bool:
            collected.note(self.locals)
            return True

    envs = DummyVecEnv([lambda: GenericGymEnv(env_id, to_float32=True)] * ENVS)
    theirs = sb3.PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=ENVS * STEPS, n_epochs=PASSES, seed=0, device="cpu")
    env = GenericGymEnv(env_id, to_float32=True)
    ours = PPOAgent(env.observation_space, env.action_space, minibatch_size=ENVS * STEPS, update_epochs=PASSES, lr=3e-4)
    with torch.no_grad():
        for left, right in pairs(theirs.policy, ours):
            right.copy_(left)
    before = [left.detach().clone() for left, _ in pairs(theirs.policy, ours)]
    _, callback = theirs._setup_learn(ENVS * STEPS, Note(), True, "one_round", False)
    buffer = theirs.rollout_buffer
    theirs.collect_rollouts(envs, callback, buffer, STEPS)

    def joined(array: Any) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([array[:, index] for index in range(ENVS)]))

    obs, action = joined(buffer.observations), joined(buffer.actions)
    next_obs, reward, terminated, ends = (collected.column(number) for number in range(4))
    ends[STEPS - 1 :: STEPS] = 1.0
    with torch.no_grad():
        advantage, _ = ours._advantages(reward, ours.model.value(obs), next_obs, terminated, ends)
    expected = joined(buffer.advantages)
    apart = float((advantage - expected).abs().max() / expected.abs().max())
    extras = {"logp": joined(buffer.log_probs), "drawn": action, ENDS: ends}
    ours.train((obs, action, reward, next_obs, terminated, ends - terminated, extras))
    theirs.train()
    moved = [
        float((left.detach() - old).abs().max())
        for (left, _), old in zip(pairs(theirs.policy, ours), before, strict=True)
    ]
    left_over = [float((left - right).detach().abs().max()) for left, right in pairs(theirs.policy, ours)]
    return apart, max(left_over) / max(moved)


def compare_scales(env_id: str, rounds: int = 4) -> float:
    """The largest difference of what rewards are divided by after each round, as a share of it."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: GenericGymEnv(env_id, to_float32=True)] * ENVS), gamma=0.99)
    env = GenericGymEnv(env_id, to_float32=True)
    agent = PPOAgent(env.observation_space, env.action_space, normalize_rewards=True, gamma=0.99)
    assert agent.returns is not None
    rng = np.random.default_rng(0)
    envs.seed(0)
    envs.reset()
    places = np.zeros((ENVS, 3), np.int64)
    places[:, 0] = range(ENVS)
    apart = 0.0
    for _ in range(rounds):
        rows: list[Any] = []
        for _ in range(STEPS):
            _, _, dones, _ = envs.step(rng.uniform(-1.0, 1.0, (ENVS, *(env.action_space.shape or ()))))
            places[:, 2] += 1
            rows.append((envs.get_original_reward(), dones, places.copy()))
            places[dones, 1] += 1
            places[dones, 2] = 0
        reward, ends, at = (torch.from_numpy(np.stack([row[number] for row in rows], 1)) for number in range(3))
        ends[:, -1] = True
        agent._scaled(reward.reshape(-1), ends.reshape(-1), at.reshape(-1, 3))
        apart = max(apart, abs(float(agent.returns.std) / float(np.sqrt(envs.ret_rms.var)) - 1.0))
    return apart


def main() -> int:
    torch.set_num_threads(1)
    print("| environment | advantages | weights |")
    print("| --- | --- | --- |")
    reached = True
    for env_id in ("CartPole-v1", "Hopper-v5"):
        advantages, weights = compare(env_id)
        print(f"| {env_id} | {advantages:.1e} | {weights:.1e} |")
        reached = reached and max(advantages, weights) <= TOLERANCE
    print("\n| environment | what rewards are divided by |")
    print("| --- | --- |")
    for env_id in ("HalfCheetah-v5", "Hopper-v5"):
        scales = compare_scales(env_id)
        print(f"| {env_id} | {scales:.1e} |")
        reached = reached and scales <= TOLERANCE
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
