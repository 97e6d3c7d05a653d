#!/usr/bin/env bash
# cpprb's n-step buffer gives the last steps of each episode a next observation that is all ones.
#
# Guess: with Nstep, transition t has the observation n steps later, and at the end of an episode, which is flushed by
#   `on_episode_end()`, the last one of that episode: the rewards there are sums of fewer terms, as they should be.
# Seen: cpprb 11.0.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. Two episodes of six steps whose observations
#   are (50, 50, 50) to (56, 56, 56) and 100 more. With n = 3 the rewards of the last two steps are right (1.5 and 1), but
#   their next observation is (1, 1, 1), which never occurred; with n = 5 this holds for four of six steps. With n = 1
#   all are right. It is the same in float32 and uint8, and in `sample`.
# Matters for: n-step DQN, DDPG and TD3 with time limits. Where `done` is 1 the value of the next observation is not
#   used; in a truncated episode it is, and is that of a made-up observation, with no error. Add transitions that are
#   already n-step, or leave out the last n - 1 steps of truncated episodes.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet cpprb==11.0.0 numpy==2.4.6 || exit 2
cat > "$folder/steps.py" <<'PYTHON'
from cpprb import ReplayBuffer

STEPS = 6
same = True
for n in (1, 3, 5):
    extra = {} if n == 1 else {"Nstep": {"size": n, "gamma": 0.5, "rew": "rew", "next": "next_obs"}}
    columns = {"obs": {"shape": 3}, "act": {}, "rew": {}, "next_obs": {"shape": 3}, "done": {}}
    buffer = ReplayBuffer(64, columns, **extra)
    for first in (50, 150):
        for step in range(first, first + STEPS):
            buffer.add(obs=[step] * 3, act=0, rew=1.0, next_obs=[step + 1] * 3, done=0.0)
        buffer.on_episode_end()
    rows = {name: column.tolist() for name, column in buffer.get_all_transitions().items()}
    print(f"n = {n}:", *(f"{obs[0]:g} -> {later[0]:g}" for obs, later in zip(rows["obs"], rows["next_obs"])))
    for obs, (reward,), later in zip(rows["obs"], rows["rew"], rows["next_obs"]):
        left = STEPS - obs[0] % 50
        same &= reward == sum(0.5**k for k in range(int(min(n, left))))
        same &= later == ([obs[0] + n] * 3 if left >= n else [1.0] * 3)
raise SystemExit(0 if same else 1)
PYTHON
"$folder/venv/bin/python" "$folder/steps.py"
