#!/usr/bin/env bash
# A number in `info` loses its fraction in a vector environment if another environment of it has a whole number there.
#
# Guess: the array that a vector environment makes of a key of `info` holds each environment's value, as a list would.
# Seen: gymnasium 1.4.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. The array takes its type from the first
#   environment that has the key: (0, 0.75) becomes [0, 0], (True, 0.75) becomes [True, True] and (True, 7) becomes
#   [True, True], with no warning; (0.75, 0) becomes [0.75, 0.0]. A NumPy integer of 8 bits before 1000 raises an
#   OverflowError. Within one step this needs only one environment that has just been reset and reports an int there,
#   beside one that reports a float: a distance of 0 at the start, and of 0.75 later.
# Matters for: scores, distances and successes that are read from `info` of vectorized environments. The same program
#   gets right values with one environment, and with several until the first of them is reset. Report floats as floats
#   everywhere, in `reset` too.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6 || exit 2
cat > "$folder/info.py" <<'PYTHON'
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {"distance": 0}

    def step(self, action):
        self.steps += 1
        end = self.steps == self.length
        return np.full(1, self.steps, np.float32), 0.0, end, False, {"distance": self.steps * 0.25}


def distances(lengths):
    env = gymnasium.vector.SyncVectorEnv([lambda length=length: Walk(length) for length in lengths])
    env.reset(seed=1)
    seen = [env.step(np.zeros(len(lengths), int))[4]["distance"].tolist() for _ in range(4)]
    env.close()
    return seen


first_ends, second_ends = distances([2, 4]), distances([4, 2])
print("the first one is reset in step 3: ", first_ends)
print("the second one is reset in step 3:", second_ends)
raise SystemExit(0 if first_ends[2] == [0, 0] and second_ends[2] == [0.75, 0.0] else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/info.py"
