#!/usr/bin/env bash
# Gymnasium's NormalizeReward scales the same rewards otherwise if episodes are truncated, and with another autoreset.
#
# Guess: rewards are divided by the standard deviation of the discounted return of the episode so far. Which flag ends an
#   episode, and when a vector environment resets, changes neither rewards nor returns, so it does not change the scale.
# Seen: gymnasium 1.4.0, stable-baselines3 2.9.2, numpy 2.4.6, torch 2.13.0, Python 3.11, Linux x86_64, November 2026.
#   Episodes of 20 steps with a reward of 1 in the first and the last step. In single environments, and in vector ones with
#   NEXT_STEP, that 1 becomes 4.9 if episodes terminate, and 1.4 if they are truncated: only `terminated` ends the return,
#   which otherwise goes on into the next episode. With SAME_STEP it is 4.9 if they are truncated, and 19 if they
#   terminate: the return is dropped one step early, before the last reward is added to it. VecNormalize of
#   stable-baselines3 makes 4.9 of both.
# Matters for: tasks with time limits (most of MuJoCo), and rewards that come at the end: their scale, and with it the
#   learning rate that suits a critic or an entropy coefficient, changes with a flag or a mode that was not meant to
#   matter. For equal scales, wrap in a class of one's own that begins the return anew at each reset.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 stable-baselines3==2.9.2 numpy==2.4.6 torch==2.13.0 || exit 2
cat > "$folder/scale.py" <<'PYTHON'
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeReward
from gymnasium.wrappers.vector import NormalizeReward as NormalizeRewards
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

LENGTH, STEPS = 20, 20_000


class Ends(gymnasium.Env):
    """Reward 1 in the first and the last of twenty steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, terminates):
        self.terminates = terminates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        last = self.steps == LENGTH
        reward = float(last or self.steps == 1)
        return np.zeros(1, np.float32), reward, last and self.terminates, last and not self.terminates, {}


def single(terminates):
    """Return what becomes of a reward of 1 in one environment."""
    env = NormalizeReward(Ends(terminates))
    env.reset()
    for _ in range(STEPS):
        _, reward, terminated, truncated, _ = env.step(0)
        found = reward or found
        if terminated or truncated:
            env.reset()
    return found


def vector(mode, terminates):
    """Return it in a vector environment of one."""
    env = NormalizeRewards(SyncVectorEnv([lambda: Ends(terminates)], autoreset_mode=mode))
    env.reset()
    for _ in range(STEPS):
        reward = env.step(np.zeros(1, np.int64))[1][0]
        found = reward or found
    return found


def other(terminates):
    """Return it in stable-baselines3."""
    env = VecNormalize(DummyVecEnv([lambda: Ends(terminates)]), norm_obs=False)
    env.reset()
    for _ in range(STEPS):
        reward = env.step([0])[1][0]
        found = reward or found
    return float(found)


found = {
    "one environment": [single(ends) for ends in (True, False)],
    "vector, NEXT_STEP": [vector(AutoresetMode.NEXT_STEP, ends) for ends in (True, False)],
    "vector, SAME_STEP": [vector(AutoresetMode.SAME_STEP, ends) for ends in (True, False)],
    "stable-baselines3": [other(ends) for ends in (True, False)],
}
for name, (terminated, truncated) in found.items():
    print(f"{name}: a reward of 1 becomes {terminated:.2f} if episodes terminate, {truncated:.2f} if they are truncated")
usual = found["stable-baselines3"][0]
expected = {
    "one environment": (usual, 1.37),
    "vector, NEXT_STEP": (usual, 1.36),
    "vector, SAME_STEP": (19.06, usual),
    "stable-baselines3": (usual, usual),
}
same = all(np.allclose(found[name], expected[name], rtol=0.02) for name in found)
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/scale.py"
