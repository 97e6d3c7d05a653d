#!/usr/bin/env bash
# stable-baselines3's Monitor and VecMonitor give two returns for the same episode.
#
# Guess: VecMonitor is "a vectorized monitor wrapper"; it records the same reward, length and time of an episode as
#   Monitor does, but for rounding in the last digits.
# Seen: stable-baselines3 2.9.2, gymnasium 1.4.0, numpy 2.4.6, torch 2.13.0, Python 3.11, Linux x86_64, November 2026. An
#   episode of 100,000 steps with a reward of 0.1 each: Monitor says 10000.0, VecMonitor 9998.557, which is 0.014 % less;
#   with 1,000,000 steps 100958.34, which is 1 % more. VecMonitor adds rewards one by one in float32, whose rounding
#   error is always to the same side while the sum stays within one power of two.
# Matters for: long episodes (robots that never fall, trading, continuing tasks) when a run with vectorized environments
#   is compared with one without, or a return with a bound that is known.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 numpy==2.4.6 torch==2.13.0 || exit 2
cat > "$folder/sum.py" <<'PYTHON'
import gymnasium
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor


class Steady(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 0.1, False, self.steps == self.length, {}


def by_monitor(length):
    env = Monitor(Steady(length))
    env.reset()
    for _ in range(length):
        info = env.step(0)[4]
    return float(info["episode"]["r"])


def by_vec_monitor(length):
    env = VecMonitor(DummyVecEnv([lambda: Steady(length)]))
    env.reset()
    for _ in range(length):
        infos = env.step([0])[3]
    return float(infos[0]["episode"]["r"])


good = True
for length, off in ((100_000, 1.0), (1_000_000, 500.0)):
    exact, one, many = length / 10, by_monitor(length), by_vec_monitor(length)
    print(f"{length} steps: Monitor {one}, VecMonitor {many:.3f}")
    good = good and abs(one - exact) < 1e-3 and abs(many - exact) > off
raise SystemExit(0 if good else 1)
PYTHON
"$folder/venv/bin/python" "$folder/sum.py"
