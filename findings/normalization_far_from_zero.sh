#!/usr/bin/env bash
# Running normalization in Gymnasium and stable-baselines3 never gets over its imaginary sample at zero.
#
# Guess: NormalizeObservation ("centered at the mean with unit variance") and VecNormalize estimate mean and variance from
#   what they see. After 20,000 observations with a standard deviation of 1 metre, normalized ones have about that of 1,
#   wherever the origin is: estimates of moments forget their start, whose weight is 1e-4 of an observation.
# Seen: gymnasium 1.4.0, stable-baselines3 2.9.2, numpy 2.4.6, torch 2.13.0, Python 3.11, Linux x86_64, November 2026.
#   Positions of a robot that moves by about 1 m, as metres of a map (UTM: 4,000,000 north, 500,000 east): the normalized
#   standard deviation is 0.0033 and 0.026 in both libraries, and still 0.008 and 0.06 after 100,000. Both begin with a
#   count of 1e-4 at mean 0; the square of the distance, 1.6e13, times 1e-4 is spread over all that is seen, so the
#   estimated variance is 1 + 1.6e9 / n. North needs more than a billion steps.
# Matters for: geographic coordinates, time stamps, encoder counts and absolute pressures in observations: a policy sees
#   nearly constant inputs and learns without them. Subtract an origin first, or begin the count at 0.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 stable-baselines3==2.9.2 numpy==2.4.6 torch==2.13.0 || exit 2
cat > "$folder/far.py" <<'PYTHON'
import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

STEPS = 20_000
ORIGIN = np.array([4.0e6, 5.0e5, 0.0])


class Rover(gymnasium.Env):
    """Positions with a standard deviation of 1 m: north, east, and east from the start."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return ORIGIN + self.np_random.normal(size=3), {}

    def step(self, action):
        return ORIGIN + self.np_random.normal(size=3), 0.0, False, False, {}


single = NormalizeObservation(Rover())
single.reset(seed=0)
ours = np.array([single.step(0)[0] for _ in range(STEPS)])[-5000:].std(axis=0)
many = VecNormalize(DummyVecEnv([Rover]), norm_reward=False)
many.seed(0)
many.reset()
theirs = np.array([many.step([0])[0][0] for _ in range(STEPS)])[-5000:].std(axis=0)
print("normalized standard deviation (north, east, from the start):", ours.round(4), "and", theirs.round(4))
same = all(std[0] < 0.01 and std[1] < 0.1 and 0.9 < std[2] < 1.1 for std in (ours, theirs))
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/far.py"
