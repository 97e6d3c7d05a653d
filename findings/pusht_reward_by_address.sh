#!/usr/bin/env bash
# gym-pusht's reward depends on where in memory the two parts of its block lie.
#
# Guess: an environment with a seed and the same actions gives the same observations and rewards in each object and each
#   process of one machine; lerobot's PushT is used as a reference for that reason.
# Seen: gym-pusht 0.1.8, pymunk 6.11.1, shapely 2.2.0, gymnasium 1.4.0, numpy 2.4.6, Python 3.11, Linux x86_64, November
#   2026. Objects of one process, with the same seed and actions: all observations are equal bit by bit, rewards of single
#   steps differ by 1e-16. pymunk keeps the shapes of a body in a set, which is ordered by address; gym-pusht gives them
#   to shapely in that order, and the area of the union is rounded otherwise. Objects with the same order of their
#   shapes have the same rewards in each step.
# Matters for: checks of a recording or of a port bit by bit, and digests of data sets: they fail now and then, with the
#   same versions on the same machine. Compare rewards with a tolerance.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet gym-pusht==0.1.8 pymunk==6.11.1 shapely==2.2.0 gymnasium==1.4.0 \
  numpy==2.4.6 || exit 2
cat > "$folder/push.py" <<'PYTHON'
import gym_pusht  # noqa: F401 (registers the id)
import gymnasium
import numpy as np

SEED, STEPS, OBJECTS = 0, 300, 16


def played(padding):
    """Return the order of the block's shapes, and the rewards and observations of an object made after other memory."""
    env = gymnasium.make("gym_pusht/PushT-v0")
    env.action_space.seed(SEED)
    observation, _ = env.reset(seed=SEED)
    kept.append([object() for _ in range(padding)])
    rewards, observations = [], [observation]
    for _ in range(STEPS):
        observation, reward, *_ = env.step(env.action_space.sample())
        rewards.append(float(reward))
        observations.append(observation)
    kept.append(env)
    order = tuple(tuple(shape.get_vertices()[0]) for shape in env.unwrapped.block.shapes)
    return order, tuple(rewards), np.array(observations).tobytes()


kept = []
found = [played(7 * number) for number in range(OBJECTS)]
by_order = {}
for order, rewards, _ in found:
    by_order.setdefault(order, set()).add(rewards)
apart = max(np.abs(np.array(one) - np.array(two)).max() for _, one, _ in found for _, two, _ in found)
print(f"{OBJECTS} objects: {len({seen for *_, seen in found})} sequences of observations,", end=" ")
print(f"{len({rewards for _, rewards, _ in found})} of rewards, {len(by_order)} orders of shapes; largest difference {apart:.1e}")
same = len({seen for *_, seen in found}) == 1 and len(by_order) == 2 and 0 < apart < 1e-12
same = same and all(len(sequences) == 1 for sequences in by_order.values())
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/push.py"
