#!/usr/bin/env bash
# Gymnasium's vector wrapper of action transforms writes the transformed actions into the array that it was given.
#
# Guess: `VectorizeTransformAction` does for several environments what `TransformAction` does for one: it returns new
#   actions, and leaves those of the caller as they are, whatever the two action spaces are.
# Seen: gymnasium 1.4.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. If the transform keeps the space (a
#   gain, a dead zone, noise, mirrored joints), the caller's array holds the transformed actions after `step`. Three
#   steps with one array and a gain of 0.5 reach the environments as 0.5, 0.25 and 0.125. With another space, here
#   bounds of -2 and 2, the array stays as it was, and three steps are 0.5, 0.5 and 0.5, as with TransformAction.
# Matters for: loops that store the action after `step`, or a tensor whose memory the array shares (`tensor.numpy()`):
#   they learn from actions that the policy did not choose, with log-probabilities of others. Actions that are held
#   for several steps fade. Pass a copy: `envs.step(actions.copy())`.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6 || exit 2
cat > "$folder/actions.py" <<'PYTHON'
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformAction
from gymnasium.wrappers.vector import VectorizeTransformAction


class Motor(gymnasium.Env):
    """An environment that returns the action that reached it."""

    observation_space = action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.array(action, np.float32), 0.0, False, False, {}


def played(env, action):
    """Return the actions that reached the first environment in three steps with one array, and that array's number."""
    env.reset()
    reached = [float(env.step(action)[0].flat[0]) for _ in range(3)]
    return reached, float(action.flat[0])


def half(action):
    return 0.5 * action


def several(space):
    envs = SyncVectorEnv([Motor, Motor])
    return VectorizeTransformAction(envs, TransformAction, func=half, action_space=space)


wide = spaces.Box(-2.0, 2.0, (1,), np.float32)
one = played(TransformAction(Motor(), half, Motor.action_space), np.ones(1, np.float32))
same_space = played(several(Motor.action_space), np.ones((2, 1), np.float32))
other_space = played(several(wide), np.ones((2, 1), np.float32))
print("one environment:         ", one)
print("several, the same space: ", same_space)
print("several, another space:  ", other_space)
fine = ([0.5, 0.5, 0.5], 1.0)
raise SystemExit(0 if one == other_space == fine and same_space == ([0.5, 0.25, 0.125], 0.125) else 1)
PYTHON
"$folder/venv/bin/python" "$folder/actions.py"
