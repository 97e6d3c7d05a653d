#!/usr/bin/env bash
# gymnax's wrapper for Gymnasium returns the first observation of the next episode as the last one of each episode.
#
# Guess: GymnaxToGymWrapper makes a single environment of Gymnasium: where `terminated` or `truncated` is True, `step`
#   returns the observation of the state that was reached, and the next episode begins with `reset`.
# Seen: gymnax 1.0.1, jax 0.10.2, gymnasium 1.3.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. `step` of
#   gymnax begins the next episode by itself, and the wrapper passes on what it returns. CartPole's last observation
#   has all numbers within 0.05, as after a reset, when the pole has fallen; Pendulum's, after the limit of 200 steps,
#   has a speed of 1 at most, as after a reset. The true ones are in `info["final_observation"]`. `reset` then draws
#   another start.
# Matters for: episodes that are truncated, where learners add the value of the last observation: it is that of
#   another start. So in Pendulum in each episode. Recorded data and models of the world have a jump in each last
#   step. Return `info["final_observation"]` in a wrapper.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
# gymnax imports six, and does not name it as a dependency.
"$folder/venv/bin/pip" install --quiet gymnax==1.0.1 jax==0.10.2 jaxlib==0.10.2 gymnasium==1.3.0 \
  numpy==2.4.6 six || exit 2
export JAX_PLATFORMS=cpu
cat > "$folder/last.py" <<'PYTHON'
import gymnax
import numpy as np
from gymnax.wrappers.gym import GymnaxToGymWrapper


def last(name, action):
    """Return the last observation of an episode with one action, the one in `info`, and how it ended."""
    env = GymnaxToGymWrapper(*gymnax.make(name), seed=1)
    env.reset(seed=1)
    over = False
    while not over:
        observation, _, terminated, truncated, info = env.step(action)
        over = bool(terminated) or bool(truncated)
    ending = "terminated" if terminated else "truncated"
    print(f"{name}, {ending}: {np.round(observation, 3)}, final_observation {np.round(info['final_observation'], 3)}")
    return np.asarray(observation), np.asarray(info["final_observation"]), ending


pole, true_pole, pole_ending = last("CartPole-v1", 1)
swing, true_swing, swing_ending = last("Pendulum-v1", np.array([2.0], np.float32))
same = pole_ending == "terminated" and np.abs(pole).max() <= 0.05 and abs(true_pole[2]) > 0.2
same &= swing_ending == "truncated" and abs(swing[2]) <= 1.0 and not np.array_equal(swing, true_swing)
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/last.py"
