#!/usr/bin/env bash
# Frame skipping of Gymnasium and stable-baselines3 returns an old observation where an episode ends within a skip.
#
# Guess: MaxAndSkipObservation and MaxAndSkipEnv return the maximum over the last two frames; where the episode ends after
#   one or two of four frames, over those.
# Seen: gymnasium 1.4.0, stable-baselines3 2.9.2, numpy 2.4.6, torch 2.13.0, Python 3.11, Linux x86_64, November 2026.
#   Observations are 100 for each episode plus the number of the frame, four frames a step. An episode that ends with
#   frame 106 returns 104 twice: frames 3 and 4 alone are written into the buffer, and an end before them leaves what was
#   there. If the next episode ends with frame 202, its only observation after the reset is 104, from the episode before.
#   Rewards and flags are right. Both libraries do the same.
# Matters for: episodes that are truncated, where learners take the value of the last observation (a time limit that is no
#   multiple of the skip does it in each episode); pictures of success and failure; recorded data, and models of the
#   world trained on them. Choose the limit as a multiple of the skip, or skip frames in a wrapper that keeps the last.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 stable-baselines3==2.9.2 numpy==2.4.6 torch==2.13.0 || exit 2
cat > "$folder/skip.py" <<'PYTHON'
import gymnasium
import numpy as np
from gymnasium.wrappers import MaxAndSkipObservation
from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv

LENGTHS = 6, 2


class Numbered(gymnasium.Env):
    """Observations are 100 for each episode, plus the number of the frame; episodes are truncated."""

    observation_space = gymnasium.spaces.Box(0, 1000, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.frames = self.episode + 1, 0
        return self.observed(), {}

    def step(self, action):
        self.frames += 1
        return self.observed(), 1.0, False, self.frames == LENGTHS[self.episode - 1], {}

    def observed(self):
        return np.array([100 * self.episode + self.frames], np.float32)


def played(env):
    """Return the observations of each step, and the frames that it had."""
    found = []
    for _ in LENGTHS:
        env.reset()
        truncated = False
        while not truncated:
            observation, frames, _, truncated, _ = env.step(0)
            found.append((int(observation[0]), int(frames)))
    return found


found = {"gymnasium": played(MaxAndSkipObservation(Numbered(), 4)), "stable-baselines3": played(MaxAndSkipEnv(Numbered(), 4))}
for name, steps in found.items():
    print(f"{name}: (observation, frames) of each step: {steps}; the last frames of the episodes are 106 and 202")
same = all(steps == [(104, 4), (104, 2), (104, 2)] for steps in found.values())
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/skip.py"
