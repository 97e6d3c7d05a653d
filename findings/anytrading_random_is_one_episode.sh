#!/usr/bin/env bash
# All "random" episodes of gym-anytrading are the same episode: each reset seeds the action space, with 0.
#
# Guess: `env.action_space.sample()` in a loop plays other actions in each episode, as Gymnasium's first example does; a
#   baseline of many random episodes then has a mean and a spread.
# Seen: gym-anytrading 2.0.0, gymnasium 1.4.0, numpy 2.4.6, pandas 3.1.1, Python 3.11, Linux x86_64, November 2026.
#   `reset` seeds the action space with `int(uniform(0, seed))`, or with `int(uniform(0, 1))` without a seed, which is
#   always 0. Six episodes of the stocks, 2,304 actions each, have the same actions and one return, also in two objects;
#   and so have `reset(seed=0)` and `reset(seed=1)`; the seeds from 0 to 9 have five sequences of actions. A copy of
#   the action space, which the environment does not seed, plays six different episodes.
# Matters for: random baselines, whose spread is zero here, and the random first steps of off-policy learners, which
#   fill the memory with one episode. Sample from `copy.deepcopy(env.action_space)`. Grid2Op's GymEnv also seeds its
#   action space, at each reset with a seed. A worker of tmrl_core gives its policy a copy.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet --no-compile gym-anytrading==2.0.0 gymnasium==1.4.0 numpy==2.4.6 \
  pandas==3.1.1 || exit 2
cat > "$folder/trade.py" <<'PYTHON'
import copy

import gym_anytrading  # noqa: F401 (registers the id)
import gymnasium


def played(env, space, seed=None):
    """Return the actions of one episode, and its return."""
    env.reset(seed=seed)
    actions, total, over = [], 0.0, False
    while not over:
        actions.append(int(space.sample()))
        _, reward, terminated, truncated, _ = env.step(actions[-1])
        total += float(reward)
        over = terminated or truncated
    return tuple(actions), round(total, 4)


one, two = (gymnasium.make("stocks-v0") for _ in range(2))
same = {played(env, env.action_space) for env in (one, two) for _ in range(3)}
seeded = {seed: played(one, one.action_space, seed)[0] for seed in range(10)}
own = copy.deepcopy(one.action_space)
other = {played(one, own) for _ in range(6)}
length = len(next(iter(same))[0])
print(f"six random episodes of {length} actions: {len(same)} different, returns {sorted({total for _, total in same})}")
print(f"seeds 0 to 9: {len(set(seeded.values()))} different; seeds 0 and 1 equal: {seeded[0] == seeded[1]}")
print(f"with a copy of the action space: {len(other)} different, returns {sorted({total for _, total in other})}")
found = len(same) == 1 and seeded[0] == seeded[1] and len(set(seeded.values())) == 5 and len(other) == 6
raise SystemExit(0 if found else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/trade.py"
