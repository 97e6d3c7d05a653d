#!/usr/bin/env bash
# TorchRL's n-step returns add the value of the state after the end, in n - 1 steps of each episode that terminates.
#
# Guess: with MultiStep or MultiStepTransform, a step from which the end of the episode is n steps away or less has
#   the rewards up to the end as its target, as the last step has: after a termination nothing comes.
# Seen: torchrl 0.14.1, tensordict 0.14.3, torch 2.13.0, gymnasium 1.4.0, numpy 2.4.6, Python 3.11, Linux x86_64,
#   November 2026. Episodes of six steps with a reward of 1, gamma 0.5, a network whose value is 100 everywhere, and
#   DQNLoss. With n = 1 the last target is 1. With n = 3 the last three should be 1.75, 1.5 and 1; they are 14.25,
#   26.5 and 1. Rewards and next observations of the three are those at the end, but `terminated`, like `done`, stays
#   that of each row's own step, and the loss uses it. If episodes are truncated, the same targets are right.
# Matters for: n-step DQN, SAC and TD3 with terminations. No target trains the value of a state after the end, so it
#   is whatever the network extrapolates to: a fall may be worth as much as standing. Move `terminated` along in a
#   transform of one's own: to step t belongs that of step t + steps_to_next_obs - 1.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet torchrl==0.14.1 tensordict==0.14.3 torch==2.13.0 gymnasium==1.4.0 \
  numpy==2.4.6 || exit 2
export RL_WARNINGS=False
cat > "$folder/targets.py" <<'PYTHON'
import logging

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

logging.disable(logging.CRITICAL)
from torchrl.collectors import Collector  # noqa: E402
from torchrl.data import LazyTensorStorage, ReplayBuffer  # noqa: E402
from torchrl.data.postprocs import MultiStep  # noqa: E402
from torchrl.envs import GymWrapper  # noqa: E402
from torchrl.envs.transforms import MultiStepTransform  # noqa: E402
from torchrl.modules import QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss  # noqa: E402

LENGTH, GAMMA, N = 6, 0.5, 3


class Steps(gymnasium.Env):
    """Six steps with a reward of 1 each."""

    observation_space = spaces.Box(0, LENGTH, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, terminates):
        self.terminates = terminates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.array([0], np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == LENGTH
        return np.array([self.steps], np.float32), 1.0, over and self.terminates, over and not self.terminates, {}


class Values(torch.nn.Module):
    """Values of 100 and 0, of any observation."""

    def __init__(self):
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor([100.0, 0.0]))

    def forward(self, observation):
        return self.values.expand(*observation.shape[:-1], 2)


def targets(terminates, way):
    """Return the targets of DQN for the last three steps of the first episode."""
    collector = Collector(
        GymWrapper(Steps(terminates)),
        policy=None,
        frames_per_batch=4 * LENGTH,
        total_frames=4 * LENGTH,
        postproc=MultiStep(gamma=GAMMA, n_steps=N) if way == "MultiStep" else None,
    )
    (steps,) = list(collector)
    if way == "MultiStepTransform":
        transform = MultiStepTransform(n_steps=N, gamma=GAMMA)
        buffer = ReplayBuffer(storage=LazyTensorStorage(4 * LENGTH), transform=transform, batch_size=4)
        buffer.extend(steps)
        steps = buffer[:]
    loss = DQNLoss(QValueActor(Values(), in_keys=["observation"], action_space="one-hot"), action_space="one-hot")
    loss.make_value_estimator(gamma=GAMMA)
    found = loss.value_estimator.value_estimate(steps, target_params=loss.target_value_network_params)
    return found.flatten()[LENGTH - N : LENGTH].tolist()


same = True
for way, ended, cut in (
    ("one step", [51.0, 51.0, 1.0], [51.0, 51.0, 51.0]),
    ("MultiStep", [14.25, 26.5, 1.0], [14.25, 26.5, 51.0]),
    ("MultiStepTransform", [14.25, 26.5, 1.0], [14.25, 26.5, 51.0]),
):
    terminated, truncated = targets(True, way), targets(False, way)
    print(f"{way}: terminated {terminated}, truncated {truncated}")
    same &= terminated == ended and truncated == cut
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/targets.py"
