#!/usr/bin/env bash
# tianshou's replay buffer cuts the fraction off numbers whose first value was whole, in infos, observations and actions.
#
# Guess: `ReplayBuffer.add` keeps what it is given; a column that begins with 0 becomes one of floats with the first 0.5,
#   as `Batch.stack` and `Batch.cat` do (both give [0.0, 0.5]).
# Seen: tianshou 2.0.1, torch 2.13.0, numpy 2.4.6, Python 3.11, Linux x86_64, November 2026. The first value decides the
#   column's type: the values 0, 0.5, 0.75 and 2 of a key of `info` are 0, 0, 0 and 2 in the buffer, without a warning.
#   The same happens to a number in a Dict observation and to an action. Only rewards are made floats.
# Matters for: metrics and costs that are read from the buffer's infos (constrained RL, success rates): the first
#   step decides. Report floats as floats from the first step on.
#
# Exit status: 0 if this is still so, 1 if it has changed, 2 if the packages could not be installed.
set -u
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || exit 2
"$folder/venv/bin/pip" install --quiet tianshou==2.0.1 torch==2.13.0 numpy==2.4.6 || exit 2
cat > "$folder/buffer.py" <<'PYTHON'
import numpy as np
from tianshou.data import Batch, ReplayBuffer

buffer = ReplayBuffer(8)
values = [0, 0.5, 0.75, 2]
for value in values:
    observation = {"picture": np.zeros(2, np.float32), "speed": value}
    step = {"obs": observation, "act": value, "rew": value, "obs_next": observation, "info": {"cost": value}}
    buffer.add(Batch(terminated=False, truncated=False, **step))
kept = {
    "info": buffer.info.cost[:4].tolist(),
    "observation": buffer.obs.speed[:4].tolist(),
    "action": buffer.act[:4].tolist(),
    "reward": buffer.rew[:4].tolist(),
}
print("given: ", values)
for name, column in kept.items():
    print(f"{name}:", column)
stacked = Batch.stack([Batch(cost=0), Batch(cost=0.5)]).cost.tolist()
print("stacked:", stacked)
cut = all(kept[name] == [0, 0, 0, 2] for name in ("info", "observation", "action"))
raise SystemExit(0 if cut and kept["reward"] == values and stacked == [0, 0.5] else 1)
PYTHON
"$folder/venv/bin/python" -W ignore "$folder/buffer.py"
