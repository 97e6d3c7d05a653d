#!/usr/bin/env bash
# Crafter with the same seed and the same actions plays other episodes, in one process too.
#
# Guess: `crafter.Env(seed=1)` makes the same worlds each time, and since all its random numbers come from generators made
#   of that seed, equal actions give equal episodes.
# Seen: crafter 1.8.3, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. The first observations are equal; eight
#   objects of one process, with the same 300 actions, part after tens or hundreds of steps, in observations, rewards
#   and lengths. Objects of the world lie in Python sets, one for each region, whose order follows from addresses in
#   memory; a creature that is to vanish is chosen by a random place in that order.
# Matters for: repeating an evaluation or a bug by its seed, replaying recorded actions, and comparing two agents "on the
#   same seeds": they meet other zombies. Average over more episodes, and store observations, not actions alone.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet crafter==1.8.3 numpy==2.4.6 || exit 2
cat > "$folder/seed.py" <<'PYTHON'
import crafter
import numpy as np

OBJECTS, STEPS = 8, 300


def played(padding):
    """Return observations and rewards of an episode, of an object made after other memory."""
    kept.append([object() for _ in range(padding)])
    env = crafter.Env(seed=1)
    kept.append(env)
    actions = np.random.default_rng(0).integers(17, size=STEPS)
    found = [(env.reset().tobytes(), 0.0)]
    for action in actions.tolist():
        observation, reward, done, _ = env.step(action)
        found.append((observation.tobytes(), reward))
        if done:
            break
    return found


kept = []
first, *others = [played(7 * number) for number in range(OBJECTS)]
parted = [next((step for step, (a, b) in enumerate(zip(first, other)) if a != b), None) for other in others]
print(f"{OBJECTS} objects with one seed and the same actions: lengths {[len(first), *map(len, others)]};", end=" ")
print(f"steps at which each one parts from the first: {parted}")
same = all(other[0] == first[0] for other in others) and any(step is not None for step in parted)
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/seed.py"
