#!/usr/bin/env bash
# Frame stacks and data sets of NetHack hold one observation, many times.
#
# Guess: FrameStackObservation "stacks the observations from the last N time steps", and Minari's DataCollector stores
#   each step of an episode. Both take any environment of Gymnasium, so with NetHack the frames of a stack, and the rows
#   of a data set, are those that were seen.
# Seen: nle 1.3.0, gymnasium 1.2.0 (the newest that nle takes), minari 0.5.4, jax 0.10.2, numpy 2.4.6, Python 3.11, Linux
#   x86_64, November 2026. NLE returns new dicts with the same arrays in each step, into which the next step is written;
#   the wrappers keep what they are given without a copy. Of 50 steps with some twenty different screens, all four
#   frames of each stack are equal, and the data set has 51 rows of the last screen. Actions and rewards in it are right.
#   Gymnasium does not say that observations are to be copied, by either side.
# Matters for: agents with frame stacks, and cloning from recorded data, which learn from one screen with no error. Copy
#   observations in a wrapper directly around NLE.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet nle==1.3.0 gymnasium==1.2.0 "minari[hdf5]==0.5.4" jax==0.10.2 \
  numpy==2.4.6 pillow==13.0.0 || exit 2
cat > "$folder/screens.py" <<'PYTHON'
import os
import sys
import warnings

warnings.filterwarnings("ignore")
os.environ["MINARI_DATASETS_PATH"] = sys.argv[1]
import gymnasium
import nle  # noqa: F401 (registers the id)
from gymnasium.wrappers import FrameStackObservation
from minari import DataCollector

STEPS = 50


def screens(wrap):
    """Return copies of what each of some steps returns, and the environment."""
    env = wrap(gymnasium.make("NetHackScore-v0", observation_keys=("glyphs", "blstats")))
    env.action_space.seed(0)
    seen = [env.reset()[0]["glyphs"].copy()]
    for _ in range(STEPS):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(observation["glyphs"].copy())
        if terminated or truncated:
            break
    return seen, env


def different(arrays):
    return len({array.tobytes() for array in arrays})


stacks, _ = screens(lambda env: FrameStackObservation(env, 4))
newest = different(stack[-1] for stack in stacks)
equal = sum(different(stack) == 1 for stack in stacks[4:])
print(f"stacks: {newest} different screens; all four frames equal in {equal} of {len(stacks[4:])}")
seen, env = screens(DataCollector)
rows = env.create_dataset("nle/score-v0")[0].observations["glyphs"]
print(f"data set: {different(seen)} different screens seen in {len(seen)} steps, {different(rows)} stored in {len(rows)}")
raise SystemExit(0 if newest > 3 and equal == len(stacks[4:]) and different(seen) > 3 and different(rows) == 1 else 1)
PYTHON
"$folder/venv/bin/python" "$folder/screens.py" "$folder"
