#!/usr/bin/env bash
# EnvPool's LunarLander and BipedalWalker declare that no observation is negative.
#
# Guess: the observation space of a pool is that of the environment: Gymnasium's LunarLander has bounds between -10 and
#   10, and where EnvPool knows none, they are infinite to both sides. Observations lie in their space.
# Seen: envpool 1.2.5, gymnasium 1.4.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. LunarLander-v2 and
#   BipedalWalker-v3 have the lower bound 1.1754944e-38, the smallest positive normal number of float32, and the upper one
#   3.4028235e+38. Every observation of an episode lies outside, since each has a negative or zero component. Those of
#   CartPole and Pendulum lie inside.
# Matters for: whatever trusts the space: checkers refuse each observation, clipping to the bounds removes all signs
#   without an error, and scaling by them gives zero. Replace the space by an infinite one in a wrapper.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet envpool==1.2.5 gymnasium==1.4.0 numpy==2.4.6 || exit 2
cat > "$folder/bounds.py" <<'PYTHON'
import envpool
import numpy as np


def outside(name):
    """Return the bounds, and the share of observations of 50 steps that lie outside them."""
    env = envpool.make_gymnasium(name, num_envs=1, seed=1)
    space = env.observation_space
    env.action_space.seed(1)
    seen = [env.reset()[0][0]]
    for _ in range(50):
        seen.append(env.step(np.array([env.action_space.sample()]))[0][0])
    env.close()
    return space.low, space.high, np.mean([not space.contains(each) for each in seen])


same = True
for name in ("LunarLander-v2", "BipedalWalker-v3"):
    low, high, share = outside(name)
    print(name, "bounds", low.min(), "to", high.max(), "; outside:", share)
    same &= bool((low == np.finfo(np.float32).tiny).all()) and share == 1.0
for name in ("CartPole-v1", "Pendulum-v1"):
    low, high, share = outside(name)
    print(name, "bounds", low.min(), "to", high.max(), "; outside:", share)
    same &= share == 0.0
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/bounds.py"
