"""Learn `simple_spread` of mpe2, a parallel environment of PettingZoo: three agents with one policy, three landmarks.

    python benchmarks/learning/simple_spread.py --seeds 3

The scale is set by `spread_rule.py`: 0 is random play, 1 the hand-written rule, both on the same fresh starts as the
learned policies. The target is 0.5 for the mean of the seeds. A run takes a few minutes on one core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from functools import partial
from typing import Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from spread_rule import TEST, Player, Rule, random_player, scores
from torch import Tensor, nn

from tmrl_core.multiagent import (
    DQN,
    Actor,
    AgentManager,
    AgentParameters,
    Assembly,
    KStepExperienceShaper,
    Learner,
    LinearExplorer,
    PettingZooEnvironment,
    PolicySettings,
    episode_seeds,
)

AGENTS = ("agent_0", "agent_1", "agent_2")
EPISODES = 600


class Values(nn.Module):
    """The value of each push, from speed, place and the relative places of landmarks and others.

    Landmarks go through the same layers and are summed, so that their order does not matter. A landmark's features are
    its place and those of the others as seen from it, the nearer one first.
    """

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.landmark = nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(hidden + 8, hidden), nn.ReLU(), nn.Linear(hidden, 5))

    def forward(self, observation_B: Tensor) -> Tensor:
        """Return [B, 5] values of observations [B, 18]. The last four numbers, communication, are 0."""
        own, others = observation_B[:, :4], observation_B[:, 10:14]
        landmarks = observation_B[:, 4:10].reshape(-1, 3, 2)
        seen = others.reshape(-1, 1, 2, 2) - landmarks[:, :, None]
        far = seen.norm(dim=-1)
        order = far.argsort(dim=-1)
        seen = seen.gather(2, order[..., None].expand_as(seen)).flatten(2)
        features = [
            own[:, None].expand(-1, 3, -1),
            landmarks,
            landmarks.norm(dim=-1, keepdim=True),
            seen,
            far.gather(2, order),
        ]
        pooled = self.landmark(torch.cat(features, dim=-1)).sum(dim=1)
        values_BN: Tensor = self.head(torch.cat([pooled, own, others], dim=-1))
        return values_BN


def dqn() -> DQN:
    """Return the algorithm of the shared policy."""
    return DQN({"q": Values()}, (torch.optim.Adam, {"lr": 1e-3}), {}, {"target_interval": 1, "polyak": 0.995})


def manager(mode: Literal["inference", "training"], episodes: int) -> AgentManager:
    """Return a manager of three agents with one policy and one memory."""
    parameters = AgentParameters(capacity=200_000, batch_size=256, min_experiences=1_500, updates_per_episode=15)
    return AgentManager(
        mode,
        AGENTS,
        config=Assembly(
            agents=dict.fromkeys(AGENTS, "shared"),
            policies={"shared": PolicySettings(algorithm=dqn, parameters=parameters)},
        ),
        experience_shaper=KStepExperienceShaper(gamma=0.9),
        explorer=LinearExplorer(AGENTS, initial=1.0, final=0.05, episodes=0.4 * episodes),
    )


def learned_scores(episodes: int, seed: int, tests: int) -> list[float]:
    """Return the mean returns of the agents in tests on fresh starts, after training."""
    torch.manual_seed(seed)
    env = PettingZooEnvironment("mpe2.simple_spread_v3:parallel_env", {"max_cycles": 25})
    actor = Actor(env, manager("inference", episodes))
    learner = Learner(manager("training", episodes), actor, seed=episode_seeds(seed))
    for part in range(10):
        results = learner.train(episodes // 10)
        print(f"  seed {seed}, {10 * (part + 1)} %: {statistics.fmean(one.score for one in results):.2f}", flush=True)
    models = learner.agents.get_models()
    return [
        actor.roll_out(models=models, seed=TEST + number, test=True)[0]["local"]["score"] for number in range(tests)
    ]


def main() -> None:
    """Measure both ends of the scale and the learned policies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="episodes of training")
    parser.add_argument("--tests", type=int, default=300, help="episodes of each test")
    parser.add_argument(
        "--scale", type=float, nargs=2, metavar=("RANDOM", "RULE"), help="both ends, to save the time of their tests"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    starts = range(TEST, TEST + arguments.tests)
    low, high = arguments.scale or (
        statistics.fmean(scores(player, starts)) for player in (random_player(0), partial(Player, Rule()))
    )
    print(f"random {low:.2f}, rule {high:.2f}")
    means = []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        began = time.process_time()
        found = learned_scores(arguments.episodes, seed, arguments.tests)
        means.append(statistics.fmean(found))
        error = statistics.stdev(found) / len(found) ** 0.5
        print(
            f"seed {seed}: {means[-1]:.2f} +- {error:.2f}, {(means[-1] - low) / (high - low):.2f} of the way "
            f"({arguments.episodes} episodes, {time.process_time() - began:.0f} s of processor time)",
            flush=True,
        )
    mean = statistics.fmean(means)
    part = (mean - low) / (high - low)
    print(f"mean {mean:.2f}: {part:.2f} of the distance from random play to the rule; target 0.5")
    raise SystemExit(part < 0.5)


if __name__ == "__main__":
    main()
